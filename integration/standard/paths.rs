//! 5.2: one spelling of a path for the rules, and the original for the upstream.

use weir::message::path::EscapedSlashes;

use super::{ROW, Row, check, check_rejected};
use crate::support::server::Setup;
use crate::support::upstream::Upstream;

/// A limit of one request to `/v1/orders`, and spellings that must not evade it.
#[test]
fn no_spelling_has_a_bucket_of_its_own() {
    for target in [
        "/v1/orders",
        "//v1/orders",
        "/v1//orders",
        "/v1/orders/",
        "/v1/orders//",
        "/v1/./orders",
        "/v1/x/../orders",
        "/../v1/orders",
        "/v1/%2e/orders",
        "/v1/x/%2E%2e/orders",
        "/v1/x/.%2e/orders",
        "/%76%31/orders",
        "/v1/order%73",
        "/v1/orders?x",
        "/v1/orders/?x=/../..",
        "/v1/orders/.",
        "/v1/orders/x/..",
        "http://a.example/v1//orders",
    ] {
        let upstream = Upstream::saying("hello");
        let rules = "limits: { Orders: { match: { path: /v1/orders }, by: global, burst: 1, count: 1, period: 1h } }";
        let weir = Setup::new(rules).start(&format!("http://{}", upstream.address));
        let mut client = weir.connect();
        assert_eq!(client.get("/v1/orders").status(), 200);
        assert_eq!(client.get(target).status(), 429, "5.2: {target}");
        assert_eq!(client.get("/v1/other").status(), 200);
    }
}

/// The same for ids: one segment, as the rules see it, has one bucket.
#[test]
fn what_is_another_path_has_another_bucket() {
    let rules = "limits: { PerPath: { by: path, burst: 1, count: 1, period: 1h } }";
    let upstream = Upstream::saying("hello");
    let weir = Setup::new(rules).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    for target in ["/a/b", "/a%2Fb", "/a%252Fb", "/A/b", "/a;x/b", "/a%5Cb", "/%c3%a9", "/..a", "/a..", "/..."] {
        assert_eq!(client.get(target).status(), 200, "5.2: {target}");
        assert_eq!(client.get(target).status(), 429, "5.2: {target} again");
    }
    for target in ["/a%2fb", "/a%252fb", "/a%5cb", "/%C3%A9", "/a/./b", "/%2e%2e%2e"] {
        let expected = if target == "/a%252fb" { 200 } else { 429 };
        assert_eq!(client.get(target).status(), expected, "5.2: {target}, which was decoded once");
    }
}

#[test]
fn paths_that_are_read_in_two_ways_are_rejected() {
    check_rejected(
        "5.2",
        "400",
        &[
            "GET /a%00 HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a%0d%0aX:%20y HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a%7f HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a% HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a%4 HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a%zz HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a%u0041 HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a\\b HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /\\a HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a?b#c HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /caf\u{e9} HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /?caf\u{e9} HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET http://a/%00 HTTP/1.1\r\nhost: a\r\n\r\n",
        ],
    );
    for (target, status) in [("/a%2fb", "400"), ("/a%5Cb", "400"), ("/a%252fb", "200"), ("/a?b=%2f", "200")] {
        let start: &'static str = format!("GET {target} HTTP/1.1").leak();
        let is_rejected = status == "400";
        check(&Row {
            line: "5.2",
            sent: format!("{start}\r\nhost: a\r\n\r\n").leak(),
            back: if is_rejected { &["400", "connection: close", "close"] } else { &["200"] },
            seen: if is_rejected { &[] } else { Box::leak(Box::new([start])) },
            setup: |setup| setup.limits.escaped_slashes = EscapedSlashes::Reject,
            ..ROW
        });
    }
}
