//! External authorization over gRPC.

use std::collections::HashMap;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::address::Address as Kind;
use envoy_types::pb::envoy::config::core::v3::{Address, HeaderMap, HeaderValue, HeaderValueOption, SocketAddress};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Peer, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest, CheckResponse};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code as OverallCode;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::google::protobuf::value::Kind as Json;
use tonic::Code;
use tonic::transport::Channel;

use crate::support::becomes;
use crate::support::redis::RedisServer;
use crate::support::server::{Setup, Weir};
use crate::support::weir::Weir as Process;

pub(crate) async fn client(address: impl std::fmt::Display) -> AuthorizationClient<Channel> {
    AuthorizationClient::connect(format!("http://{address}")).await.unwrap()
}

fn serve(limits: &str) -> Weir {
    Setup::new(limits).start("echo")
}

/// Envoy's question about a request from this address.
pub(crate) fn request(source: &str, path: &str, headers: &[(&str, &str)]) -> CheckRequest {
    let socket = SocketAddress { address: source.to_owned(), ..SocketAddress::default() };
    let address = Some(Address { address: Some(Kind::SocketAddress(socket)) });
    let http = HttpRequest {
        id: "1".to_owned(),
        method: "GET".to_owned(),
        path: path.to_owned(),
        host: "a.example".to_owned(),
        scheme: "http".to_owned(),
        protocol: "HTTP/1.1".to_owned(),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..HttpRequest::default()
    };
    let attributes = AttributeContext {
        source: Some(Peer { address, ..Peer::default() }),
        request: Some(Request { http: Some(http), ..Request::default() }),
        ..AttributeContext::default()
    };
    CheckRequest { attributes: Some(attributes) }
}

/// The client's status, 200 if it passes, and the value of a header in the answer.
pub(crate) fn seen(response: &CheckResponse, name: &str) -> (i32, Option<String>) {
    let (status, headers) = match response.http_response.as_ref().unwrap() {
        HttpResponse::OkResponse(ok) => (200, &ok.response_headers_to_add),
        HttpResponse::DeniedResponse(denied) | HttpResponse::ErrorResponse(denied) => {
            (denied.status.as_ref().unwrap().code, &denied.headers)
        }
    };
    let header = |option: &HeaderValueOption| {
        let header = option.header.as_ref().unwrap();
        (header.key == name).then(|| header.value.clone())
    };
    (status, headers.iter().find_map(header))
}

#[tokio::test]
async fn a_burst_passes_and_what_follows_is_told_when_to_come_back() {
    let weir = serve("limits: { Two: { by: ip, burst: 2, count: 2, period: 60s } }");
    let mut client = client(weir.grpc).await;
    for left in ["\"Two\";r=1;t=30", "\"Two\";r=0;t=30"] {
        let answer = client.check(request("192.0.2.1", "/x?y=1", &[])).await.unwrap().into_inner();
        assert_eq!(answer.status.as_ref().unwrap().code, 0);
        assert_eq!(seen(&answer, "ratelimit"), (200, Some(left.to_owned())));
    }
    let answer = client.check(request("192.0.2.1", "/x?y=1", &[])).await.unwrap().into_inner();
    assert_eq!(answer.status.as_ref().unwrap().code, Code::ResourceExhausted as i32);
    assert_eq!(seen(&answer, "retry-after"), (429, Some("30".to_owned())));
    let Some(HttpResponse::DeniedResponse(denied)) = &answer.http_response else { panic!("{answer:?}") };
    let body: serde_json::Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!(body["violated-policies"], serde_json::json!(["Two"]));
    let metadata = answer.dynamic_metadata.unwrap().fields;
    assert_eq!(metadata["limit"].kind, Some(Json::StringValue("Two".to_owned())));
    assert_eq!(metadata["remaining"].kind, Some(Json::NumberValue(0.0)));
    // Another client has its own bucket.
    let other = client.check(request("192.0.2.2", "/", &[])).await.unwrap().into_inner();
    assert_eq!(seen(&other, "ratelimit").0, 200);
    assert_eq!(weir.metric("weir_grpc_calls_total{code=\"ok\",method=\"check\"}"), 4);
}

