//! Processes for Prometheus, and the load on them.

use std::net::SocketAddr;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;

use crate::support::weir::Weir;
use crate::support::wire::Wire;

/// Limits that reach every outcome of a process with a store.
pub(super) const RULES: &str = "
limits:
  Everyone: { by: { header: x-id }, burst: 1000000 }
  Tight: { match: { path: /tight }, by: global, burst: 1, candidate: { burst: 2 } }
  Closed: { match: { path: /closed }, by: global, burst: 1000000, on_store_error: deny }
  Local: { match: { path: /local }, by: { header: x-id }, burst: 1000000, on_store_error: local }
  Trial: { match: { path: /trial }, by: global, burst: 1, mode: shadow }
  Tenants: { match: { domain: api }, by: { descriptor: tenant }, burst: 1000000 }
";

/// A process with its callers: clients of the proxy, a gateway at the check listener, and an Envoy.
pub(super) struct Loaded {
    pub(super) weir: Weir,
    check: SocketAddr,
    runtime: Runtime,
    authorization: AuthorizationClient<Channel>,
    rate_limit: RateLimitServiceClient<Channel>,
}

impl Loaded {
    /// Serves [`RULES`] on all listeners for gateways.
    pub(super) fn serve(flags: &[&str]) -> Self {
        let listeners = ["--check", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
        let weir = Weir::serve(RULES, &[&listeners, flags].concat());
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let grpc = format!("http://{}", weir.listener("grpc"));
        let authorization = runtime.block_on(AuthorizationClient::connect(grpc.clone())).unwrap();
        let rate_limit = runtime.block_on(RateLimitServiceClient::connect(grpc)).unwrap();
        Self { check: weir.listener("check"), weir, runtime, authorization, rate_limit }
    }

    /// Sends a request of every kind to every listener.
    pub(super) fn round(&mut self) {
        for path in ["/", "/tight", "/closed", "/local", "/trial"] {
            self.weir.get(path, &[("x-id", "client")]);
        }
        self.check();
        self.authorize();
        self.limit();
    }

    /// Asks as nginx does.
    pub(super) fn check(&self) {
        let headers = [
            ("x-original-method", "GET"),
            ("x-original-uri", "/"),
            ("x-original-host", "a.example"),
            ("x-id", "nginx"),
        ];
        let answer = Wire::connect(self.check).get_with("/nginx", &headers);
        assert_eq!(answer.status(), 200, "{answer:?}");
    }

    /// Asks `ext_authz` as Envoy does.
    fn authorize(&mut self) {
        let http = HttpRequest {
            method: "GET".into(),
            path: "/".into(),
            host: "a.example".into(),
            headers: [("x-id".to_owned(), "envoy".to_owned())].into(),
            ..HttpRequest::default()
        };
        let request = Some(Request { http: Some(http), ..Request::default() });
        let attributes = Some(AttributeContext { request, ..AttributeContext::default() });
        self.runtime.block_on(self.authorization.check(CheckRequest { attributes })).unwrap();
    }

    /// Asks the rate limit service as Envoy does.
    pub(super) fn limit(&mut self) {
        let entries = vec![Entry { key: "tenant".into(), value: "a".into() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let request = RateLimitRequest { domain: "api".into(), descriptors, hits_addend: 1 };
        self.runtime.block_on(self.rate_limit.should_rate_limit(request)).unwrap();
    }

    /// The page for Prometheus.
    pub(super) fn page(&self) -> String {
        self.weir.admin("/metrics").text().to_owned()
    }
}
