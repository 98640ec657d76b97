//! Routes: `--upstream [HOST][/PREFIX]=URL[,URL...]`, and those of the `--config` file.

use std::cmp::Reverse;

use super::address::{Scheme, Server};
use super::route_options::RouteOptions;
use crate::message::host_pattern::HostPattern;
use crate::message::path::{self, EscapedSlashes};

/// Routes per process. They are searched in order, so a thousand would cost each request microseconds.
const MAX_ROUTES: usize = 256;

/// Servers per route. Each pick examines all of them, and each worker connects to each.
const MAX_SERVERS: usize = 64;

/// All routes, most specific first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(Vec<Route>);

/// A condition on requests, and their destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// `None` for any host.
    host: Option<HostPattern>,
    /// A normalised path without a trailing slash; empty for any path.
    pub(super) prefix: String,
    pub(super) upstream: Upstream,
    pub(super) options: Option<Box<RouteOptions>>,
}

/// The destination of a route's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Upstream {
    /// The built-in upstream, which echoes requests.
    Echo,
    /// At least one server.
    Servers(Vec<Server>),
}

impl Routes {
    /// Parses the values of `--upstream`. Returns the errors of all values, each with what to write instead.
    pub fn parse<S: AsRef<str>>(given: &[S]) -> Result<Self, Vec<String>> {
        if given.len() > MAX_ROUTES {
            return Err(vec![format!("expected at most {MAX_ROUTES} routes, found {}", given.len())]);
        }
        let mut routes: Vec<Route> = Vec::with_capacity(given.len());
        let mut mistakes = Vec::new();
        for text in given {
            match Route::parse(text.as_ref()) {
                Ok(route) => {
                    let same = |known: &&Route| (&known.host, &known.prefix) == (&route.host, &route.prefix);
                    match routes.iter().find(same) {
                        Some(known) => mistakes.push(format!(
                            "two routes are for {}; give all servers of a route in one value, \
                             `--upstream {}http://HOST:PORT,http://HOST:PORT`",
                            known.describe(),
                            known.matcher()
                        )),
                        None => routes.push(route),
                    }
                }
                Err(mistake) => mistakes.push(mistake),
            }
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let mut routes = Self(routes);
        routes.sort();
        Ok(routes)
    }

    /// Adds the route for `[HOST][/PREFIX]`. `urls` are separated by commas. The error says what is wrong.
    pub fn add(&mut self, matcher: &str, urls: &str, options: RouteOptions) -> Result<(), String> {
        if self.0.len() >= MAX_ROUTES {
            return Err(format!("there are more than {MAX_ROUTES} routes"));
        }
        if let Some((_, bare)) = matcher.split_once("://") {
            return Err(format!("`{matcher}`: the key of a route must not have a scheme; write `{bare}`"));
        }
        let (host, prefix) = parse_matcher(matcher, matcher)?;
        parse_plain_prefix(matcher, &matcher[matcher.find('/').unwrap_or(matcher.len())..])?;
        if self.0.iter().any(|known| (&known.host, &known.prefix) == (&host, &prefix)) {
            return Err(format!("there is another route for `{matcher}`, perhaps in `--upstream`"));
        }
        let options = (options != RouteOptions::default()).then(|| Box::new(options));
        self.0.push(Route { host, prefix, upstream: Upstream::parse(urls, urls)?, options });
        self.sort();
        Ok(())
    }

    /// Brings exact hosts before wildcards, longer wildcards before shorter ones, any host last; then longer prefixes
    /// first. So the first match is the most specific.
    fn sort(&mut self) {
        self.0.sort_by_key(|route| {
            let host = match &route.host {
                Some(HostPattern::Exact(_)) => (0, Reverse(0)),
                Some(HostPattern::Below(suffix)) => (1, Reverse(suffix.len())),
                None => (2, Reverse(0)),
            };
            (host, Reverse(route.prefix.len()))
        });
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether any server uses TLS.
    pub fn use_tls(&self) -> bool {
        self.0.iter().any(|route| match &route.upstream {
            Upstream::Echo => false,
            Upstream::Servers(servers) => servers.iter().any(|server| server.scheme == Scheme::Https),
        })
    }

    /// Returns the servers that get a `Host` other than the client's, and that `Host`.
    pub fn replaced_hosts(&self) -> Vec<(String, String)> {
        let servers = self.0.iter().flat_map(|route| match &route.upstream {
            Upstream::Echo => &[][..],
            Upstream::Servers(servers) => servers,
        });
        servers.filter_map(|server| Some((server.to_string(), server.host.clone()?))).collect()
    }

    /// Returns the index of a request's route. `host` is in lower case without a port, `path` normalised.
    ///
    /// Exact hosts come before wildcards and wildcards before any host; among these, the longest prefix wins. A request
    /// whose host has routes, but none for its path, falls through to wildcards and any host, so the default route
    /// serves everything without another route.
    pub(super) fn pick(&self, host: &str, path: &str) -> Option<usize> {
        self.0.iter().position(|route| route.covers(host, path))
    }

    /// Returns the routes in the order of [`Self::pick`]'s indexes.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter()
    }
}

impl Route {
    fn parse(text: &str) -> Result<Self, String> {
        let begins_with_url = ["http://", "https://", "h2c://", "unix:"].iter().any(|scheme| text.starts_with(scheme));
        let (matcher, urls) = match text.split_once('=') {
            // Only the path of a unix socket or a setting may contain `=`, so this is a matcher with a scheme.
            Some((matcher, urls)) if begins_with_url && !text.starts_with("unix:") && !matcher.contains('#') => {
                let bare = matcher.split_once("://").map_or(matcher, |(_, bare)| bare);
                return Err(format!("`{text}`: a route's matcher must not have a scheme; write `{bare}={urls}`"));
            }
            Some((matcher, urls)) if !begins_with_url => (matcher, urls),
            _ => ("", text),
        };
        if matcher.is_empty() && urls.len() < text.len() {
            return Err(format!("`{text}` has nothing before the `=`; write `{urls}` to route all requests"));
        }
        let (host, prefix) = parse_matcher(text, matcher)?;
        Ok(Self { host, prefix, upstream: Upstream::parse(text, urls)?, options: None })
    }

