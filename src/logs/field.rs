//! The parts of a line, and the entry that they make.

use std::borrow::Cow;
use std::net::IpAddr;

use super::address::address;
use super::escape::{Escapes, unescaped};
use super::instant::{self, Instants};
use super::tells::Tells;
use super::{Descriptors, Lack, LogEntry};
use crate::engine::algorithms::micros::Micros;
use crate::engine::request::part::Source;
use crate::message::{headers, lossless, percent, target};

/// The meaning of a part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Ignored,
    /// Not used, but a line with another value there has another format.
    Port,
    /// An address, with or without a port.
    Client,
    /// The same with a port behind a colon, and no brackets.
    ClientAndPort,
    /// The client's address, unless the line has [`Self::Client`], too.
    Peer,
    Host,
    /// The request line: method, target and protocol.
    Request,
    Method,
    Target,
    /// The same as a URL with a host.
    Url,
    /// A path, with its query or without, that counts unless the line tells the target, too.
    Path,
    /// A path that the server has decoded.
    DecodedPath,
    /// A decoded path, and the query as sent.
    DecodedTarget,
    /// With or without its question mark.
    Query,
    /// Arrival of the request.
    Arrival,
    /// Time of writing the line, at the end of the response.
    End,
    /// A span in units of so many microseconds.
    Took(u64),
    TookNanoseconds,
    /// The part of that span in which a limit held the request, in the same way.
    Waited(u64),
    /// A header, by its name in lower case.
    Header(Box<str>),
    /// All headers of the request, as an object.
    Headers,
    TlsSubject,
    Status,
    /// The bytes of the response's body.
    Bytes,
    /// A field of our own log: a request without it was rejected before the limits were asked.
    Verdict,
}

/// The entry of a line, while its parts are read.
#[derive(Debug, Default)]
pub(super) struct Draft<'a> {
    entry: LogEntry<'a>,
    arrival: Option<Micros>,
    end: Option<Micros>,
    peer: Option<IpAddr>,
    /// What [`Field::Client`] has, or else [`Field::Peer`], if it is no address.
    unread_client: Option<&'a [u8]>,
    unread_peer: Option<&'a [u8]>,
    path: Option<Cow<'a, str>>,
    query: Option<Cow<'a, str>>,
    has_verdict: bool,
    waited: Micros,
    /// The value of the request line, the method or the target is an object or an array.
    has_unread_request: bool,
}

