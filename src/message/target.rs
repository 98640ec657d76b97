//! The method and the target of a request: the checks and the URL splitter that all listeners share.

use std::borrow::Cow;

use super::headers;
use super::host::host_of;
use super::path::{self, EscapedSlashes};

/// Checks that all servers read a method and a target the same way; the error is the reason. The target is in origin form
/// or `*`; [`split_url`] gives that of an absolute URL.
pub fn check(method: &str, target: &str, slashes: EscapedSlashes) -> Result<(), &'static str> {
    check_method(method)?;
    if target == "*" {
        return if method == "OPTIONS" { Ok(()) } else { Err("only OPTIONS may have the target `*`") };
    }
    if !target.starts_with('/') {
        return Err(UrlError::Form.reason());
    }
    let (path, query) = split(target);
    path::check(path, slashes)?;
    query.map_or(Ok(()), check_query)
}

/// Methods are case-sensitive (RFC 9110 section 9.1), so a limit for `GET` does not cover `get`. But frameworks that
/// convert methods to upper case, as Werkzeug does, would serve it as `GET`.
fn check_method(method: &str) -> Result<(), &'static str> {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    if !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Ok(());
    }
    if !headers::is_name(method.as_bytes()) {
        return Err("a method must be a token");
    }
    let is_misspelt = KNOWN.iter().any(|known| method.eq_ignore_ascii_case(known));
    if is_misspelt { Err("a standard method must be in upper case") } else { Ok(()) }
}

/// Checks a query without its question mark.
pub fn check_query(query: &str) -> Result<(), &'static str> {
    if query.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'#') {
        return Err("a query must be printable ASCII without a fragment");
    }
    Ok(())
}

/// The reason why a target is not a valid absolute URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// It does not start with `http://` or `https://`.
    Form,
    /// Its authority is not a valid host.
    Authority,
}

impl UrlError {
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Form => "a target must be a path, or an `http://` or `https://` URL",
            Self::Authority => "the target's authority is not a valid host",
        }
    }
}

/// Returns whether a target is neither in origin form nor `*`.
pub fn is_absolute(target: &str) -> bool {
    !target.starts_with('/') && target != "*"
}

/// Splits an absolute URL into its authority and its target in origin form, which is `*` for OPTIONS without a path (RFC
/// 9112 section 3.2.4).
pub fn split_url<'a>(method: &str, url: &'a str) -> Result<(&'a str, Cow<'a, str>), UrlError> {
    let (scheme, rest) = url.split_once("://").ok_or(UrlError::Form)?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(UrlError::Form);
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if host_of(authority).is_none_or(|host| host.is_empty()) {
        return Err(UrlError::Authority);
    }
    let target = match path {
        "" if method == "OPTIONS" => Cow::Borrowed("*"),
        "" => Cow::Borrowed("/"),
        path if path.starts_with('/') => Cow::Borrowed(path),
        query => Cow::Owned(format!("/{query}")),
    };
    Ok((authority, target))
}

/// Splits a target into its path and query.
pub fn split(target: &str) -> (&str, Option<&str>) {
    // For most paths a loop over the bytes is faster than `split_once`, which searches for a character.
    match target.bytes().position(|byte| byte == b'?') {
        Some(place) => (&target[..place], Some(&target[place + 1..])),
        None => (target, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_request(method: &str, target: &str, expected: Option<&str>) {
        let found = check(method, target, EscapedSlashes::Keep);
        match expected {
            None => assert_eq!(found, Ok(())),
            Some(part) => assert!(found.is_err_and(|error| error.contains(part)), "{found:?}"),
        }
    }

    #[test]
    fn what_servers_may_read_in_two_ways_is_refused() {
        check_request("GET", "/a%2Fb?c=%20", None);
        check_request("OPTIONS", "*", None);
        check_request("PURGE", "/", None);
        check_request("mine", "/", None);
        check_request("get", "/", Some("upper case"));
        check_request("pAtch", "/", Some("upper case"));
        check_request("GET", "*", Some("only OPTIONS"));
        check_request("GET", "/a\\b", Some("backslash"));
        check_request("GET", "/a%zz", Some("escape"));
        check_request("GET", "/a?b#c", Some("fragment"));
        check_request("GET", "/a?b c", Some("printable"));
        check_request("", "/", Some("token"));
        check_request("G T", "/", Some("token"));
        check_request("M-SEARCH", "/", None);
        for target in ["", "x", "ftp://a/", "x://", "http://a/", "a:443"] {
            check_request("GET", target, Some("a target must be a path"));
        }
    }

    #[test]
    fn an_absolute_url_has_a_host_and_a_target() {
        for (method, url, expected) in [
            ("GET", "http://a.example:81/x?y", Ok(("a.example:81", "/x?y"))),
            ("GET", "HTTPS://a?y", Ok(("a", "/?y"))),
            ("GET", "http://a", Ok(("a", "/"))),
            ("OPTIONS", "http://a", Ok(("a", "*"))),
            ("OPTIONS", "http://a/", Ok(("a", "/"))),
            ("GET", "http://a#b", Ok(("a", "/#b"))),
            ("GET", "ftp://a/", Err(UrlError::Form)),
            ("GET", "x://", Err(UrlError::Form)),
            ("GET", "a/http://b", Err(UrlError::Form)),
            ("GET", "http:///x", Err(UrlError::Authority)),
            ("GET", "http://u@a/x", Err(UrlError::Authority)),
        ] {
            let found = split_url(method, url);
            assert_eq!(
                found.as_ref().map(|(authority, target)| (*authority, &**target)),
                expected.as_ref().map(|e| *e),
                "{url}"
            );
        }
    }
}
