//! One line of the access log.

use std::net::IpAddr;
use std::time::Duration;

use http::{Method, Version};
use jiff::Timestamp;

use super::Format;
use crate::engine::algorithms::decision::Detail;
use crate::engine::algorithms::micros::Micros;
use crate::engine::answer::accepted;
use crate::engine::answer::verdict::{Standing, Verdict};
use crate::engine::rules::rule_set::Rules;
use crate::message::trace_context::TraceContext;
use crate::telemetry::RequestHead;

/// The status of a request whose client went away before there was an answer; nginx made this number known.
const CLIENT_CLOSED: u16 = 499;

/// What became of a request by its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerdictResult {
    /// Its cost was taken.
    Allowed,
    /// A limit refused it.
    Denied,
    /// It passed, and a limit in shadow would have refused it.
    Shadow,
    /// No limit applied to it, or only ones that its id is unlimited for.
    Unlimited,
    /// A store gave no answer, and a limit's `on_store_error` decided.
    Error,
    /// Too many requests were waiting for the store.
    Rejected,
}

impl VerdictResult {
    const fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Shadow => "shadow",
            Self::Unlimited => "unlimited",
            Self::Error => "error",
            Self::Rejected => "rejected",
        }
    }
}

/// The part of an upstream in an answer.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamUse {
    /// The address of the last one that was tried.
    pub(crate) address: String,
    /// From the first attempt to the response's headers, or to the failure.
    pub(crate) time: Duration,
    /// How many times the request was sent.
    pub(crate) attempts: u32,
}

/// What is known of a request. Bytes are as the client sent them; ids are not in here.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// When the request's headers had come.
    pub(crate) received: Micros,
    /// The client's address, as the limits see it; `None` if a load balancer does not say it.
    pub(crate) client: Option<IpAddr>,
    /// The subject of the client's certificate.
    pub(crate) subject: Option<Box<str>>,
    /// The method; `None` if the head cannot be read.
    pub(crate) method: Option<Method>,
    /// The request's target, as it was sent; `None` if the head cannot be read.
    pub(crate) target: Option<Box<str>>,
    /// The protocol that the client spoke.
    pub(crate) version: Version,
    /// The host that was asked for.
    pub(crate) host: Option<Box<[u8]>>,
    /// `Referer`.
    pub(crate) referer: Option<Box<[u8]>>,
    /// `User-Agent`.
    pub(crate) user_agent: Option<Box<[u8]>>,
    /// `X-Request-Id`.
    pub(crate) request_id: Option<Box<[u8]>>,
    /// The trace that it belongs to.
    pub(crate) trace_id: Option<u128>,
    /// The status of the answer; 0 until there is one.
    pub(crate) status: u16,
    /// Bytes of the answer's body that went to the client.
    pub(crate) sent: u64,
    /// Until the end of the answer.
    pub(crate) duration: Duration,
    /// The upstream, if one was asked.
    pub(crate) upstream: Option<UpstreamUse>,
    /// What became of the request by its limits; `None` if it was rejected before they were asked.
    pub(crate) ruling: Option<VerdictResult>,
    /// The name of the limit that binds.
    pub(crate) limit: Option<Box<str>>,
    /// What is left of that limit.
    pub(crate) remaining: Option<u64>,
    /// The entry of a queue that was added.
    pub(crate) entry: Option<Box<str>>,
    /// What scripts have said for the log.
    pub(crate) said: Vec<Box<str>>,
    /// Why the head cannot be read.
    pub(crate) rejected: Option<Box<str>>,
}

impl Record {
    /// What is known of a request before anything is done with it.
    pub(crate) fn new(received: Micros, client: Option<IpAddr>, subject: Option<&str>, request: &RequestHead) -> Self {
        let value = |name| request.headers.get(name).map(Box::from);
        Self {
            method: Some(request.method.clone()),
            target: Some(request.target.into()),
            host: value("host"),
            referer: value("referer"),
            user_agent: value("user-agent"),
            request_id: value("x-request-id"),
            trace_id: TraceContext::of(request.headers).map(|context| context.trace_id),
            rejected: None,
            ..Self::rejected(received, client, subject, request.version, String::new())
        }
    }