    fn covers(&self, host: &str, path: &str) -> bool {
        self.host.as_ref().is_none_or(|pattern| pattern.matches(host))
            && path.strip_prefix(self.prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Returns the text before the URLs, with the `=`.
    fn matcher(&self) -> String {
        let matcher = match &self.host {
            Some(host) => format!("{host}{}", self.prefix),
            None => self.prefix.clone(),
        };
        if matcher.is_empty() { matcher } else { matcher + "=" }
    }

    fn describe(&self) -> String {
        match self.matcher().strip_suffix('=') {
            Some(matcher) => format!("`{matcher}`"),
            None => "all requests".to_owned(),
        }
    }
}

impl Upstream {
    fn parse(text: &str, urls: &str) -> Result<Self, String> {
        if urls == "echo" {
            return Ok(Self::Echo);
        }
        let mut servers = Vec::new();
        for url in urls.split(',') {
            match url {
                "" if urls.is_empty() => {
                    return Err(format!("`{text}` names no server; write `{text}http://HOST:PORT`"));
                }
                "" => return Err(format!("`{text}` has an extra comma; write `URL,URL`")),
                "echo" => return Err(format!("`{text}`: `echo` cannot be combined with other servers")),
                url => {
                    let server = Server::parse(url)?;
                    if servers.contains(&server) {
                        return Err(format!("`{text}`: `{url}` is given twice"));
                    }
                    servers.push(server);
                }
            }
        }
        if servers.len() > MAX_SERVERS {
            let count = servers.len();
            return Err(format!(
                "expected at most {MAX_SERVERS} servers in a route, found {count}; use one name with several addresses"
            ));
        }
        Ok(Self::Servers(servers))
    }
}

fn parse_matcher(text: &str, matcher: &str) -> Result<(Option<HostPattern>, String), String> {
    let (host, prefix) = matcher.split_at(matcher.find('/').unwrap_or(matcher.len()));
    let host = match host {
        "" => None,
        host => {
            Some(HostPattern::parse(host).map_err(|help| format!("`{text}`: `{host}` is not a valid host; {help}"))?)
        }
    };
    Ok((host, parse_prefix(text, prefix)?))
}

/// The same for a prefix that has no segments which normalisation removes: they are typos.
pub(super) fn parse_plain_prefix(text: &str, given: &str) -> Result<String, String> {
    let prefix = parse_prefix(text, given)?;
    path::check(given, EscapedSlashes::Keep).map_err(|reason| format!("`{text}`: {reason}"))?;
    let segments = given.strip_suffix('/').unwrap_or(given).split('/').skip(1);
    if segments.into_iter().any(|segment| path::normalise(&format!("/{segment}")) == "/") {
        let right = if prefix.is_empty() { "/" } else { &prefix };
        return Err(format!("`{text}`: a path prefix must not have `//`, `.` or `..`; write `{right}`"));
    }
    Ok(prefix)
}

/// Parses a path prefix into a normalised one without a trailing slash. `text` is for messages.
pub(super) fn parse_prefix(text: &str, given: &str) -> Result<String, String> {
    if let Some(body) = given.strip_suffix("/**").or_else(|| given.strip_suffix("/*")) {
        let right = if body.is_empty() { "/" } else { body };
        return Err(format!("`{text}`: a prefix matches everything below it; write `{right}`"));
    }
    if let Some(odd) =
        given.chars().find(|char| matches!(char, '?' | '#' | '*' | '{' | '}' | '\\') || !char.is_ascii_graphic())
    {
        return Err(format!(
            "`{text}`: `{odd}` is not allowed in a path prefix, which is literal, such as `/v1/orders`"
        ));
    }
    if given.is_empty() {
        return Ok(String::new());
    }
    let normal = path::normalise(given);
    Ok(if normal == "/" { String::new() } else { normal.into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(upstream: &Upstream) -> String {
        match upstream {
            Upstream::Echo => "echo".to_owned(),
            Upstream::Servers(servers) => servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        }
    }

    #[track_caller]
    fn check(given: &[&str], requests: &[(&str, &str, Option<&str>)]) {
        for given in [given.to_vec(), given.iter().rev().copied().collect()] {
            let routes = Routes::parse(&given).unwrap();
            for (host, path, expected) in requests {
                let picked = routes.pick(host, path).map(|place| servers(&routes.0[place].upstream));
                let expected = expected.map(|name| format!("http://{name}:80"));
                assert_eq!(picked, expected, "{host}{path} by {given:?}");
            }
        }
    }

    #[test]
    fn the_default_route_takes_all() {
        check(&["http://a"], &[("x", "/", Some("a")), ("", "/v1", Some("a"))]);
        check(&["/=http://a"], &[("x", "/", Some("a")), ("x", "/v1", Some("a"))]);
    }

    #[test]
    fn prefixes_match_whole_segments_of_the_normalised_path() {
        check(
            &["/v1=http://a", "/v1/x/=http://b", "//%76%32=http://c"],
            &[
                ("h", "/v1", Some("a")),
                ("h", "/v1/y", Some("a")),
                ("h", "/v1/x", Some("b")),
                ("h", "/v1/x/y", Some("b")),
                ("h", "/v10", None),
                ("h", "/v2/z", Some("c")),
                ("h", "/", None),
            ],
        );
    }

    #[test]
    fn the_exact_host_goes_before_the_longest_wildcard_before_any() {
        check(
            &[
                "API.example.com=http://exact",
                "*.example.com=http://wide",
                "*.eu.example.com=http://narrow",
                "*.eu.example.com/deep/path=http://deep",
                "/deep=http://path",
                "[0:0::1]=http://six",
            ],
            &[
                ("api.example.com", "/deep/path", Some("exact")),
                ("x.example.com", "/deep", Some("wide")),
                ("a.b.eu.example.com", "/", Some("narrow")),
                ("b.eu.example.com", "/deep/path/x", Some("deep")),
                ("example.com", "/deep", Some("path")),
                ("example.com", "/", None),
                ("::1", "/", Some("six")),
            ],
        );
    }

    #[test]
    fn a_host_without_a_route_for_the_path_falls_back() {
        check(
            &["api.example.com/v1=http://v1", "http://rest"],
            &[("api.example.com", "/v1", Some("v1")), ("api.example.com", "/v2", Some("rest"))],
        );
    }

    #[test]
    fn a_route_may_have_several_servers() {
        for (given, expected) in [
            ("http://a,https://b:8443", "http://a:80,https://b:8443"),
            ("/v1=unix:/run/a=b.sock,h2c://c", "unix:/run/a=b.sock,h2c://c:80"),
            ("unix:/run/a=b.sock", "unix:/run/a=b.sock"),
            ("https://a#host=client,https://b#host=x:8443", "https://a:443,https://b:443"),
            ("a.example/v1=https://a#host=client", "https://a:443"),
            ("api.example.com=echo", "echo"),
            ("echo", "echo"),
        ] {
            let Routes(routes) = Routes::parse(&[given]).unwrap();
            assert_eq!(servers(&routes[0].upstream), expected, "{given}");
        }
    }

    #[test]
    fn mistaken_routes_say_what_is_right() {
        for (given, part) in [
            (&["=http://a"][..], "nothing before the `=`"),
            (&["/v1="], "write `/v1=http://HOST:PORT`"),
            (&["http://a,"], "an extra comma"),
            (&["http://a,echo"], "cannot be combined"),
            (&["http://a,http://a:80"], "given twice"),
            (&["http://api.example.com/v1=http://a"], "write `api.example.com/v1=http://a`"),
            (&["https://api.example.com=http://a#host=client"], "write `api.example.com=http://a#host=client`"),
            (&["api.example.com:443=http://a"], "write api.example.com"),
            (&["::1=http://a", "[0::1]=http://b"], "two routes are for `[::1]`"),
            (&["*=http://a"], "leave it out"),
            (&["a.*.com=http://a"], "*.example.com"),
            (&["/v1/*=http://a"], "write `/v1`"),
            (&["/**=http://a"], "write `/`"),
            (&["/{id}=http://a"], "which is literal"),
            (&["/v1?x=http://a"], "`?` is not allowed"),
            (&["/v1=http://a/v2"], "leave out `/v2`"),
            (&["/v1=http://a", "/v1/=http://b"], "two routes are for `/v1`"),
            (&["http://a", "http://b"], "two routes are for all requests"),
            (&["A=http://a", "a=http://b"], "`--upstream a=http://HOST:PORT,"),
        ] {
            let mistakes = Routes::parse(given).unwrap_err();
            assert!(mistakes.len() == 1 && mistakes[0].contains(part), "{given:?}: {mistakes:?}");
        }
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        assert_eq!(Routes::parse(&["ftp://a", "http://b", "/v1=c", "/v1="]).unwrap_err().len(), 3);
    }
}
