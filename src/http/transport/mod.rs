//! Connections of clients up to the start of HTTP, and the streams of both sides.

mod accept;
mod address;
mod peek;
pub(super) mod proxy_protocol;
mod stream;
mod tls;

pub use accept::AcceptOptions;
pub(super) use accept::{Acceptor, Opened, Protocol};
pub(super) use address::Address;
pub(crate) use proxy_protocol::Source;
pub(super) use stream::SMALL_READ;
pub use stream::Stream;
pub(crate) use tls::subject_of_pem;
pub use tls::{
    ClientAuth, Connector, ConnectorError, ConnectorOptions, ConnectorReloader, FileError, KeyPairFiles, ServerTls,
    ServerTlsOptions, ServerTlsReloader, TlsInfo,
};