    /// What is known of a request whose head cannot be read, and why it cannot.
    pub(crate) fn rejected(
        received: Micros,
        client: Option<IpAddr>,
        subject: Option<&str>,
        version: Version,
        reason: String,
    ) -> Self {
        Self {
            received,
            client,
            subject: subject.map(Box::from),
            method: None,
            target: None,
            version,
            host: None,
            referer: None,
            user_agent: None,
            request_id: None,
            trace_id: None,
            status: 0,
            sent: 0,
            duration: Duration::ZERO,
            upstream: None,
            ruling: None,
            limit: None,
            remaining: None,
            entry: None,
            said: Vec::new(),
            rejected: Some(reason.into()),
        }
    }

    /// Notes what became of the request by its limits, and the one that it hangs on.
    pub(crate) fn judged(&mut self, rules: &Rules, verdict: &Verdict) {
        let (ruling, limit) = ruling(verdict);
        self.ruling = Some(ruling);
        self.limit = limit.and_then(|limit| rules.limit(limit)).map(|limit| limit.name.as_str().into());
        let answer = match verdict.binding() {
            Some(binding) if Some(binding.limit) == limit => Some(binding),
            _ => verdict.answers.iter().find(|answer| Some(answer.limit) == limit),
        };
        self.remaining = answer.filter(|answer| !answer.is_script()).map(|answer| answer.decision.remaining);
        self.entry = accepted::entries(rules, verdict).next().map(|(_, id)| id.as_str().into());
        let extras = verdict.details.iter().filter_map(|(_, detail)| match detail {
            Detail::Script(said) => Some(said.extras.iter()),
            _ => None,
        });
        self.said = extras.flatten().map(|extra| extra.as_str().into()).collect();
    }
}

/// What became of a request by its limits, and the one that it hangs on: the one that binds, or the one that would refuse, or
/// the one that the store gave no answer for.
pub(crate) fn ruling(verdict: &Verdict) -> (VerdictResult, Option<u32>) {
    let shadow = verdict.answers.iter().find(|answer| answer.would_deny());
    let unanswered = verdict.unanswered.iter().max_by_key(|limit| limit.denies);
    match (verdict.standing, shadow, unanswered) {
        (Standing::Denied, ..) => (VerdictResult::Denied, verdict.binding().map(|answer| answer.limit)),
        (Standing::Overloaded, ..) => (VerdictResult::Rejected, unanswered.map(|unanswered| unanswered.limit)),
        (Standing::Unavailable, ..) => (VerdictResult::Error, unanswered.map(|unanswered| unanswered.limit)),
        (Standing::Allowed, Some(shadow), _) => (VerdictResult::Shadow, Some(shadow.limit)),
        (Standing::Allowed, None, Some(unanswered)) => (VerdictResult::Error, Some(unanswered.limit)),
        (Standing::Allowed, None, None) if verdict.answers.is_empty() => (VerdictResult::Unlimited, None),
        (Standing::Allowed, None, None) => {
            let binding = verdict.binding().or(verdict.answers.first());
            (VerdictResult::Allowed, binding.map(|answer| answer.limit))
        }
    }
}

/// Makes lines, one after the other in the same memory.
#[derive(Debug)]
pub(crate) struct Writer {
    format: Format,
    line: Vec<u8>,
    /// The second that `stamp` says: thousands of requests share it.
    second: i64,
    stamp: String,
}

impl Writer {
    pub(crate) const fn new(format: Format) -> Self {
        Self { format, line: Vec::new(), second: i64::MIN, stamp: String::new() }
    }

    /// The line, with its end.
    pub(crate) fn write(&mut self, record: &Record) -> &[u8] {
        let micros = i64::try_from(record.received.0).unwrap_or(i64::MAX);
        let second = micros.div_euclid(1_000_000);
        if second != self.second {
            self.second = second;
            self.stamp = stamp(second, self.format);
        }
        self.line.clear();
        match self.format {
            Format::Json => self.json(record, micros.rem_euclid(1_000_000) / 1_000),
            Format::Combined => self.combined(record),
        }
        self.line.push(b'\n');
        &self.line
    }

