//! Flags for the listeners of the workers.

use std::num::NonZeroU16;
use std::str::FromStr;
use std::sync::Arc;

use super::grpc_flags::GrpcArgs;
use super::listener_tls_flags::GatewayAccept;
use super::values::parse_positive;
use crate::http::{AcceptOptions, Admission, ConnectionLimits, HttpOptions};
use crate::listeners::ListenerOptions;
use crate::listeners::admin::Readiness;
use crate::listeners::envoy_ratelimit::EnvoyRatelimitOptions;
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
    /// The proxy's address, or `unix:PATH` for a unix socket, whose peers count as 127.0.0.1; needs `--upstream`. With `--tls-cert`, it
    /// accepts TLS only, except at `plain:ADDR`; `redirect:ADDR` sends clients to `https://`. Repeatable
    #[arg(long, value_name = "ADDR", env = "WEIR_PROXY", value_delimiter = ',', default_value = "127.0.0.1:8080")]
    proxy: Vec<ProxyAddress>,

    /// The port to which `--proxy redirect:ADDR` sends clients
    #[arg(long, value_name = "PORT", env = "WEIR_REDIRECT_PORT", default_value = "443", value_parser = parse_positive::<NonZeroU16>)]
    redirect_port: NonZeroU16,

    /// The address for checks over HTTP by gateways and applications, or `unix:PATH`
    #[arg(long, value_name = "ADDR", env = "WEIR_CHECK")]
    check: Option<ListenAddress>,

    /// The address for HAProxy's SPOE filter, or `unix:PATH`; only HAProxy should reach it
    #[arg(long, value_name = "ADDR", env = "WEIR_SPOE")]
    spoe: Option<ListenAddress>,

    /// The address for the probes and the JSON calls of envoyproxy/ratelimit: `/healthcheck` and `/json`
    #[arg(long, value_name = "ADDR", env = "WEIR_ENVOY_RATELIMIT_HTTP")]
    envoy_ratelimit_http: Option<ListenAddress>,

    /// The address for the rules as envoyproxy/ratelimit prints them: `/rlconfig`, and `/json`
    #[arg(long, value_name = "ADDR", env = "WEIR_ENVOY_RATELIMIT_DEBUG")]
    envoy_ratelimit_debug: Option<ListenAddress>,

    // Last, because its heading also applies to the flags after it.
    #[command(flatten)]
    grpc: GrpcArgs,
}

/// An address of the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProxyAddress {
    address: ListenAddress,
    mode: ProxyMode,
}

/// The treatment of clients at an address of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyMode {
    /// With TLS if there is a certificate.
    Default,
    Tls,
    Plain,
    Redirect,
}

const MODES: [(&str, ProxyMode); 3] =
    [("tls:", ProxyMode::Tls), ("plain:", ProxyMode::Plain), ("redirect:", ProxyMode::Redirect)];

impl FromStr for ProxyAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let of_mode = |(prefix, mode): &(&str, ProxyMode)| Some((text.strip_prefix(prefix)?, *mode));
        let (address, mode) = MODES.iter().find_map(of_mode).unwrap_or((text, ProxyMode::Default));
        Ok(Self { address: address.parse()?, mode })
    }
}

impl ListenerArgs {
    /// Checks the proxy's addresses; `has_tls` if there is a certificate. The error has a line per mistake.
    pub(super) fn check(&self, has_tls: bool) -> Result<(), String> {
        let mut mistakes = Vec::new();
        let is_any = |modes: &[ProxyMode]| self.proxy.iter().any(|proxy| modes.contains(&proxy.mode));
        if !has_tls && is_any(&[ProxyMode::Tls]) {
            mistakes.push("--proxy tls:ADDR needs --tls-cert and --tls-key".to_owned());
        }
        if has_tls && !is_any(&[ProxyMode::Tls, ProxyMode::Default]) {
            mistakes.push("--tls-cert: no --proxy uses it; add `--proxy 0.0.0.0:8443`".to_owned());
        }
        if !is_any(&[ProxyMode::Tls, ProxyMode::Default, ProxyMode::Plain]) {
            mistakes.push("--proxy redirect:ADDR needs another --proxy, which serves the clients".to_owned());
        }
        for (place, ProxyAddress { address, .. }) in self.proxy.iter().enumerate() {
            let is_picked = address.tcp().is_some_and(|address| address.port() == 0);
            if !is_picked && self.proxy.iter().take(place).any(|other| other.address == *address) {
                mistakes.push(format!("--proxy: {address} is given twice"));
            }
        }
        if mistakes.is_empty() { Ok(()) } else { Err(mistakes.join("\nerror: ")) }
    }

    /// The percentage from which requests count as near the limit of a descriptor.
    pub(super) const fn near_limit(&self) -> Option<u8> {
        self.grpc.near_limit
    }

    /// True if a listener other than the proxy is set, so that no upstream is needed.
    pub(super) const fn has_another(&self) -> bool {
        self.grpc.grpc.is_some()
            || self.check.is_some()
            || self.spoe.is_some()
            || self.envoy_ratelimit_http.is_some()
            || self.envoy_ratelimit_debug.is_some()
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
            for ProxyAddress { address, mode } in &self.proxy {
                let mut proxy = proxy.clone();
                if matches!(mode, ProxyMode::Plain | ProxyMode::Redirect) {
                    proxy.front.http.accept.tls = None;
                }
                proxy.redirect_port = (*mode == ProxyMode::Redirect).then(|| self.redirect_port.get());
                listeners.push((address.clone(), ListenerOptions::Proxy(proxy)));
            }
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
        for (address, is_debug) in [(&self.envoy_ratelimit_http, false), (&self.envoy_ratelimit_debug, true)] {
            // The certificates of the check listener are not for probes.
            let plain = AcceptOptions { tls: None, ..accept.check.clone() };
            let envoy = self.grpc.options(inner(&plain), readiness);
            let service = ListenerOptions::EnvoyRatelimit(EnvoyRatelimitOptions { envoy, is_debug });
            listeners.extend(address.iter().map(|address| (address.clone(), service.clone())));
        }
        if let Some(address) = &self.spoe {
            let spoe = SpoeOptions::from(&inner(&accept.spoe));
            listeners.push((address.clone(), ListenerOptions::Spoe(spoe)));
        }
        listeners
    }
}
