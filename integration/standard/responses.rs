//! 5.1: responses.

use super::{ROW, Row, check, check_all};
use crate::support::server::{Setup, WIDE};
use crate::support::upstream::{Upstream, ok};

const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// A row for a response that is forwarded.
const fn passed(
    line: &'static str,
    answer: &'static str,
    back: &'static [&'static str],
    seen: &'static [&'static str],
) -> Row {
    Row { line, sent: GET, answer, back, seen, ..ROW }
}

#[test]
fn fields_of_the_hop_go() {
    check_all(&[
        passed(
            "5.1.1",
            "HTTP/1.1 200 OK\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nproxy-authenticate: Basic\r\n\
             te: x\r\nupgrade: h2c\r\nx-kept: 1\r\ncontent-length: 5\r\n\r\nhello",
            &[
                "200",
                "-x-hop",
                "-keep-alive",
                "-proxy-authenticate",
                "-te",
                "-upgrade",
                "-connection",
                "x-kept: 1",
                "=hello",
            ],
            &["GET / HTTP/1.1", "reused"],
        ),
        passed(
            "5.1.1",
            "HTTP/1.1 200 OK\r\nconnection: content-length\r\ncontent-length: 5\r\n\r\nhello",
            &["502"],
            &["GET / HTTP/1.1", "not reused"],
        ),
        passed(
            "5.1.1",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
            &["200", "-connection", "=hello"],
            &["GET / HTTP/1.1", "not reused"],
        ),
    ]);
}

#[test]
fn what_cannot_be_read_is_a_502_and_the_last_of_its_connection() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 5x\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nx: 1\r\n 2\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nx : 1\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nx: 1\0\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nx: a\rset-cookie: b\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nx y: 1\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 2000 OK\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 099 OK\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/2.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1  200 OK\r\ncontent-length: 5\r\n\r\nhello",
        "hello\r\n\r\n",
        "\0\0\u{12}\u{4}\0\0\0\0\0",
    ] {
        check(&passed("5.1.7", answer, &["502", "~cannot be forwarded"], &["GET / HTTP/1.1", "not reused"]));
    }
    let large = format!("HTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: 5\r\n\r\nhello", "x".repeat(70_000)).leak();
    check(&passed("5.4", large, &["502"], &["GET / HTTP/1.1", "not reused"]));
    let many = format!("HTTP/1.1 200 OK\r\n{}content-length: 5\r\n\r\nhello", "x: 1\r\n".repeat(300)).leak();
    check(&passed("5.4", many, &["502"], &["GET / HTTP/1.1", "not reused"]));
}

#[test]
fn what_follows_a_response_is_nobodys() {
    check_all(&[
        passed(
            "5.1.8",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
            &["200", "=hello"],
            &["GET / HTTP/1.1", "not reused"],
        ),
        passed(
            "5.1.8",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n\r\n",
            &["200", "=hello"],
            &["GET / HTTP/1.1", "not reused"],
        ),
        passed(
            "5.1.8",
            "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
            &["204"],
            &["GET / HTTP/1.1", "not reused"],
        ),
        passed(
            "5.1.8",
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 4\r\n\r\nevil",
            &["304", "content-length: 4"],
            &["GET / HTTP/1.1", "not reused"],
        ),
        Row {
            line: "5.1.8",
            sent: "HEAD / HTTP/1.1\r\nhost: a\r\n\r\n",
            answer: "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            back: &["200", "content-length: 5"],
            seen: &["HEAD / HTTP/1.1", "not reused"],
            ..ROW
        },
    ]);
}

#[test]
fn responses_that_have_no_body() {
    check_all(&[
        Row {
            line: "5.1.7",
            sent: "HEAD / HTTP/1.1\r\nhost: a\r\n\r\n",
            answer: "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n",
            back: &["200", "content-length: 500", "-transfer-encoding"],
            seen: &["HEAD / HTTP/1.1", "reused"],
            ..ROW
        },
        Row {
            line: "5.1.7",
            sent: "HEAD / HTTP/1.1\r\nhost: a\r\n\r\n",
            answer: "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            back: &["200", "-content-length"],
            seen: &["HEAD / HTTP/1.1", "reused"],
            ..ROW
        },
        Row {
            line: "5.1.7",
            sent: "HEAD / HTTP/1.1\r\nhost: a\r\n\r\n",
            back: &["429", "content-type: application/problem+json"],
            setup: |setup| setup.rules = "limits: { None: { deny: true } }".into(),
            ..ROW
        },
        // A client that believed this length would wait for a body (RFC 9110 section 8.6).
        passed(
            "5.1.7",
            "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n",
            &["204", "-content-length", "-transfer-encoding"],
            &["GET / HTTP/1.1", "reused"],
        ),
        passed(
            "5.1.7",
            "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n",
            &["204", "-content-length", "-transfer-encoding"],
            &["GET / HTTP/1.1", "reused"],
        ),
        passed(
            "5.1.7",
            "HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n",
            &["304", "etag: x"],
            &["GET / HTTP/1.1", "reused"],
        ),
        passed(
            "5.1.7",
            "HTTP/1.1 205 Reset Content\r\ncontent-length: 0\r\n\r\n",
            &["205", "content-length: 0"],
            &["GET / HTTP/1.1", "reused"],
        ),
        passed("5.1.7", "HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", &["200", "="], &["GET / HTTP/1.1", "reused"]),
    ]);
}

