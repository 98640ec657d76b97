//! TLS: [`server`] to clients, [`client`] to upstreams.
//!
//! Certificates and keys are PEM files. They are read again when they change ([`files`]). New connections use the new
//! ones, and open connections keep theirs.

use std::path::PathBuf;

mod authority;
mod certificate;
mod client;
mod files;
mod server;

pub(crate) use certificate::subject_of_pem;
pub use client::{Connector, ConnectorError, ConnectorFlags, ConnectorOptions, ConnectorReloader};
pub use files::FileError;
pub use server::{Alpn, ClientAuth, ServerTls, ServerTlsFlags, ServerTlsOptions, ServerTlsReloader, TlsInfo};

/// The protocols offered by ALPN (RFC 7301), most preferred first.
const ALPN: [&[u8]; 2] = [HTTP_2, HTTP_1];

/// HTTP/2's identifier in ALPN (RFC 9113 section 3.1).
const HTTP_2: &[u8] = b"h2";

const HTTP_1: &[u8] = b"http/1.1";

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// The certificate and its chain in PEM, leaf first.
    pub certificate: PathBuf,
    /// The private key in PEM.
    pub key: PathBuf,
}

#[cfg(test)]
mod tests;
