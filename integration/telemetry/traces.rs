//! Traces: a collector's spans, the upstream's headers, and the cost of a lost collector.

use std::net::TcpListener;
use std::thread;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use super::collector::{Collector, Kind, Span};
use crate::support::binary;
use crate::support::certificates::Authority;
use crate::support::eventually;
use crate::support::process::finish;
use crate::support::server::WIDE;
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::wire::Wire;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

const LIMITS: &str = "\
limits:
  Tight: { match: { path: /tight }, by: { header: x-id }, burst: 1, count: 1, period: 1h }
  Watched: { match: { path: /watched }, by: { header: x-id }, burst: 1, mode: shadow }
  Closed: { match: { path: /closed }, by: { header: x-id }, deny: true }
";

/// A process that exports at once, with these flags and variables.
fn serve(collector: &str, flags: &[&str], variables: &[(&str, &str)]) -> Weir {
    Weir::serve_with(LIMITS, &[&["--otlp-endpoint", collector], flags].concat(), |command, _| {
        command.env("OTEL_BSP_SCHEDULE_DELAY", "10").envs(variables.iter().copied());
    })
}

#[track_caller]
fn only(spans: &[Span], kind: Kind) -> &Span {
    let mut found = spans.iter().filter(|span| span.kind == kind);
    let first = found.next().unwrap_or_else(|| panic!("no {kind:?} among {spans:#?}"));
    assert!(found.next().is_none(), "{spans:#?}");
    first
}

#[track_caller]
fn check_attributes(span: &Span, expected: &[(&str, &str)]) {
    let found: Vec<_> = span.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected, "{}", span.name);
}

#[test]
fn a_trace_goes_on_through_the_proxy() {
    let (collector, upstream) = (Collector::start(), Upstream::answering(|_| ok("hello")));
    let to = format!("http://{}", upstream.address);
    let weir = serve(&collector.url(), &["--upstream", &to, "--log-ids", "none"], &[]);
    let answer = weir.get("/tight?q=1", &[("traceparent", SAMPLED), ("tracestate", "a=1,b=2"), ("x-id", "alice")]);
    assert_eq!(answer.status(), 200);
    let spans = collector.until(3);
    let [server, decision, client] = [Kind::Server, Kind::Internal, Kind::Client].map(|kind| only(&spans, kind));
    assert!(spans.iter().all(|span| span.trace_id == TRACE && span.state == "a=1,b=2" && !span.is_error), "{spans:#?}");
    assert_eq!((server.parent.as_str(), &decision.parent, &client.parent), (PARENT, &server.id, &server.id));
    assert!(server.start <= decision.start && decision.end <= client.end && client.end <= server.end, "{spans:#?}");
    assert_eq!((server.resource["service.name"].as_str(), server.name.as_str()), ("weir", "GET"));
    let passed = &upstream.requests()[0];
    assert_eq!(passed.header("traceparent"), Some(format!("00-{TRACE}-{}-01", client.id).as_str()));
    assert_eq!(passed.header("tracestate"), Some("a=1,b=2"));
    check_attributes(
        server,
        &[
            ("weir.listener", "proxy"),
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("url.scheme", "http"),
            ("network.protocol.version", "1.1"),
        ],
    );
    check_attributes(
        decision,
        &[("weir.listener", "proxy"), ("weir.limit", "Tight"), ("weir.result", "allowed"), ("weir.remaining", "0")],
    );
    check_attributes(
        client,
        &[
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("server.address", "127.0.0.1"),
            ("server.port", &upstream.address.port().to_string()),
        ],
    );
    let export = &collector.exports()[0];
    assert_eq!(export.start, "POST /v1/traces HTTP/1.1");
    assert_eq!(export.header("content-type"), Some("application/x-protobuf"));
    assert_eq!(export.header("host"), Some(collector.address().to_string().as_str()));
    eventually("they are counted", || match weir.metric("weir_trace_spans_total{result=\"exported\"}") {
        3 => Ok(()),
        other => Err(other),
    });
}

/// The decision's span of the second request to this path.
fn decision(path: &str, flags: &[&str]) -> (Vec<Span>, Span) {
    let collector = Collector::start();
    let weir = serve(&collector.url(), flags, &[]);
    weir.get(path, &[("x-id", "alice"), ("traceparent", UNSAMPLED)]);
    weir.get(path, &[("x-id", "alice"), ("traceparent", SAMPLED)]);
    let spans = collector.all_of(weir);
    let decision = only(&spans, Kind::Internal).clone();
    (spans, decision)
}

