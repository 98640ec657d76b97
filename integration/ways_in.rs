//! One request, told to every listener and command that takes requests: all see the same ids, or all reject it for the same reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest};
use serde_json::{Value, json};

use crate::spoe::{Peer, frame, string};
use crate::support::binary::{run, run_in};
use crate::support::weir::Weir;
use crate::support::wire::{Message, Wire};

const LIMITS: &str = "\
limits:
  Requests: { by: [method, host, path], burst: 1000 }
  Keys: { by: { header: x-id }, burst: 1000 }
  Queries: { by: { query: q }, burst: 1000 }
  Hosts: { by: { header: host }, burst: 1000 }
  Claims: { by: { header: x-real-ip }, burst: 1000 }
  Paths: { match: { path: [{ prefix: /p/a }, { regex: '\\.php$' }, { not: ['/p/admin/**', { regex: b\\.php }] }] }, by: path, burst: 1000 }
";

const NAMES: [&str; 6] = ["Requests", "Keys", "Queries", "Hosts", "Claims", "Paths"];

type Lines = &'static [(&'static str, &'static str)];

/// The names of the buckets, or a part of the reason why the request is malformed.
type Expected = Result<&'static [&'static str], &'static str>;

struct Row {
    method: &'static str,
    target: &'static str,
    headers: Lines,
    /// By those that forward requests or describe one to the proxy.
    expected: Expected,
    /// By those that a gateway asks, if they may see something else.
    asked: Expected,
}

const fn row(method: &'static str, target: &'static str, headers: Lines, expected: Expected) -> Row {
    Row { method, target, headers, expected, asked: expected }
}

const A: Lines = &[("host", "a")];

const ROWS: &[Row] = &[
    row("GET", "/", A, Ok(&["Requests:GET:a:/", "Hosts:a"])),
    row("GET", "/a//b/./c/../%64/?q=1", A, Ok(&["Requests:GET:a:/a/b/d", "Queries:1", "Hosts:a"])),
    row("PUT", "/a%2fb?", A, Ok(&["Requests:PUT:a:/a%2Fb", "Hosts:a"])),
    row(
        "GET",
        "/?q=%41",
        &[("Host", "B.Example.:8080")],
        Ok(&["Requests:GET:b.example:/", "Queries:A", "Hosts:B.Example.:8080"]),
    ),
    row("GET", "/", &[("host", "[::1]:80")], Ok(&["Requests:GET:%3A%3A1:/", "Hosts:[::1]:80"])),
    row("GET", "http://a/x?q=2", A, Ok(&["Requests:GET:a:/x", "Queries:2", "Hosts:a"])),
    row("GET", "HTTPS://A:443?q=3", &[("host", "A:443")], Ok(&["Requests:GET:a:/", "Queries:3", "Hosts:A:443"])),
    Row {
        asked: Err("the host and the target's authority contradict each other"),
        ..row("GET", "http://c/x", A, Ok(&["Requests:GET:c:/x", "Hosts:c"]))
    },
    row("GET", "//%70/./%61pi", A, Ok(&["Requests:GET:a:/p/api", "Hosts:a", "Paths:/p/api"])),
    row("GET", "/p/x/%2e%2e/admin/x", A, Ok(&["Requests:GET:a:/p/admin/x", "Hosts:a"])),
    row("GET", "/p/admins;x", A, Ok(&["Requests:GET:a:/p/admins;x", "Hosts:a", "Paths:/p/admins;x"])),
    row("GET", "/P/api", A, Ok(&["Requests:GET:a:/P/api", "Hosts:a"])),
    row("GET", "/a%2ephp/?q=1", A, Ok(&["Requests:GET:a:/a.php", "Queries:1", "Hosts:a", "Paths:/a.php"])),
    row("GET", "/a/b.php", A, Ok(&["Requests:GET:a:/a/b.php", "Hosts:a"])),
    row("OPTIONS", "*", A, Ok(&["Requests:OPTIONS:a:/*", "Hosts:a"])),
    row("OPTIONS", "http://a", A, Ok(&["Requests:OPTIONS:a:/*", "Hosts:a"])),
    row("M-SEARCH", "/", A, Ok(&["Requests:M-SEARCH:a:/", "Hosts:a"])),
    row("GET", "/k", &[("host", "a"), ("X-ID", " 7 ")], Ok(&["Requests:GET:a:/k", "Keys:7", "Hosts:a"])),
    row("GET", "/k", &[("host", "a"), ("x-id", "7"), ("X-Id", "7")], Ok(&["Requests:GET:a:/k", "Keys:7", "Hosts:a"])),
    row("GET", "*", A, Err("only OPTIONS may have the target `*`")),
    row("get", "/", A, Err("a standard method must be in upper case")),
    row("GET", "x", A, Err("a target must be a path, or an `http://` or `https://` URL")),
    row("GET", "ftp://a/", A, Err("a target must be a path, or an `http://` or `https://` URL")),
    row("GET", "http://u@a/", A, Err("the target's authority is not a valid host")),
    row("GET", "/a\\b", A, Err("a path must be printable ASCII without a backslash or fragment")),
    row("GET", "/%zz", A, Err("`%` must begin an escape of two hexadecimal digits")),
    row("GET", "/%00", A, Err("a path must not have control characters, escaped or not")),
    row("GET", "/?a#b", A, Err("a query must be printable ASCII without a fragment")),
    row("GET", "/", &[("host", "a/b")], Err("the `Host` header is not a valid host")),
    row("GET", "http://a/", &[("host", "a/b")], Err(REPLACED)),
];

