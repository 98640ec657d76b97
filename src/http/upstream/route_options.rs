//! The settings of a route for its own requests, in place of those for all.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::HealthCheck;
use super::route::parse_plain_prefix;
use crate::http::limits::RouteTimeouts;
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
        self.added_prefix = parse_plain_prefix(text, text)?;
        Ok(())
    }

    /// Strips and adds prefixes: returns the target for the servers of the route with this prefix, `None` if it stays. The error
    /// is the reason to reject the request.
    ///
    /// Everything else stays as the client has spelled it, unless a server could read another path than the one that the
    /// route is for: with `/v1/../x`, or `//v1`. Such a path is replaced by the normalised one, which the rules have seen.
    pub(super) fn rewrite(&self, prefix: &str, target: &str) -> Result<Option<String>, &'static str> {
        let (given, query) = target.split_at(target.find('?').unwrap_or(target.len()));
        // `OPTIONS *` has no path.
        if !given.starts_with('/') || (!self.strips_prefix && self.added_prefix.is_empty()) {
            return Ok(None);
        }
        let normal = path::normalise(given);
        let normal_rest = normal.strip_prefix(prefix).unwrap_or(&normal);
        let (head, rest) = given.split_at(given.len() - after_segments(given, prefix.matches('/').count()).len());
        let is_same = path::normalise(rest) == path::normalise(normal_rest);
        let (head, rest) = if is_same && !may_leave(rest) { (head, rest) } else { (prefix, normal_rest) };
        if may_leave(rest) {
            return Err("a path must not lead out of its route");
        }
        let path = [self.added_prefix.as_str(), if self.strips_prefix { "" } else { head }, rest].concat();
        Ok(Some(if path.is_empty() { format!("/{query}") } else { path + query }))
    }
}

/// Returns whether some server could read a path below a prefix as one outside it: as `..`, servers also take `%2e%2e`, `..;x`, and
/// `..` beside `%2F` or `%5C`, which they take for slashes. Each segment gets the reading that leads up the furthest.
fn may_leave(path: &str) -> bool {
    let mut depth = 0_isize;
    path.split('/').any(|segment| {
        let segment = segment.to_ascii_lowercase().replace("%2e", ".").replace("%3b", ";").replace("%5c", "\\");
        // Where slashes are no escapes, all parts are one name, and a parameter may go on to the end of the segment.
        let mut may_be_name = true;
        segment.replace("%2f", "\\").split('\\').any(|part| {
            match part.split(';').next() {
                Some("..") => depth -= 1,
                Some("" | ".") | None => {}
                Some(_) if may_be_name => {
                    depth += 1;
                    may_be_name = false;
                }
                Some(_) => {}
            }
            may_be_name &= !part.contains(';');
            depth < 0
        })
    })
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
    /// Removes the trailers that would bring back what is removed or set before the body.
    pub(crate) fn apply_to_trailers(&self, trailers: &mut Headers) {
        for name in self.removed.iter().chain(self.set.iter().map(|(name, _)| name)) {
            trailers.remove(name);
        }
    }

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
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(stripped: &str, added_prefix: &str, cases: &[(&str, &str)]) {
        let (added_prefix, strips_prefix) = (added_prefix.to_owned(), !stripped.is_empty());
        let options = RouteOptions { strips_prefix, added_prefix, ..RouteOptions::default() };
        for (given, expected) in cases {
            let target = options.rewrite(stripped, given).unwrap();
            assert_eq!(target.as_deref().unwrap_or(given), *expected, "{given}");
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

    /// One of the ways in which servers read a path.
    #[derive(Clone, Copy, Debug)]
    struct Reading {
        takes_escaped_slashes: bool,
        takes_escaped_backslashes: bool,
        takes_escaped_semicolons: bool,
        /// Drops parameters before it decodes slashes, and after that.
        drops_parameters: [bool; 2],
    }

    impl Reading {
        fn all() -> impl Iterator<Item = Self> {
            (0..32).map(|bits| {
                let is_set = |bit: u8| bits & (1 << bit) != 0;
                Self {
                    takes_escaped_slashes: is_set(0),
                    takes_escaped_backslashes: is_set(1),
                    takes_escaped_semicolons: is_set(2),
                    drops_parameters: [is_set(3), is_set(4)],
                }
            })
        }

        /// Returns whether a path comes to this prefix, and then stays below it.
        fn stays_in(self, prefix: &[&str], path: &str) -> bool {
            let mut path = path.to_ascii_lowercase().replace("%2e", ".");
            let bare = |path: &str| {
                path.split('/').map(|segment| segment.split(';').next().unwrap()).collect::<Vec<_>>().join("/")
            };
            if self.takes_escaped_semicolons {
                path = path.replace("%3b", ";");
            }
            if self.drops_parameters[0] {
                path = bare(&path);
            }
            if self.takes_escaped_slashes {
                path = path.replace("%2f", "/");
            }
            if self.takes_escaped_backslashes {
                path = path.replace("%5c", "/");
            }
            if self.drops_parameters[1] {
                path = bare(&path);
            }
            let (mut segments, mut was_in) = (Vec::new(), prefix.is_empty());
            for segment in path.split('/') {
                match segment {
                    ".." if segments.pop().is_none() => return false,
                    "" | "." | ".." => {}
                    segment => segments.push(segment.to_owned()),
                }
                let is_in = segments.len() >= prefix.len() && prefix.iter().zip(&segments).all(|(a, b)| *a == b);
                if was_in && !is_in {
                    return false;
                }
                was_in |= is_in;
            }
            was_in
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn no_server_reads_a_rewritten_path_as_one_outside_its_route(
            parts in prop::collection::vec(
                prop::sample::select(vec!["/", "/", "..", "..", ".", "%2e", "%2F", "%5C", ";", "%3b", "a", "pub"]),
                0..12,
            ),
            strips_prefix: bool,
            added_prefix in prop::sample::select(vec!["", "/in/side"]),
            prefix in prop::sample::select(vec!["", "/pub"]),
        ) {
            let path = format!("{prefix}/{}", parts.concat());
            let normal = path::normalise(&path);
            prop_assume!(normal.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
            let options = RouteOptions { strips_prefix, added_prefix: added_prefix.to_owned(), ..RouteOptions::default() };
            let Ok(target) = options.rewrite(prefix, &path) else {
                prop_assert!(path.contains("..") || path.contains("%2e"), "{path} is rejected for nothing");
                return Ok(());
            };
            let Some(target) = target else {
                prop_assert!(!strips_prefix && added_prefix.is_empty());
                return Ok(());
            };
            let around = format!("{added_prefix}{}", if strips_prefix { "" } else { prefix });
            let around: Vec<_> = around.split('/').skip(1).collect();
            for reading in Reading::all() {
                prop_assert!(reading.stays_in(&around, &target), "{path} becomes {target}, which leaves by {reading:?}");
            }
        }
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
