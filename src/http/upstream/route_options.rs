//! The settings of a route for its own requests, in place of those for all.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::HealthCheck;
use super::route::parse_prefix;
use crate::http::limits::RouteTimeouts;
use crate::http::message::Request;
use crate::message::headers::Headers;
use crate::message::path;

/// Settings of a route; `None` for those of all routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteOptions {
    /// Removes the route's prefix from paths.
    pub strips_prefix: bool,
    /// Goes before paths, normalised and without a trailing slash; empty for nothing.
    pub added_prefix: String,
    pub request_headers: HeaderChanges,
    pub response_headers: HeaderChanges,
    pub connect_timeout: Option<Duration>,
    pub try_timeout: Option<Duration>,
    pub timeouts: RouteTimeouts,
    pub connections: Option<NonZeroUsize>,
    pub buffer: Option<usize>,
    pub health_check: Option<HealthCheck>,
    /// Bytes of a request's body.
    pub body_bytes: Option<u64>,
}

/// Changes to the headers of a message, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    pub removed: Vec<String>,
    /// In place of those of the same name.
    pub set: Vec<(String, String)>,
    /// Beside those of the same name.
    pub added: Vec<(String, String)>,
}

impl RouteOptions {
    /// Sets the prefix that goes before paths. The error says what to write instead.
    pub fn add_prefix(&mut self, text: &str) -> Result<(), String> {
        if !text.starts_with('/') {
            return Err(format!("a path starts with `/`; write `/{text}`"));
        }
        self.added_prefix = parse_prefix(text, text)?;
        Ok(())
    }

    /// Changes a request of the route with this prefix as its servers are to see it.
    pub(crate) fn prepare(&self, prefix: &str, request: &mut Request) {
        if self.strips_prefix || !self.added_prefix.is_empty() {
            self.rewrite(if self.strips_prefix { prefix } else { "" }, &mut request.target);
        }
        self.request_headers.apply(&mut request.headers);
    }

    /// Strips and adds prefixes. Everything else stays as the client has spelled it, unless a server could read another path
    /// than the one that the route is for: with `/v1/../x`, or `//v1`. Such a path is replaced by the normalised one.
    fn rewrite(&self, stripped: &str, target: &mut String) {
        let (given, query) = target.split_at(target.find('?').unwrap_or(target.len()));
        // `OPTIONS *` has no path.
        if !given.starts_with('/') {
            return;
        }
        let normal = path::normalise(given);
        let rest = normal.strip_prefix(stripped).unwrap_or(&normal);
        let expected = format!("{}{rest}", self.added_prefix);
        let mut spelled = format!("{}{}", self.added_prefix, after_segments(given, stripped.matches('/').count()));
        if path::normalise(&spelled) != path::normalise(&expected) {
            spelled = expected;
        }
        if spelled.is_empty() {
            spelled.push('/');
        }
        *target = spelled + query;
    }
}

/// Returns the part of a path behind its first `count` segments.
fn after_segments(path: &str, count: usize) -> &str {
    let mut rest = path;
    for _ in 0..count {
        rest = rest.trim_start_matches('/');
        rest = &rest[rest.find('/').unwrap_or(rest.len())..];
    }
    rest
}

impl HeaderChanges {
    pub(crate) fn apply(&self, headers: &mut Headers) {
        for name in &self.removed {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.set(name, value);
        }
        for (name, value) in &self.added {
            headers.append(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stripped: &str, added_prefix: &str, cases: &[(&str, &str)]) {
        let options = RouteOptions { added_prefix: added_prefix.to_owned(), ..RouteOptions::default() };
        for (given, expected) in cases {
            let mut target = (*given).to_owned();
            options.rewrite(stripped, &mut target);
            assert_eq!(target, *expected, "{given}");
        }
    }

    /// The cases are those of nginx with `location /api/ { proxy_pass http://upstream/; }`, and of Caddy with `handle_path /api/*`.
    #[test]
    fn a_stripped_prefix_leaves_the_rest_as_it_was_spelled() {
        check(
            "/api",
            "",
            &[
                ("/api", "/"),
                ("/api?x", "/?x"),
                ("/api/", "/"),
                ("/api/v1?a=/api/b", "/v1?a=/api/b"),
                ("/api/api/x", "/api/x"),
                ("/api/a%20b/%2F/c%3Fd", "/a%20b/%2F/c%3Fd"),
                ("/api/a//b/", "/a//b/"),
                ("//%61pi/x%22", "/x%22"),
                ("/api/./x", "/./x"),
                ("*", "*"),
            ],
        );
    }

    #[test]
    fn an_added_prefix_goes_before_the_rest() {
        check("", "/v2", &[("/", "/v2/"), ("/x/?y", "/v2/x/?y"), ("/%61//b", "/v2/%61//b")]);
        check(
            "/api/v1",
            "/v2/x",
            &[("/api/v1", "/v2/x"), ("/api/v1/", "/v2/x/"), ("/api//v1/a%2Fb?c", "/v2/x/a%2Fb?c")],
        );
    }

    #[test]
    fn no_spelling_leaves_the_added_prefix_or_the_route() {
        check(
            "",
            "/v2",
            &[("/../admin", "/v2/admin"), ("/x/%2e%2E/../admin?y", "/v2/admin?y"), ("/a/../b", "/v2/a/../b")],
        );
        check(
            "/api",
            "",
            &[("/api/../api/x", "/x"), ("/x/../api/y", "/y"), ("/./api/%2e/y", "/y"), ("/api/x/../y", "/x/../y")],
        );
    }

    #[test]
    fn headers_are_removed_then_set_then_added() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let changes = HeaderChanges {
            removed: vec!["x-a".to_owned(), "x-c".to_owned()],
            set: vec![pair("x-b", "3")],
            added: vec![pair("x-b", "4"), pair("x-c", "5")],
        };
        let mut headers = Headers::from_iter([("X-A", "1"), ("X-B", "1"), ("x-b", "2"), ("X-C", "1"), ("x-d", "1")]);
        changes.apply(&mut headers);
        let lines: Vec<_> =
            headers.iter().map(|(name, value)| [name, value].map(String::from_utf8_lossy).concat()).collect();
        assert_eq!(lines, ["x-d1", "x-b3", "x-b4", "x-c5"]);
    }
}
