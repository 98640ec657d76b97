//! Budgets: Envoy asks with an addend of 0 and charges the cost that the response reports.

use super::asking::Asked;
use super::example::{Change, Example, Ports};
use crate::support::becomes;
use crate::support::process::free_port;
use crate::support::programs::Program;
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;

const BUDGETS: &str = "domain: web
descriptors:
  - key: tokens
    metadata: { service_with_quota: { name: models } }
    rate_limit: { unit: year, requests_per_unit: 1000 }
";

/// The virtual host's limits in place of the example's.
const TOKENS: Change = (
    "routes: [{ match: { prefix: / }, route: { cluster: application } }]
              rate_limits: [*address, *key]",
    "routes: [{ match: { prefix: / }, route: { cluster: application } }]
              response_headers_to_add:
              - header:
                  key: x-service
                  value: \"%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:service_with_quota:name)%\"
              typed_per_filter_config:
                envoy.filters.http.ratelimit:
                  \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                  rate_limits:
                  - actions: [{ generic_key: { descriptor_key: tokens, descriptor_value: all } }]
                    hits_addend: { number: 0 }
                  - actions: [{ generic_key: { descriptor_key: tokens, descriptor_value: all } }]
                    hits_addend: { format: \"%RESP(x-tokens-used)%\" }
                    apply_on_stream_done: true",
);

#[test]
fn envoy_reports_what_a_response_has_used_until_nothing_is_left() {
    let application =
        Upstream::answering(|_| "HTTP/1.1 200 OK\r\nx-tokens-used: 300\r\ncontent-length: 0\r\n\r\n".to_owned());
    let ports = Ports { application: application.address.port(), listener: free_port() };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("budgets.yaml");
    std::fs::write(&file, BUDGETS).unwrap();
    let listener = format!("127.0.0.1:{}", ports.listener);
    let flags = ["--workers", "1", "--grpc", &listener, "--envoy-ratelimit-config", file.to_str().unwrap()];
    let weir = Weir::serve("limits: {}", &flags);
    let patience = ("timeout: 0.02s", "timeout: 60s");
    let envoy = Example::start(
        Program::Envoy,
        "envoy-rls",
        &[
            patience,
            ("connect_timeout: 0.1s", "connect_timeout: 60s"),
            ("connect_timeout: 1s", "connect_timeout: 60s"),
            TOKENS,
        ],
        ports,
    );
    let asked = Asked { from: [127, 0, 0, 1].into(), forwarded_for: None };
    let get = || asked.get_of(envoy.address, "others.example");
    let calls = "weir_grpc_calls_total{code=\"ok\",method=\"should_rate_limit\"}";
    // The report comes after the client's answer.
    for passed in 1..=4 {
        let answer = get();
        assert_eq!((answer.status(), answer.header("x-service")), (200, Some("models")), "request {passed}");
        becomes("what was used is reported", 2 * passed, || weir.metric(calls));
    }
    assert_eq!(get().status(), 429);
}
