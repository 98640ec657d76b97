//! Whether a request is one that can be forwarded, and whom it is for (RFC 9112 section 3.2, RFC 9110 section 7.2).

use http::header::{EXPECT, HOST, HeaderValue};
use http::{Method, Request, Uri, Version};

use super::failure::Failure;
use crate::engine::request::host_of;

/// What a request says besides its fields.
#[derive(Debug)]
pub(super) struct Checked {
    /// The host without the port, in lower case; empty if an HTTP/1.0 request names none.
    pub(super) host: String,
    /// Whether the client waits for a `100 Continue` before it sends the body.
    pub(super) expects_continue: bool,
}

/// Checks a request, and makes its target the origin form and its `Host` the target's.
pub(super) fn check<B>(request: &mut Request<B>) -> Result<Checked, Failure> {
    match *request.method() {
        Method::CONNECT => return Err(Failure::Method("this proxy opens no tunnels")),
        Method::TRACE => return Err(Failure::Method("requests are not echoed: they may carry credentials")),
        _ => {}
    }
    // Not for the upstream: hyper says `100 Continue` as soon as the body is asked for.
    let expected = request.headers_mut().remove(EXPECT);
    if expected.as_ref().is_some_and(|expected| !expected.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return Err(Failure::Expectation);
    }
    Ok(Checked { host: host(request)?, expects_continue: expected.is_some() })
}

fn host<B>(request: &mut Request<B>) -> Result<String, Failure> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let given = match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host),
        (None, _) if request.version() < Version::HTTP_11 => None,
        (None, _) => return Err(Failure::Malformed("an HTTP/1.1 request has a `Host` field")),
        (Some(_), Some(_)) => return Err(Failure::Malformed("a request has one `Host` field")),
    };
    if request.uri().authority().is_some() {
        return absolute(request);
    }
    let Some(given) = given else { return Ok(String::new()) };
    let host = given.to_str().ok().and_then(host_of).ok_or(Failure::Malformed("the `Host` field is no host"))?;
    Ok(host.into_owned())
}

/// A target in absolute form: its authority counts and `Host` is ignored and replaced.
fn absolute<B>(request: &mut Request<B>) -> Result<String, Failure> {
    const NO_HOST: Failure = Failure::Malformed("the target's authority is no host");
    let uri = std::mem::take(request.uri_mut());
    let mut parts = uri.into_parts();
    let authority = parts.authority.take().ok_or(NO_HOST)?;
    parts.scheme = None;
    let host = host_of(authority.as_str()).ok_or(NO_HOST)?.into_owned();
    let value = HeaderValue::from_str(authority.as_str()).map_err(|_| NO_HOST)?;
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| Failure::Malformed("the target has no path"))?;
    request.headers_mut().insert(HOST, value);
    Ok(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields = &'static [(&'static str, &'static str)];

    #[track_caller]
    fn check_request(method: &str, target: &str, version: Version, fields: Fields) -> Result<String, Failure> {
        let mut request = Request::builder().method(method).uri(target).version(version);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut request = request.body(()).unwrap();
        let host = check(&mut request)?.host;
        let given = request.headers().get(HOST).map(|host| host.to_str().unwrap().to_owned());
        Ok(format!("{host} {} {}", request.uri(), given.unwrap_or_default()))
    }

    #[test]
    fn requests_are_made_origin_form() {
        let cases: [(&str, Fields, &str); 4] = [
            ("/a//b?c=%20d", &[("host", "A.example:80")], "a.example /a//b?c=%20d A.example:80"),
            ("http://b.example:81/x?y", &[("host", "a.example")], "b.example /x?y b.example:81"),
            ("http://b.example", &[("host", "a.example")], "b.example / b.example"),
            ("*", &[("host", "a.example")], "a.example * a.example"),
        ];
        for (target, fields, expected) in cases {
            assert_eq!(check_request("OPTIONS", target, Version::HTTP_11, fields).unwrap(), expected);
        }
        assert_eq!(check_request("GET", "/", Version::HTTP_10, &[]).unwrap(), " / ");
    }

    #[test]
    fn what_cannot_be_forwarded_is_refused() {
        let cases: [(&str, &str, Fields, &str); 6] = [
            ("GET", "/", &[], "has a `Host`"),
            ("GET", "/", &[("host", "a"), ("host", "a")], "one `Host`"),
            ("GET", "/", &[("host", "a/b")], "no host"),
            ("CONNECT", "a.example:443", &[("host", "a.example:443")], "tunnels"),
            ("TRACE", "/", &[("host", "a")], "echoed"),
            ("POST", "/", &[("host", "a"), ("expect", "200-ok")], "100-continue"),
        ];
        for (method, target, fields, part) in cases {
            let error = check_request(method, target, Version::HTTP_11, fields).unwrap_err();
            assert!(error.to_string().contains(part), "{method} {target}: {error}");
        }
    }
}
