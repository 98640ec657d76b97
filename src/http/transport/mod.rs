//! Connections of clients up to the start of HTTP, and the streams of both sides.

mod acceptor;
pub(super) mod input;
pub(super) mod proxy_protocol;
mod stream;
mod tls;

pub use acceptor::AcceptOptions;
pub(crate) use acceptor::{Acceptor, HANDSHAKE};
pub(super) use acceptor::{OpenedConnection, Protocol};
pub(crate) use proxy_protocol::Source;
pub(super) use stream::Address;
pub use stream::Stream;
pub(crate) use tls::subject_of_pem;
pub use tls::{
    Alpn, ClientAuth, Connector, ConnectorError, ConnectorFlags, ConnectorOptions, ConnectorReloader, FileError,
    KeyPairFiles, ServerTls, ServerTlsFlags, ServerTlsOptions, ServerTlsReloader, TlsInfo,
};
