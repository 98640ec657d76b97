//! A request as limits see it: a borrowed view that every listener fills, and the parts of it that limits read.

pub mod body_cost;
pub mod claims;
pub mod glob;
pub mod incoming;
pub mod part;
pub mod path_condition;
pub mod path_pattern;
pub mod token_usage;
pub mod value_type;

use std::borrow::Cow;
use std::net::IpAddr;

use crate::engine::algorithms::micros::Micros;
use crate::engine::request::body_cost::{BodyForm, UnreadBody};
use crate::engine::request::claims::TokenClaims;
use crate::message::credentials::{Credentials, MalformedCredentials};
use crate::message::headers::Headers;
use crate::message::json_lookup::{JsonLookup, LookupError};
use crate::message::json_pointer::JsonPointer;
use crate::message::lossless;
use crate::message::percent::{self, decode};

/// A request, borrowed from its listener.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// As sent.
    pub method: &'a str,
    /// The authority without its port, in lower case.
    pub host: &'a str,
    /// Normalised by [`crate::message::path::normalise`], without the query.
    pub path: &'a str,
    /// Without the question mark, as sent.
    pub query: Option<&'a str>,
    pub headers: &'a Headers,
    /// The client's address, never IPv4-mapped (see [`crate::message::client_address`]). The rate limit service does not
    /// have it.
    pub client: Option<IpAddr>,
    /// The subject of the client's verified certificate.
    pub tls_subject: Option<&'a str>,
    /// The claims of its verified tokens; empty if no limit uses claims.
    pub claims: &'a [TokenClaims],
    pub body: Body<'a>,
    /// The domain of the rate limit service; `None` at every other listener.
    pub domain: Option<&'a str>,
    /// The descriptor that a gateway sends, in its order: of the rate limit service, or the `context_extensions` of
    /// `ext_authz`.
    pub descriptor: &'a [DescriptorEntry<'a>],
    /// The wall clock, for overrides that expire.
    pub now: Micros,
}

/// The body of a request, as far as its listener has read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body<'a> {
    /// It is empty, or the listener does not read bodies.
    #[default]
    Absent,
    Whole(&'a [u8]),
    /// It is too long, compressed, a stream, or surely not JSON.
    Unread,
}

/// One entry of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorEntry<'a> {
    /// Case-sensitive.
    pub key: &'a str,
    /// May be empty.
    pub value: &'a str,
}

/// The choice among several values of the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicates {
    /// None if they differ, because the upstream may read any of them.
    #[default]
    Ambiguous,
    First,
    Last,
}

/// Several different values of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmbiguousValue;

impl Duplicates {
    /// The value of `duplicates`.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Ambiguous => None,
            Self::First => Some("first"),
            Self::Last => Some("last"),
        }
    }

    fn pick<T: PartialEq>(self, mut values: impl Iterator<Item = T>) -> Result<Option<T>, AmbiguousValue> {
        match (self, values.next()) {
            (_, None) => Ok(None),
            (Self::First, first) => Ok(first),
            (Self::Last, first) => Ok(values.last().or(first)),
            (Self::Ambiguous, Some(first)) => {
                if values.all(|value| value == first) {
                    Ok(Some(first))
                } else {
                    Err(AmbiguousValue)
                }
            }
        }
    }
}

impl<'a> Request<'a> {
    /// A request of which nothing is known but headers.
    pub const fn empty(headers: &'a Headers) -> Self {
        Self {
            method: "",
            host: "",
            path: "",
            query: None,
            headers,
            client: None,
            tls_subject: None,
            claims: &[],
            body: Body::Absent,
            domain: None,
            descriptor: &[],
            now: Micros(0),
        }
    }

