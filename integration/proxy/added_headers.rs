//! The headers that the proxy adds on request: ids of requests, the client's address, and CORS on replies of our own.

use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::wire::{Message, Wire};

/// One request of each path below `/limited`.
const ONE: &str = "limits: { One: { by: path, match: { path: '/limited/**' }, count: 1, period: 1h } }";

const APP: &str = "https://app.example.com";

/// A refused connection is the upstream of `/down`.
fn weir(upstream: &Upstream, flags: &[&str]) -> Weir {
    let url = format!("http://{}", upstream.address);
    let down = "/down=http://127.0.0.1:1";
    Weir::serve(ONE, &[&["--upstream", &url, "--upstream", down, "--access-log", "access.jsonl"], flags].concat())
}

fn mirror() -> Upstream {
    Upstream::answering(|request| {
        let header = |name| request.header(name).unwrap_or("none").to_owned();
        ok(&format!("{} {}", header("x-request-id"), header("x-real-ip")))
    })
}

fn ask(client: &mut Wire, head: &str) -> Message {
    client.send(format!("{head}\r\nhost: a.example\r\n\r\n"));
    client.response()
}

#[test]
fn the_upstream_the_log_and_replies_of_our_own_tell_the_same_id() {
    let upstream = mirror();
    for (flags, given, expected) in [
        (&["--request-id"][..], "chosen", None),
        (&["--request-id", "--trusted-proxies", "127.0.0.1"], "chosen", Some("chosen")),
        (&["--request-id", "--underscores", "keep"], "chosen", None),
    ] {
        let weir = weir(&upstream, flags);
        let mut client = weir.connect();
        let first =
            ask(&mut client, &format!("GET /limited/a HTTP/1.1\r\nX-Request-Id: {given}\r\nX_Request_Id: {given}"));
        let id = first.text().split(' ').next().unwrap().to_owned();
        assert!(expected.map_or(id.len() == 32 && id != given, |expected| id == expected), "{id}");
        assert_eq!(first.header("x-request-id"), None, "the upstream's response is its own");
        let mut ids = vec![id];
        for (path, status) in [("/limited/a", 429), ("/down", 502), ("/a%zz", 400)] {
            let own = ask(&mut weir.connect(), &format!("GET {path} HTTP/1.1"));
            assert_eq!(own.status(), status, "{path}");
            ids.push(own.header("x-request-id").unwrap().to_owned());
        }
        let log = weir.directory().join("access.jsonl");
        crate::support::eventually("each request is logged with its id", || {
            let text = std::fs::read_to_string(&log).unwrap();
            let is_there = |id: &String| text.contains(&format!("\"request_id\":\"{id}\""));
            if ids.iter().all(is_there) { Ok(()) } else { Err(text) }
        });
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 4);
    }
}

#[test]
fn the_upstream_hears_the_address_that_limits_go_by() {
    let upstream = mirror();
    let given = "GET / HTTP/1.1\r\nX-Forwarded-For: 192.0.2.7\r\nX-Real-IP: 192.0.2.8";
    for (flags, expected) in [
        (&[][..], "none none"),
        (&["--real-ip"], "none 127.0.0.1"),
        (&["--trusted-proxies", "127.0.0.1"], "none 192.0.2.8"),
        (&["--real-ip", "--trusted-proxies", "127.0.0.1"], "none 192.0.2.7"),
    ] {
        let weir = weir(&upstream, flags);
        assert_eq!(ask(&mut weir.connect(), given).text(), expected, "{flags:?}");
    }
}

fn cors(message: &Message) -> String {
    let header = |name| message.all(name).join(", ");
    format!(
        "{} {}; {}; {}; {}",
        message.status(),
        header("access-control-allow-origin"),
        header("access-control-allow-credentials"),
        header("vary"),
        header("access-control-expose-headers")
    )
}

#[test]
fn listed_pages_may_read_denials_and_errors() {
    const EXPOSED: &str = "retry-after, ratelimit-policy, ratelimit";
    let upstream = mirror();
    let listed = weir(&upstream, &["--cors-origins", APP, "--cors-credentials", "--request-id"]);
    let any = weir(&upstream, &["--cors-origins", "*"]);
    let off = weir(&upstream, &[]);
    for (weir, origin, expected) in [
        (
            &listed,
            APP,
            [
                "200 ; ; ; ".to_owned(),
                format!("429 {APP}; true; origin; {EXPOSED}, x-request-id"),
                format!("502 {APP}; true; origin; x-request-id"),
            ],
        ),
        (&listed, "https://evil.example", ["200 ; ; ; ", "429 ; ; origin; ", "502 ; ; origin; "].map(str::to_owned)),
        (
            &any,
            "https://evil.example",
            ["200 ; ; ; ".to_owned(), format!("429 *; ; ; {EXPOSED}"), "502 *; ; ; ".to_owned()],
        ),
        (&off, APP, ["200 ; ; ; ", "429 ; ; ; ", "502 ; ; ; "].map(str::to_owned)),
    ] {
        let mut client = weir.connect();
        let path = if origin == APP { "/limited/a" } else { "/limited/b" };
        let found = [path, path, "/down"]
            .map(|path| cors(&ask(&mut client, &format!("GET {path} HTTP/1.1\r\nOrigin: {origin}"))));
        assert_eq!(found, expected, "{origin}");
    }
    let without = ask(&mut listed.connect(), "GET /down HTTP/1.1");
    assert_eq!(cors(&without), "502 ; ; origin; ");
}

/// A browser shows a page no answer to a preflight, so the request itself is to be denied.
#[test]
fn a_denied_preflight_lets_the_request_hear_of_the_denial() {
    let upstream = mirror();
    let listed = weir(&upstream, &["--cors-origins", APP]);
    let any = weir(&upstream, &["--cors-origins", "*"]);
    let asked = "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a, content-type";
    for (weir, head, expected) in [
        (&listed, format!("OPTIONS /limited/a HTTP/1.1\r\nOrigin: {APP}\r\n{asked}"), (204, Some("PUT"), Some(APP))),
        (&listed, format!("OPTIONS /limited/b HTTP/1.1\r\nOrigin: https://evil.example\r\n{asked}"), (429, None, None)),
        (&listed, format!("OPTIONS /limited/c HTTP/1.1\r\nOrigin: {APP}"), (429, None, Some(APP))),
        (&listed, format!("GET /limited/d HTTP/1.1\r\nOrigin: {APP}\r\n{asked}"), (429, None, Some(APP))),
        (&any, format!("OPTIONS /limited/a HTTP/1.1\r\nOrigin: {APP}\r\n{asked}"), (429, None, Some("*"))),
    ] {
        let mut client = weir.connect();
        assert_eq!(ask(&mut client, &head).status(), 200, "{head}");
        let denied = ask(&mut client, &head);
        let header = |name| denied.header(name);
        assert_eq!(
            (denied.status(), header("access-control-allow-methods"), header("access-control-allow-origin")),
            expected,
            "{head}"
        );
        if denied.status() == 204 {
            assert_eq!(header("access-control-allow-headers"), Some("x-a, content-type"));
            assert_eq!(header("access-control-max-age"), Some("0"));
            assert_eq!(ask(&mut client, &format!("PUT /limited/a HTTP/1.1\r\nOrigin: {APP}")).status(), 429);
        }
    }
}
