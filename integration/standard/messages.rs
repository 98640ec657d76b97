//! 5.1: requests.

use weir::message::underscores::Underscores;

use super::{ROW, Row, check, check_all, check_rejected};
use crate::support::server::{Setup, WIDE};
use crate::support::upstream::{Upstream, ok};

#[test]
fn fields_of_the_hop_go() {
    check_all(&[
        Row {
            line: "5.1.1",
            sent: "GET / HTTP/1.1\r\nhost: a\r\nconnection: x-hop, X-Other\r\nconnection: x-third\r\nx-hop: 1\r\nx-other: 2\r\n\
                   x-third: 3\r\nx-fourth: 4\r\nkeep-alive: timeout=5\r\nproxy-connection: keep-alive\r\nte: trailers\r\n\
                   proxy-authorization: Basic eDp5\r\nproxy-authenticate: Basic\r\n\r\n",
            seen: &[
                "GET / HTTP/1.1",
                "-x-hop",
                "-x-other",
                "-x-third",
                "x-fourth: 4",
                "-connection",
                "-keep-alive",
                "-proxy-connection",
                "-te",
                "-proxy-authorization",
                "-proxy-authenticate",
                "reused",
            ],
            ..ROW
        },
        Row {
            line: "5.1.1",
            sent: "GET / HTTP/1.1\r\nhost: a\r\nconnection: te, , keep-alive,\r\nte: trailers\r\ntrailer: x-sum\r\n\r\n",
            seen: &["GET / HTTP/1.1", "-te", "-connection", "trailer: x-sum"],
            ..ROW
        },
        Row {
            line: "5.1.1",
            sent: "POST / HTTP/1.1\r\nhost: a\r\nconnection: x-hop\r\ntransfer-encoding: chunked\r\nx-hop: 1\r\n\r\n\
                   3\r\nabc\r\n0\r\n\r\n",
            seen: &["POST / HTTP/1.1", "-x-hop", "transfer-encoding: chunked", "=abc", "reused"],
            ..ROW
        },
    ]);
}

#[test]
fn what_connection_must_not_name() {
    for header in [
        "host",
        "Content-Length",
        "transfer-encoding",
        "content-type",
        "authorization",
        "cookie",
        "via",
        "forwarded",
        "x-real-ip",
        "x-forwarded-for",
        "X-Forwarded-Host",
        "x-forwarded-proto",
        "ratelimit",
        "RateLimit-Policy",
        "x-ratelimit-limit",
        ":authority",
        ":path",
        ":",
        "close, host",
        "x-hop, \u{e9}",
        "x-hop\u{7f}",
    ] {
        let sent = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: {header}\r\nx-hop: 1\r\n\r\n");
        check_rejected("5.1.1", "400", &[sent.leak()]);
    }
}

/// A limit by a header that the upstream never gets would be easy to evade.
#[test]
fn rules_see_what_the_upstream_sees() {
    let upstream = Upstream::saying("hello");
    let rules = "limits: { PerKey: { by: { header: x-key }, missing: shared, burst: 2, count: 2, period: 1h } }";
    let weir = Setup::new(rules).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    let status =
        [1, 2, 3].map(|key| client.get_with("/", &[("connection", "x-key"), ("x-key", &key.to_string())]).status());
    assert_eq!(status, [200, 200, 429], "5.1.1: every request comes to the upstream without a key");
}

#[test]
fn via_is_continued_and_loops_end() {
    check_all(&[
        Row {
            line: "5.1.2",
            sent: "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            back: &["200", "-via"],
            seen: &["GET / HTTP/1.1", "via: 1.1 weir"],
            ..ROW
        },
        Row {
            line: "5.1.2",
            sent: "GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n",
            back: &["200", "connection: keep-alive"],
            seen: &["GET / HTTP/1.1", "via: 1.0 weir"],
            ..ROW
        },
        Row {
            line: "5.1.2",
            sent: "GET / HTTP/1.1\r\nhost: a\r\nvia: 1.1 weir, 1.1 weir, 2 weir, 1.0 weir\r\n\r\n",
            seen: &["GET / HTTP/1.1"],
            ..ROW
        },
        Row {
            line: "5.1.2",
            sent: "GET / HTTP/1.1\r\nhost: a\r\nvia: 1.1 weir, 1.1 weir, 2 weir, 1.0 weir\r\nvia: 1.1 weir (x)\r\n\r\n",
            back: &["508"],
            ..ROW
        },
    ]);
}