    /// The values of the descriptor entries with this key.
    pub fn entries<'k>(&self, key: &'k str) -> impl Iterator<Item = &'a str> + use<'a, 'k> {
        self.descriptor.iter().filter(move |entry| entry.key == key).map(|entry| entry.value)
    }

    pub fn entry(&self, key: &str, duplicates: Duplicates) -> Result<Option<&'a str>, AmbiguousValue> {
        duplicates.pick(self.entries(key))
    }

    /// The values of all lines of a header as [`lossless::text`].
    pub fn lines<'n>(&self, name: &'n str) -> impl Iterator<Item = Cow<'a, str>> + use<'a, 'n> {
        self.headers.all(name).map(|line| lossless::text(trimmed(line)))
    }

    /// The value of a header as [`lossless::text`].
    pub fn header(&self, name: &str, duplicates: Duplicates) -> Result<Option<Cow<'a, str>>, AmbiguousValue> {
        let line = duplicates.pick(self.headers.all(name).map(trimmed))?;
        Ok(line.map(lossless::text))
    }

    /// The credentials in `Authorization`, in their canonical text.
    pub fn credentials(&self) -> Result<Option<Cow<'a, str>>, AmbiguousValue> {
        let read = Credentials::read(self.headers.all("authorization"));
        let text = read.and_then(|found| found.map(|found| found.canonical()).transpose());
        text.map_err(|MalformedCredentials| AmbiguousValue)
    }

    /// The percent-decoded value of a query parameter. Upstreams differ in what they read as its name
    /// ([`is_named`]), in invalid escapes and in whether `;` separates parameters.
    pub fn query(&self, name: &str, duplicates: Duplicates) -> Result<Option<Cow<'a, str>>, AmbiguousValue> {
        let Some(query) = self.query else { return Ok(None) };
        let pairs = query.split('&').filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            // Nearly every other parameter ends here: a name is never shorter than its decoded text.
            if pair.len() < name.len() {
                return None;
            }
            match is_named(&decode_form(key), name) {
                Some(Name::Itself) if value.contains(';') => Some(Err(AmbiguousValue)),
                Some(Name::Itself) => Some(form_value(value)),
                Some(Name::Element) => Some(Err(AmbiguousValue)),
                None => {
                    let mut inner = pair.split(';').skip(1).map(|pair| pair.split_once('=').unwrap_or((pair, "")).0);
                    inner.any(|key| is_named(&decode_form(key), name).is_some()).then_some(Err(AmbiguousValue))
                }
            }
        });
        duplicates.pick(pairs)?.transpose()
    }

    /// The value at a place in the body. One that cannot be read as JSON may have any value there.
    pub fn body_value(&self, pointer: &JsonPointer) -> Result<Option<Cow<'a, str>>, AmbiguousValue> {
        match self.body {
            Body::Absent => Ok(None),
            Body::Unread => Err(AmbiguousValue),
            Body::Whole(text) => match JsonLookup::find(pointer, text) {
                Ok(value) => Ok(value.map(Cow::Owned)),
                Err(LookupError::Invalid | LookupError::Unusable) => Err(AmbiguousValue),
            },
        }
    }

    /// The value of a cookie (RFC 6265 section 4.2), without quotes and percent-decoded, as [`lossless::text`]: some upstreams
    /// read `sid=abc`, `sid="abc"` and `sid=%61bc` as the same. Some read a pair after a blank as well ([`has_inner_pair`]).
    pub fn cookie(&self, name: &str, duplicates: Duplicates) -> Result<Option<Cow<'a, str>>, AmbiguousValue> {
        let pairs = self.headers.all("cookie").flat_map(|line| line.split(|byte| *byte == b';'));
        let values = pairs.filter_map(|pair| {
            let (key, value) = pair.split_at(memchr::memchr(b'=', pair)?);
            match cookie_name(trimmed(key), name) {
                Some(Name::Itself) => Some(cookie_value(trimmed(value.get(1..).unwrap_or_default()))),
                Some(Name::Element) => Some(Err(AmbiguousValue)),
                None => has_inner_pair(pair, name).then_some(Err(AmbiguousValue)),
            }
        });
        duplicates.pick(values)?.transpose()
    }
}

/// The longest body that the proxy reads, unless a flag says otherwise, in bytes.
pub const INSPECTED_BYTES: u32 = 64 * 1024;

