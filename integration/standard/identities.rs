//! 5.6: the id that a request is charged to, whatever its bytes and however often it names itself.

use std::fmt::Write;
use std::sync::Arc;
use weir::http::{Routes, UpstreamOptions};
use weir::store::Store;
use weir::store::redis::{RedisOptions, RedisStore};

use crate::support::becomes;
use crate::support::frames::{END_HEADERS, END_STREAM, Frames, HEADERS, frame, request};
use crate::support::redis::{RedisServer, STORE_TIMEOUT};
use crate::support::server::{Setup, Weir};
use crate::support::upstream::Upstream;
use crate::support::wire::Wire;

/// A limit, and requests with their answers.
struct Case {
    /// The limit's keys beside its own host and `burst: 1` without refill.
    limit: &'static str,
    /// More conditions of its `match`.
    conditions: &'static str,
    /// Targets, header lines and statuses.
    requests: &'static [(&'static str, &'static [&'static [u8]], u16)],
}

const CASE: Case = Case { limit: "", conditions: "", requests: &[] };

const BYTES: &[Case] = &[
    Case {
        limit: "by: { cookie: sid }",
        requests: &[
            ("/", &[b"cookie: sid=abc; x=\xe9"], 200),
            ("/", &[b"cookie: sid=abc"], 429),
            ("/", &[b"cookie: x=\xff\xfe; sid=abc"], 429),
            ("/", &[b"cookie: sid=\xe9"], 200),
            ("/", &[b"cookie: sid=\xe9"], 429),
            ("/", &[b"cookie: sid=\xe8"], 200),
        ],
        ..CASE
    },
    Case {
        limit: "by: { header: x-id }",
        requests: &[
            ("/", &[b"x-id: \xe9"], 200),
            ("/", &[b"x-id: \xe9"], 429),
            ("/", &[b"x-id: \xe8"], 200),
            ("/", &[b"x-id: %E9"], 200),
            ("/", &[b"x-id: \xc3\xa9"], 200),
            ("/", &[b"x-id: \xc3\xa9"], 429),
        ],
        ..CASE
    },
    Case {
        limit: "by: { query: id }",
        requests: &[
            ("/?id=%E9", &[], 200),
            ("/?id=%e9", &[], 429),
            ("/?id=%E8", &[], 200),
            ("/?id=%EF%BF%BD", &[], 200),
        ],
        ..CASE
    },
    Case {
        limit: "by: { path: name }",
        conditions: "path: '/{name}'",
        requests: &[("/%E9", &[], 200), ("/%e9", &[], 429), ("/%E8", &[], 200)],
    },
    Case {
        limit: "by: global",
        conditions: "headers: { user-agent: { prefix: Bad } }",
        requests: &[("/", &[b"user-agent: Bad \xe9"], 200), ("/", &[b"user-agent: Bad \xe9"], 429)],
    },
    Case {
        limit: "by: global",
        conditions: "headers: { user-agent: { regex: '^.*bot/[0-9]' } }",
        requests: &[("/", &[b"user-agent: \xe9bot/1"], 200), ("/", &[b"user-agent: \xffbot/2"], 429)],
    },
    Case {
        limit: "by: global",
        conditions: "headers: { user-agent: 'caf\u{e9}' }",
        requests: &[
            ("/", &["user-agent: caf\u{e9}".as_bytes()], 200),
            ("/", &["user-agent: caf\u{e9}".as_bytes()], 429),
        ],
    },
];

