//! The protocols through which requests come. A door that limits them fills a
//! [`Request`](crate::engine::rules::request::Request), asks the [`Gate`] and turns the verdict into its protocol's answer; it
//! knows no limit. The admin door is for the operator and limits nothing.

use std::net::IpAddr;
use std::rc::Rc;

use tokio_util::sync::CancellationToken;

use self::grpc::{Envoy, EnvoyOptions};
use self::http_check::{Check, CheckOptions};
use self::proxy::{Proxy, ProxyOptions};
use self::spoe::{Spoe, SpoeOptions};
use super::http::Stream;
use crate::limiter::Gate;

pub mod admin;
pub mod grpc;
pub mod http_check;
pub mod proxy;
pub mod spoe;

/// What a listening socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorKind {
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

impl DoorKind {
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

/// How a door of the workers is set up.
#[derive(Clone, Debug)]
pub enum DoorOptions {
    /// The reverse proxy.
    Proxy(ProxyOptions),
    /// Envoy's external authorization and rate limit service, by gRPC.
    Grpc(EnvoyOptions),
    /// Checks over HTTP.
    Check(CheckOptions),
    /// The agent of `HAProxy`'s Stream Processing Offload Engine.
    Spoe(SpoeOptions),
}

impl DoorOptions {
    /// What it is.
    pub const fn kind(&self) -> DoorKind {
        match self {
            Self::Proxy(_) => DoorKind::Proxy,
            Self::Grpc(_) => DoorKind::Grpc,
            Self::Check(_) => DoorKind::Check,
            Self::Spoe(_) => DoorKind::Spoe,
        }
    }
}

/// A worker's door.
#[derive(Clone)]
pub enum Door {
    /// The reverse proxy.
    Proxy(Rc<Proxy>),
    /// Envoy's external authorization and rate limit service, by gRPC.
    Grpc(Rc<Envoy>),
    /// Checks over HTTP.
    Check(Rc<Check>),
    /// The agent of `HAProxy`'s Stream Processing Offload Engine.
    Spoe(Rc<Spoe>),
}

impl Door {
    /// A door that asks `gate`. To be called inside the worker's runtime.
    pub fn new(gate: Rc<Gate>, options: &DoorOptions) -> Self {
        match options {
            DoorOptions::Proxy(options) => Self::Proxy(Proxy::new(gate, options)),
            DoorOptions::Grpc(options) => Self::Grpc(Envoy::new(gate, options)),
            DoorOptions::Check(options) => Self::Check(Check::new(gate, options)),
            DoorOptions::Spoe(options) => Self::Spoe(Spoe::new(gate, options)),
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
            // It keeps nothing that grows old: what is timed is the gate's.
            Self::Spoe(_) => {}
        }
    }
}
