//! Other people's programs through a Weir process: clients that must not notice it, and attacks that must not pass it.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::eventually;
use crate::support::programs::{Nginx, Server, client, installed};
use crate::support::server::WIDE;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

/// The most that a process may grow under a flood, in KiB. Connections and tables of a few attackers take their memory
/// once; each flood sends 16 MB and more.
const MOST_GROWTH: u64 = 16 << 10;

/// Answers with the request, and stores files that are put under `/files`.
const LOCATIONS: &str = "
    location / { return 200 '$request_method $request_uri'; }
    location /files { root $directory; dav_methods PUT; create_full_put_path on; }";

/// A process that forwards to this URL.
fn weir(upstream: &str, flags: &[&str]) -> Weir {
    Weir::serve(WIDE, &[&["--upstream", upstream], flags].concat())
}

/// A self-signed certificate for `localhost` and its key.
struct Certificate {
    directory: TempDir,
}

impl Certificate {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = Self { directory: tempfile::tempdir().unwrap() };
        std::fs::write(certificate.certificate(), made.cert.pem()).unwrap();
        std::fs::write(certificate.key(), made.signing_key.serialize_pem()).unwrap();
        certificate
    }

    fn certificate(&self) -> String {
        self.file("certificate.pem")
    }

    fn key(&self) -> String {
        self.file("key.pem")
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }
}

fn weir_with_tls(upstream: &str, certificate: &Certificate) -> Weir {
    weir(upstream, &["--tls-cert", &certificate.certificate(), "--tls-key", &certificate.key()])
}

/// Runs a client that fails if one of its own checks does.
#[track_caller]
fn check(program: &str, weir: &Weir, flags: &[&str]) {
    let address = weir.proxy.to_string();
    let checks = client(program, &[&[address.as_str()], flags].concat());
    assert!(checks["passed"].as_array().is_some_and(|passed| passed.len() > 5), "{checks}");
}

#[test]
fn grpc_has_all_four_shapes() {
    let server = Server::start("grpc_server.py");
    let weir = weir(&format!("h2c://{}", server.address), &[]);
    check("grpc_client.py", &weir, &[]);
}

#[test]
fn grpc_has_all_four_shapes_over_tls() {
    let (server, certificate) = (Server::start("grpc_server.py"), Certificate::new());
    let weir = weir_with_tls(&format!("h2c://{}", server.address), &certificate);
    check("grpc_client.py", &weir, &["--ca", &certificate.certificate()]);
}

#[test]
fn websockets_are_as_without_a_proxy() {
    let server = Server::start("websocket_server.py");
    let weir = weir(&format!("http://{}", server.address), &[]);
    check("websocket_client.py", &weir, &[]);
    check_closings(&server);
}

#[test]
fn websockets_are_as_without_a_proxy_over_tls() {
    let (server, certificate) = (Server::start("websocket_server.py"), Certificate::new());
    let weir = weir_with_tls(&format!("http://{}", server.address), &certificate);
    check("websocket_client.py", &weir, &["--ca", &certificate.certificate()]);
    check_closings(&server);
}

/// The server sees each client's close code; a broken connection would be 1006.
#[track_caller]
fn check_closings(server: &Server) {
    let closings = server.events();
    assert!(closings.contains(&json!({"closed": "/echo", "code": 4002, "reason": "bye"})), "{closings:?}");
    assert!(closings.iter().all(|closing| closing["code"] != 1006), "{closings:?}");
}

