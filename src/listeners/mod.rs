//! The listeners: the protocols by which requests arrive.
//!
//! Each turns a message of its protocol into a [`Request`](crate::engine::request::Request), asks the [`Limiter`], and
//! turns the verdict into an answer of its protocol. None knows a limit. The admin listener is for operators and limits
//! nothing.

use std::future::ready;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;

use tokio_util::sync::CancellationToken;

use self::envoy_ratelimit::{EnvoyRatelimit, EnvoyRatelimitOptions};
use self::grpc::{Envoy, EnvoyOptions};
use self::http::FrontendOptions;
use self::http_check::Check;
use self::proxy::{Proxy, ProxyOptions};
use self::spoe::{Spoe, SpoeOptions};
use crate::http::{Serving, Stream, open};
use crate::limiter::Limiter;
use crate::telemetry::metrics::ListenerKind;

pub mod admin;
mod client_address;
#[cfg(test)]
mod cost;
pub mod envoy_ratelimit;
pub mod grpc;
pub mod http;
pub mod http_check;
mod json;
pub mod proxy;
mod replies;
pub(crate) mod rules_json;
pub mod spoe;

/// The options of a worker's listener.
#[derive(Clone, Debug)]
pub enum ListenerOptions {
    Proxy(ProxyOptions),
    Grpc(EnvoyOptions),
    Check(FrontendOptions),
    EnvoyRatelimit(EnvoyRatelimitOptions),
    Spoe(SpoeOptions),
}

impl ListenerOptions {
    pub const fn kind(&self) -> ListenerKind {
        match self {
            Self::Proxy(_) => ListenerKind::Proxy,
            Self::Grpc(_) => ListenerKind::Grpc,
            Self::Check(_) | Self::EnvoyRatelimit(_) => ListenerKind::Check,
            Self::Spoe(_) => ListenerKind::Spoe,
        }
    }

    /// True if clients are only sent to `https://`.
    pub const fn redirects(&self) -> bool {
        matches!(self, Self::Proxy(options) if options.redirect_port.is_some())
    }

    /// True if clients must use TLS.
    pub const fn has_tls(&self) -> bool {
        let accept = match self {
            Self::Proxy(options) => &options.front.http.accept,
            Self::Grpc(options) => &options.front.http.accept,
            Self::Check(front) => &front.http.accept,
            Self::EnvoyRatelimit(options) => &options.envoy.front.http.accept,
            Self::Spoe(options) => &options.accept,
        };
        accept.tls.is_some()
    }
}

/// A worker's listener.
#[derive(Clone)]
pub enum Listener {
    Proxy(Rc<Proxy>),
    Grpc(Rc<Envoy>),
    Check(Rc<Check>),
    EnvoyRatelimit(Rc<EnvoyRatelimit>),
    Spoe(Rc<Spoe>),
}

impl Listener {
    /// Must be called inside the worker's runtime. All listeners of the proxy share its upstreams.
    pub fn all<'a>(limiter: &Rc<Limiter>, options: impl Iterator<Item = &'a ListenerOptions>) -> Vec<Self> {
        let mut listeners: Vec<Self> = Vec::new();
        for options in options {
            let first =
                listeners.iter().find_map(|other| if let Self::Proxy(proxy) = other { Some(proxy) } else { None });
            let listener = match (options, first) {
                (ListenerOptions::Proxy(options), Some(first)) => Self::Proxy(first.beside(limiter.clone(), options)),
                (options, _) => Self::new(limiter.clone(), options),
            };
            listeners.push(listener);
        }
        listeners
    }

    /// Must be called inside the worker's runtime.
    pub fn new(limiter: Rc<Limiter>, options: &ListenerOptions) -> Self {
        match options {
            ListenerOptions::Proxy(options) => Self::Proxy(Proxy::new(limiter, options)),
            ListenerOptions::Grpc(options) => Self::Grpc(Envoy::new(limiter, options)),
            ListenerOptions::Check(options) => Self::Check(Check::new(limiter, options)),
            ListenerOptions::EnvoyRatelimit(options) => Self::EnvoyRatelimit(EnvoyRatelimit::new(limiter, options)),
            ListenerOptions::Spoe(options) => Self::Spoe(Spoe::new(limiter, options)),
        }
    }

    /// Takes a client's connection up to the start of its protocol; `None` if it ends before. When `drain` is cancelled, open
    /// requests are answered, and over HTTP one more that was on its way.
    pub fn open(
        self,
        stream: Stream,
        peer: IpAddr,
        drain: CancellationToken,
    ) -> Pin<Box<dyn Future<Output = Option<Serving>>>> {
        match self {
            Self::Proxy(proxy) => Box::pin(open(proxy, stream, peer, drain)),
            Self::Grpc(envoy) => Box::pin(ready(Some(Box::pin(envoy.serve_connection(stream, peer, drain)) as _))),
            Self::Check(check) => Box::pin(open(check, stream, peer, drain)),
            Self::EnvoyRatelimit(service) => Box::pin(open(service, stream, peer, drain)),
            Self::Spoe(spoe) => Box::pin(ready(Some(Box::pin(spoe.serve_connection(stream, peer, drain)) as _))),
        }
    }

    /// Must be called about once a second.
    pub fn reap(&self) {
        match self {
            Self::Proxy(proxy) => proxy.reap(),
            Self::Grpc(envoy) => envoy.front.flush(),
            Self::Check(check) => check.front.flush(),
            Self::EnvoyRatelimit(service) => service.front.flush(),
            Self::Spoe(_) => {}
        }
    }
}