const MALFORMED: &[Case] = &[
    Case {
        limit: "by: { header: x-account, as: integer }",
        requests: &[
            ("/", &[b"x-account: 7"], 200),
            ("/", &[b"x-account: 07"], 429),
            ("/", &[b"x-account: +7"], 429),
            ("/", &[b"x-account: 007"], 429),
            ("/", &[b"x-account: 0x7"], 200),
            ("/", &[b"x-account: -7"], 429),
            ("/", &[b"x-account: 7,7"], 429),
            ("/", &[b"x-account: \xe9"], 429),
            ("/", &[], 200),
            ("/", &[b"x-account: "], 200),
            ("/", &[], 200),
        ],
        ..CASE
    },
    Case {
        limit: "by: { path: domain, as: registered-domain }",
        conditions: "path: '/v1/certificates/{domain}'",
        requests: &[
            ("/v1/certificates/example.com", &[], 200),
            ("/v1/certificates/*.example.com", &[], 429),
            ("/v1/certificates/%2A.www.example.com", &[], 429),
            ("/v1/certificates/example.com:443", &[], 429),
            ("/v1/certificates/example.com%3A443", &[], 429),
            ("/v1/certificates/example.com.", &[], 429),
            ("/v1/certificates/%20example.com", &[], 429),
            ("/v1/certificates/xn--mller-kva.example", &[], 200),
            ("/v1/certificates/m%C3%BCller.example", &[], 429),
            ("/v1/certificates/localhost", &[], 200),
            ("/v1/certificates/com", &[], 429),
            ("/v1/certificates/m%FCller.example", &[], 429),
        ],
    },
    Case {
        limit: "by: { query: id, as: integer }, malformed: deny",
        requests: &[("/?id=7", &[], 200), ("/?id=x", &[], 429), ("/", &[], 200), ("/?id=", &[], 200)],
        ..CASE
    },
    Case {
        limit: "by: { query: id, as: integer }, malformed: skip",
        requests: &[("/?id=x", &[], 200), ("/?id=x", &[], 200)],
        ..CASE
    },
    Case {
        limit: "by: { query: id, as: integer }, missing: shared",
        requests: &[("/?id=x", &[], 200), ("/", &[], 200), ("/?id=y", &[], 429), ("/", &[], 429)],
        ..CASE
    },
];

const DUPLICATES: &[Case] = &[
    Case {
        limit: "by: { query: key }",
        requests: &[
            ("/?key=REAL", &[], 200),
            ("/?key=junk1&key=REAL", &[], 200),
            ("/?key=junk2&key=REAL", &[], 429),
            ("/?KEY=junk3&key=REAL", &[], 429),
            ("/?k%65y=junk4&key=REAL", &[], 429),
            ("/?key=&key=REAL", &[], 429),
            ("/?key=REAL&KEY=R%45AL", &[], 429),
            ("/?key=other", &[], 200),
        ],
        ..CASE
    },
    Case {
        limit: "by: { query: key, duplicates: last }",
        requests: &[("/?key=a&key=REAL", &[], 200), ("/?key=b&key=REAL", &[], 429), ("/?key=REAL&key=b", &[], 200)],
        ..CASE
    },
    Case {
        limit: "by: { cookie: sid }",
        requests: &[
            ("/", &[b"cookie: sid=junk1; sid=REAL"], 200),
            ("/", &[b"cookie: sid=junk2", b"cookie: sid=REAL"], 429),
            ("/", &[b"cookie: SID=junk3; sid=REAL"], 429),
            ("/", &[b"cookie: sid=REAL; sid=\"REAL\""], 200),
            ("/", &[b"cookie: sid=REAL"], 429),
        ],
        ..CASE
    },
    Case {
        limit: "by: { cookie: sid, duplicates: first }",
        requests: &[("/", &[b"cookie: sid=a; sid=b"], 200), ("/", &[b"cookie: sid=a; sid=c"], 429)],
        ..CASE
    },
    Case {
        limit: "by: { header: x-api-key }",
        requests: &[
            ("/", &[b"x-api-key:", b"x-api-key: REAL"], 200),
            ("/", &[b"X-Api-Key: junk", b"x-api-key: REAL"], 429),
            ("/", &[b"x-api-key: REAL", b"x-api-key:  REAL "], 200),
            ("/", &[b"x-api-key: REAL"], 429),
        ],
        ..CASE
    },
    Case {
        limit: "by: { header: x-api-key, duplicates: last }",
        requests: &[
            ("/", &[b"x-api-key:", b"x-api-key: REAL"], 200),
            ("/", &[b"x-api-key: junk", b"x-api-key: REAL"], 429),
            ("/", &[b"x-api-key: REAL", b"x-api-key:"], 200),
            ("/", &[b"x-api-key: REAL", b"x-api-key:"], 200),
        ],
        ..CASE
    },
    Case {
        limit: "by: global",
        conditions: "headers: { x-plan: free }",
        requests: &[
            ("/", &[b"x-plan: paid", b"x-plan: free"], 200),
            ("/", &[b"x-plan: free", b"x-plan: paid"], 429),
            ("/", &[b"x-plan: paid"], 200),
        ],
    },
    Case {
        limit: "by: global",
        conditions: "headers: { x-plan: { not: [paid, { prefix: gold }] } }",
        requests: &[
            ("/", &[b"x-plan: paid"], 200),
            ("/", &[b"x-plan: golden"], 200),
            ("/", &[b"x-plan: paid", b"x-plan: free"], 200),
            ("/", &[], 429),
        ],
    },
    Case {
        limit: "by: global, cost: { header: x-cost }",
        requests: &[
            ("/", &[b"x-cost: 0", b"x-cost: 1"], 429),
            ("/", &[b"x-cost: 1", b"x-cost: 1"], 200),
            ("/", &[b"x-cost: 1"], 429),
        ],
        ..CASE
    },
];

