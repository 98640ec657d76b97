//! The standards' requirements of a reverse proxy, line by line: the request, the response, and what the upstream saw.
//!
//! The lines are a checklist from RFC 9110, 9112, 9113 and 7239 and from other proxies' mistakes: 5.1 messages, 5.2
//! paths, 5.3 HTTP/2 in front of HTTP/1.1, 5.4 bounds, 5.5 addresses.

mod addresses;
mod downgrade;
mod identities;
mod limits;
mod messages;
mod paths;
mod responses;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::support::eventually;
use crate::support::server::{Setup, WIDE};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::{Message, Wire};

///
/// An expected message is a list: its status or start line first, then `name: value` for a header with exactly this
/// value, `-name` for a missing one, `=text` for the body, `~text` for a part of it, `+name: value` for a trailer,
/// `-+name` for a missing one. `then` starts the next message.
pub(super) struct Row {
    /// The line of the checklist.
    line: &'static str,
    /// The client's bytes, sent at once.
    sent: &'static str,
    /// The upstream's answer to every request that it has read.
    answer: &'static str,
    /// The expected responses. `close` at the end if the connection then ends; otherwise it must serve another request.
    back: &'static [&'static str],
    /// The complete requests that the upstream must see. `cut` allows a beginning without an end. `reused` or `not
    /// reused` at the end says whether the next request takes the same connection.
    seen: &'static [&'static str],
    /// Changes of the options.
    setup: fn(&mut Setup),
}

/// The base of all rows.
pub(super) const ROW: Row = Row {
    line: "",
    sent: "",
    answer: "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    back: &["200", "=hello"],
    seen: &[],
    setup: |_| {},
};

/// A request that the upstream got, complete or not.
#[derive(Clone, Debug)]
struct Seen {
    message: Message,
    is_complete: bool,
}

/// Remembers every request that starts, and answers the complete ones.
struct Recorder {
    upstream: Upstream,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// Tests whether the client's connection still works, and answers in order.
const PROBE: &str = "/probe-of-the-test";

impl Recorder {
    fn start(answer: &'static str) -> Self {
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let recorded = seen.clone();
        let upstream = Upstream::start(move |wire, _| {
            while let Some(mut message) = wire.head() {
                if message.start.contains(PROBE) {
                    wire.send(ok("probe"));
                    continue;
                }
                recorded.lock().push(Seen { message: message.clone(), is_complete: false });
                wire.body(&mut message, false);
                if let Some(last) = recorded.lock().last_mut() {
                    *last = Seen { message, is_complete: true };
                }
                wire.send(answer);
            }
        });
        Self { upstream, seen }
    }

    fn url(&self) -> String {
        format!("http://{}", self.upstream.address)
    }

    /// Checks that exactly these requests came.
    #[track_caller]
    fn check(&self, what: &str, expected: &[&str]) {
        if expected.contains(&"cut") {
            let seen = self.seen.lock().clone();
            assert!(seen.iter().all(|seen| !seen.is_complete), "{what}: the upstream saw {seen:#?}");
            return;
        }
        let expected: Vec<&[&str]> = expected.split(|item| *item == "then").filter(|part| !part.is_empty()).collect();
        eventually(what, || {
            let seen = self.seen.lock().clone();
            let is_there = seen.len() >= expected.len() && seen.iter().all(|seen| seen.is_complete);
            if is_there { Ok(()) } else { Err(seen) }
        });
        let seen = self.seen.lock().clone();
        assert_eq!(seen.len(), expected.len(), "{what}: the upstream saw {seen:#?}");
        for (seen, expected) in seen.iter().zip(expected) {
            assert_eq!(seen.message.start, expected[0], "{what}");
            check_message(what, &seen.message, &expected[1..]);
        }
    }
}

#[track_caller]
fn check_message(what: &str, message: &Message, expected: &[&str]) {
    let has = |lines: &[(String, String)], wanted: &str| {
        let (name, value) = wanted.split_once(':').unwrap();
        let values: Vec<_> = lines.iter().filter(|(given, _)| given == name).map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, [value.trim()], "{what}: {name} in {message:#?}");
    };
    let lacks = |lines: &[(String, String)], name: &str| {
        assert!(lines.iter().all(|(given, _)| given != name), "{what}: there is {name} in {message:#?}");
    };
    for item in expected {
        match (item.split_at(1), *item) {
            (_, "close" | "reused" | "not reused") => {}
            (("=", body), _) => assert_eq!(message.text(), body, "{what}"),
            (("~", part), _) => assert!(message.text().contains(part), "{what}: {}", message.text()),
            (("+", trailer), _) => has(&message.trailers, trailer),
            (("-", name), _) => match name.strip_prefix('+') {
                Some(trailer) => lacks(&message.trailers, trailer),
                None => lacks(&message.headers, name),
            },
            (_, header) => has(&message.headers, header),
        }
    }
}

/// Reads the client's responses and checks them.
#[track_caller]
fn check_back(what: &str, client: &mut Wire, is_head: bool, expected: &[&str]) {
    for expected in expected.split(|item| *item == "then") {
        let mut message =
            client.head().unwrap_or_else(|| panic!("{what}: the connection was closed without an answer"));
        let status = message.status();
        let has_body = !is_head && !matches!(status, 100..200 | 204 | 304);
        if has_body {
            client.body(&mut message, true);
        }
        assert_eq!(status.to_string(), expected[0], "{what}: {message:#?}");
        check_message(what, &message, &expected[1..]);
    }
}

/// Plays a row through a new proxy.
#[track_caller]
pub(super) fn check(row: &Row) {
    let what = format!("{} {:?}", row.line, &row.sent[..row.sent.len().min(300)]);
    let recorder = Recorder::start(row.answer);
    let mut setup = Setup::new(WIDE);
    (row.setup)(&mut setup);
    let weir = setup.start(&recorder.url());
    let mut client = weir.connect();
    client.send(row.sent);
    check_back(&what, &mut client, row.sent.starts_with("HEAD "), row.back);
    if row.back.last() == Some(&"close") {
        client.expect_end();
    } else {
        let probe = client.get(PROBE);
        assert!(probe.status() == 429 || probe.text() == "probe", "{what}: the next response is {probe:#?}");
    }
    recorder.check(&what, row.seen);
    match row.seen.last() {
        Some(&"reused") => assert_eq!(recorder.upstream.accepted(), 1, "{what}: the upstream's connection"),
        Some(&"not reused") => assert_eq!(recorder.upstream.accepted(), 2, "{what}: the upstream's connection"),
        None => assert!(recorder.upstream.accepted() <= 1, "{what}"),
        _ => {}
    }
}

/// Plays all rows of a table.
#[track_caller]
pub(super) fn check_all(rows: &[Row]) {
    for row in rows {
        check(row);
    }
}

/// Like [`check_all`], for requests that are not forwarded and after which the next one's start is unknown.
#[track_caller]
pub(super) fn check_rejected(line: &'static str, status: &'static str, requests: &[&'static str]) {
    for sent in requests {
        // The expectations live as long as the tests.
        let back: &'static [&'static str] = Box::leak(Box::new([status, "connection: close", "close"]));
        check(&Row { line, sent, back, ..ROW });
    }
}