#[test]
fn a_decision_tells_its_limit_and_result() {
    let (spans, denied) = decision("/tight", &["--log-ids", "none"]);
    let expected =
        [("weir.listener", "proxy"), ("weir.limit", "Tight"), ("weir.result", "denied"), ("weir.remaining", "0")];
    check_attributes(&denied, &[&expected[..], &[("weir.retry_after", "3600")]].concat());
    let server = only(&spans, Kind::Server);
    assert_eq!((spans.len(), server.get("http.response.status_code"), server.is_error), (2, "429", false));
    for (path, result) in [("/watched", "shadow_denied"), ("/closed", "denied"), ("/free", "unlimited")] {
        assert_eq!(decision(path, &[]).1.get("weir.result"), result, "{path}");
    }
}

#[test]
fn who_the_client_is_is_told_to_who_asks_for_it() {
    let (spans, hidden) = decision("/tight", &[]);
    assert_eq!(hidden.get("weir.id").len(), 16);
    let text = format!("{spans:?}");
    assert!(!text.contains("alice") && !text.contains("/tight") && !text.contains("a.example"), "{text}");
    let (spans, told) = decision("/tight", &["--log-ids", "clear"]);
    let server = only(&spans, Kind::Server);
    assert_eq!((told.get("weir.id"), server.get("url.path")), ("alice", "/tight"));
    assert_eq!((server.get("client.address"), server.get("server.address")), ("127.0.0.1", "a.example"));
}

/// The upstream's headers and the number of spans of one request with these headers.
#[track_caller]
fn check(
    variables: &[(&str, &str)],
    headers: &[(&str, &str)],
    passed_on: impl Fn(Option<&str>, Option<&str>) -> bool,
    count: usize,
) {
    let (collector, upstream) = (Collector::start(), Upstream::answering(|_| ok("hello")));
    let weir = serve(&collector.url(), &["--upstream", &format!("http://{}", upstream.address)], variables);
    weir.get("/", headers);
    let request = upstream.requests().remove(0);
    assert!(passed_on(request.header("traceparent"), request.header("tracestate")), "{request:?}");
    assert_eq!(collector.all_of(weir).len(), count, "{variables:?} {headers:?}");
}

#[test]
fn what_is_not_sampled_is_passed_on_untouched() {
    let state = ("tracestate", "a=1");
    check(
        &[],
        &[("traceparent", UNSAMPLED), state],
        |trace, state| (trace, state) == (Some(UNSAMPLED), Some("a=1")),
        0,
    );
    let never = [("OTEL_TRACES_SAMPLER", "always_off")];
    check(&never, &[("traceparent", SAMPLED)], |trace, _| trace == Some(SAMPLED), 0);
    check(&never, &[], |trace, _| trace.is_none(), 0);
    check(&[("OTEL_SDK_DISABLED", "true")], &[("traceparent", SAMPLED)], |trace, _| trace == Some(SAMPLED), 0);
}

#[test]
fn a_request_of_no_trace_begins_one() {
    let is_new = |trace: Option<&str>| trace.is_some_and(|trace| trace.ends_with("-03") && !trace.contains(TRACE));
    check(&[], &[], |trace, _| is_new(trace), 3);
    // If one part is invalid, the rest does not count either.
    let wrong = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1");
    check(&[], &[wrong, ("tracestate", "a=1")], |trace, state| is_new(trace) && state.is_none(), 3);
    let always = [("OTEL_TRACES_SAMPLER", "always_on")];
    let goes_on = |trace: &str| trace.contains(TRACE) && trace.ends_with("-01");
    check(&always, &[("traceparent", UNSAMPLED)], |trace, _| trace.is_some_and(goes_on), 3);
}

#[test]
fn an_upstream_that_is_away_is_an_error_of_its_span() {
    let collector = Collector::start();
    let weir = serve(&collector.url(), &["--upstream", "http://127.0.0.1:1"], &[]);
    assert_eq!(weir.get("/", &[]).status(), 502);
    let spans = collector.all_of(weir);
    let (server, client) = (only(&spans, Kind::Server), only(&spans, Kind::Client));
    assert!(server.is_error && client.is_error, "{spans:#?}");
    assert_eq!((client.get("error.type"), client.get("http.response.status_code")), ("502", ""));
    assert_eq!((server.get("error.type"), server.get("http.response.status_code")), ("502", "502"));
}

