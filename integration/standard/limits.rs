//! 5.4: bounds of the listener.

use std::time::Duration;

use weir::http::{HeadLimits, HttpLimits};

use super::{ROW, Row, check, check_all};

/// A timeout that is long enough for a test and too short for a client.
const SHORT: Duration = Duration::from_millis(200);

fn sized(parts: [&str; 2], count: usize) -> &'static str {
    format!("{}{}{}", parts[0], "x".repeat(count), parts[1]).leak()
}

#[test]
fn heads_are_bounded() {
    const TARGET: [&str; 2] = ["GET /", " HTTP/1.1\r\nhost: a\r\n\r\n"];
    const FIELD: [&str; 2] = ["GET / HTTP/1.1\r\nhost: a\r\nx: ", "\r\n\r\n"];
    let limits = HeadLimits::default();
    let fixed = FIELD.concat().len();
    let lines = |count: usize| -> &'static str {
        format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: 1\r\n".repeat(count - 1)).leak()
    };
    let longest: &'static str = format!("GET /{} HTTP/1.1", "x".repeat(limits.target - 1)).leak();
    let long: &'static [&'static str] = Box::leak(Box::new([longest]));
    check_all(&[
        Row { line: "5.1.5", sent: sized(TARGET, limits.target - 1), seen: long, ..ROW },
        Row { line: "5.1.5", sent: sized(TARGET, limits.target), back: &["414", "connection: close", "close"], ..ROW },
        Row { line: "5.1.5", sent: sized(TARGET, limits.bytes), back: &["414", "connection: close", "close"], ..ROW },
        // It never ends.
        Row {
            line: "5.1.5",
            sent: sized(["GET /", ""], limits.bytes),
            back: &["414", "connection: close", "close"],
            ..ROW
        },
        Row { line: "5.1.5", sent: sized(FIELD, limits.bytes - fixed), seen: &["GET / HTTP/1.1"], ..ROW },
        Row {
            line: "5.1.5",
            sent: sized(FIELD, limits.bytes - fixed + 1),
            back: &["431", "connection: close", "close"],
            ..ROW
        },
        Row {
            line: "5.1.5",
            sent: sized([FIELD[0], ""], limits.bytes),
            back: &["431", "connection: close", "close"],
            ..ROW
        },
        Row { line: "5.4", sent: lines(limits.lines), seen: &["GET / HTTP/1.1"], ..ROW },
        Row { line: "5.4", sent: lines(limits.lines + 1), back: &["431", "connection: close", "close"], ..ROW },
    ]);
}

#[test]
fn bodies_are_bounded() {
    let few = |setup: &mut crate::support::server::Setup| setup.limits.body_bytes = 5;
    check_all(&[
        Row {
            line: "5.4",
            sent: "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
            seen: &["POST / HTTP/1.1", "=hello", "reused"],
            setup: few,
            ..ROW
        },
        Row {
            line: "5.4",
            sent: "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\nhello!",
            back: &["413", "connection: close", "close"],
            setup: few,
            ..ROW
        },
        Row {
            line: "5.4",
            sent: "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            seen: &["POST / HTTP/1.1", "=hello", "reused"],
            setup: few,
            ..ROW
        },
        Row {
            line: "5.4",
            sent: "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhell\r\n2\r\no!\r\n0\r\n\r\n",
            back: &["413", "connection: close", "close"],
            seen: &["cut"],
            setup: few,
            ..ROW
        },
        // A rejected request ends the connection only if its body is long.
        Row {
            line: "5.1.10",
            sent: "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
            back: &["429", "-connection"],
            setup: |setup| setup.rules = "limits: { None: { deny: true } }".into(),
            ..ROW
        },
        Row {
            line: "5.1.10",
            sent: sized(["POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 70000\r\n\r\n", ""], 70_000),
            back: &["429", "connection: close", "close"],
            setup: |setup| setup.rules = "limits: { None: { deny: true } }".into(),
            ..ROW
        },
    ]);
}

#[test]
fn a_connection_has_so_many_requests() {
    check(&Row {
        line: "5.4",
        sent: "GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost: a\r\n\r\nGET /3 HTTP/1.1\r\nhost: a\r\n\r\n",
        back: &["200", "-connection", "then", "200", "connection: close", "close"],
        seen: &["GET /1 HTTP/1.1", "then", "GET /2 HTTP/1.1"],
        setup: |setup| setup.limits = HttpLimits { requests: 2, ..HttpLimits::default() },
        ..ROW
    });
}

#[test]
fn what_does_not_move_ends() {
    check_all(&[
        Row {
            line: "5.4",
            sent: "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhel",
            back: &["408", "connection: close", "close"],
            seen: &["cut"],
            setup: |setup| setup.timeouts.body = SHORT,
            ..ROW
        },
        Row {
            line: "5.4",
            sent: "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n",
            back: &["100", "then", "408", "connection: close", "close"],
            seen: &["cut"],
            setup: |setup| setup.timeouts.body = SHORT,
            ..ROW
        },
        // Another request starts and does not end.
        Row {
            line: "5.4",
            sent: "GET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: ",
            back: &["200", "close"],
            seen: &["GET / HTTP/1.1"],
            setup: |setup| setup.timeouts.header = SHORT,
            ..ROW
        },
        Row {
            line: "5.4",
            sent: "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            back: &["200", "close"],
            seen: &["GET / HTTP/1.1"],
            setup: |setup| setup.timeouts.idle = SHORT,
            ..ROW
        },
    ]);
}
