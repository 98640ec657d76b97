//! The formats of a line.

use std::net::IpAddr;
use std::time::Duration;

use http::{Method, Version};
use jiff::Timestamp;

use super::Format;
use super::parts::LoggedHeader;
use super::record::Record;
use crate::engine::algorithms::micros::Micros;
use crate::message::connection::{Cut, UpstreamFailure};
use crate::telemetry::metrics::DecisionResult;

/// The status if the client disconnected before there was a response; nginx introduced it.
const CLIENT_CLOSED: u64 = 499;

/// Formats lines, one after the other in the same memory.
#[derive(Debug)]
pub(super) struct LineFormatter {
    format: Format,
    line: Vec<u8>,
    /// The second of `stamp`, which thousands of requests share.
    second: i64,
    stamp: String,
}

impl LineFormatter {
    pub(super) const fn new(format: Format) -> Self {
        Self { format, line: Vec::new(), second: i64::MIN, stamp: String::new() }
    }

    /// Returns the record's line, with its end.
    pub(super) fn format(&mut self, record: &Record) -> &[u8] {
        let micros = i64::try_from(record.received.0).unwrap_or(i64::MAX);
        let second = micros.div_euclid(1_000_000);
        if second != self.second {
            self.second = second;
            self.stamp = stamp(second, self.format);
        }
        self.line.clear();
        match self.format {
            Format::Json => self.json(record, micros.rem_euclid(1_000_000)),
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
        // Spaces separate what is before the first quote.
        quoted_text(line, record.subject.as_deref().unwrap_or("-").as_bytes(), b" ");
        line.extend_from_slice(b" [");
        line.extend_from_slice(self.stamp.as_bytes());
        line.extend_from_slice(b"] \"");
        line.extend_from_slice(record.method.as_ref().map_or("-", Method::as_str).as_bytes());
        line.push(b' ');
        quoted_text(line, record.target.as_deref().unwrap_or("-").as_bytes(), b"");
        line.push(b' ');
        line.extend_from_slice(protocol(record.version).as_bytes());
        line.extend_from_slice(b"\" ");
        number(line, status(record));
        line.push(b' ');
        number(line, record.sent);
        for value in [&record.referer, &record.user_agent] {
            line.extend_from_slice(b" \"");
            quoted_text(line, value.as_deref().unwrap_or(b"-"), b"");
            line.push(b'"');
        }
    }

    fn json(&mut self, record: &Record, micros: i64) {
        let line = &mut self.line;
        line.extend_from_slice(b"{\"time\":\"");
        line.extend_from_slice(self.stamp.as_bytes());
        line.push(b'.');
        line.extend([100_000, 10_000, 1_000, 100, 10, 1].map(|unit| digit(micros / unit)));
        line.extend_from_slice(b"Z\"");
        if let Some(client) = record.client {
            line.extend_from_slice(b",\"client\":\"");
            address(line, client);
            line.push(b'"');
        }
        text(line, "user", record.subject.as_deref());
        text(line, "method", record.method.as_ref().map(Method::as_str));
        text(line, "target", record.target.as_deref());
        text(line, "protocol", Some(protocol(record.version)));
        text(line, "host", record.host.as_deref());
        integer(line, "status", status(record));
        integer(line, "bytes", record.sent);
        milliseconds(line, "duration_ms", record.duration);
        text(line, "referer", record.referer.as_deref());
        text(line, "user_agent", record.user_agent.as_deref());
        text(line, "request_id", record.request_id.as_deref());
        text(line, "trace_id", record.trace_id.map(|id| format!("{id:032x}")).as_ref());
        if let Some(upstream) = &record.upstream {
            text(line, "upstream", Some(&upstream.address));
            milliseconds(line, "upstream_ms", upstream.time);
            integer(line, "attempts", u64::from(upstream.attempts));
        }
        text(line, "upstream_error", record.upstream_error.map(UpstreamFailure::label));
        text(line, "cut", record.cut.map(Cut::label));
        text(line, "verdict", record.result.map(verdict));
        text(line, "limit", record.limit.as_deref());
        if let Some(remaining) = record.remaining {
            integer(line, "remaining", remaining);
        }
        if record.delay > Micros(0) {
            milliseconds(line, "delay_ms", Duration::from_micros(record.delay.0));
        }
        if !record.candidate_denied.is_empty() {
            texts(line, "candidate_denied", &record.candidate_denied);
        }
        text(line, "rejected", record.rejected.as_deref());
        text(line, "entry", record.entry.as_deref());
        if !record.script_output.is_empty() {
            texts(line, "said", &record.script_output);
        }
        if !record.headers.is_empty() {
            headers(line, &record.headers);
        }
        line.push(b'}');
    }
}

/// Writes `,"headers":{"name":["value",...],"name":null,...}`.
fn headers(line: &mut Vec<u8>, headers: &[LoggedHeader]) {
    key(line, "headers");
    for (place, LoggedHeader { name, values }) in headers.iter().enumerate() {
        line.extend_from_slice(if place > 0 { b",\"" } else { b"{\"" });
        escaped(line, name.as_bytes());
        line.extend_from_slice(b"\":");
        if values.is_empty() {
            line.extend_from_slice(b"null");
        } else {
            array(line, values);
        }
    }
    line.push(b'}');
}

fn status(record: &Record) -> u64 {
    if record.status == 0 { CLIENT_CLOSED } else { record.status.into() }
}

fn verdict(result: DecisionResult) -> &'static str {
    match result {
        DecisionResult::ShadowDenied => "shadow",
        DecisionResult::ErrorAllowed | DecisionResult::ErrorDenied => "error",
        other => other.label(),
    }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// Formats a second of the wall clock: `21/Nov/2026:04:00:06 +0000`, or `2026-11-21T04:00:06` without its end.
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

/// The standard formatter takes as long for an address as the rest of the line.
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

/// Writes text between quotes as nginx does: what could end the quotes or the line or move a terminal's cursor, what is not
/// ASCII, and what is in `also`, becomes `\xHH`.
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

/// Returns whether nothing needs an escape.
fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
}

