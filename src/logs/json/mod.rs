//! Lines of JSON, one object per request.

use std::collections::BTreeSet;

use self::headers::REDACTED;
use self::late::LateMembers;
use self::recording::{Head, RecordedDescriptors};
use self::scan::{Mistake, Scanned, Scanner};
use self::units::Unitless;
use super::escape::Escapes;
use super::field::{Draft, Field};
use super::instant::Instants;
use super::tells::{self, Tells};
use super::told::{Told, ToldHeaders};
use super::{LogEntry, RecordingEnd, Unreadable};

mod headers;
mod late;
mod names;
mod programs;
mod recording;
mod scan;
pub(super) mod units;

pub(super) use self::names::{Dialect, names};

/// The members that are looked for, at most: those of a log's first lines.
const MAX_MEMBERS: usize = u128::BITS as usize;

/// The members of a JSON log.
#[derive(Clone, Debug)]
pub(super) struct JsonFormat {
    pub(super) dialect: Dialect,
    /// The names in the first lines in their order, and their meanings.
    members: Vec<(Box<[u8]>, Field)>,
    tells: Tells,
    /// The members that are used, by their places.
    used: u128,
    /// The members without which a line does not tell whether the client has sent the part.
    fixed: u128,
    /// The first line of a recording.
    recorded: Head,
    /// The durations whose names have no unit.
    unitless: Vec<Unitless>,
}

/// The index at which the next member is expected among the known ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpectedMember(usize);