#[test]
fn trailers_stay_behind_the_body() {
    check_all(&[
        passed(
            "5.1.9",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\
             content-length: 1\r\nset-cookie: a\r\nratelimit: x\r\nratelimit-policy: x\r\nx-ratelimit-reset: 1\r\n\
             retry-after: 1\r\nconnection: close\r\n\r\n",
            &[
                "200",
                "=hello",
                "-x-sum",
                "trailer: x-sum",
                "+x-sum: 1",
                "-+content-length",
                "-+set-cookie",
                "-+ratelimit",
                "-+ratelimit-policy",
                "-+x-ratelimit-reset",
                "-+retry-after",
                "-+connection",
            ],
            &["GET / HTTP/1.1", "reused"],
        ),
        Row {
            line: "5.1.9",
            sent: "GET / HTTP/1.0\r\nhost: a\r\n\r\n",
            answer: "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n",
            back: &["200", "-transfer-encoding", "connection: close", "=hello", "close"],
            seen: &["GET / HTTP/1.1"],
            ..ROW
        },
    ]);
}

#[test]
fn interim_responses_are_passed_on() {
    const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\ncontent-length: 3\r\nconnection: x-hop\r\nx-hop: 1\r\n\r\n\
                         HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </b>\r\n\r\n\
                         HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    check_all(&[
        passed(
            "5.1.10",
            HINTS,
            &[
                "103",
                "link: </a>",
                "-x-hop",
                "-content-length",
                "-ratelimit",
                "then",
                "103",
                "link: </b>",
                "then",
                "200",
                "=hello",
            ],
            &["GET / HTTP/1.1", "reused"],
        ),
        Row {
            line: "5.1.10",
            sent: "GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n",
            answer: HINTS,
            back: &["200", "=hello"],
            seen: &["GET / HTTP/1.1", "reused"],
            ..ROW
        },
        passed(
            "5.1.10",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
            &["502"],
            &["GET / HTTP/1.1", "not reused"],
        ),
    ]);
    let many = format!("{}{}", "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(17), ok("hello")).leak();
    let upstream = Upstream::answering(|_| many.to_owned());
    let weir = Setup::new(WIDE).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    client.send(GET);
    let last = (0..20).map(|_| client.response()).find(|response| response.status() >= 200);
    assert_eq!(last.unwrap().status(), 502, "5.1.10: not without an end");
}

#[test]
fn a_response_that_ends_with_its_connection() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        wire.send("HTTP/1.1 200 OK\r\n\r\nhello");
    });
    let weir = Setup::new(WIDE).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    for _ in 0..2 {
        client.send(GET);
        let response = client.response();
        assert_eq!((response.header("transfer-encoding"), response.text()), (Some("chunked"), "hello"), "5.1.7");
    }
    client.send("GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n");
    let response = client.response();
    assert_eq!((response.header("connection"), response.text()), (Some("close"), "hello"), "5.1.7");
    client.expect_end();
}

/// A head may come byte by byte.
#[test]
fn a_response_may_come_in_pieces() {
    let upstream = Upstream::start(|wire, _| {
        while wire.request().is_some() {
            for byte in
                b"HTTP/1.1 103 Early Hints\r\na: b\r\n\r\nHTTP/1.1 200 OK\r\nx: y\r\ntransfer-encoding: chunked\r\n\r\n\
                          5;x=y\r\nhello\r\n0\r\nz: 1\r\n\r\n"
            {
                wire.send([*byte]);
            }
        }
    });
    let weir = Setup::new(WIDE).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    for _ in 0..3 {
        client.send(GET);
        assert_eq!(client.response().header("a"), Some("b"));
        let response = client.response();
        assert_eq!((response.header("x"), response.text()), (Some("y"), "hello"));
        assert_eq!(response.trailers, [("z".to_owned(), "1".to_owned())]);
    }
    assert_eq!(upstream.accepted(), 1);
}