/// Writes `,"name":"value"`, if there is a value.
fn text(line: &mut Vec<u8>, name: &str, value: Option<&(impl AsRef<[u8]> + ?Sized)>) {
    let Some(value) = value else { return };
    let value = value.as_ref();
    key(line, name);
    line.push(b'"');
    if is_plain(value) {
        line.extend_from_slice(value);
    } else {
        escaped(line, value);
    }
    line.push(b'"');
}

/// Writes `,"name":["value",...]`.
fn texts(line: &mut Vec<u8>, name: &str, values: &[Box<str>]) {
    key(line, name);
    array(line, values);
}

fn array(line: &mut Vec<u8>, values: &[Box<str>]) {
    line.push(b'[');
    for (place, value) in values.iter().enumerate() {
        line.extend_from_slice(if place > 0 { b",\"" } else { b"\"" });
        escaped(line, value.as_bytes());
        line.push(b'"');
    }
    line.push(b']');
}

/// Writes the inside of a JSON string. Invalid UTF-8 becomes U+FFFD. All controls are escaped, also those of C1, which
/// terminals obey.
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

/// Writes a span in milliseconds, with microseconds as decimals.
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
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::algorithms::micros::Micros;
    use crate::telemetry::access_log::UpstreamUse;

    /// 2026-11-21T04:00:06.789012Z.
    const RECEIVED: Micros = Micros(1_795_233_606_789_012);

    pub(in crate::telemetry::access_log) fn record() -> Record {
        Record {
            received: RECEIVED,
            client: "192.0.2.7".parse().ok(),
            method: Some(Method::GET),
            target: Some("/a?b=c".into()),
            status: 200,
            sent: 5,
            duration: Duration::from_micros(1_234),
            ..Record::default()
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
            upstream_error: Some(UpstreamFailure::Body),
            cut: Some(Cut::Upstream),
            result: Some(DecisionResult::ShadowDenied),
            limit: Some("L".into()),
            remaining: Some(3),
            candidate_denied: vec!["L".into(), "M".into()],
            ..record()
        }
    }

    fn line(format: Format, record: &Record) -> String {
        let mut formatter = LineFormatter::new(format);
        // The second line in the same memory is like the first.
        formatter.format(&full());
        String::from_utf8(formatter.format(record).to_vec()).unwrap()
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
            "time": "2026-11-21T04:00:06.789012Z", "client": "2001:db8::7", "user": "CN=a b", "method": "GET",
            "target": "/a?b=c", "protocol": "HTTP/2.0", "host": "a.example", "status": 200, "bytes": 5,
            "duration_ms": 1.234, "referer": "https://b.example/", "user_agent": "curl/8", "request_id": "r-1",
            "trace_id": "00000000000000000000000000004bf9",
            "upstream": "127.0.0.1:3000", "upstream_ms": 0.007, "attempts": 2,
            "upstream_error": "body", "cut": "upstream", "verdict": "shadow", "limit": "L",
            "remaining": 3, "candidate_denied": ["L", "M"],
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

    fn read_back(format: Format, line: &[u8], check: impl FnOnce(&crate::logs::LogEntry<'_>)) {
        let name = if format == Format::Json { "weir" } else { "combined" };
        let line = line.trim_ascii_end();
        let format = crate::logs::format::Format::named(name).unwrap().of_log(std::iter::once(line)).unwrap();
        let entry =
            format.parser().parse(line).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(line)));
        check(&entry.unwrap());
    }

    proptest::proptest! {
        #[test]
        fn a_line_is_read_back_as_it_was_written(
            micros in 0_u64..4_000_000_000_000_000,
            took in 0_u64..100_000_000,
            client: std::net::IpAddr,
            subject in "[^\u{10FF80}-\u{10FFFF}]{1,20}",
            target in "/[!-~]{0,30}",
            host in "[a-z.]{1,10}",
            agent in "[^\u{10FF80}-\u{10FFFF}]{1,20}",
        ) {
            let record = Record {
                received: Micros(micros),
                duration: Duration::from_micros(took),
                client: Some(client.to_canonical()),
                subject: Some(subject.clone().into()),
                target: Some(target.clone().into()),
                host: Some(host.as_bytes().into()),
                user_agent: Some(agent.as_bytes().into()),
                result: Some(DecisionResult::Allowed),
                ..record()
            };
            let mut formatter = LineFormatter::new(Format::Json);
            read_back(Format::Json, formatter.format(&record), |entry| {
                assert_eq!((entry.at, entry.took), (record.received, Some(Micros(took))));
                let texts = [&entry.method, &entry.target, &entry.host].map(|text| text.as_deref());
                assert_eq!(texts, [Some("GET"), Some(&*target), Some(&*host)]);
                if subject != "-" {
                    assert_eq!(entry.tls_subject.as_deref(), Some(&*subject));
                }
                assert_eq!((entry.client, entry.status, entry.is_rejected), (record.client, Some(200), false));
                if agent != "-" {
                    assert_eq!(&*entry.headers[0].1, agent.as_bytes());
                }
            });
            let mut formatter = LineFormatter::new(Format::Combined);
            read_back(Format::Combined, formatter.format(&record), |entry| {
                assert_eq!(entry.at.0, micros / 1_000_000 * 1_000_000);
                let texts = [&entry.method, &entry.target].map(|text| text.as_deref());
                assert_eq!((texts, entry.client), ([Some("GET"), Some(&*target)], record.client));
                if agent != "-" {
                    assert_eq!(&*entry.headers.last().unwrap().1, agent.as_bytes());
                }
            });
        }
    }
}