impl<'a> Draft<'a> {
    /// Adds a part. The error is what was expected.
    pub(super) fn add(
        &mut self,
        field: &'a Field,
        raw: &'a [u8],
        escapes: Escapes,
        instants: &mut Instants,
    ) -> Result<(), &'static str> {
        let value = || escapes.undone(raw);
        match field {
            Field::Ignored | Field::Headers => {}
            Field::Arrival => self.arrival = Some(instants.read(raw).ok_or("an instant")?),
            // The largest of several has most decimals.
            Field::End => self.end = self.end.max(Some(instants.read(raw).ok_or("an instant")?)),
            // Apache writes a hyphen for an empty body.
            Field::Bytes if raw == b"-" => self.entry.bytes = Some(0),
            // Servers write these for absent values.
            _ if matches!(raw, b"-" | b"") => self.entry.is_rejected |= *field == Field::Request,
            Field::Port => {
                let _: u16 = std::str::from_utf8(raw).ok().and_then(|port| port.parse().ok()).ok_or("a port")?;
            }
            Field::Client => self.add_client(raw, raw),
            Field::ClientAndPort => {
                self.add_client(memchr::memrchr(b':', raw).map_or(raw, |colon| &raw[..colon]), raw);
            }
            Field::Peer => match address(raw) {
                Some(address) => self.peer = Some(address),
                None => self.unread_peer = Some(raw),
            },
            // HAProxy writes -1 for what did not happen.
            Field::Took(_) if raw.starts_with(b"-") => {}
            Field::Took(per_unit) => self.entry.took = Some(instant::duration(raw, *per_unit).ok_or("a duration")?),
            Field::TookNanoseconds => {
                let nanoseconds = instant::span(raw, 1).ok_or("a duration")?;
                self.entry.took = Some(Micros(nanoseconds.0 / 1_000));
            }
            Field::Waited(per_unit) => self.waited = instant::span(raw, *per_unit).ok_or("a duration")?,
            Field::Status => self.entry.status = Some(status(raw).ok_or("a status")?),
            Field::Bytes => self.entry.bytes = bytes(raw),
            Field::Request => self.add_request(value()),
            Field::Method => self.add_method(text(value())),
            Field::Host => self.entry.host = Some(text(value())),
            Field::Target | Field::Url => self.entry.target = Some(text(value())),
            Field::Path => self.path = Some(text(value())),
            Field::DecodedPath => self.path = Some(encoded(&value())),
            Field::DecodedTarget => {
                let value = value();
                let mut parts = value.splitn(2, |byte| *byte == b'?');
                self.path = parts.next().map(encoded);
                self.query = parts.next().map(|query| Cow::Owned(lossless::text(query).into_owned()));
            }
            Field::Query => {
                // Queries have their own escapes.
                let query = text(if escapes == Escapes::Backslash { value() } else { Cow::Borrowed(raw) });
                self.query = Some(match query.strip_prefix('?') {
                    Some(rest) => Cow::Owned(rest.to_owned()),
                    None => query,
                });
            }
            Field::TlsSubject => self.entry.tls_subject = Some(text(value())),
            Field::Header(name) => self.add_only_header(name, value()),
            Field::Verdict => self.has_verdict = true,
        }
        Ok(())
    }

    fn add_client(&mut self, client: &'a [u8], whole: &'a [u8]) {
        match address(client) {
            Some(address) => self.entry.client = Some(address),
            None => self.unread_client = Some(whole),
        }
    }

    /// Adds a part whose value, such as a list, cannot be read.
    pub(super) fn add_unreadable(&mut self, field: &'a Field, raw: &'a [u8]) {
        match field {
            Field::Client => self.unread_client = Some(raw),
            Field::Peer => self.unread_peer = Some(raw),
            // What is not there in the end is lacking.
            Field::Request | Field::Method | Field::Target | Field::Url | Field::Path => self.has_unread_request = true,
            field => self.add_lack(field),
        }
    }

    /// Adds a part that the line does not have, though it has a place in other lines of the log.
    pub(super) fn add_lack(&mut self, field: &'a Field) {
        let lack = match field {
            Field::Query => Lack::Query,
            Field::TlsSubject => Lack::Certificate,
            Field::Header(name) if self.entry.headers.iter().any(|(known, _)| *known == **name) => return,
            Field::Header(name) => Lack::Header(name),
            // What each request has is lacking if it is not there in the end.
            _ => return,
        };
        self.entry.lacks.push(lack);
    }

    /// Adds a header that other members or variables of the line may tell as well. Where they differ, the line does not tell it.
    fn add_only_header(&mut self, name: &'a str, value: Cow<'a, [u8]>) {
        if self.entry.lacks.contains(&Lack::Header(name)) {
            return;
        }
        match self.entry.headers.iter().position(|(known, _)| known == name) {
            None => self.entry.headers.push((Cow::Borrowed(name), value)),
            Some(place) if self.entry.headers[place].1 == value => {}
            Some(place) => {
                self.entry.headers.remove(place);
                self.entry.lacks.push(Lack::Header(name));
            }
        }
    }

    pub(super) fn lacks_headers(&mut self) {
        self.entry.lacks.push(Lack::Headers);
    }

    /// Adds a place for a header in place of what another member says of it.
    pub(super) fn begin_header(&mut self, name: &str) {
        self.entry.headers.retain(|(known, _)| known != name);
        self.add_late(&[Source::Header(name.to_owned())]);
    }

    /// Adds a header whose name is that of the line.
    pub(super) fn add_header(&mut self, name: String, raw: &'a [u8]) {
        self.entry.headers.push((Cow::Owned(name), unescaped(raw)));
    }

    pub(super) fn add_descriptors(&mut self, descriptors: Descriptors<'a>) {
        self.entry.descriptors = Some(Box::new(descriptors));
    }

    pub(super) fn carries_limits(&mut self, does: bool) {
        self.entry.carries_limits = does;
    }

    /// Adds parts for which the line has a place, though the first lines of the log have none.
    pub(super) fn add_late(&mut self, parts: &[Source]) {
        for part in parts {
            if !self.entry.late.contains(part) {
                self.entry.late.push(part.clone());
            }
        }
    }

    /// Adds a header that the first lines of the log lack. The error is what was expected.
    pub(super) fn add_late_header(&mut self, name: &str, value: Cow<'a, [u8]>) -> Result<(), &'static str> {
        match self.entry.headers.iter().find(|(known, _)| known == name) {
            Some((_, known)) if *known != value => return Err("the same header as in another member"),
            Some(_) => {}
            None => self.entry.headers.push((Cow::Owned(name.to_owned()), value)),
        }
        Ok(())
    }

    /// Remembers the first member of the line that the first lines of the log do not have.
    pub(super) fn add_new_member(&mut self, name: &'a [u8]) {
        self.entry.new_member.get_or_insert(name);
    }

    fn add_method(&mut self, method: Cow<'a, str>) {
        if headers::is_name(method.as_bytes()) {
            self.entry.method = Some(method);
        } else {
            self.entry.is_rejected = true;
        }
    }

    /// Adds a request line. Servers log what they got, and that may be anything, such as the start of a TLS handshake.
    fn add_request(&mut self, request: Cow<'a, [u8]>) {
        let parts = |request: &[u8]| {
            let first = memchr::memchr(b' ', request)?;
            let last = memchr::memrchr(b' ', request)?;
            // HTTP/0.9 has no protocol.
            Some((first, if last > first { last } else { request.len() }))
        };
        let Some((first, last)) = parts(&request) else {
            self.entry.is_rejected = true;
            return;
        };
        let (method, target) = match request {
            Cow::Borrowed(request) => (lossless::text(&request[..first]), lossless::text(&request[first + 1..last])),
            Cow::Owned(request) => {
                let owned = |part| Cow::Owned(lossless::text(part).into_owned());
                (owned(&request[..first]), owned(&request[first + 1..last]))
            }
        };
        self.add_method(method);
        if !self.entry.is_rejected {
            self.entry.target = Some(target);
        }
    }

    /// Returns the entry. A line that lacks the head or the verdict, although its log has them, is that of a rejected request.
    pub(super) fn finish(mut self, tells: Tells) -> Result<LogEntry<'a>, &'static str> {
        self.entry.logged = self.arrival.or(self.end).ok_or("the time of the request")?;
        if let (Some(arrival), Some(end), None) = (self.arrival, self.end, self.entry.took) {
            self.entry.took = end.0.checked_sub(arrival.0).map(Micros);
        }
        self.entry.at = match (self.arrival, self.end, self.entry.took) {
            (None, Some(end), Some(took)) => Micros(end.0.saturating_sub(took.0)),
            _ => self.entry.logged,
        };
        // A simulation has delays of its own.
        self.entry.took = self.entry.took.map(|took| took.before(self.waited));
        // The peer of a client that cannot be read may be a proxy.
        if self.entry.client.is_none() && self.unread_client.is_none() {
            self.entry.client = self.peer;
        }
        if self.entry.client.is_none() {
            let unread = self.unread_client.or(self.unread_peer);
            self.entry.unread_client = unread.or(tells.client.then_some(&[]));
        }
        if self.entry.target.is_none() && !self.entry.is_rejected {
            self.entry.target = self.path.take();
        }
        self.in_origin_form();
        if let (Some(target), Some(query)) = (&mut self.entry.target, &self.query)
            && !query.is_empty()
            && !target.contains('?')
        {
            *target = Cow::Owned(format!("{target}?{query}"));
        }
        let has_no_head = self.entry.method.is_none() && self.entry.target.is_none();
        let is_headless = has_no_head && self.entry.descriptors.is_none() && !self.has_unread_request;
        self.entry.is_rejected |= (tells.verdict && !self.has_verdict) || (tells.head && is_headless);
        self.find_lacks(tells);
        Ok(self.entry)
    }

    /// Finds what each request has, and this line does not tell.
    fn find_lacks(&mut self, tells: Tells) {
        let LogEntry { method, target, host, took, status, bytes, client, unread_client, descriptors, lacks, .. } =
            &mut self.entry;
        if descriptors.as_ref().is_some_and(|call| call.domain.is_some()) {
            return;
        }
        let mut find = |is_lacking: bool, lack| {
            if is_lacking && !lacks.contains(&lack) {
                lacks.push(lack);
            }
        };
        find(tells.method && method.is_none(), Lack::Method);
        find(tells.path && target.is_none(), Lack::Path);
        // It would stand behind the path.
        find(tells.query && target.is_none(), Lack::Query);
        find(tells.host && host.is_none(), Lack::Host);
        find(tells.took && took.is_none(), Lack::Duration);
        find(tells.status && status.is_none(), Lack::Status);
        find(tells.bytes && bytes.is_none(), Lack::Bytes);
        find(tells.clients && client.is_none() && unread_client.is_none(), Lack::Client);
    }

    /// The authority of a target that is a URL counts, and not the header (RFC 9112 section 3.2.2).
    fn in_origin_form(&mut self) {
        let Some(url) = self.entry.target.as_deref() else { return };
        if url.starts_with('/') {
            return;
        }
        let method = self.entry.method.as_deref().unwrap_or_default();
        match target::split_url(method, url) {
            Ok((authority, target)) => {
                let (authority, target) = (authority.to_owned(), target.into_owned());
                self.entry.host = Some(Cow::Owned(authority));
                self.entry.target = Some(Cow::Owned(target));
            }
            Err(_) if url == "*" => {}
            Err(_) => (self.entry.target, self.entry.is_rejected) = (None, true),
        }
    }
}

fn text(value: Cow<'_, [u8]>) -> Cow<'_, str> {
    match value {
        Cow::Borrowed(value) => lossless::text(value),
        Cow::Owned(value) => Cow::Owned(lossless::text(&value).into_owned()),
    }
}

/// A path that a client could have sent for this one, which is decoded.
fn encoded(path: &[u8]) -> Cow<'static, str> {
    let mut text = String::with_capacity(path.len());
    percent::encode(path, |byte| byte.is_ascii_graphic() && !b"%?#\\".contains(&byte), &mut text);
    Cow::Owned(text)
}

/// A line with something else in its place lacks it.
fn bytes(raw: &[u8]) -> Option<u64> {
    raw.iter().try_fold(0_u64, |bytes, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        bytes.checked_mul(10)?.checked_add(digit)
    })
}

fn status(raw: &[u8]) -> Option<u16> {
    // Nginx writes `009` for HTTP/0.9, and Envoy `0` if the client had left.
    let is_number = (1..=3).contains(&raw.len()) && raw.iter().all(u8::is_ascii_digit);
    is_number.then(|| raw.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0')))
}