    fn combined(&mut self, record: &Record) {
        let line = &mut self.line;
        match record.client {
            Some(client) => address(line, client),
            None => line.push(b'-'),
        }
        line.extend_from_slice(b" - ");
        match &record.subject {
            // The headers before the first quote are told apart by spaces.
            Some(subject) => quoted_text(line, subject.as_bytes(), b" "),
            None => line.push(b'-'),
        }
        line.extend_from_slice(b" [");
        line.extend_from_slice(self.stamp.as_bytes());
        line.extend_from_slice(b"] \"");
        line.extend_from_slice(record.method.as_ref().map_or("-", Method::as_str).as_bytes());
        line.push(b' ');
        quoted_text(line, record.target.as_deref().unwrap_or("-").as_bytes(), b"");
        line.push(b' ');
        line.extend_from_slice(protocol(record.version).as_bytes());
        line.extend_from_slice(b"\" ");
        number(line, u64::from(status(record)));
        line.push(b' ');
        number(line, record.sent);
        for value in [&record.referer, &record.user_agent] {
            line.extend_from_slice(b" \"");
            match value {
                Some(value) => quoted_text(line, value, b""),
                None => line.push(b'-'),
            }
            line.push(b'"');
        }
    }

    fn json(&mut self, record: &Record, millis: i64) {
        let line = &mut self.line;
        line.extend_from_slice(b"{\"time\":\"");
        line.extend_from_slice(self.stamp.as_bytes());
        line.push(b'.');
        line.extend([100, 10, 1].map(|unit| digit(millis / unit)));
        line.extend_from_slice(b"Z\"");
        if let Some(client) = record.client {
            line.extend_from_slice(b",\"client\":\"");
            address(line, client);
            line.push(b'"');
        }
        text(line, "user", record.subject.as_deref().map(str::as_bytes));
        text(line, "method", record.method.as_ref().map(|method| method.as_str().as_bytes()));
        text(line, "target", record.target.as_deref().map(str::as_bytes));
        text(line, "protocol", Some(protocol(record.version).as_bytes()));
        text(line, "host", record.host.as_deref());
        integer(line, "status", u64::from(status(record)));
        integer(line, "bytes", record.sent);
        milliseconds(line, "duration_ms", record.duration);
        text(line, "referer", record.referer.as_deref());
        text(line, "user_agent", record.user_agent.as_deref());
        text(line, "request_id", record.request_id.as_deref());
        if let Some(trace_id) = record.trace_id {
            text(line, "trace_id", Some(format!("{trace_id:032x}").as_bytes()));
        }
        if let Some(upstream) = &record.upstream {
            text(line, "upstream", Some(upstream.address.as_bytes()));
            milliseconds(line, "upstream_ms", upstream.time);
            integer(line, "attempts", u64::from(upstream.attempts));
        }
        text(line, "verdict", record.ruling.map(|ruling| ruling.label().as_bytes()));
        text(line, "limit", record.limit.as_deref().map(str::as_bytes));
        if let Some(remaining) = record.remaining {
            integer(line, "remaining", remaining);
        }
        text(line, "rejected", record.rejected.as_deref().map(str::as_bytes));
        text(line, "entry", record.entry.as_deref().map(str::as_bytes));
        if !record.said.is_empty() {
            texts(line, "said", &record.said);
        }
        line.push(b'}');
    }
}

