//! The borrowed view of a request that the rules see. Every listener fills it.

use std::borrow::Cow;
use std::net::IpAddr;

use super::claims::TokenClaims;
use crate::engine::algorithms::micros::Micros;
use crate::message::headers::Headers;
use crate::message::json_lookup::{JsonLookup, LookupError};
use crate::message::json_pointer::JsonPointer;
use crate::message::lossless;
use crate::message::percent::decode;

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
    /// The whole body, if it is JSON and its listener has read it.
    pub body: Option<&'a [u8]>,
    /// The domain of the rate limit service; `None` at every other listener.
    pub domain: Option<&'a str>,
    /// The descriptor that a gateway sends, in its order: of the rate limit service, or the `context_extensions` of
    /// `ext_authz`.
    pub descriptor: &'a [DescriptorEntry<'a>],
    /// The wall clock, for overrides that expire.
    pub now: Micros,
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
    /// The values of the descriptor entries with this key.
    pub fn entries<'k>(&self, key: &'k str) -> impl Iterator<Item = &'a str> + use<'a, 'k> {
        self.descriptor.iter().filter(move |entry| entry.key == key).map(|entry| entry.value)
    }

    pub fn entry(&self, key: &str, duplicates: Duplicates) -> Result<Option<&'a str>, AmbiguousValue> {
        duplicates.pick(self.entries(key))
    }

    /// The values of all lines of a header as [`lossless::text`].
    pub fn lines<'n>(&self, name: &'n str) -> impl Iterator<Item = Cow<'a, str>> + use<'a, 'n> {
        self.headers.all(name).map(|line| lossless::text(line.trim_ascii()))
    }

    /// The value of a header as [`lossless::text`].
    pub fn header(&self, name: &str, duplicates: Duplicates) -> Result<Option<Cow<'a, str>>, AmbiguousValue> {
        let line = duplicates.pick(self.headers.all(name).map(<[u8]>::trim_ascii))?;
        Ok(line.map(lossless::text))
    }

    /// The percent-decoded value of a query parameter. Names are compared decoded and case-insensitively, because some
    /// upstreams do: to them `KEY=a&key=b` has two values.
    pub fn query(&self, name: &str, duplicates: Duplicates) -> Result<Option<Cow<'a, str>>, AmbiguousValue> {
        let Some(query) = self.query else { return Ok(None) };
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        duplicates.pick(
            pairs
                .filter(|(key, _)| key.len() >= name.len() && decode_form(key).eq_ignore_ascii_case(name))
                .map(|(_, value)| decode_form(value)),
        )
    }

    /// The value at a place in the body. A body that is not JSON has none.
    pub fn body_value(&self, pointer: &JsonPointer) -> Result<Option<Cow<'a, str>>, AmbiguousValue> {
        let Some(body) = self.body else { return Ok(None) };
        match JsonLookup::find(pointer, body) {
            Ok(value) => Ok(value.map(Cow::Owned)),
            Err(LookupError::Invalid) => Ok(None),
            Err(LookupError::Unusable) => Err(AmbiguousValue),
        }
    }

    /// The value of a cookie (RFC 6265 section 4.2) without quotes as [`lossless::text`]. Names are compared
    /// case-insensitively, like those of query parameters.
    pub fn cookie(&self, name: &str, duplicates: Duplicates) -> Result<Option<Cow<'a, str>>, AmbiguousValue> {
        let pairs = self.headers.all("cookie").flat_map(|line| line.split(|byte| *byte == b';'));
        let value = duplicates.pick(pairs.filter_map(|pair| {
            let (key, value) = pair.split_at(memchr::memchr(b'=', pair)?);
            let is_named = key.trim_ascii().eq_ignore_ascii_case(name.as_bytes());
            is_named.then(|| unquoted(value.get(1..).unwrap_or_default().trim_ascii()))
        }))?;
        Ok(value.map(lossless::text))
    }
}

fn unquoted(mut value: &[u8]) -> &[u8] {
    while let Some(rest) = value.strip_prefix(b"\"") {
        value = rest;
    }
    while let Some(rest) = value.strip_suffix(b"\"") {
        value = rest;
    }
    value
}

/// Percent-decodes a form value; `+` is a space (WHATWG URL, application/x-www-form-urlencoded).
fn decode_form(text: &str) -> Cow<'_, str> {
    if text.contains('+') { Cow::Owned(decode(&text.replace('+', " ")).into_owned()) } else { decode(text) }
}

/// A request for tests: `GET` of `/` on host `a` from 192.0.2.7.
#[cfg(test)]
pub(crate) fn sample(headers: &Headers) -> Request<'_> {
    Request {
        method: "GET",
        host: "a",
        path: "/",
        query: None,
        headers,
        client: Some(IpAddr::from([192, 0, 2, 7])),
        tls_subject: None,
        claims: &[],
        body: None,
        domain: None,
        descriptor: &[],
        now: Micros(0),
    }
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
            ("name=%E9", Ok(Some("\u{10FFE9}"))),
            ("none=x&names=y", Ok(None)),
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
        check(&[b"sid=1; sid=\"1\"", b"SID=1"], Ok(Some("1")));
        check(&[b"sid=1; sid=2"], Err(AmbiguousValue));
        check(&[b"sid=1", b"Sid=2"], Err(AmbiguousValue));
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