const PATHS: &[Case] = &[
    Case {
        limit: "by: global",
        conditions: "path: '/v1/orders:cancel'",
        requests: &[
            ("/v1/orders:cancel", &[], 200),
            ("/v1/orders%3Acancel", &[], 429),
            ("/v1/orders%3acancel", &[], 429),
            ("/v1/orders%253Acancel", &[], 200),
        ],
    },
    Case {
        limit: "by: global",
        conditions: "path: '/a%40b,c%3Bd=e$'",
        requests: &[("/a@b%2Cc;d%3De%24", &[], 200), ("/a%40b%2cc%3Bd=e$", &[], 429)],
    },
    Case {
        limit: "by: path",
        requests: &[
            ("/a@b,c;d=e$f", &[], 200),
            ("/a%40b%2Cc%3Bd%3De%24f", &[], 429),
            ("/a/b", &[], 200),
            ("/a%2Fb", &[], 200),
            ("/a%2fb", &[], 429),
            ("/a%5Cb", &[], 200),
            ("/A/b", &[], 200),
            ("/a/b;x", &[], 200),
        ],
        ..CASE
    },
    Case {
        limit: "by: global",
        conditions: "path: /V1/Orders, path_case: ignore, path_params: strip",
        requests: &[("/v1/orders", &[], 200), ("/V1;x=1/ORDERS;y", &[], 429), ("/v1/x/..;y/orders", &[], 429)],
    },
    Case {
        limit: "by: { path: name }",
        conditions: "path: '/users/{name}', path_case: ignore",
        requests: &[("/users/Bob", &[], 200), ("/USERS/bob", &[], 429), ("/users/bob;x", &[], 200)],
    },
    Case {
        limit: "by: path",
        conditions: "path_params: strip",
        requests: &[("/users/bob", &[], 200), ("/users;x/bob;y", &[], 429), ("/users/Bob", &[], 200)],
    },
    Case {
        limit: "by: global",
        conditions: "path: [{ prefix: /api }, { regex: '\\.php$' }, { not: ['/api/health', { prefix: /apidoc }, { regex: 'x\\.php' }] }]",
        requests: &[
            ("/ap", &[], 200),
            ("/api/health/", &[], 200),
            ("/api/x/../h%65alth", &[], 200),
            ("/apidocs", &[], 200),
            ("/x.php", &[], 200),
            ("/api/x.php/y", &[], 200),
            ("/API", &[], 200),
            ("//%61pix", &[], 200),
            ("/x/%2e%2e/apiy", &[], 429),
            ("/a.php/", &[], 429),
            ("/a.php;y", &[], 200),
            ("/api/health;y", &[], 429),
        ],
    },
    Case {
        limit: "by: global",
        conditions: "path: [{ prefix: /Api }, { regex: 'P[H]P$' }, { not: { prefix: /API/Doc } }], path_case: ignore, path_params: strip",
        requests: &[
            ("/api;x/DOCS", &[], 200),
            ("/API/x/..;y/docs", &[], 200),
            ("/a;pi", &[], 200),
            ("/API;x", &[], 200),
            ("/aPix/y", &[], 429),
            ("/x.phP;y", &[], 429),
            ("/x/..;y/api", &[], 429),
        ],
    },
];

