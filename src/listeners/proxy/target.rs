//! Checks that a request can be forwarded, and brings its target to origin form (RFC 9112 section 3.2, RFC 9110 section 7.2).

use http::{Method, Version};

use crate::http::forwarding;
use crate::http::message::Request;
use crate::listeners::http::failure::Failure;
use crate::message::headers::Headers;
use crate::message::target;

/// `Via` entries of Weir in a request: more than chains of proxies have, and few turns of a loop.
const MAX_HOPS: usize = 5;

/// Checks that a request may be forwarded.
pub(super) fn check(request: &Request) -> Result<(), Failure> {
    match request.method {
        Method::CONNECT => return Err(Failure::Method("this proxy does not open tunnels")),
        Method::TRACE => return Err(Failure::Method("TRACE is not supported: requests may carry credentials")),
        _ => {}
    }
    if request.headers.all("expect").any(|expected| !expected.eq_ignore_ascii_case(b"100-continue")) {
        return Err(Failure::Expectation);
    }
    if request.headers.contains("via") && forwarding::hops(&request.headers) >= MAX_HOPS {
        return Err(Failure::Loop);
    }
    Ok(())
}

/// Brings an absolute target to origin form. Returns its authority, which replaces `Host`.
pub(super) fn in_origin_form(request: &mut Request) -> Result<Option<String>, Failure> {
    if !target::is_absolute(&request.target) {
        return Ok(None);
    }
    has_host(request.version, &request.headers)?;
    let split = target::split_url(request.method.as_str(), &request.target);
    let (authority, target) = split.map_err(|error| Failure::Malformed(error.reason()))?;
    let (authority, target) = (authority.to_owned(), target.into_owned());
    request.target = target;
    Ok(Some(authority))
}

/// Only a request of HTTP/1.0 may lack `Host`.
pub(super) fn has_host(version: Version, headers: &Headers) -> Result<(), Failure> {
    if version >= Version::HTTP_11 && !headers.contains("host") {
        return Err(Failure::Malformed("an HTTP/1.1 request must have a `Host` header"));
    }
    Ok(())
}

/// Returns and decrements the `Max-Forwards` of an OPTIONS request (RFC 9110 section 7.6.2). `Some(0)` must be answered here.
pub(super) fn count_down(request: &mut Request) -> Option<u64> {
    if request.method != Method::OPTIONS {
        return None;
    }
    let left: u64 = request.headers.text("max-forwards")?.trim().parse().ok()?;
    if left > 0 {
        request.headers.set("max-forwards", (left - 1).to_string());
    }
    Some(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::incoming::{Incoming, Preparation};
    use crate::http::message::RequestBody;
    use crate::message::client_headers::ClientHeaders;
    use crate::message::path::EscapedSlashes;

    type Lines = &'static [(&'static str, &'static str)];

    fn request(method: &str, target: &str, version: Version, lines: Lines) -> Request {
        let (method, headers) = (method.parse().unwrap(), lines.iter().copied().collect());
        Request { method, target: target.to_owned(), version, headers, body: RequestBody::Empty }
    }

    #[track_caller]
    fn check_request(method: &str, target: &str, version: Version, lines: Lines) -> Result<String, Failure> {
        let mut request = request(method, target, version, lines);
        check(&request)?;
        let authority = in_origin_form(&mut request)?;
        let incoming = Incoming {
            method: Some(method),
            target: &request.target,
            query: None,
            authority: authority.as_deref(),
            headers: &mut request.headers,
            preparation: Preparation::Forwarded { accepted: &ClientHeaders::default(), is_trusted: false },
            slashes: EscapedSlashes::Keep,
        };
        let host = incoming.read().map_err(Failure::Malformed)?.host.into_owned();
        has_host(version, &request.headers)?;
        Ok(format!("{host} {} {}", request.target, request.headers.text("host").unwrap_or_default()))
    }

    #[test]
    fn requests_are_made_origin_form() {
        let cases: [(&str, Lines, &str); 6] = [
            ("/a//b?c=%20d", &[("Host", "A.example:80")], "a.example /a//b?c=%20d A.example:80"),
            ("http://b.example:81/x?y", &[("host", "a.example")], "b.example /x?y b.example:81"),
            ("HTTPS://b.example?y", &[("host", "a.example")], "b.example /?y b.example"),
            ("http://b.example", &[("host", "a.example")], "b.example * b.example"),
            ("*", &[("host", "a.example")], "a.example * a.example"),
            ("/", &[("host", "")], " / "),
        ];
        for (target, lines, expected) in cases {
            assert_eq!(check_request("OPTIONS", target, Version::HTTP_11, lines).unwrap(), expected);
        }
        let lines: Lines = &[("host", "a.example")];
        assert_eq!(check_request("GET", "http://b.example", Version::HTTP_11, lines).unwrap(), "b.example / b.example");
        assert_eq!(check_request("GET", "/", Version::HTTP_10, &[]).unwrap(), " / ");
    }

    #[test]
    fn invalid_requests_are_rejected() {
        let host: Lines = &[("host", "a")];
        let cases: [(&str, &str, Lines, &str); 23] = [
            ("GET", "/", &[], "must have a `Host`"),
            ("GET", "http://a/", &[], "must have a `Host`"),
            ("GET", "/", &[("host", "a"), ("Host", "a")], "one `Host`"),
            ("GET", "/", &[("host", "a/b")], "not a valid host"),
            ("GET", "/", &[("host", "user@a")], "not a valid host"),
            ("CONNECT", "a.example:443", &[("host", "a.example:443")], "tunnels"),
            ("TRACE", "/", host, "TRACE"),
            ("POST", "/", &[("host", "a"), ("expect", "200-ok")], "100-continue"),
            ("POST", "/", &[("host", "a"), ("expect", "100-continue"), ("expect", "tea")], "100-continue"),
            ("get", "/", host, "upper case"),
            ("Options", "*", host, "upper case"),
            ("GET", "http://a/", &[("host", "a/b")], "not a valid host"),
            ("GET", "*", host, "OPTIONS"),
            ("GET", "a.example:443", host, "a target must be a path"),
            ("GET", "ftp://a/", host, "a target must be a path"),
            ("GET", "http:///x", host, "authority is not a valid host"),
            ("GET", "http://u@a/x", host, "authority is not a valid host"),
            ("GET", "/a#b", host, "fragment"),
            ("GET", "/a?b#c", host, "fragment"),
            ("GET", "/a\\b", host, "backslash"),
            ("GET", "/%00", host, "control"),
            ("GET", "/%g0", host, "escape"),
            (
                "GET",
                "/",
                &[("host", "a"), ("via", "1.1 weir, 1.1 weir, 1.1 weir"), ("via", "2 weir, 1.1 weir")],
                "too often",
            ),
        ];
        for (method, target, lines, part) in cases {
            let error = check_request(method, target, Version::HTTP_11, lines).unwrap_err();
            assert!(error.to_string().contains(part), "{method} {target}: {error}");
        }
    }

    #[test]
    fn max_forwards_is_counted_down() {
        let check = |method, lines, left, then| {
            let mut request = request(method, "/", Version::HTTP_11, lines);
            assert_eq!((count_down(&mut request), request.headers.text("max-forwards")), (left, then));
        };
        check("OPTIONS", &[("Max-Forwards", "2")], Some(2), Some("1"));
        check("OPTIONS", &[("max-forwards", "0")], Some(0), Some("0"));
        check("OPTIONS", &[("max-forwards", "x")], None, Some("x"));
        check("GET", &[("max-forwards", "0")], None, Some("0"));
        check("OPTIONS", &[], None, None);
    }
}