impl<'a> Body<'a> {
    /// The body of a message with these headers, as the proxy takes it if it reads bodies of up to `most` bytes.
    pub fn inspected(text: &'a [u8], headers: &Headers, most: usize) -> Self {
        let is_encoded = BodyForm::of(headers) == Err(UnreadBody::Encoded);
        let is_unread = !text.is_empty() && (is_encoded || headers.is_grpc() || text.len() > most);
        if is_unread { Self::Unread } else { Self::of(text) }
    }

    /// A body that its listener has read to the end. Node and Python skip a byte order mark.
    pub fn of(text: &'a [u8]) -> Self {
        match text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text) {
            [] => Self::Absent,
            text if may_be_json(text) => Self::Whole(text),
            _ => Self::Unread,
        }
    }
}

/// Returns true if a body that begins with this may be a JSON object or array, the only documents with values at pointers.
pub fn may_be_json(begin: &[u8]) -> bool {
    let begin = begin.strip_prefix(BYTE_ORDER_MARK).unwrap_or(begin);
    let first = begin.iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
    first.is_none_or(|first| matches!(first, b'{' | b'[') || BYTE_ORDER_MARK.starts_with(begin))
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The meaning of a name to the upstreams that read most into it.
enum Name {
    Itself,
    /// An element of it: `key[]` and `key[0]` are lists in PHP, Rails and Express, and a list of one is often as good as the
    /// value. Express reads `[key]` as `key`.
    Element,
}

/// Compares a decoded name as the most tolerant upstreams do: without case (ASP.NET), and as PHP, which cuts names at NUL, drops
/// blanks before them, and reads a dot, a blank or a bracket that is not closed as an underscore.
fn is_named(given: &str, name: &str) -> Option<Name> {
    let name = name.trim_start();
    if given.len() < name.len() {
        return None;
    }
    let given = given.split('\0').next().unwrap_or_default().trim_start();
    let bare = if name.starts_with('[') { given } else { given.trim_start_matches('[') };
    let fold = |byte: u8| match byte {
        b'.' | b' ' => b'_',
        b'[' if !given.contains(']') => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    let (begin, rest) = bare.as_bytes().split_at_checked(name.len())?;
    if !begin.iter().zip(name.as_bytes()).all(|(one, other)| fold(*one) == fold(*other)) {
        return None;
    }
    match rest.first() {
        None if bare.len() == given.len() => Some(Name::Itself),
        None | Some(b'[' | b']') => Some(Name::Element),
        _ => None,
    }
}

fn cookie_name(given: &[u8], name: &str) -> Option<Name> {
    is_named(&decode(&lossless::text(given)), name)
}

/// Returns true if a pair with this name begins after a blank within another pair: Python's `http.cookies`, aiohttp and Bottle
/// find two cookies in `x=1 sid=abc`.
fn has_inner_pair(pair: &[u8], name: &str) -> bool {
    let pair = pair.trim_ascii();
    if memchr::memchr2(b' ', b'\t', pair).is_none() {
        return false;
    }
    let Some(end) = memchr::memrchr(b'=', pair) else { return false };
    let mut texts = pair.get(..end).unwrap_or_default().split(|byte| *byte == b'=').map(<[u8]>::trim_ascii_end);
    texts.any(|text| {
        let blank = memchr::memrchr2(b' ', b'\t', text);
        blank.and_then(|blank| text.get(blank + 1..)).is_some_and(|word| cookie_name(word, name).is_some())
    })
}

/// Strips blanks as upstreams do that read headers as Latin-1 or trim Unicode's white space.
pub(crate) fn trimmed(line: &[u8]) -> &[u8] {
    if let Ok(text) = std::str::from_utf8(line) {
        return text.trim().as_bytes();
    }
    let is_blank = |byte: &u8| matches!(byte, b'\t'..=b'\r' | b' ' | 0x85 | 0xA0);
    let begin = line.iter().position(|byte| !is_blank(byte)).unwrap_or(line.len());
    let end = line.iter().rposition(|byte| !is_blank(byte)).map_or(begin, |last| last + 1);
    line.get(begin..end).unwrap_or_default()
}

/// Strips blanks from a [`lossless::text`] as [`trimmed`] does from bytes.
pub(crate) fn trimmed_text(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim()),
        Cow::Owned(text) => {
            let bytes = lossless::bytes(&text);
            let inner = trimmed(&bytes);
            if inner.len() == bytes.len() { Cow::Owned(text) } else { Cow::Owned(lossless::text(inner).into_owned()) }
        }
    }
}

