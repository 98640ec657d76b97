//! Budgets: Envoy asks with an addend of 0 and charges the cost that the response reports.

use super::asking::Asked;
use super::example::{Change, Example, Ports, examples};
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

const CALLS: &str = "weir_grpc_calls_total{code=\"ok\",method=\"should_rate_limit\"}";

/// Timeouts for a busy machine.
pub(super) const PATIENCE: [Change; 3] = [
    ("timeout: 0.02s", "timeout: 60s"),
    ("connect_timeout: 0.1s", "connect_timeout: 60s"),
    ("connect_timeout: 1s", "connect_timeout: 60s"),
];

const ASKED: Asked = Asked { from: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), forwarded_for: None };

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
    let changes = [&PATIENCE[..], &[TOKENS]].concat();
    let envoy = Example::start(Program::Envoy, "envoy-rls", &changes, ports);
    let get = || ASKED.get_of(envoy.address, "others.example");
    // The report comes after the client's answer.
    for passed in 1..=4 {
        let answer = get();
        assert_eq!((answer.status(), answer.header("x-service")), (200, Some("models")), "request {passed}");
        becomes("what was used is reported", 2 * passed, || weir.metric(CALLS));
    }
    assert_eq!(get().status(), 429);
}

/// A model that answers with its usage, and a server with tools.
fn models() -> Upstream {
    Upstream::answering(|request| {
        let (kind, body) = if request.text().contains("stream") {
            (
                "text/event-stream",
                "data: {\"choices\":[]}\n\ndata: {\"usage\":{\"total_tokens\":300}}\n\ndata: [DONE]\n\n",
            )
        } else {
            ("application/json", "{\"usage\":{\"total_tokens\":300}}")
        };
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    })
}

#[test]
fn envoy_charges_tokens_that_bodies_report_and_calls_of_tools() {
    let application = models();
    let ports = Ports { application: application.address.port(), listener: free_port() };
    let rules = std::fs::read_to_string(examples().join("envoy-tokens/limits.yaml")).unwrap();
    let weir = Weir::serve(&rules, &["--workers", "1", "--grpc", &format!("127.0.0.1:{}", ports.listener)]);
    let envoy = Example::start(Program::Envoy, "envoy-tokens", &PATIENCE, ports);
    let post = |path: &str, header: &str, body: &str| ASKED.post(envoy.address, path, header, body).status();

    let mut calls = 0;
    for (key, body) in [("x-api-key: a", "{}"), ("x-api-key: b", "{\"stream\":true}")] {
        for passed in 1..=4 {
            assert_eq!(post("/v1/chat/completions", key, body), 200, "{key}, request {passed}");
            // One call before the request, and one that reports its tokens.
            calls += 2;
            becomes("what was used is reported", calls, || weir.metric(CALLS));
        }
        assert_eq!(post("/v1/chat/completions", key, body), 429, "{key}");
        calls += 1;
    }

    let call = |agent: &str, tool: &str| {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#
        );
        post("/mcp", &format!("x-agent: {agent}"), &body)
    };
    assert_eq!([call("a", "search"), call("a", "search"), call("a", "search")], [200, 200, 429]);
    assert_eq!([call("a", "mail"), call("b", "search")], [200, 200], "another tool, another agent");
    assert_eq!(post("/mcp", "x-agent: a", r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#), 200);
}
