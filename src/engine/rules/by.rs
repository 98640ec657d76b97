//! Whose bucket a request is charged to: the components of its id.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::HeaderName;

use super::fingerprint::Fingerprinter;
use super::key::Key;
use super::limit::Fallback;
use super::request::{Ambiguous, Duplicates, Request, decode};
use super::value_type::{Form, lenient};
use crate::engine::algorithms::charge::Bucket;
use crate::message::address;
use crate::message::path::Reading;

/// Stands for a component that the request lacks, when the limit says `missing: shared`. No component encodes to it.
const MISSING: &str = "*";

/// Stands for a malformed component, when the limit says `malformed: shared`. No component encodes to it.
const MALFORMED: &str = "!";

/// Where a component of an id comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client's address; IPv6 cut to its first `ipv6_prefix` bits, 128 for the whole. IPv4 stays whole.
    Ip {
        /// 1 to 128.
        ipv6_prefix: u8,
    },
    /// The request's authority, without the port.
    Host,
    /// The method.
    Method,
    /// The normalised path.
    Path,
    /// A header of the request.
    Header(HeaderName),
    /// A query parameter.
    Query(String),
    /// A cookie.
    Cookie(String),
    /// The subject of the client's certificate, as text of RFC 4514.
    TlsSubject,
    /// The entry of the descriptor with this key.
    Descriptor(String),
    /// The entry at a place of the descriptor, whatever its value: even an empty one is an id of its own.
    Entry {
        /// Its key, for people.
        key: String,
        /// Counted from 0.
        place: usize,
    },
    /// A `{parameter}` of the limit's own path pattern: the index of its segment.
    PathParameter {
        /// As the pattern names it.
        name: String,
        /// Counted from 0, in the path split at `/`.
        segment: usize,
    },
}

/// One component of a limit's `by`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Where it comes from.
    pub source: Source,
    /// How it is read. Ignored for [`Source::Ip`], which is an address by nature.
    pub form: Form,
    /// The one of several values that counts.
    pub duplicates: Duplicates,
    /// How a path is read that it is or comes from.
    pub path_reading: Reading,
}

/// Why a request has no value for a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It is not there, or empty.
    Missing,
    /// It is there, but not what `as:` wants, or several times with different values.
    Malformed,
}

impl From<Ambiguous> for Unusable {
    fn from(_: Ambiguous) -> Self {
        Self::Malformed
    }
}

impl Component {
    /// A component that is any text, and malformed if the request has several.
    pub const fn new(source: Source, form: Form) -> Self {
        let path_reading = Reading { ignores_case: false, strips_parameters: false };
        Self { source, form, duplicates: Duplicates::Ambiguous, path_reading }
    }

    /// The canonical text of this component of `request`.
    pub(crate) fn of<'a>(&self, request: &Request<'a>) -> Result<Cow<'a, str>, Unusable> {
        let raw = match &self.source {
            Source::Ip { ipv6_prefix } => {
                return request
                    .client
                    .map(|client| address::id_text(client, *ipv6_prefix).into())
                    .ok_or(Unusable::Missing);
            }
            Source::Host => Some(request.host.into()),
            Source::Method => Some(request.method.into()),
            Source::Path => Some(self.path_reading.of(request.path)),
            Source::Header(name) => request.header(name.as_str(), self.duplicates)?,
            Source::Query(name) => request.query(name, self.duplicates)?,
            Source::Cookie(name) => request.cookie(name, self.duplicates)?,
            Source::TlsSubject => request.tls_subject.map(Cow::Borrowed),
            Source::Descriptor(key) => request.entry(key, self.duplicates)?.map(Cow::Borrowed),
            Source::Entry { place, .. } => {
                return request.descriptor.get(*place).map(|entry| entry.value.into()).ok_or(Unusable::Missing);
            }
            Source::PathParameter { segment, .. } => match self.path_reading.of(request.path) {
                Cow::Borrowed(path) => path_segment(path, *segment).map(decode),
                Cow::Owned(path) => path_segment(&path, *segment).map(|text| decode(text).into_owned().into()),
            },
        };
        let raw = raw.filter(|raw| !raw.is_empty()).ok_or(Unusable::Missing)?;
        match self.form {
            Form::Text => Ok(raw),
            form => lenient(form, &raw).map(Cow::Owned).ok_or(Unusable::Malformed),
        }
    }
}

fn path_segment(path: &str, index: usize) -> Option<&str> {
    path.split('/').skip(1).nth(index)
}

/// The id of a request for one limit.
pub struct Identified {
    /// The bucket of the whole id.
    pub bucket: Bucket,
    /// Fingerprints of the first one, two, ... components, if they were wanted: what overrides are looked up by.
    pub prefixes: Vec<u128>,
}

