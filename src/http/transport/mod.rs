//! Connections of clients up to the start of HTTP, and the streams of both sides.

mod acceptor;
pub(super) mod proxy_protocol;
mod stream;
mod tls;

pub use acceptor::AcceptOptions;
pub(super) use acceptor::{Acceptor, OpenedConnection, Protocol};
pub(crate) use proxy_protocol::Source;
pub(super) use stream::Address;
pub use stream::Stream;
pub(crate) use tls::subject_of_pem;
pub use tls::{
    ClientAuth, Connector, ConnectorError, ConnectorOptions, ConnectorReloader, FileError, KeyPairFiles, ServerTls,
    ServerTlsOptions, ServerTlsReloader, TlsInfo,
};
