//! Converts messages from and to HTTP/2 (RFC 9113 section 8).
//!
//! The library has already reset streams with upper case names, values with CR, LF or NUL, connection headers, unknown,
//! repeated, missing or late pseudo-headers, and bodies that contradict their `content-length`.

use http::header::{CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Uri, Version, request};
use smallvec::SmallVec;

use crate::http::failure::HeadError;
use crate::http::http1::spare;
use crate::http::limits::HeadLimits;
use crate::http::message::{Request, RequestBody};
use crate::message::headers::Headers;

/// Returns whether a header is one of a connection, which HTTP/2 does not have (RFC 9113 section 8.2.2). The library
/// does not send these.
fn is_of_connection(name: &[u8]) -> bool {
    const NAMES: [&str; 7] =
        ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "te", "http2-settings"];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Returns a client's request without its body. The target takes the memory of `spare`.
pub(super) fn request(head: request::Parts, limits: &HeadLimits, spare: String) -> Result<Request, HeadError> {
    let request::Parts { method, uri, headers: map, .. } = head;
    let target = target(&method, &uri, spare).map_err(HeadError::Malformed)?;
    let known = KnownHeaders::of(&map);
    if target.len() > limits.target {
        return Err(HeadError::Target);
    } else if known.bytes > limits.bytes {
        return Err(HeadError::Bytes);
    } else if map.len() > limits.lines {
        return Err(HeadError::Lines);
    }
    let mut headers = spare::take();
    headers.reserve(map.len() + SPARE_LINES, known.bytes + SPARE_BYTES);
    headers.append(HOST, host(&uri, &known.hosts).map_err(HeadError::Malformed)?);
    // The library compares the length with the body. Values that an HTTP/1 server might read differently are rejected,
    // as from HTTP/1 clients.
    if !is_one_length(known.lengths.iter().copied()) {
        return Err(LENGTH);
    }
    let is_split = known.crumbs.len() > 1;
    for (name, value) in &map {
        if value.as_bytes() != value.as_bytes().trim_ascii() {
            // RFC 9113 section 8.2.1. An HTTP/1 server would read another value.
            return Err(HeadError::Malformed("a header's value must not start or end with white space"));
        }
        if name != HOST && !(is_split && name == COOKIE) {
            headers.append(name, value);
        }
    }
    if is_split {
        // Clients split cookies to help compression. Only HTTP/2 allows it, so they are joined again (RFC 9113 section
        // 8.2.3).
        let crumbs: Vec<_> = known.crumbs.iter().map(|crumb| crumb.as_bytes()).collect();
        headers.append(COOKIE, crumbs.join(&b"; "[..]));
    }
    Ok(Request { method, target, version: Version::HTTP_2, headers, body: RequestBody::Empty })
}

const LENGTH: HeadError = HeadError::Malformed("`Content-Length` must be a single number");

/// Returns whether there is no `Content-Length`, or a single one of digits without leading zeros. The library reads an
/// empty value as 0.
fn is_one_length<'a>(mut values: impl Iterator<Item = &'a HeaderValue>) -> bool {
    let Some(length) = values.next().map(HeaderValue::as_bytes) else { return true };
    let is_number = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
    is_number && (length.len() == 1 || !length.starts_with(b"0")) && values.next().is_none()
}

/// Rejects response heads that servers could read differently.
pub(super) fn check_response(map: &HeaderMap) -> Result<(), HeadError> {
    if is_one_length(map.get_all(CONTENT_LENGTH).iter()) { Ok(()) } else { Err(LENGTH) }
}

/// The headers that are examined, found in one pass: each lookup in the map costs a hash.
#[derive(Default)]
struct KnownHeaders<'a> {
    hosts: SmallVec<[&'a HeaderValue; 1]>,
    lengths: SmallVec<[&'a HeaderValue; 1]>,
    crumbs: SmallVec<[&'a HeaderValue; 1]>,
    /// The length of all names and values.
    bytes: usize,
}

impl<'a> KnownHeaders<'a> {
    fn of(map: &'a HeaderMap) -> Self {
        let mut known = Self::default();
        for (name, value) in map {
            known.bytes += name.as_str().len() + value.len();
            if name == HOST {
                known.hosts.push(value);
            } else if name == CONTENT_LENGTH {
                known.lengths.push(value);
            } else if name == COOKIE {
                known.crumbs.push(value);
            }
        }
        known
    }
}

/// Space for the headers that the proxy adds to a request: `X-Forwarded-*`, `Via`.
const SPARE_LINES: usize = 6;
const SPARE_BYTES: usize = 160;

/// Returns the target. The library silently drops a fragment from `:path`, so neither the rules nor the upstream see
/// it.
fn target(method: &Method, uri: &Uri, mut target: String) -> Result<String, &'static str> {
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    // CONNECT does not have a path, and is rejected in any case.
    if method == Method::CONNECT {
        target.push_str(uri.authority().map_or("", Authority::as_str));
    } else if path.starts_with('/') || (path == "*" && method == Method::OPTIONS) {
        target.push_str(path);
    } else {
        return Err("`:path` must start with `/`");
    }
    Ok(target)
}

/// Returns the request's host. `:authority` and `Host` mean the same, so a request with both must not contradict itself
/// (RFC 9113 section 8.3.1).
fn host<'a>(uri: &'a Uri, hosts: &[&'a HeaderValue]) -> Result<&'a [u8], &'static str> {
    let scheme = uri.scheme();
    if scheme.is_some_and(|scheme| *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS) {
        return Err("`:scheme` must be `http` or `https`");
    }
    if hosts.len() > 1 {
        return Err("a request must not have several `Host` headers");
    }
    let host = hosts.first();
    let Some(authority) = uri.authority() else {
        return host.map(|host| host.as_bytes()).ok_or("missing `:authority`");
    };
    if authority.as_str().contains('@') {
        return Err("`:authority` must not contain a user name");
    }
    if host.is_some_and(|host| !is_same(authority, scheme, host)) {
        return Err("`:authority` and `Host` differ");
    }
    Ok(authority.as_str().as_bytes())
}

fn is_same(authority: &Authority, scheme: Option<&Scheme>, host: &HeaderValue) -> bool {
    if authority.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes()) {
        return true;
    }
    let port = |authority: &Authority| {
        let usual = if scheme == Some(&Scheme::HTTPS) { 443 } else { 80 };
        authority.port().map_or(Some(usual), |port| port.as_str().parse().ok())
    };
    Authority::try_from(host.as_bytes()).is_ok_and(|host| {
        host.host().eq_ignore_ascii_case(authority.host())
            && !host.as_str().contains('@')
            && port(&host) == port(authority)
    })
}