/// The fate of requests that have no value for a component of a limit's ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallbacks {
    /// `missing:`
    pub missing: Fallback,
    /// `malformed:`
    pub malformed: Fallback,
}

/// Why a request has no id for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// The index of the component in the limit's `by`.
    pub component: usize,
    /// Its defect.
    pub reason: Unusable,
    /// The request is denied; otherwise it is not charged.
    pub is_refused: bool,
}

/// The id of `request` for a limit by these components. Of several components without a value one that refuses
/// the request counts before one that leaves it uncharged, and that before a shared bucket.
pub fn identify(
    by: &[Component],
    short: &str,
    request: &Request<'_>,
    fallbacks: Fallbacks,
    with_prefixes: bool,
    fingerprinter: &Fingerprinter,
) -> Result<Identified, Lacking> {
    let mut key = Key::new(short, fingerprinter);
    let mut prefixes = Vec::with_capacity(if with_prefixes { by.len() } else { 0 });
    let mut skipped = None;
    for (component, part) in by.iter().enumerate() {
        // What most limits go by needs neither a text of its own nor an escape.
        if let (Source::Ip { .. }, Some(IpAddr::V4(address))) = (&part.source, request.client) {
            key.push_ipv4(address);
            if with_prefixes {
                prefixes.push(key.fingerprint());
            }
            continue;
        }
        match part.of(request) {
            Ok(text) => key.push(&text),
            Err(reason) => {
                let (fallback, mark) = match reason {
                    Unusable::Missing => (fallbacks.missing, MISSING),
                    Unusable::Malformed => (fallbacks.malformed, MALFORMED),
                };
                match fallback {
                    Fallback::Deny => return Err(Lacking { component, reason, is_refused: true }),
                    Fallback::Skip => {
                        skipped = skipped.or(Some(Lacking { component, reason, is_refused: false }));
                    }
                    Fallback::Shared => key.push_encoded(mark),
                }
            }
        }
        if with_prefixes {
            prefixes.push(key.fingerprint());
        }
    }
    if let Some(skipped) = skipped {
        return Err(skipped);
    }
    let fingerprint = prefixes.last().copied().unwrap_or_else(|| key.fingerprint());
    Ok(Identified { bucket: key.bucket(fingerprint), prefixes })
}

/// The canonical id of `request` as people read it, component by component.
pub fn describe<'a>(by: &[Component], request: &Request<'a>) -> Vec<Result<Cow<'a, str>, Unusable>> {
    by.iter().map(|part| part.of(request)).collect()
}

