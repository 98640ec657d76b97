//! What the standards say a reverse proxy must do, line by line: what is sent, what comes back, what the upstream saw.
//!
//! The lines are those of a checklist that was made from RFC 9110, 9112, 9113 and 7239 and from what was found wrong in
//! other proxies: 5.1 messages, 5.2 paths, 5.3 HTTP/2 in front of HTTP/1.1, 5.4 limits of the listener, 5.5 addresses.

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

/// One line of a table.
///
/// What is expected of a message is a list: its status or its start line first, then `name: value` for a field that must
/// be there with this value and no other, `-name` for one that must not, `=text` for the body, `~text` for a part of it,
/// `+name: value` for a trailer, `-+name` for one that must not be there. `then` begins the next message.
pub(super) struct Row {
    /// The line of the checklist.
    line: &'static str,
    /// What the client sends, all at once.
    sent: &'static str,
    /// What the upstream answers to every request, once it has read it.
    answer: &'static str,
    /// What comes back. `close` at the end if the connection ends then; otherwise another request must be answered on it.
    back: &'static [&'static str],
    /// What the upstream saw: complete requests. Empty if it must see nothing. `cut` if it may see a beginning, but no
    /// end. `reused` or `not reused` at the end says whether the next request comes by the same connection.
    seen: &'static [&'static str],
    /// What is set up otherwise than usual.
    setup: fn(&mut Setup),
}

/// A row that is filled in by what differs.
pub(super) const ROW: Row = Row {
    line: "",
    sent: "",
    answer: "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    back: &["200", "=hello"],
    seen: &[],
    setup: |_| {},
};

/// A request as the upstream got it, complete or not.
#[derive(Clone, Debug)]
struct Seen {
    message: Message,
    is_complete: bool,
}

/// Remembers every request that begins, and answers those that end.
struct Recorder {
    upstream: Upstream,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// Tells whether a connection of the client can still be used, and whether it answers this request and no other.
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

    /// Checks that these requests came, and no other.
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
                None => lacks(&message.fields, name),
            },
            (_, field) => has(&message.fields, field),
        }
    }
}

/// Reads what a client is answered with and checks it.
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

/// The one listener of the tables: sends what the row says through a proxy of its own.
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

/// As [`check`], for a table.
#[track_caller]
pub(super) fn check_all(rows: &[Row]) {
    for row in rows {
        check(row);
    }
}

/// As [`check_all`], for requests of which nothing is forwarded, and after which nobody knows where the next begins.
#[track_caller]
pub(super) fn check_refused(line: &'static str, status: &'static str, requests: &[&'static str]) {
    for sent in requests {
        // What is expected lives as long as the tests do.
        let back: &'static [&'static str] = Box::leak(Box::new([status, "connection: close", "close"]));
        check(&Row { line, sent, back, ..ROW });
    }
}
