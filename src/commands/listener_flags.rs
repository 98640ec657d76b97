//! Flags for the listeners of the workers.

use std::sync::Arc;

use super::grpc_flags::GrpcArgs;
use super::listener_tls_flags::GatewayAccept;
use crate::http::{AcceptOptions, Admission, ConnectionLimits, HttpOptions};
use crate::listeners::ListenerOptions;
use crate::listeners::admin::Readiness;
use crate::listeners::http::FrontendOptions;
use crate::listeners::proxy::ProxyOptions;
use crate::listeners::spoe::SpoeOptions;
use crate::server::ListenAddress;

/// The error if no listener is configured.
pub(super) const NO_LISTENER: &str = "--upstream is missing; use `--upstream http://127.0.0.1:3000` for the proxy, \
     `--upstream echo` to try the rules, or another listener: `--grpc 127.0.0.1:9001` for Envoy, \
     `--check 127.0.0.1:9002` for nginx, Traefik, Caddy and applications, `--spoe 127.0.0.1:9003` for HAProxy";

/// The workers' listeners.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Listeners")]
pub(super) struct ListenerArgs {
    /// The proxy's address, or `unix:PATH` for a unix socket, whose peers count as 127.0.0.1; needs `--upstream`
    #[arg(long, value_name = "ADDR", env = "WEIR_PROXY", default_value = "127.0.0.1:8080")]
    proxy: ListenAddress,

    /// The address for checks over HTTP by gateways and applications, or `unix:PATH`
    #[arg(long, value_name = "ADDR", env = "WEIR_CHECK")]
    check: Option<ListenAddress>,

    /// The address for HAProxy's SPOE filter, or `unix:PATH`; only HAProxy should reach it
    #[arg(long, value_name = "ADDR", env = "WEIR_SPOE")]
    spoe: Option<ListenAddress>,

    // Last, because its heading also applies to the flags after it.
    #[command(flatten)]
    grpc: GrpcArgs,
}

impl ListenerArgs {
    /// True if a listener other than the proxy is set, so that no upstream is needed.
    pub(super) const fn has_another(&self) -> bool {
        self.grpc.grpc.is_some() || self.check.is_some() || self.spoe.is_some()
    }

    /// The listeners and their addresses. `front` is the proxy's, whether there is one or not.
    pub(super) fn options(
        &self,
        front: &FrontendOptions,
        accept: &GatewayAccept,
        proxy: Option<ProxyOptions>,
        readiness: &Arc<Readiness>,
    ) -> Vec<(ListenAddress, ListenerOptions)> {
        // A gateway sends many clients' requests over its own connections, so these are not limited per address, only in
        // total. They start without a PROXY header.
        let limits = ConnectionLimits { per_address: None, streams_per_address: None, ..ConnectionLimits::default() };
        let admission = Admission::new(limits);
        let inner = |accept: &AcceptOptions| {
            let http = HttpOptions { accept: accept.clone(), admission: admission.clone(), ..front.http.clone() };
            FrontendOptions { http, ..front.clone() }
        };
        let mut listeners = Vec::new();
        if let Some(proxy) = proxy {
            listeners.push((self.proxy.clone(), ListenerOptions::Proxy(proxy)));
        }
        if let Some(address) = &self.grpc.grpc {
            let envoy = self.grpc.options(inner(&accept.grpc), readiness);
            listeners.push((address.clone(), ListenerOptions::Grpc(envoy)));
        }
        if let Some(address) = &self.check {
            let mut front = inner(&accept.check);
            front.http.limits.http2.max_resets = self.grpc.grpc_resets.get();
            listeners.push((address.clone(), ListenerOptions::Check(front)));
        }
        if let Some(address) = &self.spoe {
            let spoe = SpoeOptions::from(&inner(&accept.spoe));
            listeners.push((address.clone(), ListenerOptions::Spoe(spoe)));
        }
        listeners
    }
}