/// Percent-decodes a form value; `+` is a space (WHATWG URL, application/x-www-form-urlencoded).
fn form_value(text: &str) -> Result<Cow<'_, str>, AmbiguousValue> {
    if text.contains('+') {
        return strictly_decoded(&text.replace('+', " ")).map(|text| Cow::Owned(text.into_owned()));
    }
    strictly_decoded(text)
}

/// Does the same as [`form_value`] for a name, in which invalid escapes stay.
fn decode_form(text: &str) -> Cow<'_, str> {
    if text.contains('+') { Cow::Owned(decode(&text.replace('+', " ")).into_owned()) } else { decode(text) }
}

/// The value of a cookie: one pair of quotes is stripped. What is quoted otherwise, or escaped in quotes, is read in several ways
/// (Python's `http.cookies` decodes `"\141"`, and Express drops the last character after an opening quote). Python's ends a value
/// that is not quoted at a blank.
fn cookie_value(value: &[u8]) -> Result<Cow<'_, str>, AmbiguousValue> {
    let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    let inner = quoted.unwrap_or(value);
    let is_ambiguous = |byte: u8| matches!(byte, b'"' | b'\\') || quoted.is_none() && byte.is_ascii_whitespace();
    if inner.iter().any(|byte| is_ambiguous(*byte)) {
        return Err(AmbiguousValue);
    }
    match lossless::text(inner) {
        Cow::Borrowed(text) => strictly_decoded(text),
        Cow::Owned(text) if text.contains('%') => Err(AmbiguousValue),
        text @ Cow::Owned(_) => Ok(trimmed_text(text)),
    }
}

/// Percent-decodes a value and strips the blanks around it. Upstreams differ in escapes without two hexadecimal digits: some drop the value, some keep it as it is,
/// and some decode the others.
fn strictly_decoded(text: &str) -> Result<Cow<'_, str>, AmbiguousValue> {
    let is_escape = |rest: &str| matches!(rest.as_bytes(), [high, low, ..] if percent::byte(*high, *low).is_some());
    if text.split('%').skip(1).all(is_escape) { Ok(trimmed_text(decode(text))) } else { Err(AmbiguousValue) }
}