impl JsonFormat {
    /// Learns the members of a log from its first lines, and the dialect unless it is given. Members with names of their own have the meanings
    /// that are given.
    pub(super) fn learn<'a>(
        lines: impl Iterator<Item = &'a [u8]> + Clone,
        dialect: Option<Dialect>,
        names: &[(String, Field)],
    ) -> Self {
        let (mut found, mut nested, mut recorded) = (Vec::<&[u8]>::new(), Vec::<&[u8]>::new(), Head::default());
        for line in lines.clone() {
            let Ok(mut scanner) = Scanner::object(line) else { continue };
            let is_head = memchr::memmem::find(line, b"\"weir_recording\"").is_some();
            while let Ok(Some((name, value))) = scanner.member() {
                if let (true, Scanned::Nested(value)) = (is_head, value) {
                    recorded.add(name, value);
                }
                if !found.contains(&name) && found.len() < MAX_MEMBERS {
                    found.push(name);
                    nested.extend(matches!(value, Scanned::Nested(_)).then_some(name));
                }
            }
        }
        let of_members = || Dialect::of(|name| found.contains(&name), |name| nested.contains(&name));
        let dialect = dialect.unwrap_or_else(of_members);
        if let Dialect::Program(program) = dialect {
            return Self::of_program(program, lines);
        }
        let optional = dialect.optional().iter().map(|name| name.as_bytes());
        let optional: Vec<&[u8]> = optional.filter(|name| !found.contains(name)).collect();
        found.truncate(MAX_MEMBERS - optional.len());
        found.extend(optional);
        let given =
            |name: &[u8]| names.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, field)| field.clone());
        let members = found.into_iter().map(|name| (name.into(), given(name).unwrap_or_else(|| dialect.field(name))));
        let members: Vec<(Box<[u8]>, Field)> = members.collect();
        let unitless = if dialect == Dialect::Nginx { units::unitless(&members, lines) } else { Vec::new() };
        let tells = Tells::of(members.iter().map(|(_, field)| field));
        let tells = match dialect {
            Dialect::Caddy => {
                Tells { head: true, client: true, method: true, path: true, query: true, host: true, ..tells }
            }
            // They leave out what a request does not have.
            Dialect::Weir => Tells { client: false, clients: true, host: false, verdict: true, ..tells },
            Dialect::Recording => Tells { client: false, clients: true, host: false, ..tells },
            _ => tells,
        };
        // Others leave out the headers that a client has not sent.
        let has_all = dialect == Dialect::Nginx;
        let (mut used, mut fixed) = (0, 0);
        for (place, (name, field)) in members.iter().enumerate() {
            used |= u128::from(*field != Field::Ignored || dialect.is_structure(name)) << place;
            let need_not_be_sent = matches!(field, Field::Header(_) | Field::TlsSubject | Field::Query);
            fixed |= u128::from(has_all && need_not_be_sent) << place;
        }
        Self { dialect, members, tells, used, fixed, recorded, unitless }
    }

    pub(super) fn told(&self) -> Told {
        let client_is_resolved = matches!(self.dialect, Dialect::Weir | Dialect::Recording);
        let told = Told { client_is_resolved, ..tells::told(self.members.iter().map(|(_, field)| field)) };
        match self.dialect {
            Dialect::Caddy => Told {
                method: true,
                host: true,
                path: true,
                query: true,
                client: true,
                headers: ToldHeaders::AllBut(REDACTED.map(str::to_owned).into()),
                ..told
            },
            Dialect::Recording => self.recorded.told(&told),
            Dialect::Program(_) if told.header("cookie") => {
                Told { headers: ToldHeaders::AllBut(REDACTED.map(str::to_owned).into()), ..told }
            }
            // It leaves out what a request does not have.
            Dialect::Weir => {
                let headers: BTreeSet<String> = ["referer", "user-agent", "x-request-id"].map(str::to_owned).into();
                Told {
                    method: true,
                    host: true,
                    path: true,
                    query: true,
                    client: true,
                    tls_subject: true,
                    headers: ToldHeaders::Named(headers),
                    has_hashed_secrets: true,
                    may_tell_more: true,
                    ..told
                }
            }
            Dialect::Program(_) => told,
            Dialect::Nginx | Dialect::Envoy | Dialect::Traefik => Told { may_tell_more: true, ..told },
        }
    }

    /// Returns the entry of a line; `None` if it has no request.
    pub(super) fn parse<'a>(
        &'a self,
        line: &'a [u8],
        instants: &mut Instants,
    ) -> Result<Option<LogEntry<'a>>, Unreadable> {
        match self.dialect {
            Dialect::Program(program) => self
                .parse_program(program, line, instants)
                .map_err(|(expected, at)| Unreadable { expected: expected.into(), at }),
            _ => self.parse_members(line, instants),
        }
    }

    fn parse_members<'a>(
        &'a self,
        line: &'a [u8],
        instants: &mut Instants,
    ) -> Result<Option<LogEntry<'a>>, Unreadable> {
        let unreadable = |(expected, at): Mistake| Unreadable { expected: expected.into(), at };
        let mut scanner = Scanner::object(line).map_err(unreadable)?;
        let mut draft = Draft::default();
        let required = self.dialect.required();
        let (mut place, mut is_request) = (ExpectedMember::default(), required.is_empty());
        let mut recorded = RecordedDescriptors::default();
        let (mut seen, mut has_headers, mut late) = (0_u128, false, LateMembers::default());
        while let Some((name, value)) = scanner.member().map_err(unreadable)? {
            is_request |= required.contains(&name);
            let offset = || place_in(line, value.bytes());
            let shown = || String::from_utf8_lossy(name);
            let wrong = |expected| Unreadable { expected: format!("{expected} in `{}`", shown()).into(), at: offset() };
            let member = self.member(name, &mut place);
            let bit = member.map_or(0, |(place, _)| 1 << place);
            if seen & self.used & bit != 0 {
                return Err(Unreadable { expected: format!("`{}` only once", shown()).into(), at: offset() });
            }
            seen |= bit;
            match (self.dialect, name, value) {
                (Dialect::Caddy, b"request", Scanned::Nested(object)) => {
                    has_headers = Self::request(line, object, &mut draft, instants).map_err(unreadable)?;
                    continue;
                }
                (Dialect::Weir, b"headers", Scanned::Nested(object)) => {
                    headers::add_places(line, object, &mut draft).map_err(unreadable)?;
                    continue;
                }
                (Dialect::Recording, b"headers", Scanned::Nested(pairs)) if pairs.starts_with(b"[") => {
                    recording::headers(pairs, &mut draft).map_err(unreadable)?;
                    continue;
                }
                (Dialect::Recording, ..) if recorded.add(name, value).map_err(unreadable)? => continue,
                _ => {}
            }
            let Some((_, field)) = member else {
                late.add((name, &self.dialect.field(name)), value, &mut draft, instants).map_err(wrong)?;
                continue;
            };
            let added = match value {
                Scanned::Plain(_) | Scanned::Nested(_) if self.dialect == Dialect::Recording && is_text(field) => {
                    Err("a text")
                }
                Scanned::Plain(b"null") => Ok(()),
                Scanned::Nested(raw) => {
                    draft.add_unreadable(field, raw);
                    Ok(())
                }
                Scanned::Plain(raw) => draft.add(field, raw, Escapes::None, instants),
                Scanned::Text(raw) => draft.add(field, raw, Escapes::Backslash, instants),
            };
            added.map_err(wrong)?;
        }
        if !is_request {
            let is_other = self.dialect != Dialect::Recording || recording::has_no_request(line);
            let expected = "`target` or `domain`".into();
            return if is_other { Ok(None) } else { Err(Unreadable { expected, at: 0 }) };
        }
        self.add_lacking(seen, has_headers, &mut draft);
        draft.carries_limits(recorded.carries_limits);
        if let Some(descriptors) = recorded.finish() {
            draft.add_descriptors(descriptors);
        }
        let entry = draft.finish(self.tells);
        entry.map(Some).map_err(|expected| Unreadable { expected: expected.into(), at: 0 })
    }

    /// Adds the parts for which a line with these members has no place.
    fn add_lacking<'a>(&'a self, seen: u128, has_headers: bool, draft: &mut Draft<'a>) {
        let lacking = self.fixed & !seen;
        if lacking != 0 {
            let members = self.members.iter().enumerate();
            members.filter(|(place, _)| lacking >> place & 1 == 1).for_each(|(_, (_, field))| draft.add_lack(field));
        }
        if self.dialect == Dialect::Caddy && !has_headers {
            draft.lacks_headers();
        }
    }

    /// Reads the last line of a recording; `None` for any other line.
    pub(super) fn recording_end(&self, line: &[u8]) -> Option<RecordingEnd> {
        (self.dialect == Dialect::Recording).then(|| recording::end(line)).flatten()
    }

    /// The place and the meaning of a member. Lines have their members in the same order, so the next one is tried first.
    fn member(&self, name: &[u8], place: &mut ExpectedMember) -> Option<(usize, &Field)> {
        let is_named = |(known, _): &&(Box<[u8]>, Field)| **known == *name;
        let found = match self.members.get(place.0).filter(is_named) {
            Some(_) => place.0,
            None => self.members.iter().position(|member| is_named(&member))?,
        };
        place.0 = found + 1;
        Some((found, &self.members[found].1))
    }

    /// Adds the members of a request's own object. Returns true if it has headers.
    fn request<'a>(
        line: &[u8],
        object: &'a [u8],
        draft: &mut Draft<'a>,
        instants: &mut Instants,
    ) -> Result<bool, Mistake> {
        let (mut scanner, mut has_headers, mut seen) = (Scanner::object(object)?, false, 0_u8);
        while let Some((name, value)) = scanner.member()? {
            if let Some(place) = REQUEST.iter().position(|(known, _)| known.as_bytes() == name) {
                if seen >> place & 1 == 1 {
                    return Err((REQUEST[place].1, place_in(line, name)));
                }
                seen |= 1 << place;
            }
            match value {
                Scanned::Text(raw) => {
                    draft
                        .add(Dialect::field_of_request(name), raw, Escapes::Backslash, instants)
                        .map_err(|expected| (expected, place_in(line, raw)))?;
                }
                Scanned::Nested(lines) if name == b"headers" => {
                    headers::add(line, lines, draft, instants)?;
                    has_headers = true;
                }
                Scanned::Nested(raw) => draft.add_unreadable(Dialect::field_of_request(name), raw),
                Scanned::Plain(_) => {}
            }
        }
        Ok(has_headers)
    }
}

