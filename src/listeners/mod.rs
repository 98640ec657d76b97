//! The protocols through which requests come. A listener that limits them fills a
//! [`Request`](crate::engine::rules::request::Request), asks the [`Limiter`] and turns the verdict into its protocol's answer; it
//! knows no limit. The admin listener is for the operator and limits nothing.

use std::net::IpAddr;
use std::rc::Rc;

use tokio_util::sync::CancellationToken;

use self::grpc::{Envoy, EnvoyOptions};
use self::http_check::{Check, CheckOptions};
use self::proxy::{Proxy, ProxyOptions};
use self::spoe::{Spoe, SpoeOptions};
use crate::http::Stream;
use crate::limiter::Limiter;

pub mod admin;
pub mod grpc;
pub mod http;
pub mod http_check;
pub mod proxy;
pub mod spoe;

/// What a listening socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// The reverse proxy.
    Proxy,
    /// Envoy's external authorization and rate limit service, by gRPC.
    Grpc,
    /// Checks over HTTP, for gateways and applications.
    Check,
    /// The agent of `HAProxy`'s Stream Processing Offload Engine.
    Spoe,
    /// Metrics and health, for the operator.
    Admin,
}

impl ListenerKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Proxy, Self::Grpc, Self::Check, Self::Spoe, Self::Admin];

    /// Its name in the log, in systemd's units and among handed-over sockets.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Grpc => "grpc",
            Self::Check => "check",
            Self::Spoe => "spoe",
            Self::Admin => "admin",
        }
    }
}

/// How a listener of the workers is set up.
#[derive(Clone, Debug)]
pub enum ListenerOptions {
    /// The reverse proxy.
    Proxy(ProxyOptions),
    /// Envoy's external authorization and rate limit service, by gRPC.
    Grpc(EnvoyOptions),
    /// Checks over HTTP.
    Check(CheckOptions),
    /// The agent of `HAProxy`'s Stream Processing Offload Engine.
    Spoe(SpoeOptions),
}

impl ListenerOptions {
    /// What it is.
    pub const fn kind(&self) -> ListenerKind {
        match self {
            Self::Proxy(_) => ListenerKind::Proxy,
            Self::Grpc(_) => ListenerKind::Grpc,
            Self::Check(_) => ListenerKind::Check,
            Self::Spoe(_) => ListenerKind::Spoe,
        }
    }
}

/// A worker's listener.
#[derive(Clone)]
pub enum Listener {
    /// The reverse proxy.
    Proxy(Rc<Proxy>),
    /// Envoy's external authorization and rate limit service, by gRPC.
    Grpc(Rc<Envoy>),
    /// Checks over HTTP.
    Check(Rc<Check>),
    /// The agent of `HAProxy`'s Stream Processing Offload Engine.
    Spoe(Rc<Spoe>),
}

impl Listener {
    /// A listener that asks `limiter`. To be called inside the worker's runtime.
    pub fn new(limiter: Rc<Limiter>, options: &ListenerOptions) -> Self {
        match options {
            ListenerOptions::Proxy(options) => Self::Proxy(Proxy::new(limiter, options)),
            ListenerOptions::Grpc(options) => Self::Grpc(Envoy::new(limiter, options)),
            ListenerOptions::Check(options) => Self::Check(Check::new(limiter, options)),
            ListenerOptions::Spoe(options) => Self::Spoe(Spoe::new(limiter, options)),
        }
    }

    /// Serves a client's connection to its end. When `drain` is cancelled, what runs is answered and the connection
    /// closed.
    pub async fn serve_connection(self, stream: Stream, peer: IpAddr, drain: CancellationToken) {
        match self {
            Self::Proxy(proxy) => proxy.serve_connection(stream, peer, drain).await,
            Self::Grpc(envoy) => envoy.serve_connection(stream, peer, drain).await,
            // On the heap, so that a connection of the proxy has no room in it for what these need.
            Self::Check(check) => Box::pin(check.serve_connection(stream, peer, drain)).await,
            Self::Spoe(spoe) => Box::pin(spoe.serve_connection(stream, peer, drain)).await,
        }
    }

    /// Does what has to be done about once a second.
    pub fn reap(&self) {
        match self {
            Self::Proxy(proxy) => proxy.reap(),
            Self::Grpc(envoy) => envoy.reap(),
            Self::Check(check) => check.reap(),
            // It keeps nothing that grows old: what is timed is the limiter's.
            Self::Spoe(_) => {}
        }
    }
}