/// The error for a `Host` that an absolute target replaces.
const REPLACED: &str = "is not a valid host";

/// The answer of one of the ways: allowed, or rejected with a reason, unless the protocol has none.
type Answer = Result<(), Option<String>>;

/// A server, and what has been taken from its buckets.
struct Ways {
    weir: Weir,
    flags: &'static [&'static str],
    taken: BTreeMap<&'static str, u64>,
}

impl Ways {
    fn new(flags: &'static [&'static str]) -> Self {
        let listeners = ["check", "spoe", "grpc"].map(|name| [format!("--{name}"), "127.0.0.1:0".to_owned()]).concat();
        let all: Vec<&str> = listeners.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        Self { weir: Weir::serve(LIMITS, &all), flags, taken: BTreeMap::new() }
    }

    /// The command's explanation, and the process'.
    fn explained(&self, row: &Row, asked: bool) -> [Result<Value, String>; 2] {
        let limits = self.weir.limits_file();
        let lines: Vec<String> = row.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let mut words =
            vec!["explain", row.method, row.target, "--format", "json", "--limits", limits.to_str().unwrap()];
        words.extend(self.flags);
        words.extend(lines.iter().flat_map(|line| ["-H", line]));
        let mut body = json!({ "method": row.method, "url": row.target, "headers": row.headers, "ip": "127.0.0.1" });
        if asked {
            words.extend(["--descriptor", "route=a"]);
            body["descriptor"] = json!([{ "key": "route", "value": "a" }]);
        }
        let said = run(&words);
        let command = if said.code == Some(0) { Ok(serde_json::from_str(&said.out).unwrap()) } else { Err(said.err) };
        let mut wire = Wire::connect(self.weir.admin);
        let answer = post(&mut wire, "/explain", "localhost", &body);
        let process = if answer.status() == 200 { Ok(json_of(&answer)) } else { Err(answer.text().to_owned()) };
        [command, process]
    }

    #[track_caller]
    fn check_explanations(&self, row: &Row, expected: Expected, asked: bool) {
        for (place, found) in self.explained(row, asked).into_iter().enumerate() {
            match (found, expected) {
                (Ok(told), Ok(expected)) => {
                    let limits = told["limits"].as_array().unwrap().iter();
                    let buckets: Vec<_> = limits.filter_map(|limit| limit["bucket"].as_str()).collect();
                    assert_eq!(buckets, expected, "{place}: {}", shown(row));
                }
                (Err(said), Err(reason)) => {
                    assert!(unescaped(&said).contains(reason), "{place}: {}: {said}", shown(row));
                }
                (found, _) => panic!("{place}: {}: {found:?}, not {expected:?}", shown(row)),
            }
        }
    }

    /// A charge of each bucket, and of no other; or a rejection.
    #[track_caller]
    fn check_answer(&mut self, way: &str, row: &Row, expected: Expected, answer: &Answer) {
        match (answer, expected) {
            (Ok(()), Ok(expected)) => {
                for bucket in expected {
                    *self.taken.entry(bucket).or_default() += 1;
                    let path = format!("/buckets/{}", percent(bucket));
                    let state = json_of(&self.weir.admin(&path));
                    assert_eq!(state["windows"][0]["used"], self.taken[bucket], "{way}: {} {bucket}", shown(row));
                }
            }
            (Err(said), Err(reason)) => {
                let says = |said: &String| unescaped(said).contains(reason);
                assert!(said.as_ref().is_none_or(says), "{way}: {}: {said:?}", shown(row));
            }
            _ => panic!("{way}: {}: {answer:?}, not {expected:?}", shown(row)),
        }
        for name in NAMES {
            let taken: u64 =
                self.taken.iter().filter(|(bucket, _)| bucket.starts_with(name)).map(|(_, taken)| taken).sum();
            let series = format!("weir_decisions_total{{limit=\"{name}\",result=\"allowed\"}}");
            assert_eq!(self.weir.metric(&series), taken, "{way}: {}, {name}", shown(row));
        }
    }

    fn proxy(&self, row: &Row) -> Answer {
        let mut text = format!("{} {} HTTP/1.1\r\n", row.method, row.target);
        for (name, value) in row.headers {
            write!(text, "{name}: {value}\r\n").unwrap();
        }
        answered(&exchange(&mut self.weir.connect(), &(text + "\r\n")))
    }

    fn application(&self, row: &Row) -> Answer {
        let mut headers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, value) in row.headers {
            headers.entry(name).or_default().push(value);
        }
        let request = json!({ "method": row.method, "url": row.target, "headers": headers, "ip": "127.0.0.1" });
        let mut wire = Wire::connect(self.weir.listener("check"));
        answered(&post(&mut wire, "/json", "limiter", &json!({ "request": request })))
    }

    /// nginx' way, or Traefik's.
    fn gateway(&self, row: &Row, path: &str, names: [&str; 3], host: &str) -> Answer {
        let [method, target, authority] = names;
        let mut text = format!("GET {path} HTTP/1.1\r\nhost: limiter\r\n{method}: {}\r\n", row.method);
        write!(text, "{target}: {}\r\n{authority}: {host}\r\nx-forwarded-for: 127.0.0.1\r\n", row.target).unwrap();
        for (name, value) in others(row) {
            write!(text, "{name}: {value}\r\n").unwrap();
        }
        let mut answer = exchange(&mut Wire::connect(self.weir.listener("check")), &(text + "\r\n"));
        if answer.header("x-ratelimit-status") == Some("400") {
            answer.start.replace_range(.., "HTTP/1.1 400");
        }
        answered(&answer)
    }

    fn haproxy(&self, row: &Row, host: &str) -> Answer {
        let text = |name: &str, value: &str| [string(name.as_bytes()), vec![8], string(value.as_bytes())].concat();
        let lines = others(row).map(|(name, value)| [name, ": ", value, "\r\n"].concat()).collect::<String>();
        let arguments = [
            text("method", row.method),
            text("uri", row.target),
            text("host", host),
            text("headers", &(lines + "\r\n")),
            [string(b"src"), vec![6, 127, 0, 0, 1]].concat(),
        ];
        let payload = [&string(b"check")[..], &[5], &arguments.concat()].concat();
        let mut peer = Peer::connect(self.weir.listener("spoe"));
        peer.greet();
        peer.send(&frame(3, [7, 1], &payload));
        if peer.answer().1 { Err(None) } else { Ok(()) }
    }

    fn envoy(&self, row: &Row, host: &str) -> Answer {
        let http = HttpRequest {
            method: row.method.into(),
            path: row.target.into(),
            host: host.into(),
            headers: others(row).map(|(name, value)| (name.to_lowercase(), (*value).to_owned())).collect(),
            ..HttpRequest::default()
        };
        let attributes = AttributeContext {
            request: Some(Request { http: Some(http), ..Request::default() }),
            ..AttributeContext::default()
        };
        let address = format!("http://{}", self.weir.listener("grpc"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(async {
            let mut client = AuthorizationClient::connect(address).await.unwrap();
            client.check(CheckRequest { attributes: Some(attributes) }).await.unwrap().into_inner()
        });
        match answer.http_response {
            Some(HttpResponse::DeniedResponse(denied)) => Err(Some(denied.body)),
            _ => Ok(()),
        }
    }

    #[track_caller]
    fn check(&mut self, row: &Row) {
        // Who describes a request chooses the URL, which counts.
        let described = if row.target.starts_with("http://c") { row.expected } else { row.asked };
        self.check_explanations(row, row.expected, false);
        self.check_explanations(row, described, true);
        let answer = self.proxy(row);
        self.check_answer("the proxy", row, row.expected, &answer);
        let [host] = row.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host")).collect::<Vec<_>>()[..]
        else {
            return;
        };
        let host = host.1;
        let answer = self.application(row);
        self.check_answer("an application", row, described, &answer);
        let nginx = self.gateway(row, "/nginx", ["x-original-method", "x-original-uri", "x-original-host"], host);
        self.check_answer("nginx", row, row.asked, &nginx);
        let traefik =
            self.gateway(row, "/forward", ["x-forwarded-method", "x-forwarded-uri", "x-forwarded-host"], host);
        self.check_answer("Traefik", row, row.asked, &traefik);
        let haproxy = self.haproxy(row, host);
        self.check_answer("HAProxy", row, row.asked, &haproxy);
        let envoy = self.envoy(row, host);
        self.check_answer("Envoy", row, row.asked, &envoy);
    }
}

/// The headers but `Host`, which gateways tell apart.
fn others(row: &Row) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    row.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("host"))
}