#[test]
fn max_forwards_is_counted() {
    check_all(&[
        Row {
            line: "5.1.3",
            sent: "OPTIONS /x HTTP/1.1\r\nhost: a\r\nmax-forwards: 0\r\n\r\n",
            back: &[
                "204",
                "allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
                "-content-length",
                "-transfer-encoding",
            ],
            ..ROW
        },
        Row {
            line: "5.1.3",
            sent: "OPTIONS * HTTP/1.1\r\nhost: a\r\nmax-forwards: 7\r\n\r\n",
            seen: &["OPTIONS * HTTP/1.1", "max-forwards: 6"],
            ..ROW
        },
        Row {
            line: "5.1.3",
            sent: "GET / HTTP/1.1\r\nhost: a\r\nmax-forwards: 0\r\n\r\n",
            seen: &["GET / HTTP/1.1", "max-forwards: 0"],
            ..ROW
        },
        Row {
            line: "5.1.3",
            sent: "TRACE / HTTP/1.1\r\nhost: a\r\nmax-forwards: 0\r\n\r\n",
            back: &["405", "allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"],
            ..ROW
        },
    ]);
}

#[test]
fn a_request_is_for_one_host() {
    check_rejected(
        "5.1.4",
        "400",
        &[
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a, b\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a/b\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: u@a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a b\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a:b\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a:80:81\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: [::1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: [::1]x\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: \u{e9}\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nhost: b/c\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n",
            "GET http:// HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET http:///x HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET http://u:p@a/ HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET http://a\\@b/ HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET ftp://a/ HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET http:/x HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET a.example:443 HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET * HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET @a.example/ HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET x/y HTTP/1.1\r\nhost: a\r\n\r\n",
            "OPTIONS */ HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n",
        ],
    );
    check_all(&[
        Row {
            line: "5.1.4",
            sent: "GET http://B.example:81/x?y HTTP/1.1\r\nhost: a.example\r\n\r\n",
            seen: &["GET /x?y HTTP/1.1", "host: B.example:81", "x-forwarded-host: B.example:81"],
            ..ROW
        },
        Row {
            line: "5.1.4",
            sent: "GET http://b.example?y HTTP/1.1\r\nhost: a.example\r\n\r\n",
            seen: &["GET /?y HTTP/1.1", "host: b.example"],
            ..ROW
        },
        Row {
            line: "5.1.4",
            sent: "OPTIONS http://b.example HTTP/1.1\r\nhost: a.example\r\n\r\n",
            seen: &["OPTIONS * HTTP/1.1", "host: b.example"],
            ..ROW
        },
        Row {
            line: "5.1.4",
            sent: "OPTIONS * HTTP/1.1\r\nhost: a.example\r\n\r\n",
            seen: &["OPTIONS * HTTP/1.1", "host: a.example"],
            ..ROW
        },
        Row {
            line: "5.1.4",
            sent: "GET / HTTP/1.1\r\nhost: [2001:db8::1]:8080\r\n\r\n",
            seen: &["GET / HTTP/1.1", "host: [2001:db8::1]:8080"],
            ..ROW
        },
        Row {
            line: "5.1.4",
            sent: "GET http://b.example/x HTTP/1.0\r\n\r\n",
            back: &["200", "connection: close", "close"],
            seen: &["GET /x HTTP/1.1", "host: b.example"],
            ..ROW
        },
    ]);
}

#[test]
fn a_request_line_is_what_it_should_be() {
    check_rejected(
        "5.1.5",
        "400",
        &[
            "GET  / HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /  HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET\t/ HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.1 \r\nhost: a\r\n\r\n",
            " GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a b HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a\tb HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /a\u{b}b HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /\r\nhost: a\r\n\r\n",
            "GET\r\n\r\n",
            "G(T / HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET / HTTP/11\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.1.1\r\nhost: a\r\n\r\n",
            "GET / HTTP/01.1\r\nhost: a\r\n\r\n",
            "GET / HTTP /1.1\r\nhost: a\r\n\r\n",
            "GET / http/1.1\r\nhost: a\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            // Frameworks that upper-case methods would take these for limited ones.
            "get / HTTP/1.1\r\nhost: a\r\n\r\n",
            "Post / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
        ],
    );
    check_rejected("5.1.5", "505", &["GET / HTTP/1.2\r\nhost: a\r\n\r\n", "GET / HTTP/3.0\r\nhost: a\r\n\r\n"]);
    check_all(&[
        Row {
            line: "5.1.5",
            sent: "BREW-It~2 /pot HTTP/1.1\r\nhost: a\r\n\r\n",
            seen: &["BREW-It~2 /pot HTTP/1.1"],
            ..ROW
        },
        Row {
            line: "5.1.5",
            sent: "\r\nQUERY / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi",
            seen: &["QUERY / HTTP/1.1", "=hi"],
            ..ROW
        },
    ]);
}

#[test]
fn field_lines_are_what_they_should_be() {
    check_rejected(
        "5.1.6",
        "400",
        &[
            "GET / HTTP/1.1\r\nhost : a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx-a\t: 1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx-a: 1\r\n 2\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx-a: 1\r\n\t2\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx-a:\r\n x: 2\r\n\r\n",
            "GET / HTTP/1.1\r\n host: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\thost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\rx: 1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx-a: 1\0\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx-a: \u{1b}[0m\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx-a: \u{7f}\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx\0a: 1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx a: 1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\"x\": 1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\u{e9}: 1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n: 1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx-a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\rx: 1\r\n\r\n",
            "GET / HTTP/1.1\nhost: a\n\n",
            "GET / HTTP/1.1\r\nhost: a\nx: 1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\n",
            "GET / HTTP/1.1\r\nhost: a\n\r\n",
            "GET / HTTP/1.1\r\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\r\n\r\n",
        ],
    );
    check(&Row {
        line: "5.1.6",
        sent: "GET / HTTP/1.1\r\nHoSt:a\r\nx-a: \t one  two\t \r\nx-b:\r\nx-c: caf\u{e9}\r\n!#$%&'*+-.^`|~: 1\r\n\r\n",
        seen: &["GET / HTTP/1.1", "host: a", "x-a: one  two", "x-b:", "x-c: caf\u{e9}", "!#$%&'*+-.^`|~: 1"],
        ..ROW
    });
}

#[test]
fn a_body_has_one_length() {
    check_rejected(
        "5.1.7",
        "400",
        &[
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nG",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 6\r\n\r\n0\r\n\r\nG",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \u{b}chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding\u{b}: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\nx: 1\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5, 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5,\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0x5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5.0\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: \"5\"\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: \u{0665}\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length:\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 18446744073709551616\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 05\r\n\r\nhello",
            "GET / HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n",
        ],
    );
    check_rejected(
        "5.1.7",
        "501",
        &[
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: ,chunked\r\n\r\n0\r\n\r\n",
        ],
    );
    check_all(&[
        Row {
            line: "5.1.7",
            sent: "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
            seen: &["POST / HTTP/1.1", "content-length: 5", "-transfer-encoding", "=hello", "reused"],
            ..ROW
        },
        Row {
            line: "5.1.7",
            sent: "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
            seen: &["POST / HTTP/1.1", "content-length: 0", "-transfer-encoding", "=", "reused"],
            ..ROW
        },
        Row {
            line: "5.1.7",
            sent: "POST / HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\n00005;a=\"b\"\r\nhello\r\n0\r\n\r\n",
            seen: &["POST / HTTP/1.1", "-content-length", "transfer-encoding: chunked", "=hello", "reused"],
            ..ROW
        },
        Row {
            line: "5.1.7",
            sent: "GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc",
            seen: &["GET / HTTP/1.1", "content-length: 3", "=abc", "reused"],
            ..ROW
        },
        // The next bytes are the next request.
        Row {
            line: "5.1.7",
            sent: "GET /1 HTTP/1.1\r\nhost: a\r\n\r\nPOST /2 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi\
                   POST /3 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n\
                   GET /4 HTTP/1.1\r\nhost: a\r\n\r\n",
            back: &["200", "then", "200", "then", "200", "then", "200"],
            seen: &[
                "GET /1 HTTP/1.1",
                "then",
                "POST /2 HTTP/1.1",
                "=hi",
                "then",
                "POST /3 HTTP/1.1",
                "=hi",
                "then",
                "GET /4 HTTP/1.1",
                "reused",
            ],
            ..ROW
        },
    ]);
}

#[test]
fn chunks_are_what_they_should_be() {
    for chunks in [
        "x\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        " 3\r\nabc\r\n0\r\n\r\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        "3 ;a\r\nabc\r\n0\r\n\r\n",
        "3\nabc\r\n0\r\n\r\n",
        "3\rabc\r\n0\r\n\r\n",
        "3;a\nabc\r\n0\r\n\r\n",
        "3;a\rb\r\nabc\r\n0\r\n\r\n",
        "3;\0\r\nabc\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabc\n0\r\n\r\n",
        "3\r\nabc\r0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        ";\r\nabc\r\n0\r\n\r\n",
        "\r\n0\r\n\r\n",
        "10000000000000003\r\nabc\r\n0\r\n\r\n",
        "0000000000000003\r\nabc\r\n0\r\n\r\n",
        "0\r\nx y: 1\r\n\r\n",
        "0\r\n x: 1\r\n\r\n",
        "0\r\nx: 1\n\r\n",
        "0\r\n\n",
        "0\n\n",
    ] {
        let sent = format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{chunks}").leak();
        check(&Row {
            line: "5.1.7",
            sent,
            back: &["400", "connection: close", "~incomplete or invalid", "close"],
            // It has started; without its end the upstream knows that it is incomplete.
            seen: &["cut"],
            ..ROW
        });
    }
    let long = format!(
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3;{}\r\nabc\r\n0\r\n\r\n",
        "x".repeat(300)
    );
    check(&Row { line: "5.1.7", sent: long.leak(), back: &["400", "close"], seen: &["cut"], ..ROW });
}

/// CGI, WSGI, Rack and PHP take them for the names with hyphens.
#[test]
fn names_with_underscores() {
    const SENT: &str = "GET / HTTP/1.1\r\nhost: a\r\nx_api_key: 1\r\nX_Forwarded_For: 1.2.3.4\r\nX_Real-IP: 1.2.3.4\r\n\
                        X_Queue_Entry: 1\r\nX_RateLimit_Remaining: 9\r\nTransfer_Encoding: chunked\r\n\
                        Content_Length: 7\r\nTrue_Client_IP: 1.2.3.4\r\nTrue-Client-IP: 1.2.3.4\r\nx-id: a_b\r\n\r\n";
    const OWN_ARE_GONE: [&str; 9] = [
        "GET / HTTP/1.1",
        "x-forwarded-for: 127.0.0.1",
        "-x_forwarded_for",
        "-x_real-ip",
        "-x_queue_entry",
        "-x_ratelimit_remaining",
        "-transfer_encoding",
        "-content_length",
        "x-id: a_b",
    ];
    let own_and = |more: &[&'static str]| [&OWN_ARE_GONE, more].concat().leak() as &_;
    check_all(&[
        Row { line: "5.1.5", sent: SENT, seen: own_and(&["-x_api_key", "-true_client_ip"]), ..ROW },
        Row {
            line: "5.1.5",
            sent: SENT,
            seen: own_and(&["-x_api_key", "-true_client_ip", "-true-client-ip"]),
            setup: |setup| setup.client_headers.dropped = ["true-client-ip".to_owned()].into(),
            ..ROW
        },
        Row {
            line: "5.1.5",
            sent: SENT,
            seen: own_and(&["x_api_key: 1", "-true_client_ip", "-true-client-ip"]),
            setup: |setup| {
                setup.client_headers.dropped = ["true-client-ip".to_owned()].into();
                setup.client_headers.underscores = Underscores::Keep;
            },
            ..ROW
        },
        Row {
            line: "5.1.5",
            sent: SENT,
            seen: own_and(&["-x_api_key", "-true_client_ip", "true-client-ip: 1.2.3.4"]),
            setup: |setup| {
                setup.client_headers.dropped = ["true-client-ip".to_owned()].into();
                setup.trusted = vec!["127.0.0.0/8"];
            },
            ..ROW
        },
        Row {
            line: "5.1.5",
            sent: SENT,
            back: &["400", "~underscore", "close"],
            setup: |setup| setup.client_headers.underscores = Underscores::Reject,
            ..ROW
        },
    ]);
}

#[test]
fn trailers_stay_behind_the_body() {
    check(&Row {
        line: "5.1.9",
        sent: "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n2\r\nhi\r\n0\r\nx-sum: 1\r\n\
               content-length: 5\r\ntransfer-encoding: x\r\nhost: b\r\nauthorization: x\r\ncookie: x\r\nratelimit: x\r\n\
               x-ratelimit-limit: 1\r\nx-forwarded-for: 1.2.3.4\r\nforwarded: for=1.2.3.4\r\nconnection: close\r\nte: x\r\nx_forwarded_for: 1.2.3.4\r\n\
               expect: x\r\nvia: x\r\nmax-forwards: 1\r\ntrailer: x\r\n\r\n",
        seen: &[
            "POST / HTTP/1.1",
            "=hi",
            "host: a",
            "trailer: x-sum",
            "-x-sum",
            "+x-sum: 1",
            "-+content-length",
            "-+transfer-encoding",
            "-+host",
            "-+authorization",
            "-+cookie",
            "-+ratelimit",
            "-+x-ratelimit-limit",
            "-+x-forwarded-for",
            "-+forwarded",
            "-+x_forwarded_for",
            "-+connection",
            "-+te",
            "-+expect",
            "-+via",
            "-+max-forwards",
            "-+trailer",
            "reused",
        ],
        ..ROW
    });
}

#[test]
fn an_expectation_is_answered_when_it_is_decided() {
    check_all(&[
        Row {
            line: "5.1.10",
            sent: "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-Continue\r\ncontent-length: 2\r\n\r\nhi",
            seen: &["POST / HTTP/1.1", "-expect", "=hi"],
            ..ROW
        },
        Row {
            line: "5.1.10",
            sent: "GET / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n\r\n",
            seen: &["GET / HTTP/1.1", "-expect"],
            ..ROW
        },
        Row {
            line: "5.1.10",
            sent: "POST / HTTP/1.0\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nhi",
            back: &["200", "connection: close", "close"],
            seen: &["POST / HTTP/1.1", "-expect", "=hi"],
            ..ROW
        },
        Row {
            line: "5.1.10",
            sent: "POST / HTTP/1.1\r\nhost: a\r\nexpect: tea\r\ncontent-length: 2\r\n\r\nhi",
            back: &["417", "connection: close", "close"],
            ..ROW
        },
        Row {
            line: "5.1.10",
            sent: "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\nexpect: tea\r\ncontent-length: 2\r\n\r\nhi",
            back: &["417", "connection: close", "close"],
            ..ROW
        },
        Row {
            line: "5.1.10",
            sent: "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n",
            back: &["429", "connection: close", "close"],
            setup: |setup| setup.rules = "limits: { None: { deny: true } }".into(),
            ..ROW
        },
        Row {
            line: "5.1.10",
            sent: "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n",
            back: &["405", "connection: close", "close"],
            setup: |setup| setup.rules = WIDE.into(),
            ..ROW
        }
        .with_method("TRACE"),
    ]);
    // The client sends its body only after it was told to.
    let upstream = Upstream::saying("hello");
    let weir = Setup::new(WIDE).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    for _ in 0..2 {
        client.send("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n");
        assert_eq!(client.response().start, "HTTP/1.1 100 Continue");
        client.send("hi");
        assert_eq!(client.response().text(), "hello");
    }
    assert_eq!(upstream.requests()[1].text(), "hi");
}

/// If the upstream answers without reading, a client that waits for a `100 Continue` only gets the answer.
#[test]
fn nothing_is_continued_after_the_answer() {
    let upstream = Upstream::start(|wire, _| {
        wire.head();
        wire.send(ok("early"));
        wire.expect_end();
    });
    let weir = Setup::new(WIDE).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    client.send("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n");
    assert_eq!(client.response().status(), 100, "5.1.10: the upstream is ready for the body");
    assert_eq!(client.response().text(), "early");
    client.expect_end();
}

#[test]
fn upgrades_are_passed_on_if_they_may_be() {
    let switched = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let plain = |sent: &'static str| Row {
        line: "5.1.11",
        sent,
        seen: &["GET / HTTP/1.1", "-upgrade", "-connection", "-http2-settings"],
        ..ROW
    };
    check_all(&[
        plain(
            "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n",
        ),
        plain("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: H2C\r\n\r\n"),
        plain("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket, h2c\r\n\r\n"),
        plain("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket h2c\r\n\r\n"),
        plain("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket;h2c\r\n\r\n"),
        plain("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: TLS/1.2\r\n\r\n"),
        plain("GET / HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\n\r\n"),
        plain("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\n\r\n"),
        // An HTTP/1.0 client has no upgrades (RFC 9110 section 7.8).
        Row {
            back: &["200", "connection: close", "close"],
            ..plain("GET / HTTP/1.0\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        },
        plain("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\nupgrade: h2c\r\n\r\n"),
        Row {
            line: "5.1.11",
            sent: "POST / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\ncontent-length: 2\r\n\r\nhi",
            seen: &["POST / HTTP/1.1", "-upgrade", "-connection", "=hi"],
            ..ROW
        },
        Row {
            line: "5.1.11",
            sent: "POST / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\ncontent-length: 0\r\n\r\n",
            seen: &["POST / HTTP/1.1", "-upgrade", "-connection"],
            ..ROW
        },
        // The client did not ask for it.
        Row {
            line: "5.1.11",
            sent: "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
            answer: switched,
            back: &["502"],
            seen: &["GET / HTTP/1.1", "not reused"],
            ..ROW
        },
        // The upstream stays with HTTP, so early bytes of the client are a request and are checked as one.
        Row {
            line: "5.1.11",
            sent: "GET /1 HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n\
                   GET /2 HTTP/1.1\r\nhost: a\r\n\r\n",
            back: &["200", "then", "429"],
            seen: &["GET /1 HTTP/1.1", "upgrade: websocket", "connection: upgrade"],
            setup: |setup| setup.rules = "limits: { One: { by: global, burst: 1, count: 1, period: 1h } }".into(),
            ..ROW
        },
        Row {
            line: "5.1.11",
            sent: "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
            back: &["429"],
            setup: |setup| setup.rules = "limits: { None: { deny: true } }".into(),
            ..ROW
        },
    ]);
    let upstream = Upstream::start(move |wire, _| {
        let head = wire.head().unwrap();
        assert_eq!((head.header("upgrade"), head.header("connection")), (Some("websocket"), Some("upgrade")));
        wire.send(switched);
        assert_eq!(wire.exactly(5), b"frame");
        wire.send("echo");
    });
    let weir = Setup::new(WIDE).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\r\nframe");
    let response = client.head().unwrap();
    assert_eq!((response.status(), response.header("upgrade")), (101, Some("websocket")));
    assert_eq!(response.header("connection"), Some("upgrade"));
    assert_eq!(client.exactly(4), b"echo");
    client.expect_end();
}

#[test]
fn tunnels_are_rejected() {
    for sent in [
        "CONNECT a.example:443 HTTP/1.1\r\nhost: a.example:443\r\n\r\n",
        "CONNECT a.example HTTP/1.1\r\nhost: a.example\r\n\r\n",
        "CONNECT / HTTP/1.1\r\nhost: a\r\n\r\n",
    ] {
        check(&Row { line: "5.1.12", sent, back: &["405"], ..ROW });
    }
}

#[test]
fn targets_are_forwarded_byte_for_byte() {
    for target in [
        "//a//b/../c/./%7Euser/%2e%2e/x;p=1,2;q/%c3%a9/%252f/",
        "/?a=%00&b=%zz&c=\\&d=%&e=//../",
        "/???",
        "/%41?%41",
        "/a/..;/b",
        "/*",
        "/a|b{c}^`\"<>",
    ] {
        let start: &'static str = format!("GET {target} HTTP/1.1").leak();
        let seen: &'static [&'static str] = Box::leak(Box::new([start]));
        check(&Row { line: "5.1.13", sent: format!("{start}\r\nhost: a\r\n\r\n").leak(), seen, ..ROW });
    }
}

impl Row {
    /// The same with another method.
    fn with_method(self, method: &str) -> Self {
        let (_, rest) = self.sent.split_once(' ').unwrap();
        Self { sent: format!("{method} {rest}").leak(), ..self }
    }
}
