//! One table of requests, asked in the way of every gateway. The answers are the proxy's.

use serde_json::json;

use super::{Fields, body, call, on_redis, send, stopped};
use crate::support::redis::RedisServer;
use crate::support::server::Weir;
use crate::support::wire::Message;

const RULES: &str = r#"
limits:
  PerAddress: { by: ip/64, burst: 3, count: 3, period: 1h }
  Logins:
    match: { methods: [POST], host: shop.example, path: "/login" }
    by: { header: x-user }
    burst: 2
    count: 2
    period: 1h
  Search:
    match: { path: "/search/{kind}", headers: { x-plan: free } }
    by: [{ query: tenant }, { path: kind }]
    cost: { header: x-cost }
    rates: [{ count: 10, period: 1m }, { count: 15, period: 1h }]
  Watched: { by: { header: x-user }, burst: 1, mode: shadow }
  Upload: { match: { path: /upload }, by: ip, cost: { bytes: request }, count: 1000, period: 1h }
  Shut: { match: { path: /shut/** }, by: global, deny: true }
overrides:
  Logins:vip: { unlimited: true }
"#;

/// A client's request. `{}` in a header stands for the gateway, so that each has its own buckets.
struct Asked {
    method: &'static str,
    target: &'static str,
    host: &'static str,
    /// The last byte of the client's address.
    client: u8,
    headers: Fields<'static>,
}

const ASKED: Asked = Asked { method: "GET", target: "/", host: "shop.example", client: 1, headers: &[] };

/// Requests in order, each with the status of its answer.
fn table() -> Vec<(Asked, u16)> {
    let login = |user| Asked { method: "POST", target: "/login", client: 2, headers: user, ..ASKED };
    let search = |target, client, headers| Asked { target, client, headers, ..ASKED };
    let free = |cost: &'static str| -> Fields<'static> {
        match cost {
            "9" => &[("x-plan", "free"), ("x-cost", "9")],
            "2" => &[("x-plan", "free"), ("x-cost", "2")],
            _ => &[("x-plan", "free"), ("x-cost", "much")],
        }
    };
    vec![
        (ASKED, 200),
        (Asked { target: "/other?x=1", host: "a.example", ..ASKED }, 200),
        (Asked { method: "PUT", ..ASKED }, 200),
        (ASKED, 429),
        (Asked { method: "HEAD", ..ASKED }, 429),
        // Another spelling of the login; only the header differs between users.
        (login(&[("x-user", "{}-u")]), 200),
        (Asked { target: "//x/%2e%2e/%6Cogin/", host: "SHOP.example:8443", ..login(&[("X-User", "{}-u")]) }, 200),
        (login(&[("x-user", "{}-u")]), 429),
        (login(&[("x-user", "vip")]), 200),
        (Asked { client: 3, ..login(&[("x-user", "{}-u")]) }, 429),
        (Asked { client: 3, host: "other.example", ..login(&[("x-user", "{}-u")]) }, 200),
        (search("/search/books?tenant={}", 4, free("9")), 200),
        (search("/search/books?tenant={}", 4, free("2")), 429),
        (search("/search/films?tenant={}", 4, free("9")), 200),
        (search("/search/books?tenant={}", 5, free("much")), 429),
        (search("/search/books?q", 5, free("9")), 200),
        (Asked { method: "PUT", target: "/upload", client: 10, ..ASKED }, 200),
        (Asked { target: "/shut/down", client: 6, ..ASKED }, 429),
        (Asked { method: "OPTIONS", target: "*", client: 7, ..ASKED }, 200),
        // A gRPC client gets a denial with 200, a gateway must not.
        (
            Asked {
                target: "/shut/a.B/C",
                method: "POST",
                client: 8,
                headers: &[("content-type", "application/grpc")],
                ..ASKED
            },
            429,
        ),
        (Asked { method: "get", client: 9, ..ASKED }, 400),
        (Asked { target: "/%00", client: 9, ..ASKED }, 400),
        (Asked { target: "/a\\b", client: 9, ..ASKED }, 400),
        (Asked { host: "user@shop.example", client: 9, ..ASKED }, 400),
    ]
}

/// The ways to ask, the proxy first; see [`ask`].
const WAYS: [&str; 10] = [
    "proxy",
    "envoy",
    "envoy-address",
    "nginx",
    "ingress-nginx",
    "nginx-gateway-fabric",
    "traefik",
    "caddy",
    "haproxy",
    "json",
];

/// The client's view.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    status: u16,
    retry_after: Option<String>,
    policies: Option<String>,
    left: Option<String>,
    /// The limits in the problem document.
    violated: Option<String>,
}

fn told(message: &Message, status: u16, violated: Option<String>) -> Told {
    let header = |name: &str| message.header(name).map(str::to_owned);
    Told {
        status,
        retry_after: header("retry-after"),
        policies: header("ratelimit-policy"),
        left: header("ratelimit"),
        violated,
    }
}

#[track_caller]
fn ask(weir: &Weir, way: usize, asked: &Asked) -> Told {
    let name = WAYS[way];
    let fill = |text: &str| text.replace("{}", name);
    let target = fill(asked.target);
    let client = format!("198.51.{way}.{}", asked.client);
    let own: Vec<(&str, String)> = asked.headers.iter().map(|(name, value)| (*name, fill(value))).collect();
    let with = |more: &[(&'static str, &str)]| -> Vec<(String, String)> {
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        more.chain(own.iter().cloned()).map(|(name, value)| (name.to_owned(), value)).collect()
    };
    // A client's own claims, which gateways pass on and append to.
    let claim = format!("203.0.113.5, \u{e9}, {client}");
    let forwarded = [
        ("host", "limiter"),
        ("x-forwarded-method", asked.method),
        ("x-forwarded-uri", &target),
        ("x-forwarded-host", asked.host),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-for", &claim),
    ];
    let url = format!("https://{}{target}", asked.host);
    let (method, to, headers) = match name {
        "proxy" => (asked.method, target.clone(), with(&[("host", asked.host), ("x-forwarded-for", &claim)])),
        "envoy" => {
            (asked.method, format!("/envoy{target}"), with(&[("host", asked.host), ("x-forwarded-for", &claim)]))
        }
        "envoy-address" => (
            asked.method,
            format!("/envoy{target}"),
            with(&[("host", asked.host), ("x-forwarded-for", "\u{e9}"), ("x-envoy-external-address", &client)]),
        ),
        "nginx" => (
            "GET",
            "/nginx".to_owned(),
            with(&[
                ("host", "limiter"),
                ("x-original-method", asked.method),
                ("x-original-uri", &target),
                ("x-original-host", asked.host),
                ("x-real-ip", &client),
                ("x-forwarded-for", "203.0.113.5"),
                ("path", "/free"),
                ("method", "TRACE"),
            ]),
        ),
        "ingress-nginx" => (
            "GET",
            "/nginx".to_owned(),
            with(&[
                ("host", "limiter"),
                ("x-original-method", asked.method),
                ("x-original-url", &url),
                ("x-real-ip", &client),
                ("x-forwarded-for", &client),
            ]),
        ),
        "nginx-gateway-fabric" => (
            "GET",
            "/nginx".to_owned(),
            with(&[("host", asked.host), ("method", asked.method), ("path", &target), ("x-forwarded-for", &claim)]),
        ),
        "traefik" => ("GET", "/forward".to_owned(), with(&forwarded)),
        // The original query follows the check's URI.
        "caddy" => {
            ("GET", format!("/forward?{}", target.split_once('?').map_or("", |(_, query)| query)), with(&forwarded))
        }
        "haproxy" => ("HEAD", "/haproxy".to_owned(), with(&forwarded)),
        _ => {
            let mut headers = serde_json::Map::new();
            for (name, value) in &own {
                headers.insert((*name).to_owned(), json!(value));
            }
            let request = json!({ "method": asked.method, "url": url, "ip": client, "headers": headers });
            let answer = call(&mut weir.connect_check(), &json!({ "request": request }));
            let denied = (answer.status() == 429).then(|| {
                let limits = body(&answer)["limits"].as_array().unwrap().clone();
                let denied = limits.iter().filter(|limit| limit["outcome"] == "denied" && limit["enforced"] == true);
                let mut names: Vec<_> = denied.map(|limit| limit["name"].clone()).collect();
                names.dedup();
                json!(names).to_string()
            });
            return told(&answer, answer.status(), denied);
        }
    };
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut wire = if name == "proxy" { weir.connect() } else { weir.connect_check() };
    let answer = send(&mut wire, method, &to, &headers);
    let status = match answer.header("x-ratelimit-status") {
        Some(status) => {
            let status = status.parse().unwrap();
            let expected = if to == "/nginx" { 403 } else { status };
            assert!(matches!(&to[..], "/nginx" | "/haproxy") && answer.status() == expected, "{name}: {answer:?}");
            status
        }
        None => answer.status(),
    };
    assert!(to != "/nginx" || matches!(answer.status(), 200 | 403), "{name}: nginx knows no {}", answer.status());
    let violated = (status == 429 && method != "HEAD").then(|| body(&answer)["violated-policies"].to_string());
    told(&answer, status, violated)
}

fn check_all(weir: &Weir) {
    let ask_as = |way| table().iter().map(|(asked, _)| ask(weir, way, asked)).collect::<Vec<_>>();
    let proxy = ask_as(0);
    for ((asked, status), told) in table().iter().zip(&proxy) {
        let is_in_bytes =
            told.policies.as_ref().is_some_and(|list| list.contains("\"Upload\";q=1000;qu=\"content-bytes\";w=3600"));
        assert_eq!(is_in_bytes, asked.target == "/upload", "{told:?}");
        // The proxy denies gRPC calls in gRPC's way and passes OPTIONS to the upstream.
        let is_grpc = asked.headers.iter().any(|(_, value)| *value == "application/grpc");
        assert_eq!(told.status, if is_grpc { 200 } else { *status }, "{} {}: {told:?}", asked.method, asked.target);
    }
    for (way, name) in WAYS.iter().enumerate().skip(1) {
        for (((asked, status), told), proxy) in table().iter().zip(ask_as(way)).zip(&proxy) {
            let case = format!("{name}: {} {}", asked.method, asked.target);
            assert_eq!(told.status, *status, "{case}: {told:?}");
            let told = (told.retry_after, told.policies, told.left, told.violated.filter(|_| proxy.violated.is_some()));
            let expected =
                (proxy.retry_after.clone(), proxy.policies.clone(), proxy.left.clone(), proxy.violated.clone());
            // HAProxy's script asks with HEAD, so the answer has no body.
            let expected = if told.3.is_none() { (expected.0, expected.1, expected.2, None) } else { expected };
            assert_eq!(told, expected, "{case}");
        }
    }
}

#[test]
fn every_gateway_hears_what_the_proxy_says_on_memory() {
    let weir = stopped(RULES).start("echo");
    check_all(&weir);
    let counted = |convention: &str, result: &str| {
        weir.metric(&format!("weir_check_requests_total{{convention=\"{convention}\",result=\"{result}\"}}"))
    };
    let rows = |status: u16| table().iter().filter(|(_, expected)| *expected == status).count() as u64;
    for (convention, ways) in [("envoy", 2), ("nginx", 3), ("forward", 2), ("haproxy", 1), ("json", 1)] {
        assert_eq!(counted(convention, "allowed"), ways * rows(200), "{convention}");
        assert_eq!(counted(convention, "denied"), ways * rows(429), "{convention}");
        assert_eq!(counted(convention, "malformed"), ways * rows(400), "{convention}");
        assert_eq!(counted(convention, "misconfigured") + counted(convention, "unavailable"), 0, "{convention}");
    }
}

#[test]
fn every_gateway_hears_what_the_proxy_says_on_redis() {
    let server = RedisServer::plain();
    check_all(&on_redis(RULES, &server));
}

/// `OPTIONS *` has one path for everyone, and no other method has the target `*`. (A URL has no `*`.)
#[test]
fn a_request_for_the_whole_server_is_charged_alike() {
    let weir = stopped("limits: { PerPath: { by: path, burst: 1, count: 1, period: 1h } }").start("echo");
    let target = |method| Asked { method, target: "*", client: 1, ..ASKED };
    for (way, name) in WAYS.iter().enumerate().filter(|(_, name)| !matches!(**name, "ingress-nginx" | "json")) {
        assert_eq!(ask(&weir, way, &target("OPTIONS")).status, if *name == "proxy" { 200 } else { 429 }, "{name}");
        assert_eq!(ask(&weir, way, &target("GET")).status, 400, "{name}");
    }
}

/// An upstream may read it as the name with hyphens, so it is charged as that one; the proxy removes it.
#[test]
fn a_name_with_underscores_is_no_way_around_a_limit() {
    let weir =
        stopped("limits: { PerKey: { by: { header: x-api-key }, burst: 1, count: 1, period: 1h } }").start("echo");
    let asked = |headers| Asked { client: 1, headers, ..ASKED };
    for (way, name) in WAYS.iter().enumerate() {
        let denied = if *name == "proxy" { 200 } else { 429 };
        assert_eq!(ask(&weir, way, &asked(&[("X-Api-Key", "{}")])).status, 200, "{name}");
        assert_eq!(ask(&weir, way, &asked(&[("X_Api_Key", "{}")])).status, denied, "{name}");
        assert_eq!(ask(&weir, way, &asked(&[("x-api_key", "{}")])).status, denied, "{name}");
    }
}

/// With `on_store_error: deny` and no Redis, no gateway passes the request, and the client gets a 503.
#[test]
fn a_store_that_is_away_is_no_allowance() {
    let mut server = RedisServer::plain();
    let rules = "limits: { Closed: { by: global, count: 100, period: 1h, on_store_error: deny } }";
    let weir = on_redis(rules, &server);
    let asked = || Asked { client: 1, ..ASKED };
    for (way, name) in WAYS.iter().enumerate() {
        assert_eq!(ask(&weir, way, &asked()).status, 200, "{name}");
    }
    server.kill();
    for (way, name) in WAYS.iter().enumerate() {
        let told = ask(&weir, way, &asked());
        assert_eq!((told.status, told.retry_after.as_deref()), (503, Some("1")), "{name}");
        assert_eq!((told.policies, told.left), (None, None), "{name}");
    }
    assert!(weir.metric("weir_check_requests_total{convention=\"nginx\",result=\"unavailable\"}") == 3);
}

/// Upstreams differ in which of two credentials they take.
#[test]
fn two_credentials_are_malformed_whichever_gateway_asks() {
    let weir = stopped("limits: { PerKey: { by: credentials, burst: 1000, malformed: deny } }").start("echo");
    let rows: [(Fields<'static>, u16); 5] = [
        (&[("authorization", "Bearer a")], 200),
        (&[("authorization", "Bearer a"), ("authorization", "bearer  a")], 200),
        (&[("authorization", "Bearer a"), ("authorization", "Bearer b")], 429),
        (&[("authorization", "Bearer a, Bearer b")], 429),
        (&[("authorization", "Bearer a,Bearer b")], 429),
    ];
    for (way, name) in WAYS.iter().enumerate() {
        for (headers, expected) in rows {
            // JSON has a header once.
            if *name == "json" && headers.len() > 1 {
                continue;
            }
            let told = ask(&weir, way, &Asked { headers, ..ASKED });
            assert_eq!(told.status, expected, "{name}: {headers:?}: {told:?}");
        }
    }
}