fn shown(row: &Row) -> String {
    format!("{} {} {:?}", row.method, row.target, row.headers)
}

/// A bucket's name in a path.
fn percent(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F").replace('*', "%2A").replace('[', "%5B").replace(']', "%5D")
}

/// Text of JSON, as far as reasons need it.
fn unescaped(text: &str) -> String {
    text.replace("\\\"", "\"")
}

fn json_of(message: &Message) -> Value {
    serde_json::from_slice(&message.body).unwrap_or_else(|error| panic!("{error}: {message:?}"))
}

fn exchange(wire: &mut Wire, text: &str) -> Message {
    wire.send(text);
    wire.response()
}

fn post(wire: &mut Wire, path: &str, host: &str, body: &Value) -> Message {
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n");
    exchange(wire, &format!("{head}content-length: {}\r\n\r\n{body}", body.len()))
}

fn answered(message: &Message) -> Answer {
    match message.status() {
        200 => Ok(()),
        400 => Err(Some(message.text().to_owned())),
        other => panic!("{other}: {message:?}"),
    }
}

#[test]
fn every_way_in_reads_a_request_alike() {
    let mut ways = Ways::new(&[]);
    for row in ROWS {
        ways.check(row);
    }
}

#[test]
fn the_flags_for_headers_and_paths_hold_wherever_a_request_comes_in() {
    let underscored: Lines = &[("host", "a"), ("x_id", "8")];
    let dropped: Lines = &[("host", "a"), ("X-Id", "9")];
    let claimed: Lines = &[("host", "a"), ("x-real-ip", "127.0.0.1")];
    let (plain, key): (Expected, Expected) =
        (Ok(&["Requests:GET:a:/", "Hosts:a"]), Ok(&["Requests:GET:a:/", "Keys:8", "Hosts:a"]));
    let claim: Expected = Ok(&["Requests:GET:a:/", "Hosts:a", "Claims:127.0.0.1"]);
    let rejected = Err("a header's name has an underscore");
    let dropped_at_gateways = Ok(&["Requests:GET:a:/", "Keys:9", "Hosts:a"][..]);
    for (flags, headers, expected, asked) in [
        (&[][..], underscored, plain, key),
        (&["--underscores", "keep"], underscored, plain, plain),
        (&["--underscores", "reject"], underscored, rejected, rejected),
        (&["--drop-headers", "x-id"], dropped, plain, dropped_at_gateways),
        (
            &["--drop-headers", "x-id", "--trusted-proxies", "127.0.0.0/8"],
            dropped,
            dropped_at_gateways,
            dropped_at_gateways,
        ),
        (&[], claimed, plain, claim),
        (&["--trusted-proxies", "127.0.0.0/8"], claimed, claim, claim),
    ] {
        Ways::new(flags).check(&Row { asked, ..row("GET", "/", headers, expected) });
    }
    let slashes = Err("a path must not have escaped slashes here");
    Ways::new(&["--escaped-slashes", "reject"]).check(&row("GET", "/a%2Fb", A, slashes));
}

