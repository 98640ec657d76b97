//! The flags that open the doors of the workers.

use std::sync::Arc;

use super::grpc_flags::GrpcArgs;
use crate::engine::answer::reply::Generations;
use crate::http::{AcceptOptions, Admission, ConnectionLimits, FrontOptions, UpstreamOptions};
use crate::listeners::DoorOptions;
use crate::listeners::admin::Readiness;
use crate::listeners::grpc::AddressSources;
use crate::listeners::http_check::CheckOptions;
use crate::listeners::proxy::ProxyOptions;
use crate::listeners::spoe::SpoeOptions;
use crate::server::ListenAddress;
use crate::telemetry::metrics::Metrics;

/// What is said when there is no door for anybody.
pub(super) const NO_DOOR: &str = "--upstream is missing; write `--upstream http://127.0.0.1:3000` for the proxy, or \
     `--upstream echo` to try the rules, or open another door: `--grpc 127.0.0.1:9001` for Envoy, \
     `--check 127.0.0.1:9002` for nginx, Traefik, Caddy and applications, `--spoe 127.0.0.1:9003` for HAProxy";

/// Where requests and questions come in.
#[derive(clap::Args, Debug)]
pub(super) struct DoorsArgs {
    /// The address of the proxy, or `unix:PATH` for a unix socket, whose peers count as 127.0.0.1; there is one only with
    /// `--upstream`
    #[arg(long, value_name = "ADDR", env = "WEIR_PROXY", default_value = "127.0.0.1:8080")]
    proxy: ListenAddress,

    #[command(flatten)]
    grpc: GrpcArgs,

    /// The address where gateways and applications ask over HTTP whether a request may pass, or `unix:PATH`
    #[arg(long, value_name = "ADDR", env = "WEIR_CHECK")]
    check: Option<ListenAddress>,

    /// The address for HAProxy's SPOE filter, or `unix:PATH`; only HAProxy should reach it
    #[arg(long, value_name = "ADDR", env = "WEIR_SPOE")]
    spoe: Option<ListenAddress>,
}

impl DoorsArgs {
    /// Whether there is a door beside the proxy, so that no upstream is needed.
    pub(super) const fn has_another(&self) -> bool {
        self.grpc.grpc.is_some() || self.check.is_some() || self.spoe.is_some()
    }

    /// Where the gRPC door looks for the client's address.
    pub(super) fn address_sources(&self) -> Result<AddressSources, String> {
        self.grpc.address_sources()
    }

    /// The doors that are open and where. `front` is the proxy's.
    pub(super) fn options(
        &self,
        front: &FrontOptions,
        upstream: Option<UpstreamOptions>,
        generations: Generations,
        address_sources: AddressSources,
        readiness: &Arc<Readiness>,
        metrics: &Metrics,
    ) -> Vec<(ListenAddress, DoorOptions)> {
        // A gateway brings the requests of many clients over its own connections, so these are not limited by address; the
        // total is counted before. It speaks to us in the clear, and sends no PROXY header.
        let limits = ConnectionLimits { per_address: None, streams_per_address: None, ..ConnectionLimits::default() };
        let admission = Admission::new(limits, metrics);
        let inner = FrontOptions { accept: AcceptOptions::default(), admission, ..front.clone() };
        let mut doors = Vec::new();
        if let Some(upstream) = upstream {
            let proxy = ProxyOptions { front: front.clone(), upstream, generations };
            doors.push((self.proxy.clone(), DoorOptions::Proxy(proxy)));
        }
        if let Some(address) = &self.grpc.grpc {
            let envoy = self.grpc.options(inner.clone(), generations, address_sources, readiness);
            doors.push((address.clone(), DoorOptions::Grpc(envoy)));
        }
        if let Some(address) = &self.check {
            let mut front = inner.clone();
            front.limits.http2.max_resets = self.grpc.resets();
            doors.push((address.clone(), DoorOptions::Check(CheckOptions { front, generations })));
        }
        if let Some(address) = &self.spoe {
            doors.push((address.clone(), DoorOptions::Spoe(SpoeOptions::new(&inner, generations))));
        }
        doors
    }
}