/// The client's address as limits see it, by what is left in the buckets of addresses.
#[tokio::test]
async fn the_address_is_the_clients_and_never_envoys() {
    let setup = Setup::new("limits: { One: { by: ip, burst: 1 } }");
    let trusted = vec!["10.0.0.0/8", "127.0.0.0/8"];
    let weir = Setup { trusted, ..setup }.start("echo");
    let mut client = client(weir.grpc).await;
    let forwarded = [("x-forwarded-for", "9.9.9.9, \u{e9}, 203.0.113.7")];
    let external = [("x-forwarded-for", "9.9.9.9"), ("x-envoy-external-address", "203.0.113.8")];
    for (source, headers, expected) in [
        ("192.0.2.1", &[][..], 200),
        // The client's own claims do not count.
        ("192.0.2.1", &[("x-forwarded-for", "192.0.2.99")], 429),
        ("10.0.0.1", &forwarded, 200),
        ("203.0.113.7", &[], 429),
        ("10.0.0.2", &external, 200),
        ("203.0.113.8", &[], 429),
    ] {
        let mut call = tonic::Request::new(request(source, "/", headers));
        // Envoy's own header, which does not describe the client.
        call.metadata_mut().insert("x-forwarded-for", "198.51.100.1".parse().unwrap());
        let answer = client.check(call).await.unwrap().into_inner();
        assert_eq!(seen(&answer, "").0, expected, "{source} {headers:?}");
    }
}