fn status(record: &Record) -> u16 {
    if record.status == 0 { CLIENT_CLOSED } else { record.status }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// A second of the wall clock: `21/Nov/2026:04:00:06 +0000`, or `2026-11-21T04:00:06` without its end.
fn stamp(second: i64, format: Format) -> String {
    let pattern = match format {
        Format::Json => "%Y-%m-%dT%H:%M:%S",
        Format::Combined => "%d/%b/%Y:%H:%M:%S +0000",
    };
    Timestamp::from_second(second).unwrap_or_default().strftime(pattern).to_string()
}

fn digit(number: i64) -> u8 {
    b'0' + u8::try_from(number.rem_euclid(10)).unwrap_or_default()
}

fn number(line: &mut Vec<u8>, number: u64) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// The standard formatter takes as long for an address as all the rest of a line takes.
fn address(line: &mut Vec<u8>, address: IpAddr) {
    let IpAddr::V4(address) = address else {
        return line.extend_from_slice(address.to_string().as_bytes());
    };
    for (place, octet) in address.octets().into_iter().enumerate() {
        if place > 0 {
            line.push(b'.');
        }
        number(line, u64::from(octet));
    }
}

/// Text between quotes as nginx writes it: what could end the quotes or the line, move a terminal's cursor, or is no
/// ASCII, is `\xHH`; and what is in `also`.
fn quoted_text(line: &mut Vec<u8>, text: &[u8], also: &[u8]) {
    if is_plain(text) && also.is_empty() {
        return line.extend_from_slice(text);
    }
    for &byte in text {
        if is_plain(&[byte]) && !also.contains(&byte) {
            line.push(byte);
        } else {
            line.extend_from_slice(b"\\x");
            line.extend_from_slice(&hexadecimal(byte));
        }
    }
}

/// Whether nothing of it needs an escape, as nearly always.
fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
}

/// `,"name":"value"`, if there is a value.
fn text(line: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    let Some(value) = value else { return };
    key(line, name);
    line.push(b'"');
    if is_plain(value) {
        line.extend_from_slice(value);
    } else {
        escaped(line, value);
    }
    line.push(b'"');
}

/// `,"name":["value",...]`
fn texts(line: &mut Vec<u8>, name: &str, values: &[Box<str>]) {
    key(line, name);
    line.push(b'[');
    for (place, value) in values.iter().enumerate() {
        line.extend_from_slice(if place > 0 { b",\"" } else { b"\"" });
        escaped(line, value.as_bytes());
        line.push(b'"');
    }
    line.push(b']');
}