/// Names that we often send, which need no parsing.
static OWN: [HeaderName; 2] = [HeaderName::from_static("ratelimit"), HeaderName::from_static("ratelimit-policy")];

/// Headers whose value changes with each response or second. They are sent as "never indexed" (RFC 7541 section 6.2.3),
/// because values that never recur would fill the compression table, and each new one is compared with all of them.
const CHANGING: [&str; 6] =
    ["date", "ratelimit", "ratelimit-remaining", "ratelimit-reset", "x-ratelimit-remaining", "x-ratelimit-reset"];

/// Returns headers in HTTP/2's form: without those of the connection, and with names in lower case. Lines that the
/// library does not accept are dropped; headers that were received do not contain any. Reserves space for `more`
/// headers, because growing costs the map more than five of them.
pub(super) fn header_map(headers: &Headers, more: usize, wanted: impl Fn(&[u8]) -> bool) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(headers.len() + more);
    for (name, value) in headers.iter().filter(|(name, _)| !is_of_connection(name) && wanted(name)) {
        let own = OWN.iter().find(|own| own.as_str().as_bytes() == name);
        let name = own.map_or_else(|| HeaderName::from_bytes(name), |own| Ok(own.clone()));
        if let (Ok(name), Ok(mut value)) = (name, HeaderValue::from_bytes(value)) {
            value.set_sensitive(CHANGING.contains(&name.as_str()));
            map.append(name, value);
        }
    }
    map
}

/// Returns received headers in our form.
pub(super) fn headers(map: &HeaderMap) -> Headers {
    // White space around a value violates RFC 9113 section 8.2.1 and is not part of it.
    map.iter().map(|(name, value)| (name, value.as_bytes().trim_ascii())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a request's pseudo-headers as the library hands them on, and says the target and the host, or what is wrong.
    #[track_caller]
    fn check(method: &str, uri: &str, host_header: &[&str], expected: Result<(&str, &str), &str>) {
        let uri: Uri = uri.parse().unwrap();
        let map: HeaderMap = host_header.iter().map(|host| (HOST, host.parse().unwrap())).collect();
        let given = target(&method.parse().unwrap(), &uri, String::new()).and_then(|target| {
            let host = host(&uri, &KnownHeaders::of(&map).hosts)?;
            Ok((target, String::from_utf8(host.to_vec()).unwrap()))
        });
        match expected {
            Ok((target, host)) => assert_eq!(given, Ok((target.to_owned(), host.to_owned()))),
            Err(part) => assert!(given.as_ref().is_err_and(|error| error.contains(part)), "{given:?}"),
        }
    }

    #[test]
    fn targets_and_hosts_are_checked() {
        check("GET", "http://a.example/x?y=1", &[], Ok(("/x?y=1", "a.example")));
        check("GET", "/x", &["a.example:8080"], Ok(("/x", "a.example:8080")));
        check("GET", "https://a.example/", &["A.example"], Ok(("/", "a.example")));
        check("GET", "https://a.example/", &["a.example:443"], Ok(("/", "a.example")));
        check("GET", "http://a.example/", &["a.example:443"], Err("differ"));
        check("GET", "http://a.example/", &["b.example"], Err("differ"));
        check("GET", "http://a.example/", &["u@a.example"], Err("differ"));
        check("GET", "http://a.example/", &["a.example", "a.example"], Err("several `Host`"));
        check("GET", "http://u@a.example/", &[], Err("user name"));
        check("GET", "ftp://a.example/", &[], Err("must be `http`"));
        check("GET", "/x", &[], Err("missing `:authority`"));
        check("OPTIONS", "*", &["a"], Ok(("*", "a")));
        check("GET", "*", &["a"], Err("must start"));
        check("CONNECT", "a.example:443", &[], Ok(("a.example:443", "a.example:443")));
    }

    #[test]
    fn headers_of_a_connection_are_not_sent_and_changing_ones_not_indexed() {
        let given =
            [("Connection", "close"), ("TE", "x"), ("X-Id", "1"), ("x-id", "2"), ("RateLimit", "3"), ("Date", "4")];
        let map = header_map(&Headers::from_iter(given), 0, |name| name != b"wanted");
        assert_eq!(
            map.iter().map(|(n, v)| (n.as_str(), v.as_bytes(), v.is_sensitive())).collect::<Vec<_>>(),
            [("x-id", &b"1"[..], false), ("x-id", b"2", false), ("ratelimit", b"3", true), ("date", b"4", true)]
        );
    }
}