/// The members of the object in which Caddy writes the request that are used, and what is expected of each.
const REQUEST: [(&str, &str); 6] = [
    ("client_ip", "`client_ip` only once"),
    ("remote_ip", "`remote_ip` only once"),
    ("method", "`method` only once"),
    ("host", "`host` only once"),
    ("uri", "`uri` only once"),
    ("headers", "`headers` only once"),
];

/// The text of a member, with its escapes; `None` if the line is no object with such a text.
pub(super) fn text_member<'a>(line: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let mut scanner = Scanner::object(line).ok()?;
    while let Some((name, value)) = scanner.member().ok()? {
        if let (true, Scanned::Text(text)) = (name == wanted, value) {
            return Some(text);
        }
    }
    None
}

/// The byte of a text at which a part of it begins.
fn place_in(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr().saturating_sub(whole.as_ptr().addr())
}

/// Recordings have texts for all parts of a request but its instant. The first line says by `tls_subject` whether others have it.
fn is_text(field: &Field) -> bool {
    !matches!(field, Field::Ignored | Field::Arrival | Field::TlsSubject)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::charging::descriptors::Hits;
    use crate::logs::{Descriptor, Descriptors};

    /// The entry of the only line of a log, or what was expected.
    fn only(line: &str) -> Result<Vec<String>, String> {
        let format = JsonFormat::learn([line.as_bytes()].into_iter(), None, &[]);
        let parsed = format.parse(line.as_bytes(), &mut Instants::new()).map_err(|error| error.to_string())?;
        let entry = parsed.expect("a request");
        let header =
            |(name, value): &(Cow<'_, str>, Cow<'_, [u8]>)| format!("{name}: {}", String::from_utf8_lossy(value));
        let lacks = entry.lacks.iter().map(|lack| format!("{lack:?}"));
        Ok(entry.headers.iter().map(header).chain(lacks).collect())
    }

    #[test]
    fn a_member_of_caddys_request_comes_once() {
        let line =
            |request: &str| format!(r#"{{"ts":1795233606.5,"logger":"l","request":{{{request}}},"status":200}}"#);
        let right = r#""client_ip":"192.0.2.7","remote_ip":"192.0.2.8","method":"GET","host":"a.example","uri":"/","proto":"h","proto":"h","headers":{"A":["1","2"],"B":["3"]}"#;
        assert_eq!(only(&line(right)).unwrap(), ["a: 1", "a: 2", "b: 3"]);
        for (key, value) in [
            ("client_ip", r#""192.0.2.9""#),
            ("remote_ip", r#""192.0.2.9""#),
            ("method", r#""POST""#),
            ("host", r#""b.example""#),
            ("uri", "[]"),
            ("headers", r#"{"C":["4"]}"#),
        ] {
            let line = line(&format!(r#"{right},"{key}":{value}"#));
            let at = line.rfind(&format!("\"{key}\"")).unwrap() + 1;
            assert_eq!(only(&line).unwrap_err(), format!("expected `{key}` only once at byte {at}"));
        }
        let error = only(&line(&right.replace("\"B\"", "\"A\""))).unwrap_err();
        assert!(error.contains("each header only once"), "{error}");
        for (headers, is_read) in [(256, true), (257, false)] {
            let headers: Vec<String> = (0..headers).map(|number| format!("\"h{number}\":[]")).collect();
            let line = line(&format!(r#""method":"GET","uri":"/","headers":{{{}}}"#, headers.join(",")));
            assert_eq!(only(&line).is_ok(), is_read);
        }
    }

    #[test]
    fn a_header_that_two_members_tell_differently_is_lacking() {
        let line = |members: &str| {
            format!(r#"{{"time":1795233606.5,"remote_addr":"192.0.2.7","request":"GET / HTTP/1.1",{members}}}"#)
        };
        for (members, expected) in [
            (r#""user_agent":"a","http_user_agent":"a""#, &["user-agent: a"][..]),
            (r#""user_agent":"a","http_user_agent":"b""#, &["Header(\"user-agent\")"]),
            (r#""user_agent":"a","http_user_agent":"b","agent":"a""#, &["Header(\"user-agent\")"]),
            (r#""user_agent":"a","http_user_agent":"-""#, &["user-agent: a"]),
            (r#""user_agent":"a","http_x_api_key":"k""#, &["user-agent: a", "x-api-key: k"]),
        ] {
            assert_eq!(only(&line(members)).unwrap(), expected, "{members}");
        }
        let error = only(&line(r#""user_agent":"a","user_agent":"b""#)).unwrap_err();
        assert!(error.contains("`user_agent` only once"), "{error}");
    }

    #[test]
    fn a_recording_says_what_it_tells() {
        let lines: [&[u8]; 5] = [
            br#"{"cookies":[],"descriptors":["k"],"headers":["x-api-key"],"stand_ins":{"descriptors":{"k":["free"]},"headers":{"x-api-key":[]}},"tls_subject":true,"weir_recording":1}"#,
            br#"{"at_us":1795233606789012,"method":"GET","host":"a.example","target":"/x?y=z","client":"192.0.2.7","headers":[["x-api-key","6b"],["x-api-key","6c"]],"verdict":"allowed"}"#,
            br#"{"at_us":1795233606789013,"domain":"d","descriptors":[[["k","v"]],[]],"hits":[["take",2],["give_back",1]]}"#,
            br#"{"at_us":1795233606789014,"domain":"d","descriptors":[[["k","v"]]],"carries_limits":true}"#,
            br#"{"counts":{"dropped":3,"kept":2,"outside_the_share":4,"without_a_request":0},"ended":"size"}"#,
        ];
        let format = JsonFormat::learn(lines.into_iter(), None, &[]);
        let told = format.told();
        assert_eq!(format.dialect, Dialect::Recording);
        assert!(told.is_arrival && told.client && told.tls_subject && !told.took);
        assert!(told.stand_ins.headers["x-api-key"].is_empty() && told.stand_ins.descriptors["k"].contains("free"));
        assert!(told.descriptors.is_some_and(|keys| keys.contains("k")));
        let mut instants = Instants::new();
        let mut read = lines.into_iter().map(|line| format.parse(line, &mut instants).unwrap());
        assert!(read.next().unwrap().is_none());
        let entry = read.next().flatten().unwrap();
        assert_eq!((entry.at, entry.target.as_deref()), (Micros(1_795_233_606_789_012), Some("/x?y=z")));
        let headers: Vec<_> = entry.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(headers, [("x-api-key", &b"6b"[..]), ("x-api-key", b"6c")]);
        let entry = read.next().flatten().unwrap();
        let descriptor = |entries: &[(&'static str, &'static str)], hits| Descriptor {
            entries: entries.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            hits,
        };
        let each = vec![descriptor(&[("k", "v")], Hits::Take(2)), descriptor(&[], Hits::GiveBack(1))];
        let expected = Descriptors { domain: Some("d".into()), only_checks: false, each };
        assert_eq!((entry.descriptors.as_deref(), entry.is_rejected), (Some(&expected), false));
        assert!(!entry.carries_limits && read.next().flatten().unwrap().carries_limits);
        assert!(read.all(|entry| entry.is_none()));
        let expected = RecordingEnd { kept: Some(2), dropped: 3, outside_the_share: 4, without_a_request: 0 };
        assert_eq!(lines.map(|line| format.recording_end(line)), [None, None, None, None, Some(expected)]);
    }
}
