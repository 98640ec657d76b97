//! Recordings of all listeners: a simulation of them denies what was denied.

use envoy_types::pb::envoy::config::core::v3::address::Address as Kind;
use envoy_types::pb::envoy::config::core::v3::{Address, SocketAddress};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Peer as Source, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use serde_json::{Value, json};

use super::TOKEN;
use super::record::Recording;
use crate::spoe::{Peer, ask, question, string};
use crate::support::binary::run_in;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

const RULES: &str = "\
limits:
  PerAddress: { by: ip, burst: 7, count: 1, period: 10h }
  PerTenant: { match: { path: '/v1/**' }, by: { header: x-tenant }, burst: 3, count: 1, period: 10h }
  PerRoute: { match: { descriptor: { route: '*' } }, by: { descriptor: route }, burst: 4, count: 1, period: 10h }
  PerUser: { match: { domain: api, descriptor: { user: '*' } }, by: { descriptor: user }, burst: 6, count: 1, period: 10h }
  Free:
    match: { domain: api, descriptor: { plan: free } }
    by: [{ descriptor: plan }, { descriptor: user }]
    algorithm: fixed_window
    count: 1
    period: 10h
    mode: shadow
";

/// The rate limit service: the second descriptor of a call is there for every other request.
async fn call(weir: &Weir, number: u32) -> bool {
    let entry = |key: &str, value: String| Entry { key: key.to_owned(), value };
    let user = format!("user-{}", number % 3);
    let mut descriptors =
        vec![RateLimitDescriptor { entries: vec![entry("user", user.clone())], ..RateLimitDescriptor::default() }];
    if number.is_multiple_of(2) {
        let plan = if number.is_multiple_of(4) { "free" } else { "gold" };
        let entries = vec![entry("plan", plan.to_owned()), entry("user", user)];
        descriptors.push(RateLimitDescriptor { entries, ..RateLimitDescriptor::default() });
    }
    let question = RateLimitRequest { domain: "api".to_owned(), descriptors, hits_addend: number % 4 };
    let grpc = format!("http://{}", weir.listener("grpc"));
    let answer = RateLimitServiceClient::connect(grpc).await.unwrap().should_rate_limit(question).await.unwrap();
    answer.into_inner().overall_code == i32::from(Code::OverLimit)
}

/// External authorization, with an entry of `context_extensions`.
async fn authorize(weir: &Weir, number: u32) -> bool {
    let socket = SocketAddress { address: format!("198.51.100.{}", number % 2), ..SocketAddress::default() };
    let address = Some(Address { address: Some(Kind::SocketAddress(socket)) });
    let http = HttpRequest {
        method: "GET".into(),
        path: "/v1/items".into(),
        host: "a".into(),
        headers: [("x-tenant".to_owned(), format!("tenant-{}", number % 5))].into(),
        ..HttpRequest::default()
    };
    let attributes = AttributeContext {
        source: Some(Source { address, ..Source::default() }),
        request: Some(Request { http: Some(http), ..Request::default() }),
        context_extensions: [("route".to_owned(), format!("route-{}", number % 3))].into(),
        ..AttributeContext::default()
    };
    let grpc = format!("http://{}", weir.listener("grpc"));
    let mut client = AuthorizationClient::connect(grpc).await.unwrap();
    let answer = client.check(CheckRequest { attributes: Some(attributes) }).await.unwrap().into_inner();
    matches!(answer.http_response, Some(HttpResponse::DeniedResponse(_)))
}

/// Sends 20 requests to each listener and returns the number of those denied.
async fn send(weir: &Weir) -> u64 {
    let mut check = Wire::connect(weir.listener("check"));
    let mut haproxy = Peer::connect(weir.listener("spoe"));
    haproxy.greet();
    let mut denied = 0;
    for number in 0..20_u8 {
        denied += u64::from(call(weir, number.into()).await);
        denied += u64::from(authorize(weir, number.into()).await);
        let (address, tenant) = (format!("192.0.2.{}", number % 2), format!("tenant-{}", number % 4));
        let headers = [("x-forwarded-for", &*address), ("x-tenant", &*tenant)];
        denied += u64::from(check.get_with("/envoy/v1/orders", &headers).status() == 429);
        if number % 2 == 0 {
            haproxy.send(&ask(number, 9));
        } else {
            haproxy.send(&question(number, &[string(b"route"), vec![8], string(b"route-1")].concat()));
        }
        denied += u64::from(haproxy.answer().1);
    }
    denied
}