/// A whole id in one text, with marks for what has no value.
pub fn readable(id: &[Result<Cow<'_, str>, Unusable>]) -> String {
    let text = |component: &Result<Cow<'_, str>, Unusable>| match component {
        Ok(text) => text.clone().into_owned(),
        Err(Unusable::Missing) => MISSING.to_owned(),
        Err(Unusable::Malformed) => MALFORMED.to_owned(),
    };
    id.iter().map(text).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::super::request::{Entry, sample};
    use super::*;
    use crate::engine::rules::ids::Id;
    use crate::message::headers::Headers;

    const HASH: Fingerprinter = Fingerprinter::new((1, 2));

    const SKIP: Fallbacks = Fallbacks { missing: Fallback::Skip, malformed: Fallback::Skip };
    const SHARE: Fallbacks = Fallbacks { missing: Fallback::Shared, malformed: Fallback::Shared };

    fn header(form: Form) -> Component {
        Component::new(Source::Header(HeaderName::from_static("x-id")), form)
    }

    fn ip(ipv6_prefix: u8) -> Component {
        Component::new(Source::Ip { ipv6_prefix }, Form::Text)
    }

    fn lacking(component: usize, reason: Unusable, is_refused: bool) -> Lacking {
        Lacking { component, reason, is_refused }
    }

    #[test]
    fn keys_cannot_be_forged_by_user_text() {
        let headers = Headers::from_iter([("x-id", "a:b{c}*!")]);
        let request = Request { client: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), ..sample(&headers) };
        let Ok(found) = identify(&[header(Form::Text), ip(64)], "L", &request, SKIP, true, &HASH) else {
            panic!("no id")
        };
        assert_eq!(found.bucket.key, "L:a%3Ab%7Bc%7D%2A%21:127.0.0.1");
        let whole = Id::parse(&[header(Form::Text), ip(64)], "a%3Ab{c}*!:127.0.0.1").unwrap();
        assert_eq!(whole.fingerprint("L", &HASH), found.bucket.fingerprint);
        let first = Id::parse(&[header(Form::Text), ip(64)], "a%3Ab{c}*!").unwrap();
        assert_eq!(Some(&first.fingerprint("L", &HASH)), found.prefixes.first());

        let missing = Some(lacking(0, Unusable::Missing, false));
        let by = [Component::new(Source::Cookie("sid".into()), Form::Text)];
        assert_eq!(identify(&by, "L", &request, SKIP, true, &HASH).err(), missing);
        let shared = identify(&by, "L", &request, SHARE, true, &HASH).map(|found| found.bucket.key);
        assert_eq!(shared.ok().as_deref(), Some("L:*"));

        let by = [Component::new(Source::TlsSubject, Form::Text)];
        assert_eq!(identify(&by, "L", &request, SKIP, true, &HASH).err(), missing);
        let request = Request { tls_subject: Some("CN=client 1,O=Acme"), ..request };
        let found = identify(&by, "L", &request, SKIP, true, &HASH).map(|found| found.bucket);
        let whole = Id::parse(&by, "CN=client 1,O=Acme").unwrap();
        assert_eq!(found.map(|bucket| bucket.fingerprint).ok(), Some(whole.fingerprint("L", &HASH)));
    }

    /// The key of a request with these lines of `x-id`, for a limit by it in this form.
    fn key(form: Form, lines: &[&[u8]]) -> Result<String, Lacking> {
        let headers: Headers = lines.iter().map(|line| ("x-id", line)).collect();
        identify(&[header(form)], "L", &sample(&headers), SHARE, false, &HASH).map(|found| found.bucket.key)
    }

    #[test]
    fn every_byte_makes_an_id_of_its_own() {
        for (line, expected) in [
            (&b"caf\xe9"[..], "L:caf%E9"),
            (b"caf\xc3\xa9", "L:caf%C3%A9"),
            (b"caf%E9", "L:caf%25E9"),
            (b"\xf4\x8f\xbf\xa9", "L:%F4%8F%BF%A9"),
        ] {
            assert_eq!(key(Form::Text, &[line]).as_deref(), Ok(expected), "{line:?}");
        }
        let long = |last: u8| key(Form::Text, &[&[&[0xE9; 80][..], &[last]].concat()]).unwrap();
        assert!(long(1).starts_with("L:~") && long(0xFE) != long(0xFF));
    }

    #[test]
    fn what_is_malformed_is_not_missing() {
        for (form, lines, expected) in [
            (Form::Integer, &[&b"07"[..]][..], "L:7"),
            (Form::Integer, &[b"-7"], "L:!"),
            (Form::Integer, &[b"\xe9"], "L:!"),
            (Form::Integer, &[b"7", b"8"], "L:!"),
            (Form::Integer, &[b"7", b"7"], "L:7"),
            (Form::Integer, &[b""], "L:*"),
            (Form::Integer, &[], "L:*"),
            (Form::Text, &[b"", b"a"], "L:!"),
            (Form::Text, &[b"a", b"A"], "L:!"),
            (Form::RegisteredDomain, &[b"*.www.example.com:443"], "L:example.com"),
            (Form::RegisteredDomain, &[b"localhost"], "L:!"),
        ] {
            assert_eq!(key(form, lines).as_deref(), Ok(expected), "{form:?} {lines:?}");
        }
    }

    #[test]
    fn a_component_that_denies_counts_before_one_that_skips_before_one_that_is_shared() {
        use Fallback::{Deny, Shared, Skip};

        let headers = Headers::from_iter([("x-id", "x")]);
        let entries = [("k", "1"), ("k", "2")].map(|(key, value)| Entry { key, value });
        let request = Request { descriptor: &entries, ..sample(&headers) };
        let malformed = || Component::new(Source::Descriptor("k".into()), Form::Text);
        let missing = || Component::new(Source::Query("q".into()), Form::Text);
        let check = |by: [Component; 2], missing, malformed| {
            let fallbacks = Fallbacks { missing, malformed };
            identify(&by, "L", &request, fallbacks, true, &HASH).map(|found| found.bucket.key)
        };
        assert_eq!(check([malformed(), missing()], Shared, Shared).as_deref(), Ok("L:!:*"));
        for (by, first) in [([malformed(), missing()], true), ([missing(), malformed()], false)] {
            let place = |is_malformed: bool| usize::from(is_malformed != first);
            let denied = |is_malformed, reason| lacking(place(is_malformed), reason, true);
            assert_eq!(check(by.clone(), Skip, Deny), Err(denied(true, Unusable::Malformed)));
            assert_eq!(check(by.clone(), Deny, Skip), Err(denied(false, Unusable::Missing)));
            assert_eq!(check(by, Shared, Skip), Err(lacking(place(true), Unusable::Malformed, false)));
        }
    }
}
