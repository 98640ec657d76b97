//! HTTP for every listener that speaks it: messages, connections of clients and connections to upstreams.
//!
//! A client's connection is one task, and everything for its requests happens in it, including the upstream's connection
//! ([`http1`], [`http2`]). It calls the listener's [`Service`] with each request, and reports events to its
//! [`Observer`](observer::Observer). Nothing here knows a limit of the rules.

use std::net::IpAddr;
use std::rc::Rc;

use tokio_util::sync::CancellationToken;

use self::forwarding::Peer;
use self::transport::{Opened, Protocol};

pub(crate) mod activity;
mod admission;
mod alarm;
pub(crate) mod basic;
mod client_headers;
pub(crate) mod context;
pub(crate) mod failure;
pub(crate) mod forwarding;
mod http1;
mod http2;
mod lease;
mod limits;
pub(crate) mod message;
pub(crate) mod observer;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod server;
mod service;
mod slow_readers;
mod timeouts;
pub(crate) mod transport;
mod tunnel;
pub(crate) mod upstream;

pub use admission::{Admission, ConnectionLimits, MAX_CONNECTIONS, MAX_PER_ADDRESS, MAX_STREAMS, Place};
pub use client_headers::ClientHeaders;
pub use limits::{HeadLimits, Http2Limits, HttpLimits};
pub use server::HttpOptions;
pub(crate) use server::Server;
pub(crate) use service::{Exchange, Service};
pub use slow_readers::{RESPONSE_MEMORY, SlowReaders};
pub use timeouts::Timeouts;
pub use transport::{
    AcceptOptions, ClientAuth, Connector, ConnectorError, ConnectorOptions, ConnectorReloader, FileError, KeyPairFiles,
    ServerTls, ServerTlsOptions, ServerTlsReloader, Stream, TlsInfo,
};
pub(crate) use transport::{Source, subject_of_pem};
pub use upstream::{HealthCheck, Routes, UpstreamOptions};

/// Serves a client's connection to its end. When `drain` is cancelled, running requests are answered, and one more that
/// was on its way.
pub(crate) async fn serve<S: Service>(service: Rc<S>, stream: Stream, peer: IpAddr, drain: CancellationToken) {
    let Some(opened) = service.server().acceptor.open(stream, peer, &drain).await else { return };
    let Opened { stream, source, tls, protocol, permit } = opened;
    let peer = Rc::new(Peer::new(source, &service.server().trusted_proxies, tls));
    match protocol {
        Protocol::Http1 => http1::serve(service, stream, peer, drain).await,
        Protocol::Http2 => http2::serve(service, stream, peer, &permit, drain).await,
    }
}