#[tokio::test]
async fn fields_come_as_a_map_or_line_by_line() {
    let weir = serve("limits: { One: { by: { header: x-id }, burst: 1 } }");
    let mut client = client(weir.grpc).await;
    let mut raw = request("192.0.2.1", "/", &[]);
    let http = raw.attributes.as_mut().unwrap().request.as_mut().unwrap().http.as_mut().unwrap();
    let line = |key: &str, value: &str| HeaderValue {
        key: key.to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    http.header_map =
        Some(HeaderMap { headers: vec![line(":path", "/"), line("x-id", "seven"), line("x-id", "seven")] });
    for (request, expected) in [
        (request("192.0.2.1", "/", &[("x-id", "six")]), 200),
        (raw, 200),
        (request("192.0.2.1", "/", &[("x-id", "seven")]), 429),
        (request("192.0.2.1", "/", &[]), 200),
    ] {
        let answer = client.check(request).await.unwrap().into_inner();
        assert_eq!(seen(&answer, "").0, expected);
    }
}

/// Upstreams differ in which of two credentials they take. Envoy sends lines one by one, or joins them.
#[tokio::test]
async fn two_credentials_are_malformed() {
    let weir = serve("limits: { PerKey: { by: credentials, burst: 1000, malformed: deny } }");
    let mut client = client(weir.grpc).await;
    for (lines, expected) in [
        (&["Bearer a"][..], 200),
        (&["Bearer a", "bearer  a"], 200),
        (&["Bearer a", "Bearer b"], 429),
        (&["Basic YTpi", "Bearer a"], 429),
        (&["Bearer a, Bearer b"], 429),
        (&["Bearer a,Bearer b"], 429),
    ] {
        let mut by_line = request("192.0.2.1", "/", &[]);
        let http = by_line.attributes.as_mut().unwrap().request.as_mut().unwrap().http.as_mut().unwrap();
        let line = |value: &&str| HeaderValue {
            key: "authorization".to_owned(),
            raw_value: value.as_bytes().to_vec(),
            ..HeaderValue::default()
        };
        http.header_map = Some(HeaderMap { headers: lines.iter().map(line).collect() });
        let mut asked = vec![by_line];
        // A map has a header once.
        if let [line] = lines {
            asked.push(request("192.0.2.1", "/", &[("authorization", line)]));
        }
        for asked in asked {
            let answer = client.check(asked).await.unwrap().into_inner();
            assert_eq!(seen(&answer, "").0, expected, "{lines:?}");
        }
    }
}

#[tokio::test]
async fn what_the_route_says_is_a_descriptor() {
    let weir =
        serve("limits: { One: { match: { descriptor: { plan: free } }, by: { descriptor: tenant }, burst: 1 } }");
    let mut client = client(weir.grpc).await;
    for (plan, tenant, expected) in
        [("free", "acme", 200), ("free", "acme", 429), ("free", "other", 200), ("paid", "acme", 200)]
    {
        let mut asked = request("192.0.2.1", "/", &[]);
        asked.attributes.as_mut().unwrap().context_extensions =
            HashMap::from([("plan".to_owned(), plan.to_owned()), ("tenant".to_owned(), tenant.to_owned())]);
        let answer = client.check(asked).await.unwrap().into_inner();
        assert_eq!(seen(&answer, "").0, expected, "{plan} {tenant}");
    }
}

#[tokio::test]
async fn paths_are_matched_in_one_spelling_and_what_servers_read_in_two_ways_is_rejected() {
    let weir = serve("limits: { One: { match: { path: /v1/a }, by: global, burst: 1 } }");
    let mut client = client(weir.grpc).await;
    for (path, expected) in
        [("/v1/a", 200), ("/v1//x/%2e%2e/%61?q", 429), ("/v1/b", 200), ("/v1\\a", 400), ("/v1/a%zz", 400)]
    {
        let answer = client.check(request("192.0.2.1", path, &[])).await.unwrap().into_inner();
        assert_eq!(seen(&answer, "").0, expected, "{path}");
    }
    let nothing = client.check(CheckRequest::default()).await.unwrap_err();
    assert_eq!(nothing.code(), Code::InvalidArgument);
    assert!(nothing.message().contains("attributes.request.http"), "{nothing}");
}

/// The caller's deadline applies, and not the store's, which is far longer.
#[tokio::test]
async fn a_store_without_an_answer_is_told_before_the_caller_gives_up() {
    let redis = RedisServer::plain();
    let limits = "limits:
      Open:   { match: { path: /open },   by: global, burst: 1000, on_store_error: allow }
      Closed: { match: { path: /closed }, by: global, burst: 1000, on_store_error: deny }";
    let url = redis.url();
    let flags = ["--grpc", "127.0.0.1:0", "--store", &url, "--workers", "1"];
    let weir = Process::serve(limits, &flags);
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    let mut client = client(weir.listener("grpc")).await;
    let ask = async |client: &mut AuthorizationClient<Channel>, path| {
        let mut call = tonic::Request::new(request("192.0.2.1", path, &[]));
        call.metadata_mut().insert("x-envoy-expected-rq-timeout-ms", "200".parse().unwrap());
        client.check(call).await.unwrap().into_inner()
    };
    assert_eq!(seen(&ask(&mut client, "/closed").await, "").0, 200);
    redis.freeze();
    let answer = ask(&mut client, "/closed").await;
    assert!(matches!(answer.http_response, Some(HttpResponse::ErrorResponse(_))), "{answer:?}");
    assert_eq!(answer.status.as_ref().unwrap().code, Code::Unavailable as i32);
    assert_eq!(seen(&answer, "retry-after"), (503, Some("1".to_owned())));
    assert_eq!(seen(&ask(&mut client, "/open").await, "").0, 200);
    assert!(weir.metric("weir_store_errors_total{kind=\"late\"}") >= 2);
    redis.thaw();
}

/// Envoy passes on an error with `failure_mode_allow`, and for the rate limit service by default.
#[tokio::test]
async fn what_has_no_turn_at_the_store_is_denied_and_no_error() {
    let redis = RedisServer::plain();
    let limits = "limits:
      Open: { match: { path: /open }, by: global, burst: 1000, on_store_error: allow }
      Asked: { match: { domain: open }, by: global, burst: 1000, on_store_error: allow }";
    let url = redis.url();
    let store = ["--store", &url, "--store-queue", "1", "--workers", "1"];
    let weir = Process::serve(limits, &[&["--grpc", "127.0.0.1:0"], &store[..]].concat());
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    redis.freeze();
    let grpc = weir.listener("grpc");
    let [mut first, mut second] = [client(grpc).await, client(grpc).await];
    let mut first = Box::pin(first.check(request("192.0.2.1", "/open", &[])));
    let mut second = Box::pin(second.check(request("192.0.2.1", "/open", &[])));
    // One of them gets the only place until Redis answers; the other is answered at once.
    let (answer, is_first) = tokio::select! {
        answer = &mut first => (answer, true),
        answer = &mut second => (answer, false),
    };
    let answer = answer.unwrap().into_inner();
    assert!(matches!(answer.http_response, Some(HttpResponse::DeniedResponse(_))), "{answer:?}");
    assert_eq!(answer.status.as_ref().unwrap().code, Code::Unavailable as i32);
    assert_eq!(seen(&answer, "retry-after"), (503, Some("1".to_owned())));
    let mut service = RateLimitServiceClient::connect(format!("http://{grpc}")).await.unwrap();
    let entries = vec![Entry { key: "k".into(), value: "v".into() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let question = RateLimitRequest { domain: "open".into(), descriptors, ..RateLimitRequest::default() };
    let told = service.should_rate_limit(question).await.unwrap().into_inner();
    assert_eq!(told.overall_code(), OverallCode::OverLimit);
    assert!(told.response_headers_to_add.iter().any(|header| header.key == "retry-after"), "{told:?}");
    redis.thaw();
    let answer = if is_first { second.await } else { first.await };
    assert_eq!(seen(&answer.unwrap().into_inner(), "").0, 200);
}

/// Its caller says how long it waits. The clock stands still, so that nothing comes back.
#[tokio::test]
async fn an_answer_is_held_as_long_as_its_caller_waits() {
    let rules = "limits: { L: { by: global, burst: 1, count: 1, period: 1s, delay: 10s } }";
    let clock = weir::clock::Clock::set(weir::engine::algorithms::micros::Micros(1_800_000_000_000_000));
    let weir = Setup { clock, ..Setup::new(rules) }.start("echo");
    let mut client = client(weir.grpc).await;
    // The caller's timeout, and the answer: at once, after a second, later than the caller waits, and without a timeout.
    for (timeout, expected) in [(60_000, 200), (60_000, 200), (1_900, 429), (60_000, 200), (0, 429)] {
        let mut asked = tonic::Request::new(request("192.0.2.1", "/", &[]));
        if timeout > 0 {
            asked.set_timeout(Duration::from_millis(timeout));
        }
        let answer = client.check(asked).await.unwrap().into_inner();
        assert_eq!(seen(&answer, "x").0, expected, "{timeout} ms");
    }
    let delayed = || weir.metric("weir_decisions_total{limit=\"L\",result=\"delayed\"}");
    becomes("two were held", 2, delayed);
}

#[tokio::test]
async fn an_answer_of_the_rate_limit_service_is_held_as_long_as_its_caller_waits() {
    let rules =
        "limits: { L: { match: { domain: d }, by: { descriptor: k }, burst: 1, count: 1, period: 1s, delay: 10s } }";
    let clock = weir::clock::Clock::set(weir::engine::algorithms::micros::Micros(1_800_000_000_000_000));
    let weir = Setup { clock, ..Setup::new(rules) }.start("echo");
    let mut client = RateLimitServiceClient::connect(format!("http://{}", weir.grpc)).await.unwrap();
    for (timeout, expected) in [(60_000, OverallCode::Ok), (60_000, OverallCode::Ok), (1_900, OverallCode::OverLimit)] {
        let entry = Entry { key: "k".into(), value: "a".into() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        let asked = RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: 1 };
        let mut asked = tonic::Request::new(asked);
        asked.set_timeout(Duration::from_millis(timeout));
        let answer = client.should_rate_limit(asked).await.unwrap().into_inner();
        assert_eq!(answer.overall_code, expected as i32, "{timeout} ms");
    }
}