/// The inside of a JSON string. Bytes that are no UTF-8 become U+FFFD, and controls, the C1 ones that terminals obey
/// included, are escaped.
fn escaped(line: &mut Vec<u8>, value: &[u8]) {
    for character in String::from_utf8_lossy(value).chars() {
        match character {
            '"' | '\\' => line.extend_from_slice(&[b'\\', character as u8]),
            // All controls are below U+0100.
            control if control.is_control() => {
                line.extend_from_slice(b"\\u00");
                line.extend_from_slice(&hexadecimal(u8::try_from(control).unwrap_or_default()));
            }
            other => line.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

fn hexadecimal(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|digit| if digit < 10 { b'0' + digit } else { b'A' + digit - 10 })
}

fn integer(line: &mut Vec<u8>, name: &str, value: u64) {
    key(line, name);
    number(line, value);
}

/// A span in milliseconds, to the microsecond.
fn milliseconds(line: &mut Vec<u8>, name: &str, span: Duration) {
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    integer(line, name, micros.unsigned_abs() / 1_000);
    line.push(b'.');
    line.extend([100, 10, 1].map(|unit| digit(micros / unit)));
}

fn key(line: &mut Vec<u8>, name: &str) {
    line.extend_from_slice(b",\"");
    line.extend_from_slice(name.as_bytes());
    line.extend_from_slice(b"\":");
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// 2026-11-21T04:00:06.789Z.
    const RECEIVED: Micros = Micros(1_795_233_606_789_012);

    pub(crate) fn record() -> Record {
        Record {
            received: RECEIVED,
            client: "192.0.2.7".parse().ok(),
            subject: None,
            method: Some(Method::GET),
            target: Some("/a?b=c".into()),
            version: Version::HTTP_11,
            host: None,
            referer: None,
            user_agent: None,
            request_id: None,
            trace_id: None,
            status: 200,
            sent: 5,
            duration: Duration::from_micros(1_234),
            upstream: None,
            ruling: None,
            limit: None,
            remaining: None,
            entry: None,
            said: Vec::new(),
            rejected: None,
        }
    }

    /// A record with everything in it.
    fn full() -> Record {
        Record {
            client: "2001:db8::7".parse().ok(),
            subject: Some("CN=a b".into()),
            version: Version::HTTP_2,
            host: Some(b"a.example".as_slice().into()),
            referer: Some(b"https://b.example/".as_slice().into()),
            user_agent: Some(b"curl/8".as_slice().into()),
            request_id: Some(b"r-1".as_slice().into()),
            trace_id: Some(0x4bf9),
            upstream: Some(UpstreamUse {
                address: "127.0.0.1:3000".into(),
                time: Duration::from_micros(7),
                attempts: 2,
            }),
            ruling: Some(VerdictResult::Shadow),
            limit: Some("L".into()),
            remaining: Some(3),
            ..record()
        }
    }

    fn line(format: Format, record: &Record) -> String {
        let mut writer = Writer::new(format);
        // The second line in the same memory is like the first.
        writer.write(&full());
        String::from_utf8(writer.write(record).to_vec()).unwrap()
    }

    #[test]
    fn the_combined_format_is_what_its_readers_expect() {
        for (record, expected) in [
            (record(), "192.0.2.7 - - [21/Nov/2026:04:00:06 +0000] \"GET /a?b=c HTTP/1.1\" 200 5 \"-\" \"-\"\n"),
            (
                full(),
                "2001:db8::7 - CN=a\\x20b [21/Nov/2026:04:00:06 +0000] \"GET /a?b=c HTTP/2.0\" 200 5 \
                 \"https://b.example/\" \"curl/8\"\n",
            ),
            (
                Record { status: 0, received: Micros(0), client: None, ..record() },
                "- - - [01/Jan/1970:00:00:00 +0000] \"GET /a?b=c HTTP/1.1\" 499 5 \"-\" \"-\"\n",
            ),
        ] {
            assert_eq!(line(Format::Combined, &record), expected);
        }
    }

    #[test]
    fn json_has_all_that_is_known() {
        let parsed: Value = serde_json::from_str(&line(Format::Json, &full())).unwrap();
        let expected = json!({
            "time": "2026-11-21T04:00:06.789Z", "client": "2001:db8::7", "user": "CN=a b", "method": "GET",
            "target": "/a?b=c", "protocol": "HTTP/2.0", "host": "a.example", "status": 200, "bytes": 5,
            "duration_ms": 1.234, "referer": "https://b.example/", "user_agent": "curl/8", "request_id": "r-1",
            "trace_id": "00000000000000000000000000004bf9",
            "upstream": "127.0.0.1:3000", "upstream_ms": 0.007, "attempts": 2, "verdict": "shadow", "limit": "L",
            "remaining": 3,
        });
        assert_eq!(parsed, expected);
        let least: Value = serde_json::from_str(&line(Format::Json, &record())).unwrap();
        assert!(least.get("limit").is_none() && least.get("upstream").is_none() && least["status"] == 200, "{least}");
    }

    #[test]
    fn no_value_can_end_its_line_or_its_quotes() {
        let hostile: Vec<u8> =
            (0..=255).chain(*b"\x1b[2J\r\n1.2.3.4 - - \"\\").chain("\u{9b}é\u{2028}".bytes()).collect();
        let target: String = hostile.iter().map(|byte| char::from(*byte)).collect();
        let value = || Some(hostile.clone().into_boxed_slice());
        let record = Record {
            subject: Some(target.clone().into()),
            target: Some(target.into()),
            host: value(),
            referer: value(),
            user_agent: value(),
            request_id: value(),
            ..record()
        };
        let combined = line(Format::Combined, &record);
        assert_eq!(combined.matches('\n').count(), 1);
        assert!(combined.trim_end().bytes().all(|byte| matches!(byte, b' '..=b'~')), "{combined}");
        assert_eq!(combined.matches('"').count(), 6);
        assert_eq!(combined.split(" [").next().unwrap().split(' ').count(), 3);
        let json = line(Format::Json, &record);
        assert_eq!(json.matches('\n').count(), 1);
        assert!(!json.trim_end().chars().any(char::is_control), "{json}");
        let parsed: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(parsed["user_agent"], String::from_utf8_lossy(&hostile).as_ref());
    }
}