#[tokio::test]
async fn gateways_are_traced_by_http_and_by_grpc() {
    let collector = Collector::start();
    let weir = serve(&collector.url(), &["--check", "127.0.0.1:0", "--grpc", "127.0.0.1:0"], &[]);
    let target = "/nginx";
    let mut wire = Wire::connect(weir.listener("check"));
    let headers = [
        ("x-id", "1"),
        ("x-original-uri", "/closed"),
        ("x-original-method", "GET"),
        ("x-original-host", "a"),
        ("traceparent", SAMPLED),
    ];
    assert_eq!(wire.get_with(target, &headers).status(), 403);
    let spans = collector.until(2);
    let (server, decision) = (only(&spans, Kind::Server), only(&spans, Kind::Internal));
    assert_eq!((server.parent.as_str(), server.get("weir.listener"), &decision.parent), (PARENT, "check", &server.id));
    assert_eq!((decision.get("weir.limit"), decision.get("weir.result")), ("Closed", "denied"));

    let mut client = RateLimitServiceClient::connect(format!("http://{}", weir.listener("grpc"))).await.unwrap();
    let mut call = tonic::Request::new(RateLimitRequest::default());
    call.metadata_mut().insert("traceparent", SAMPLED.parse().unwrap());
    client.should_rate_limit(call).await.unwrap_err();
    let spans = collector.until(3);
    let call = &spans[2];
    assert_eq!(call.name, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    assert_eq!((call.parent.as_str(), call.get("weir.listener")), (PARENT, "grpc"));
    assert_eq!((call.get("rpc.method"), call.get("rpc.grpc.status_code")), ("ShouldRateLimit", "3"));
}

#[test]
fn spans_go_to_a_collector_with_tls() {
    let collector = Collector::start();
    let authority = Authority::new();
    authority.sign("collector", &["127.0.0.1"]);
    let (certificate, key, ca) =
        (authority.file("collector.pem"), authority.file("collector.key"), authority.file("ca.pem"));
    let to = collector.url();
    let front = Weir::serve(WIDE, &["--upstream", &to, "--tls-cert", &certificate, "--tls-key", &key]);
    let url = format!("https://{}", front.proxy);
    let weir = serve(&url, &[], &[("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca), ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=7")]);
    weir.get("/", &[]);
    assert_eq!(collector.all_of(weir).len(), 3);
    assert_eq!(collector.exports()[0].header("x-key"), Some("7"));
}

#[test]
fn a_collector_that_is_away_costs_no_request_anything() {
    let weir = serve("http://127.0.0.1:1", &[], &[]);
    for _ in 0..20 {
        assert_eq!(weir.get("/", &[]).status(), 200);
    }
    eventually("the loss is counted", || match weir.metric("weir_trace_spans_total{result=\"export_failed\"}") {
        60 => Ok(()),
        other => Err(other),
    });
    weir.until_logged("cannot export traces");
}

#[test]
fn a_collector_that_hangs_fills_the_queue_and_does_not_hold_up_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Accepts connections and says nothing until the process is gone.
    let hanging = thread::spawn(move || listener.accept().map(|(stream, _)| (stream, listener)));
    let variables = [("OTEL_BSP_MAX_QUEUE_SIZE", "10"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")];
    let mut weir = serve(&url, &[], &variables);
    for _ in 0..20 {
        assert_eq!(weir.get("/", &[]).status(), 200);
    }
    let full = "weir_trace_spans_total{result=\"queue_full\"}";
    eventually("the queue is full", || match weir.metric(full) {
        dropped if dropped >= 40 => Ok(()),
        other => Err(other),
    });
    weir.signal("TERM");
    assert!(weir.wait().success(), "{}", weir.log());
    assert!(weir.log().contains("the collector does not respond; the last traces are lost"), "{}", weir.log());
    drop(hanging.join());
}

#[test]
fn a_wrong_setting_is_told_before_anything_is_served() {
    for (flag, variable, part) in [
        ("127.0.0.1:4318", ("A", "1"), "error: --otlp-endpoint: invalid URL `127.0.0.1:4318/v1/traces`"),
        ("http://a", ("OTEL_TRACES_SAMPLER", "sometimes"), "error: OTEL_TRACES_SAMPLER: unknown sampler `sometimes`"),
        (
            "http://a",
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere"),
            "error: OTEL_EXPORTER_OTLP_CERTIFICATE: /nowhere: No such",
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("limits.yaml"), WIDE).unwrap();
        let mut command = binary::command(&Weir::arguments(&["--otlp-endpoint", flag]));
        let serve = finish(command.env(variable.0, variable.1).current_dir(directory.path()));
        assert!(serve.code == Some(2) && serve.err.contains(part), "{variable:?}: {serve:?}");
    }
}