#[test]
fn the_simulation_of_a_recording_agrees_with_every_listener() {
    let flags = ["--grpc", "127.0.0.1:0", "--check", "127.0.0.1:0", "--spoe", "127.0.0.1:0", "--workers", "1"];
    let weir = Weir::serve(RULES, &[&flags[..], &["--admin-token", TOKEN, "--trusted-proxies", "127.0.0.1"]].concat());
    let mut recording = Recording::start(&weir, r#"{"for": "1h"}"#);
    let head = recording.next();
    assert_eq!(head["stand_ins"]["descriptors"], json!({ "plan": ["free"], "route": [], "user": [] }));
    let mut lines = head.to_string() + "\n";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let denied = runtime.block_on(send(&weir));
    for _ in 0..80 {
        lines.extend([recording.request().to_string(), "\n".to_owned()]);
    }
    drop(recording);
    for id in ["user-", "route-", "tenant-", "192.0.2.", "198.51.100.", "gold"] {
        assert!(!lines.contains(id), "{id} is in {lines}");
    }
    std::fs::write(weir.directory().join("recording.jsonl"), lines).unwrap();
    let simulate = |more: &[&str]| {
        let done = run_in(weir.directory(), &[&["simulate", "recording.jsonl", "--format", "json"], more].concat());
        assert_eq!(done.code, Some(0), "{}", done.text());
        serde_json::from_str::<Value>(&done.out).unwrap()
    };

    let report = simulate(&[]);
    assert_eq!((&report["requests"], &report["unreadable"]), (&json!(80), &json!(0)), "{report}");
    assert_eq!(report["denied"], denied, "{report}");
    for (name, limit) in report["limits"].as_object().unwrap() {
        assert_eq!(limit["status"], "covered", "{name}");
        let counted = |result| weir.metric(&format!("weir_decisions_total{{limit=\"{name}\",result=\"{result}\"}}"));
        assert_eq!(limit["denied"], counted("denied") + counted("shadow_denied"), "{name}: {limit}");
        assert!(limit["denied"].as_u64() > Some(0), "{name} denies nothing");
    }

    let other = "limits:\n  Gold: { match: { descriptor: { plan: gold } }, by: { descriptor: user }, burst: 1 }\n  \
        Others: { match: { descriptor: { plan: { not: [free], present: true } } }, by: { descriptor: user }, burst: 1 }\n";
    std::fs::write(weir.directory().join("other.yaml"), other).unwrap();
    let limits = &simulate(&["--limits", "other.yaml"])["limits"];
    assert_eq!(limits["Gold"]["missing"][0], "the values of the descriptor entry `plan`, which are hashed");
    // Of the calls whose plan is not free, and not of those without a plan.
    assert_eq!(limits["Others"]["requests"], 5, "{limits}");
}

/// The simulation of a recording delays what was delayed.
#[test]
fn a_recording_of_delayed_requests_replays_right() {
    let rules = "limits: { Queue: { by: global, burst: 1, count: 5, period: 1s, delay: 400ms } }";
    let weir = Weir::serve(rules, &["--admin-token", TOKEN, "--workers", "1"]);
    let mut recording = Recording::start(&weir, r#"{"for": "1h"}"#);
    let mut lines = recording.next().to_string() + "\n";
    let mut clients: Vec<Wire> = (0..6).map(|_| weir.connect()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    for client in &mut clients {
        assert!([200, 429].contains(&client.response().status()));
    }
    for _ in 0..6 {
        lines.extend([recording.request().to_string(), "\n".to_owned()]);
    }
    std::fs::write(weir.directory().join("recording.jsonl"), lines).unwrap();
    let done = run_in(weir.directory(), &["simulate", "recording.jsonl", "--format", "json"]);
    let report: Value = serde_json::from_str(&done.out).unwrap();
    let counted = |result: &str| weir.metric(&format!("weir_decisions_total{{limit=\"Queue\",result=\"{result}\"}}"));
    assert_eq!(
        (&report["delayed"], &report["denied"]),
        (&json!(counted("delayed")), &json!(counted("denied"))),
        "{report}"
    );
    assert!(counted("delayed") > 0, "{report}");
}

/// A target, a host and a header `x-id`, which may be empty.
type Sent = (&'static str, &'static str, &'static str);

/// Rules and requests. Each limit denies some.
const SPELLINGS: [(&str, &[Sent]); 9] = [
    (
        "Stripped: { match: { path: '/u/{id}', path_params: strip }, by: { path: id }, burst: 1 }",
        &[
            ("/u/7", "a", ""),
            ("/u/7;x=1", "a", ""),
            ("/u/7;x=2", "a", ""),
            ("/u/%207", "a", ""),
            ("/u;v=1/8", "a", ""),
            ("/u/;v/8;w", "a", ""),
            ("/u/8/9", "a", ""),
        ],
    ),
    (
        "Folded: { match: { path: '/u/{id}', path_case: ignore }, by: { path: id }, burst: 1 }",
        &[
            ("/u/ab", "a", ""),
            ("/u/AB", "a", ""),
            ("/U/Ab", "a", ""),
            ("/u/ac", "a", ""),
            ("/u/ab;x", "a", ""),
            ("/u/AB;X", "a", ""),
        ],
    ),
    (
        "Both: { match: { path: '/u/{id}', path_case: ignore, path_params: strip }, by: { path: id }, burst: 3 }
  Exact: { match: { path: '/u/{id}' }, by: { path: id }, burst: 1 }
  Me: { match: { path: /u/me, path_case: ignore, path_params: strip }, by: global, burst: 1 }",
        &[
            ("/u/ab", "a", ""),
            ("/u/AB", "a", ""),
            ("/u/AB", "a", ""),
            ("/U/Ab", "a", ""),
            ("/u/ab;x", "a", ""),
            ("/u/cd;x", "a", ""),
            ("/u/CD;x", "a", ""),
            ("/u/me", "a", ""),
            ("/u/ME;secret", "a", ""),
        ],
    ),
    (
        "Id: { match: { path: ['/u/{id}', { not: /u/me }] }, by: { path: id }, burst: 1 }
  Others: { match: { path: ['/u/{id}', { not: /u/me }] }, by: global, burst: 3 }",
        &[
            ("/u/me", "a", ""),
            ("/u/ab", "a", ""),
            ("/u/ab", "a", ""),
            ("/u/me", "a", ""),
            ("/u/ac", "a", ""),
            ("/u/me", "a", ""),
            ("/u/ad", "a", ""),
            ("/u/ae", "a", ""),
        ],
    ),
    (
        "Number: { match: { path: '/u/{id}', path_params: strip }, by: { path: id, as: integer }, burst: 1 }
  Text: { match: { path: '/u/{id}/**' }, by: { path: id }, burst: 2 }",
        &[
            ("/u/7", "a", ""),
            ("/u/07;x", "a", ""),
            ("/u/07", "a", ""),
            ("/u/7/x", "a", ""),
            ("/u/7/y", "a", ""),
            ("/u/8", "a", ""),
            ("/u/x/y", "a", ""),
        ],
    ),
    (
        "Name: { match: { path: '/u/{id}' }, by: { path: id, as: hostname }, burst: 1 }
  Header: { by: { header: x-id, as: hostname }, burst: 1 }",
        &[
            ("/u/a.example.com", "a", ""),
            ("/u/A.Example.com.", "a", ""),
            ("/u/*.a.example.com", "a", ""),
            ("/u/b.example.com", "a", ""),
            ("/", "a", "a.example.com"),
            ("/", "a", "A.example.com."),
            ("/", "a", "a.example.com.:80"),
            ("/", "a", "b.example.com"),
        ],
    ),
    (
        "Domain: { by: { header: x-id, as: registered-domain }, burst: 2 }
  Host: { by: { header: x-id, as: hostname }, burst: 1 }
  Text: { by: { header: x-id }, burst: 1 }",
        &[
            ("/", "a", "example.com"),
            ("/", "a", "A.Example.com."),
            ("/", "a", "a.example.com:80"),
            ("/", "a", "*.b.example.com"),
            ("/", "a", "A.Example.com."),
            ("/", "a", "a.co.uk"),
            ("/", "a", "b.co.uk"),
            ("/", "a", "b.co.uk."),
        ],
    ),
    (
        "Names: { by: { header: x-id, as: hostname-set }, burst: 1 }
  Compared: { match: { headers: { x-id: a.example } }, by: { header: x-id, as: hostname }, burst: 1 }",
        &[
            ("/", "a", "a.example,b.example"),
            ("/", "a", "B.example., a.example:80"),
            ("/", "a", "a.example,*.b.example"),
            ("/", "a", "a.example"),
            ("/", "a", "A.example"),
            ("/", "a", "a.example"),
        ],
    ),
    ("Hosts: { by: host, burst: 1 }", &[("/", "[::1]:80", ""), ("/", "[0:0::1]", ""), ("/", "a", "")]),
];

/// Requests of equal ids are recorded as such however they spell them, and others as others.
#[test]
fn a_recording_has_as_many_ids_as_the_limits() {
    let mut mistakes = Vec::new();
    for (limits, requests) in SPELLINGS {
        let weir = Weir::serve(&format!("limits:\n  {limits}\n"), &["--admin-token", TOKEN, "--workers", "1"]);
        let mut recording = Recording::start(&weir, r#"{"for": "1h"}"#);
        let mut lines = recording.next().to_string() + "\n";
        let mut denied = 0;
        for (target, host, id) in requests {
            let headers = [("x-id", *id)];
            let headers = if id.is_empty() { &[][..] } else { &headers[..] };
            let answer = weir.connect().get_from(host, target, headers);
            assert!([200, 429].contains(&answer.status()), "{target}: {}", answer.status());
            denied += u64::from(answer.status() == 429);
        }
        for _ in requests {
            lines.extend([recording.request().to_string(), "\n".to_owned()]);
        }
        assert!(!lines.contains("secret") && !lines.contains("b.example"), "{lines}");
        std::fs::write(weir.directory().join("recording.jsonl"), &lines).unwrap();
        let done = run_in(weir.directory(), &["simulate", "recording.jsonl", "--format", "json"]);
        let Ok(report) = serde_json::from_str::<Value>(&done.out) else {
            mistakes.push(format!("{limits}: {}", done.text()));
            continue;
        };
        let mut found = vec![("all".to_owned(), report["requests"].clone(), requests.len() as u64)];
        found.push(("all that are denied".to_owned(), report["denied"].clone(), denied));
        for (name, limit) in report["limits"].as_object().unwrap() {
            let counted = weir.metric(&format!("weir_decisions_total{{limit=\"{name}\",result=\"denied\"}}"));
            assert!(counted > 0, "{name} denies nothing");
            found.push((name.clone(), limit["denied"].clone(), counted));
        }
        found.retain(|(_, simulated, counted)| simulated != counted);
        mistakes.extend(found.iter().map(|found| format!("{limits}: {found:?} in\n{lines}")));
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

/// A stand-in for a segment may decide otherwise what looks at its text.
#[test]
fn a_recording_says_that_rules_search_what_it_hides() {
    for (path, uncertain) in [
        ("{ prefix: /u/ad }", true),
        ("{ prefix: /u }", false),
        ("{ prefix: /v/a }", false),
        ("{ not: { regex: x$ } }", true),
        ("[/u/me, { not: /u/you }]", false),
    ] {
        let id = "Id: { match: { path: '/u/{id}' }, by: { path: id }, burst: 1 }";
        let rules = format!("limits:\n  {id}\n  Other: {{ match: {{ path: {path} }}, burst: 9 }}\n");
        let weir = Weir::serve(&rules, &["--admin-token", TOKEN, "--workers", "1"]);
        let head = Recording::start(&weir, r#"{"for": "1h"}"#).next();
        let names: Vec<&str> = head["uncertain"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(names, if uncertain { vec!["path"] } else { vec![] }, "{path}");
    }
}