#[test]
fn an_explanation_shows_what_the_proxy_would_forward() {
    let mut ways = Ways::new(&[]);
    for (headers, expected) in [
        (&[("host", "a"), ("connection", "x-id"), ("x-id", "7")][..], Ok(&["Requests:GET:a:/", "Hosts:a"][..])),
        (&[("host", "a"), ("host", "a")], Err("a request must have one `Host` header")),
    ] {
        let row = row("GET", "/", headers, expected);
        ways.check_explanations(&row, expected, false);
        let answer = ways.proxy(&row);
        ways.check_answer("the proxy", &row, expected, &answer);
    }
}

/// A log has no headers but those that it names, no second value of them, and no `Host` beside an absolute target.
#[test]
fn a_simulation_reads_a_request_as_the_proxy_does() {
    for row in ROWS.iter().filter(|row| row.headers.len() <= 2 && row.expected != Err(REPLACED)) {
        let find = |name: &str| row.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        let value = |name| find(name).map_or("", |(_, value)| value.trim());
        let line = json!({
            "time_iso8601": "2026-11-22T10:00:00+00:00", "remote_addr": "192.0.2.1", "request_time": "0.100",
            "request_method": row.method, "request_uri": row.target, "host": value("host"), "http_x_id": value("x-id"),
        });
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("limits.yaml"), LIMITS.replace("1000", "1")).unwrap();
        std::fs::write(directory.path().join("access.log"), format!("{line}\n{line}\n")).unwrap();
        let flags = ["simulate", "access.log", "--format", "json", "--show-ids"];
        let finished = run_in(directory.path(), &flags);
        let report: Value = serde_json::from_str(&finished.out).unwrap_or_else(|_| panic!("{}", finished.text()));
        let denied = NAMES.iter().flat_map(|name| {
            let ids = report["limits"][name]["most_denied"].as_array().unwrap().iter();
            ids.map(move |id| format!("{name}:{}", id["id"].as_str().unwrap()))
        });
        let denied: Vec<String> = denied.collect();
        match row.expected {
            Ok(buckets) => {
                // The report writes ids plainly, and no log has `Host` among its headers.
                let expected = buckets.iter().filter(|bucket| !bucket.starts_with("Hosts"));
                assert_eq!(
                    denied,
                    expected.map(|bucket| bucket.replace("%3A", ":")).collect::<Vec<_>>(),
                    "{}",
                    shown(row)
                );
            }
            Err(_) => assert_eq!((&report["rejected"], denied.len()), (&json!(2), 0), "{}", shown(row)),
        }
    }
}