/// curl puts a file, gets it, and requests a page, in this version of HTTP.
#[track_caller]
fn check_curl(url: &str, version: &str, flags: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_be_bytes).collect();
    std::fs::write(path("sent"), &content).unwrap();
    let curl = |more: &[&str]| {
        let all = [&["-sS", "--fail", "-m", "60", "-w", "\n%{http_version} %{http_code}"], flags, more].concat();
        installed("curl", &all)
    };
    // A new file for each run, since replacing one gives a 204.
    let name = directory.path().file_name().unwrap().to_str().unwrap();
    let (file, sent, got) = (format!("{url}/files/{name}"), path("sent"), path("got"));
    assert_eq!(curl(&["-T", &sent, &file]), format!("\n{version} 201"));
    assert_eq!(curl(&["-o", &got, &file]), format!("\n{version} 200"));
    assert!(std::fs::read(&got).unwrap() == content, "the file came back changed");
    assert_eq!(curl(&[&format!("{url}/page?x=%2f")]), format!("GET /page?x=%2f\n{version} 200"));
    assert_eq!(curl(&["-d", "a=b", &format!("{url}/form")]), format!("POST /form\n{version} 200"));
    let head = curl(&["-I", &format!("{url}/head")]).to_lowercase();
    assert!(head.contains("content-length: 10") && head.ends_with(&format!("\n{version} 200")), "{head}");
}

#[test]
fn curl_speaks_both_versions_without_tls() {
    let nginx = Nginx::serving(LOCATIONS);
    let weir = weir(&format!("http://{}", nginx.address), &[]);
    let url = format!("http://{}", weir.proxy);
    check_curl(&url, "1.1", &["--http1.1"]);
    check_curl(&url, "2", &["--http2-prior-knowledge"]);
}

#[test]
fn curl_speaks_both_versions_over_tls() {
    let (nginx, certificate) = (Nginx::serving(LOCATIONS), Certificate::new());
    let weir = weir_with_tls(&format!("http://{}", nginx.address), &certificate);
    let (url, ca) = (format!("https://localhost:{}", weir.proxy.port()), certificate.certificate());
    let resolve = format!("localhost:{}:127.0.0.1", weir.proxy.port());
    let flags = ["--cacert", &ca, "--resolve", &resolve];
    check_curl(&url, "1.1", &[&flags[..], &["--http1.1"]].concat());
    check_curl(&url, "2", &[&flags[..], &["--http2"]].concat());
    check_curl(&url, "2", &[&flags[..], &["--http2", "--tls-max", "1.2"]].concat());
}