/// Starts a server with the limits of all cases and sends their requests.
#[track_caller]
fn check(cases: &[Case], redis: Option<&RedisServer>) {
    let mut rules = "limits:\n".to_owned();
    for (number, case) in cases.iter().enumerate() {
        let (limit, conditions) = (case.limit, case.conditions);
        let comma = if conditions.is_empty() { "" } else { ", " };
        let _ = writeln!(
            rules,
            "  C{number}: {{ match: {{ host: c{number}.example{comma}{conditions} }}, burst: 1, {limit} }}"
        );
    }
    let upstream = Upstream::saying("hello");
    let weir = start(&rules, &upstream, redis);
    let mut client = weir.connect();
    for (number, case) in cases.iter().enumerate() {
        for (step, (target, lines, expected)) in case.requests.iter().enumerate() {
            let status = ask(&mut client, &format!("c{number}.example"), target, lines);
            assert_eq!(status, *expected, "{}, request {step}: {target}", case.limit);
        }
    }
}

fn start(rules: &str, upstream: &Upstream, redis: Option<&RedisServer>) -> Weir {
    let mut setup = Setup::new(rules);
    if let Some(server) = redis {
        // A late answer on a busy machine would be an allowance.
        let options = RedisOptions { timeout: STORE_TIMEOUT, ..RedisOptions::new(server.url(), setup.clock.clone()) };
        let target = options.target().unwrap();
        setup.store = Some(Arc::new(move || Ok(Store::Redis(RedisStore::connect(&target)))));
    }
    let weir = setup.start(&format!("http://{}", upstream.address));
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    weir
}

fn ask(client: &mut Wire, host: &str, target: &str, lines: &[&[u8]]) -> u16 {
    let mut head = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n").into_bytes();
    for line in lines {
        head.extend_from_slice(line);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    client.send(head);
    client.response().status()
}

#[test]
fn ids_and_matches_see_every_byte() {
    check(BYTES, None);
    check(BYTES, Some(&RedisServer::plain()));
}

#[test]
fn http2_shows_every_byte_too() {
    let upstream = Upstream::saying("hello");
    let weir = start("limits: { PerSession: { by: { cookie: sid }, burst: 1 } }", &upstream, None);
    for (cookie, expected) in
        [(&b"x=\xe9; sid=abc"[..], 200), (b"sid=abc; x=\xff", 429), (b"sid=\xe9", 200), (b"sid=\xe9", 429)]
    {
        let mut client = Frames::connect(weir.proxy);
        let mut block = request("GET", "/", &[]);
        for text in [b"cookie", cookie] {
            // A literal, with its name before its value.
            block.extend((text == b"cookie").then_some(0));
            block.push(text.len().try_into().unwrap());
            block.extend_from_slice(text);
        }
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &block));
        assert_eq!(client.stream(1)[0].status(), expected, "{cookie:?}");
    }
}

#[test]
fn a_malformed_component_is_charged_and_what_upstreams_take_for_the_same_is_one_id() {
    check(MALFORMED, None);
    check(MALFORMED, Some(&RedisServer::plain()));
}

#[test]
fn a_path_has_one_spelling_and_one_more_where_its_upstream_reads_it_so() {
    check(PATHS, None);
    check(PATHS, Some(&RedisServer::plain()));
}

#[test]
fn an_ipv6_host_is_one_however_it_is_written() {
    let rules = "limits:\n  \
                 A: { match: { host: '[0:0::1]' }, by: global, burst: 1 }\n  \
                 B: { match: { host: '2001:DB8::0:1' }, by: host, burst: 1 }\n";
    let (six, others) = (Upstream::saying("six"), Upstream::saying("others"));
    let routes = [format!("[::0:1]=http://{}", six.address), format!("http://{}", others.address)];
    let weir = Setup::new(rules).start_with(UpstreamOptions::new(Routes::parse(&routes).unwrap()));
    let mut client = weir.connect();
    for (host, status, body) in [
        ("[::1]", 200, "six"),
        ("[0::1]:8080", 429, ""),
        ("[2001:db8::1]", 200, "others"),
        ("[2001:0DB8:0::1]:80", 429, ""),
        ("a.example", 200, "others"),
    ] {
        client.send(format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        let response = client.response();
        assert_eq!(response.status(), status, "{host}");
        assert!(status == 429 || response.text() == body, "{host}: {}", response.text());
    }
}

#[test]
fn values_that_differ_are_no_way_around_a_limit() {
    check(DUPLICATES, None);
    check(DUPLICATES, Some(&RedisServer::plain()));
}