/// A request for tests: `GET` of `/` on host `a` from 192.0.2.7.
#[cfg(test)]
pub(crate) fn sample(headers: &Headers) -> Request<'_> {
    let client = Some(IpAddr::from([192, 0, 2, 7]));
    Request { method: "GET", host: "a", path: "/", client, ..Request::empty(headers) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(query: Option<&'a str>, headers: &'a Headers) -> Request<'a> {
        Request { query, ..sample(headers) }
    }

    #[test]
    fn query_parameters_are_decoded() {
        let headers = Headers::new();
        let query = |query| {
            let request = request(Some(query), &headers);
            request.query("name", Duplicates::Ambiguous).map(|value| value.map(Cow::into_owned))
        };
        for (given, expected) in [
            ("a=1&na%6De=x+y%2Bz&flag", Ok(Some("x y+z"))),
            ("NAME=x", Ok(Some("x"))),
            ("name", Ok(Some(""))),
            ("na.me=y&name=x", Ok(Some("x"))),
            ("none=x&names=y", Ok(None)),
            ("name=%E9", Ok(Some("\u{10FFE9}"))),
            ("name=%zz", Err(AmbiguousValue)),
            ("name=x%", Err(AmbiguousValue)),
            ("name[]=x", Err(AmbiguousValue)),
            ("name%5B0%5D=x", Err(AmbiguousValue)),
            ("a=1;name=x", Err(AmbiguousValue)),
            ("name=x;a=1", Err(AmbiguousValue)),
            ("a=1;b=name", Ok(None)),
            ("name=x%20&name=+x&name=%09x%C2%A0&name=%A0x%85", Ok(Some("x"))),
            ("name=%E9%A0%20", Ok(Some("\u{10FFE9}"))),
            ("name=+%20", Ok(Some(""))),
            ("[name]=x", Err(AmbiguousValue)),
            ("%5Bname%5D=x", Err(AmbiguousValue)),
            ("[name][]=x", Err(AmbiguousValue)),
            ("name]=x", Err(AmbiguousValue)),
            ("a=1;[name]=x", Err(AmbiguousValue)),
            ("%20name=x&+name=x&++name=x", Ok(Some("x"))),
            ("name%00=x&name%00y=x", Ok(Some("x"))),
            ("+name[0]=x", Err(AmbiguousValue)),
            ("[names]=x&names]=x&%00name=x&a[name]=x&xname=x", Ok(None)),
            ("name=x&name=%78&n%61me=x", Ok(Some("x"))),
            ("name=x&name=y", Err(AmbiguousValue)),
            ("name=x&NAME=y", Err(AmbiguousValue)),
            ("name=x&n%61me=", Err(AmbiguousValue)),
            ("name=%E9&name=%EF%BF%BD", Err(AmbiguousValue)),
        ] {
            assert_eq!(query(given), expected.map(|value| value.map(str::to_owned)), "{given}");
        }
    }

    #[test]
    fn cookies_are_found_on_any_line_and_beside_any_byte() {
        let check = |lines: &[&[u8]], expected: Result<Option<&str>, AmbiguousValue>| {
            let headers: Headers = lines.iter().map(|line| ("Cookie", line)).collect();
            let request = request(None, &headers);
            let found = request.cookie("sid", Duplicates::Ambiguous);
            assert_eq!(found.as_ref().map(Option::as_deref), expected.as_ref().copied(), "{lines:?}");
        };
        check(&[b"a=1", b"b=2; sid=\"s 1\""], Ok(Some("s 1")));
        check(&[b"sid=abc; x=\xe9"], Ok(Some("abc")));
        check(&[b"\xe9; \xff=; sid=\xe9"], Ok(Some("\u{10FFE9}")));
        check(&[b"a=1; sid; xsid=2"], Ok(None));
        check(&[b"sid=1; sid=\"1\"", b"SID=1; %73id=%31"], Ok(Some("1")));
        check(&[b"s.d=1"], Ok(None));
        check(&[b"sid=s%3Aabc.d%2Be%3D"], Ok(Some("s:abc.d+e=")));
        check(&[b"sid=a+b"], Ok(Some("a+b")));
        check(&[b"sid=\xe9\xa0; sid=\"\xe9\xa0\""], Ok(Some("\u{10FFE9}")));
        check(&[b"sid=a\xc2\xa0b"], Ok(Some("a\u{a0}b")));
        check(&[b"x=1 y=sid; sid=v", b"x=a xsid=1; y z; x=1 sid; x=sid=w; y=1 x=sid=w"], Ok(Some("v")));
        for same in [
            &b"sid=v"[..],
            b"sid=v\xa0",
            b"sid=v\x85",
            b"sid=v\xc2\xa0",
            b"\xa0sid=v",
            b"\x85 sid=v",
            b"\xc2\xa0sid=v",
            b"sid\xa0=v",
            b"sid\xc2\xa0=\xc2\xa0v",
            b"a=1;\tsid\t=\tv\t;b=2",
            b"sid=v%20",
            b"sid=%20%09v%C2%A0",
            b"sid=v%A0",
            b"sid=\"v \"",
            b"sid=\"v\xa0\"",
            b"%20sid=v",
            b"sid%00x=v",
        ] {
            check(&[same, b"sid=v"], Ok(Some("v")));
        }
        for malformed in [
            &b"sid=v x1"[..],
            b"sid=v\tx1",
            b"sid=v sid=w",
            b"x=1 sid=v",
            b"x=1 sid =v",
            b"x=1\tSID=v",
            b"x=1 y=2 %73id=v z=3",
            b"x=1 sid[]=v",
            b"x sid=v",
            b"x=\"a;b\" sid=v",
        ] {
            check(&[malformed], Err(AmbiguousValue));
        }
        for malformed in [
            &b"sid=%zz"[..],
            b"sid=%",
            b"sid=abc%",
            b"sid=\xe9%61",
            b"sid=\"abc",
            b"sid=abc\"",
            b"sid=\"a\"b\"",
            b"sid=\"\\141bc\"",
            b"sid=\"\"abc\"\"",
            b"sid[]=abc",
        ] {
            check(&[malformed], Err(AmbiguousValue));
        }
        check(&[b"sid=1; sid=2"], Err(AmbiguousValue));
        check(&[b"sid=1", b"Sid=2"], Err(AmbiguousValue));
    }

    #[test]
    fn blanks_around_a_header_do_not_count() {
        for line in [&b"k"[..], b" k\t", b"k\xa0", b"\x85k", "k\u{a0}".as_bytes(), "\u{2003}k".as_bytes()] {
            let headers = Headers::from_iter([("x-id", line)]);
            let found = request(None, &headers).header("x-id", Duplicates::Ambiguous);
            assert_eq!(found.unwrap().as_deref(), Some("k"), "{line:?}");
        }
    }

    #[test]
    fn names_are_compared_as_the_most_tolerant_upstreams_do() {
        let headers = Headers::new();
        for (query, expected) in [
            ("api.key=x", Some("x")),
            ("API+key=x", Some("x")),
            ("api[key=x", Some("x")),
            ("api%5Bkey=x", Some("x")),
            ("api[key%00]=x", Some("x")),
            ("api[key]=x", None),
            ("api-key=x", None),
            ("apikey=x", None),
        ] {
            let found = request(Some(query), &headers).query("api_key", Duplicates::Ambiguous);
            assert_eq!(found.unwrap().as_deref(), expected, "{query}");
        }
    }

    #[test]
    fn only_objects_and_arrays_are_read() {
        for begin in ["", " ", "{", " \r\n\t[", "\u{feff}", "\u{feff} {"] {
            assert!(may_be_json(begin.as_bytes()), "{begin:?}");
        }
        assert!(may_be_json(b"\xef") && may_be_json(b"\xef\xbb"));
        for begin in ["a=b", "--x", "1", "\"a\"", "<", "\u{fef0}", " \u{feff}{"] {
            assert!(!may_be_json(begin.as_bytes()), "{begin:?}");
        }
    }

    #[test]
    fn the_first_or_the_last_of_several_values_counts_where_that_is_said() {
        let headers = Headers::from_iter([("x-id", ""), ("X-Id", "b"), ("cookie", "c=1; c=2; c=3")]);
        let entries = [("k", "1"), ("k", "2")].map(|(key, value)| DescriptorEntry { key, value });
        let request = Request { descriptor: &entries, ..request(Some("q=1&Q=2"), &headers) };
        let all = |duplicates| {
            let text = |found: Result<Option<Cow<'_, str>>, AmbiguousValue>| found.ok().flatten().map(Cow::into_owned);
            [
                text(request.header("x-id", duplicates)),
                text(request.query("q", duplicates)),
                text(request.cookie("c", duplicates)),
                request.entry("k", duplicates).ok().flatten().map(str::to_owned),
            ]
        };
        assert_eq!(all(Duplicates::Ambiguous), [None, None, None, None]);
        assert_eq!(all(Duplicates::First).map(Option::unwrap), ["", "1", "1", "1"]);
        assert_eq!(all(Duplicates::Last).map(Option::unwrap), ["b", "2", "3", "2"]);
    }
}