#[test]
fn wrk_and_h2load_run_clean() {
    let nginx = Nginx::serving(LOCATIONS);
    let weir = weir(&format!("http://{}", nginx.address), &[]);
    let url = format!("http://{}/", weir.proxy);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/bench/wrk.lua");
    let script = script.to_str().unwrap();
    for more in [&[][..], &["-H", "Connection: close"]] {
        let said = installed("wrk", &[&["-t1", "-c32", "-d1s", "-s", script], more, &[url.as_str()]].concat());
        let figures: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        assert!(figures["requests"].as_u64().unwrap() > 0, "{said}");
        assert_eq!((&figures["socket_errors"], &figures["statuses_above_399"]), (&json!(0), &json!(0)), "{said}");
    }
    let said = installed("h2load", &["-n5000", "-c8", "-m16", &url]);
    assert!(said.contains("5000 done, 5000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
    assert!(said.contains("5000 2xx"), "{said}");
}

/// Payloads that one reader takes for one request and another for two, by their mistake. The second is for `/smuggled`.
/// All must be rejected, and nothing after them read.
#[rustfmt::skip]
const SMUGGLING: &[(&str, &str)] = &[
    ("CL.TE", "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 36\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE.CL", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n24\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n\r\n0\r\n\r\n"),
    ("TE.TE, another coding after", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE.TE, another coding before", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE twice", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE not last", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE misspelt", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE identity", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE in quotes", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE after a vertical tab", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE before a colon with a space", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE on a folded line", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE behind a bare LF", "POST /first HTTP/1.1\r\nHost: a\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE behind a bare CR", "POST /first HTTP/1.1\r\nHost: a\r\nX: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE behind a NUL", "POST /first HTTP/1.1\r\nHost: a\r\nX: y\0\r\nContent-Length: 0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TE in HTTP/1.0", "POST /first HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CL.CL", "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 35\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CL in a list", "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 35\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CL with a sign", "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: +0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CL negative", "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: -35\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CL hexadecimal", "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 0x0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CL in two words", "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 0 35\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CL without digits", "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CL of 2^64", "POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CL after a bare LF", "POST /first HTTP/1.1\r\nHost: a\nContent-Length: 35\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("lines that end with bare LF", "GET /first HTTP/1.1\nHost: a\n\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a head that ends with bare LF", "GET /first HTTP/1.1\r\nHost: a\r\n\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a first field that is folded", "GET /first HTTP/1.1\r\n Content-Length: 35\r\nHost: a\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a chunk's size with bare LF", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\n\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a chunk extension with bare LF", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;\nxxxxx\r\n24\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a chunk that ends with other bytes", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\naXX0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a chunk that ends with bare LF", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a chunk of 2^64", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a negative chunk", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a chunk's size with 0x", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a chunk's size with a space before", "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n 0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("two hosts", "GET /first HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("no host", "GET /first HTTP/1.1\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a space in the target", "GET /first /smuggled HTTP/1.1\r\nHost: a\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a line without a colon", "GET /first HTTP/1.1\r\nHost: a\r\nGET /smuggled HTTP/1.1\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("HTTP/2 by prior knowledge after HTTP/1.1", "GET /first HTTP/1.1\r\nHost: a\r\nConnection: x\r\n\tfolded\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
];

/// Sends each payload, then a request that would get another's answer if the upstream connection held more than its own
/// exchange.
#[track_caller]
fn smuggle(weir: &Weir) {
    let mut wrong = Vec::new();
    for (name, payload) in SMUGGLING {
        let mut attacker = weir.connect();
        attacker.send(payload);
        let answer = attacker.response();
        // An unknown coding may also be a 501 (RFC 9112 section 6.1).
        if [400, 501].contains(&answer.status()) {
            attacker.expect_end();
        } else {
            wrong.push(format!("{name}: answered with {}", answer.start));
        }
        let after = weir.get("/after", &[]);
        if (after.status(), after.text()) != (200, "/after") {
            wrong.push(format!("{name}: the next request is answered with {after:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_request_is_smuggled_to_a_strict_upstream() {
    let upstream = Server::start("h11_upstream.py");
    smuggle(&weir(&format!("http://{}", upstream.address), &["--workers", "1"]));
    for event in upstream.events() {
        // A body that turns out wrong after its head was forwarded can only be cut off.
        let cut_off = event["error"].as_str().is_some_and(|error| error.contains("closed connection without sending"));
        assert!(cut_off || event["target"] == "/after", "{event}");
    }
}

#[test]
fn no_request_is_smuggled_to_nginx() {
    // nginx reads the whole body before it proxies; `return` does not.
    let nginx = Nginx::serving(
        "location / { return 200 '$request_uri'; }
         location /first { proxy_pass http://127.0.0.1:$server_port/whole; }",
    );
    smuggle(&weir(&format!("http://{}", nginx.address), &["--workers", "1"]));
    let smuggled: Vec<_> = nginx.requests().into_iter().filter(|line| line.contains("smuggled")).collect();
    assert!(smuggled.is_empty(), "{smuggled:?}");
    assert!(nginx.requests().iter().any(|line| line == "GET /after HTTP/1.1"), "{:?}", nginx.requests());
}

#[test]
fn an_upgrade_to_h2c_is_not_passed_on() {
    let upstream = Server::start("h11_upstream.py");
    let weir = weir(&format!("http://{}", upstream.address), &["--workers", "1"]);
    let mut client = weir.connect();
    let headers = [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")];
    let answer = client.get_with("/first", &headers);
    assert_eq!((answer.status(), answer.text()), (200, "/first"));
    let seen = eventually("the upstream tells of it", || upstream.events().pop().ok_or("nothing"));
    let names: Vec<_> = seen["fields"].as_array().unwrap().iter().map(|header| &header[0]).collect();
    assert!(!names.iter().any(|name| ["upgrade", "http2-settings"].iter().any(|hop| is_named(name, hop))), "{names:?}");
}

fn is_named(name: &Value, wanted: &str) -> bool {
    name.as_str().unwrap().eq_ignore_ascii_case(wanted)
}

/// The outcomes of all HTTP/2 attacks of a kind.
#[track_caller]
fn attack(weir: &Weir, kind: &str) -> Vec<Value> {
    let outcomes = client("h2_attacks.py", &[&weir.proxy.to_string(), "--kind", kind]);
    let outcomes = outcomes.as_array().unwrap().clone();
    let dead: Vec<_> = outcomes.iter().filter(|outcome| outcome["alive"] != true).collect();
    assert!(!outcomes.is_empty() && dead.is_empty(), "no request is answered after {dead:?}");
    outcomes
}

/// Attacks that may be answered: they concern no request, follow a complete one, or their wrong part (a fragment,
/// pseudo-headers after the content) is removed by the library.
const ANSWERED: &[&str] = &["data_after_end", "fragment_in_path", "pseudo_in_trailers"];

#[test]
fn nothing_malformed_over_http2_becomes_a_request() {
    let upstream = Server::start("h11_upstream.py");
    let weir = weir(&format!("http://{}", upstream.address), &["--workers", "1"]);
    for kind in ["malformed", "sequences"] {
        let outcomes = attack(&weir, kind);
        let is_wrong = |outcome: &&Value| {
            let tolerated = ANSWERED.iter().any(|name| outcome["attack"] == *name);
            let rejected = outcome["status"].as_u64().is_none_or(|status| (400..500).contains(&status));
            outcome["outcome"] == "nothing" || (!tolerated && !rejected)
        };
        let wrong: Vec<_> = outcomes.iter().filter(is_wrong).collect();
        assert!(wrong.is_empty(), "{kind}: {wrong:#?}");
    }
    // `first` is the valid one of two streams.
    let expected = ["/alive", "/first", "/data_after_end", "/fragment_in_path", "/pseudo_in_trailers"];
    for event in upstream.events() {
        let cut_off = event["error"].as_str().is_some_and(|error| error.contains("closed connection without sending"));
        assert!(cut_off || expected.iter().any(|target| event["target"] == *target), "{event}");
    }
}

/// Floods that must end the connection, as no proper client comes close to them. The others ask for answers that the
/// attacker does not read; there the server may stop reading instead.
const ENDED: &[&str] =
    &["rapid_reset", "made_you_reset", "continuation_flood", "empty_continuation_flood", "empty_data_flood"];

#[test]
fn floods_over_http2_end_and_take_no_memory() {
    let upstream = Server::start("h11_upstream.py");
    let weir = weir(&format!("http://{}", upstream.address), &["--workers", "1"]);
    assert_eq!(weir.get("/alive", &[]).status(), 200);
    let before = weir.resident();
    let outcomes = attack(&weir, "floods");
    let grown = weir.resident().saturating_sub(before);
    for outcome in &outcomes {
        let ended = outcome["outcome"] == "goaway" || outcome["outcome"] == "closed";
        assert!(ended || !ENDED.iter().any(|name| outcome["attack"] == *name), "{outcome}");
        assert!(outcome["status"].as_u64().is_none_or(|status| status >= 400), "{outcome}");
    }
    assert!(grown <= MOST_GROWTH, "the floods made the process grow by {grown} KiB");
}

#[test]
fn a_stream_that_is_reset_at_once_is_charged() {
    let upstream = Server::start("h11_upstream.py");
    // One bucket for everyone that never refills.
    let limits = "limits: { L: { by: global, burst: 20 } }";
    let weir = Weir::serve(limits, &["--upstream", &format!("http://{}", upstream.address), "--workers", "1"]);
    client("h2_attacks.py", &[&weir.proxy.to_string(), "rapid_reset"]);
    assert_eq!(Wire::connect(weir.proxy).get("/").status(), 429);
}
