//! The view of a request that the rules look at. Every door fills it; none of it is copied.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use super::fields::{self, Fields};
use super::numbers::Micros;

/// A request, borrowed from its door.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The authority without its port, lower case.
    pub host: &'a str,
    /// The path, already through [`super::path::normalise`], without the query.
    pub path: &'a str,
    /// The query without its question mark, as sent.
    pub query: Option<&'a str>,
    /// The fields.
    pub headers: &'a Fields,
    /// The client's address, IPv4-mapped addresses folded (see [`super::client_address`]); `None` from the rate limit
    /// service, which is told nothing of the client but the descriptor.
    pub client: Option<IpAddr>,
    /// The subject of the client's certificate, if it showed one that was verified.
    pub tls_subject: Option<&'a str>,
    /// The domain that the rate limit service is asked about; `None` from every other door.
    pub domain: Option<&'a str>,
    /// What a gateway says of the request in its own words, in its order: a descriptor of the rate limit service, or the
    /// `context_extensions` of `ext_authz`.
    pub descriptor: &'a [Entry<'a>],
    /// The wall clock, for overrides that expire.
    pub now: Micros,
}

/// One entry of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key, as the gateway's configuration names it; case-sensitive.
    pub key: &'a str,
    /// The value; it may be empty.
    pub value: &'a str,
}

impl<'a> Request<'a> {
    /// The value of a descriptor's entry; of several with this key the first.
    pub fn entry(&self, key: &str) -> Option<&'a str> {
        self.descriptor.iter().find(|entry| entry.key == key).map(|entry| entry.value)
    }

    /// The value of a field. Of several the first counts; one that is no text counts as absent.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.text(name).map(str::trim)
    }

    /// The value of a query parameter, percent-decoded; of several the first.
    pub fn query(&self, name: &str) -> Option<Cow<'a, str>> {
        self.query?.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode_form(key) == name).then(|| decode_form(value))
        })
    }

    /// The value of a cookie (RFC 6265 section 4.2), without quotes; of several the first.
    pub fn cookie(&self, name: &str) -> Option<&'a str> {
        let lines = self.headers.all("cookie").filter_map(fields::text);
        lines.flat_map(|line| line.split(';')).find_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            (key.trim() == name).then(|| value.trim().trim_matches('"'))
        })
    }
}

/// The host of an authority without user information: lower case, without the port, the root's dot and the
/// brackets of an IPv6 address, as [`Request::host`] wants it.
/// `None` if it is no host.
pub fn host_of(authority: &str) -> Option<Cow<'_, str>> {
    // What nearly every request has: a name in lower case, and a port or none.
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let plain = authority.bytes().position(|byte| !is_plain(&byte)).unwrap_or(authority.len());
    let (host, port) = authority.split_at(plain);
    let is_port = |port: &[u8]| port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    if port.is_empty() || port.as_bytes().split_first().is_some_and(|(first, port)| *first == b':' && is_port(port)) {
        return Some(Cow::Borrowed(host.strip_suffix('.').unwrap_or(host)));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']')?;
            let (host, after) = authority.split_at(end + 2);
            (host, after.strip_prefix(':').or((after.is_empty()).then_some(""))?)
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte);
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let fits = match literal {
        Some(literal) => literal.parse::<Ipv6Addr>().is_ok(),
        None => host.bytes().all(is_name),
    };
    if !fits || !port.bytes().all(|byte| byte.is_ascii_digit()) || port.len() > 5 {
        return None;
    }
    let host = literal.unwrap_or_else(|| host.strip_suffix('.').unwrap_or(host));
    let lower = !host.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if lower { Cow::Borrowed(host) } else { Cow::Owned(host.to_ascii_lowercase()) })
}

/// Percent-decodes a form value; `+` is a space (WHATWG URL, application/x-www-form-urlencoded).
fn decode_form(text: &str) -> Cow<'_, str> {
    if text.contains('+') { Cow::Owned(decode(&text.replace('+', " ")).into_owned()) } else { decode(text) }
}

/// Percent-decodes `text` once. A `%` that no two hex digits follow stays as it is; bytes that are no UTF-8 become
/// U+FFFD, so that they are still told apart from nothing.
pub fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, after @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                decoded.push(hex(*high) << 4 | hex(*low));
                rest = after;
            }
            _ => {
                decoded.push(*first);
                rest = tail;
            }
        }
    }
    Cow::Owned(
        String::from_utf8(decoded).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
    )
}

/// The value of an ASCII hex digit.
pub(super) fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// A request of 192.0.2.7 for tests of what looks at requests: `GET` of `/` on host `a`.
#[cfg(test)]
pub(crate) fn sample(headers: &Fields) -> Request<'_> {
    Request {
        method: "GET",
        host: "a",
        path: "/",
        query: None,
        headers,
        client: Some(IpAddr::from([192, 0, 2, 7])),
        tls_subject: None,
        domain: None,
        descriptor: &[],
        now: Micros(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(query: Option<&'a str>, headers: &'a Fields) -> Request<'a> {
        Request { query, ..sample(headers) }
    }

    #[test]
    fn query_parameters_are_decoded_and_the_first_counts() {
        let headers = Fields::new();
        let request = request(Some("a=1&na%6De=x+y%2Bz&name=2&flag"), &headers);
        assert_eq!(request.query("name").as_deref(), Some("x y+z"));
        assert_eq!(request.query("flag").as_deref(), Some(""));
        assert_eq!(request.query("none"), None);
    }

    #[test]
    fn cookies_are_found_on_any_line() {
        let headers = Fields::from_iter([("Cookie", "a=1; sid=\"s 1\""), ("cookie", "b=2")]);
        let request = request(None, &headers);
        assert_eq!((request.cookie("sid"), request.cookie("b"), request.cookie("c")), (Some("s 1"), Some("2"), None));
    }

    #[test]
    fn a_host_is_taken_from_its_authority() {
        for (authority, expected) in [
            ("example.com", Some("example.com")),
            ("Example.COM:8080", Some("example.com")),
            ("example.com.:80", Some("example.com")),
            ("[2001:DB8::1]:80", Some("2001:db8::1")),
            ("[::1]", Some("::1")),
            ("127.0.0.1:", Some("127.0.0.1")),
            ("", Some("")),
            ("a b", None),
            ("user@example.com", None),
            ("example.com/path", None),
            ("example.com:80:90", None),
            ("example.com:x", None),
            ("[::1", None),
            ("[::1]x", None),
            ("[example.com]", None),
        ] {
            assert_eq!(host_of(authority).as_deref(), expected, "{authority}");
        }
    }

    #[test]
    fn decoding_happens_once_and_keeps_what_is_no_escape() {
        assert_eq!(decode("%2541%zz%4"), "%41%zz%4");
        assert_eq!(decode("%ff"), "\u{fffd}");
    }
}
