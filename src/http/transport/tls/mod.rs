//! TLS on both sides: [`server`] towards clients, [`client`] towards upstreams.
//!
//! Certificates and keys are files in PEM. They are read again when they change ([`files`]), and new connections get what
//! they say then; connections that are open keep what they have.

use std::path::PathBuf;

mod certificate;
mod client;
mod files;
mod server;

pub(crate) use certificate::subject_of_pem;
pub use client::{Connector, ConnectorError, ConnectorOptions, ConnectorReloader};
pub use files::FileError;
pub use server::{ClientAuth, ServerTls, ServerTlsOptions, ServerTlsReloader, TlsInfo};

/// The protocols that are offered by ALPN (RFC 7301), the preferred one first.
const ALPN: [&[u8]; 2] = [HTTP_2, b"http/1.1"];

/// HTTP/2's identifier in ALPN (RFC 9113 section 3.1).
const HTTP_2: &[u8] = b"h2";

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// The certificate in PEM, then those that lead from it to the authority.
    pub certificate: PathBuf,
    /// The private key in PEM.
    pub key: PathBuf,
}

#[cfg(test)]
mod tests;
