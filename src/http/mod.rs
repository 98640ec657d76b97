//! HTTP: messages, client connections and upstream connections, for every listener that speaks it.
//!
//! A client's connection is one task, and everything for its requests happens in that task, the upstream's connection
//! included ([`http1`], [`http2`]). It calls the listener's [`Service`] with each request and reports events to its
//! [`Observer`](observer::Observer). Nothing here knows the rules' limits.
//!
//! # Why not hyper
//!
//! HTTP/1 is read by our own code over `httparse`, and HTTP/2 by `h2` without hyper's layer. Cost is not the reason: a
//! prototype on hyper's `http1` with a pool for each worker took 16.7 us of CPU for a request for which nginx took 16.9,
//! and this code is level with nginx too (10.8 and 10.9 us). hyper's shared client pool on a multi-threaded runtime took 26.1.
//! hyper 1.12 lacks what a proxy needs. Sent to `hyper::server::conn::http1`, and to this code:
//!
//! | request or response | hyper 1.12 | here |
//! |---|---|---|
//! | `Transfer-Encoding` and `Content-Length` | accepts it, and the service no longer sees the length | 400 |
//! | two equal `Content-Length` lines | merges them | 400 |
//! | `Transfer-Encoding: gzip, chunked`, or `chunked` twice | accepts it | 501 |
//! | head with bare LF, empty lines before it | accepts it | 400 |
//! | no `Host`, two `Host` lines, `Connection: content-length` | left to the service | 400 |
//! | target `/a#b` | drops the fragment unseen | 400 |
//! | target `/a[b]\|"<>^` | 400, because `http::Uri` rejects it | forwarded as sent, as nginx does |
//! | `X-A`, `Cookie`, `X-a` | lower case, both `x-a` together | as sent, in that order |
//! | what cannot be read | a bare status; the service is not told, so there is no body, log line or metric of ours | problem details, one line in the access log |
//! | a 103 of the upstream | replaced by a 500, connection closed: a service returns one response | forwarded |
//! | trailers not announced in `Trailer` | dropped | forwarded |
//!
//! A service behind hyper could repeat some checks on the head, but not those whose evidence is gone: the dropped length, the
//! line ends, the fragment, the order. Those are what smuggling lives on. obs-fold, a space before the colon, bare LF in
//! chunks and a sign in a length hyper rejects as we do. Its client can report interim responses (`ext::on_informational`),
//! but has the same targets, header order and trailers.
//!
//! For HTTP/2, hyper runs a task for each stream, copies heads into its own types, and has no call for `h2`'s
//! `send_informational`; how many streams a client resets, and which frames it sends, is out of reach behind it. A call of
//! the gRPC listener takes 7 us this way, and 15 us on tonic's server, which is hyper with tower's layers on it.
//!
//! hyper serves where none of this matters: the admin listener, its clients and the trace exporter ([`simple`]).

use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;

use tokio_util::sync::CancellationToken;

use self::forwarding::Peer;
use self::transport::{OpenedConnection, Protocol};

pub(crate) mod activity;
mod admission;
mod alarm;
pub(crate) mod failure;
mod fetch;
pub(crate) mod forwarding;
mod grpc_client;
mod http1;
mod http2;
mod limits;
pub(crate) mod message;
pub(crate) mod observer;
mod pace;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod server;
mod service;
pub(crate) mod simple;
pub(crate) mod transport;
mod tunnel;
pub(crate) mod upload;
pub(crate) mod upstream;

pub use admission::{
    Admission, ConnectionLimits, ConnectionPermit, MAX_CONNECTIONS, MAX_PER_ADDRESS, MAX_STREAMS, RESPONSE_MEMORY,
    SlowReaders,
};
pub use fetch::{FetchError, Fetched, Fetcher};
pub use grpc_client::{GrpcClient, GrpcConnection};
pub use limits::{HeadLimits, Http2Limits, HttpLimits, RouteTimeouts, Timeouts};
pub use server::HttpOptions;
pub(crate) use server::Server;
pub(crate) use service::{Context, Exchange, Service};
pub use transport::{
    AcceptOptions, Alpn, ClientAuth, Connector, ConnectorError, ConnectorFlags, ConnectorOptions, ConnectorReloader,
    FileError, KeyPairFiles, ServerTls, ServerTlsFlags, ServerTlsOptions, ServerTlsReloader, Stream, TlsInfo,
};
pub(crate) use transport::{Acceptor, HANDSHAKE, Source, subject_of_pem};
pub use upstream::{HeaderChanges, HealthCheck, RouteOptions, Routes, UpstreamOptions};

/// Serves a connection to its end. On the heap, so that the task has room neither for the start of a connection nor for what
/// other protocols need.
pub type Serving = Pin<Box<dyn Future<Output = ()>>>;

/// Takes a client's connection up to the start of HTTP; `None` if it ends before. When `drain` is cancelled, running
/// requests are answered, and one more that was on its way.
pub(crate) async fn open<S: Service>(
    service: Rc<S>,
    stream: Stream,
    peer: IpAddr,
    drain: CancellationToken,
) -> Option<Serving> {
    let opened = service.server().acceptor.open(stream, peer, &drain).await?;
    let OpenedConnection { stream, source, tls, protocol, permit } = opened;
    let peer = Rc::new(Peer::new(source, &service.server().trusted_proxies, tls));
    Some(match protocol {
        Protocol::Http1 => Box::pin(http1::serve(service, stream, peer, permit, drain)),
        Protocol::Http2 => Box::pin(http2::serve(service, stream, peer, permit, drain)),
    })
}

/// Serves a client's connection to its end. What took it up to the start of its protocol is gone by then.
pub async fn serve(opening: impl Future<Output = Option<Serving>>) {
    let opened = opening.await;
    if let Some(serving) = opened {
        serving.await;
    }
}
