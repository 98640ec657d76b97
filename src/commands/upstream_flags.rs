//! Flags for upstreams.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use super::record::parse_size;
use super::values::parse_duration;
use crate::http::{
    Connector, ConnectorFlags, ConnectorOptions, ConnectorReloader, HealthCheck, KeyPairFiles, Routes, UpstreamOptions,
};

/// Routes, and how to connect to upstreams.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Upstreams")]
pub(super) struct UpstreamArgs {
    /// Where to send allowed requests. `URL`: all of them. `HOST=URL`, `/PREFIX=URL`, `HOST/PREFIX=URL`: those for this host
    /// (`*.example.com` for all names below) and path prefix. `URL,URL`: to the least busy of several servers. A URL is
    /// `http://host:port`, `https://host:port`, `h2c://host:port` (HTTP/2 without TLS), `unix:/path`, or `echo`, which answers
    /// with what it received. `#host=` after a URL sets the `Host` that this server gets: `client` for the client's, `upstream` for
    /// the URL's (the default of `https://` with a name), or a name. Up to 256 routes of up to 64 servers. Repeatable; one value may hold several routes, separated by commas or spaces
    // No path or host has a space, so a space can separate routes as well.
    #[arg(long, value_name = "[HOST][/PREFIX]=URL", env = "WEIR_UPSTREAM", value_delimiter = ' ')]
    upstream: Vec<String>,

    /// Timeout for connecting to an upstream, including TLS, and for waiting for a free connection
    #[arg(long, value_name = "DURATION", env = "WEIR_CONNECT_TIMEOUT", default_value = "3s", value_parser = parse_duration)]
    pub(super) connect_timeout: Duration,

    /// Timeout for the start of an upstream's response, including retries
    #[arg(long, value_name = "DURATION", env = "WEIR_RESPONSE_TIMEOUT", default_value = "30s", value_parser = parse_duration)]
    pub(super) response_timeout: Duration,

    /// Timeout for the start of a response per try, which leaves time for a retry; defaults to `--response-timeout`
    #[arg(long, value_name = "DURATION", env = "WEIR_UPSTREAM_TRY_TIMEOUT", value_parser = parse_duration)]
    upstream_try_timeout: Option<Duration>,

    /// Timeout for an upstream that has begun a response to send more of it; none for event streams (`text/event-stream`) and gRPC
    #[arg(long, value_name = "DURATION", env = "WEIR_UPSTREAM_BODY_TIMEOUT", default_value = "5m", value_parser = parse_duration)]
    pub(super) upstream_body_timeout: Duration,

    /// How long to keep idle connections to an upstream; should be shorter than the upstream's idle timeout
    #[arg(long, value_name = "DURATION", env = "WEIR_UPSTREAM_IDLE_TIMEOUT", default_value = "4s", value_parser = parse_duration)]
    pub(super) upstream_idle_timeout: Duration,

    /// Concurrent connections (over HTTP/2: requests) per worker and upstream address; further requests wait
    #[arg(long, value_name = "N", env = "WEIR_UPSTREAM_CONNECTIONS", default_value = "16384", value_parser = parse_connections)]
    upstream_connections: NonZeroUsize,

    /// Read bodies of up to this size before an upstream gets the request, so that slow uploads hold no worker of it; longer ones are
    /// sent as they come. At most 1MiB; 0 reads none ahead
    #[arg(long, value_name = "SIZE", env = "WEIR_BUFFER_REQUESTS", default_value = "0", value_parser = parse_buffer)]
    buffer_requests: usize,

    /// Certificate authorities (PEM) for `https://` upstreams; defaults to the public ones
    #[arg(long, value_name = "FILE", env = "WEIR_UPSTREAM_CA")]
    upstream_ca: Option<PathBuf>,

    /// Name that `https://` upstreams' certificates must match; defaults to the URL's host
    #[arg(long, value_name = "NAME", env = "WEIR_UPSTREAM_SERVER_NAME")]
    upstream_server_name: Option<String>,

    /// Client certificate (PEM) for `https://` upstreams
    #[arg(long, value_name = "FILE", env = "WEIR_UPSTREAM_CERT", requires = "upstream_key")]
    upstream_cert: Option<PathBuf>,

    /// Private key (PEM) of `--upstream-cert`
    #[arg(long, value_name = "FILE", env = "WEIR_UPSTREAM_KEY", requires = "upstream_cert")]
    upstream_key: Option<PathBuf>,

    /// How often to resolve upstreams' names again
    #[arg(long, value_name = "DURATION", env = "WEIR_UPSTREAM_RESOLVE_INTERVAL", default_value = "10s", value_parser = parse_duration)]
    upstream_resolve_interval: Duration,

    /// Request this path from every address and stop using those that do not answer with 2xx or 3xx
    #[arg(long, value_name = "PATH", env = "WEIR_HEALTH_CHECK", value_parser = parse_path)]
    health_check: Option<String>,

    /// Time between health checks
    #[arg(long, value_name = "DURATION", env = "WEIR_HEALTH_INTERVAL", default_value = "5s", value_parser = parse_duration, requires = "health_check")]
    health_interval: Duration,

    /// Timeout for a health check
    #[arg(long, value_name = "DURATION", env = "WEIR_HEALTH_TIMEOUT", default_value = "1s", value_parser = parse_duration, requires = "health_check")]
    health_timeout: Duration,

    /// Consecutive failures before an address is no longer used, and successes before it is used again
    #[arg(long, value_name = "N/N", env = "WEIR_HEALTH_THRESHOLD", default_value = "3/2", value_parser = parse_threshold, requires = "health_check")]
    health_threshold: (NonZeroU32, NonZeroU32),
}

impl UpstreamArgs {
    /// The routes of `--upstream`. The error has a line per mistake.
    pub(super) fn routes(&self) -> Result<Routes, String> {
        routes(&self.upstream).map_err(|mistakes| {
            let lines: Vec<_> = mistakes.iter().map(|mistake| format!("--upstream: {mistake}")).collect();
            lines.join("\nerror: ")
        })
    }

    /// The options without TLS.
    pub(super) fn with_routes(&self, routes: Routes) -> UpstreamOptions {
        UpstreamOptions {
            connections: self.upstream_connections,
            try_timeout: self.upstream_try_timeout,
            resolve_interval: self.upstream_resolve_interval,
            buffer: self.buffer_requests,
            health_check: self.health_check.clone().map(|path| self.health_check(path)),
            ..UpstreamOptions::new(routes)
        }
    }

    pub(super) const fn health_check(&self, path: String) -> HealthCheck {
        HealthCheck {
            path,
            interval: self.health_interval,
            timeout: self.health_timeout,
            unhealthy: self.health_threshold.0,
            healthy: self.health_threshold.1,
        }
    }

    pub(super) fn tls(&self) -> Result<(Connector, ConnectorReloader), String> {
        let pair = self.upstream_cert.clone().zip(self.upstream_key.clone());
        let options = ConnectorOptions {
            flags: ConnectorFlags::default(),
            ca: self.upstream_ca.clone(),
            server_name: self.upstream_server_name.clone(),
            certificate: pair.map(|(certificate, key)| KeyPairFiles { certificate, key }),
        };
        Connector::load(&options).map_err(|error| error.to_string())
    }
}

/// The routes of values of `--upstream`. The error has all mistakes.
pub(super) fn routes(values: &[String]) -> Result<Routes, Vec<String>> {
    Routes::parse(&apart(values))
}

/// Splits values at the commas before a further route: `a.example=http://a,/v1=http://b,http://c` is two routes, the second with
/// two servers.
fn apart(values: &[String]) -> Vec<String> {
    let mut routes: Vec<String> = Vec::new();
    for value in values {
        let mut is_first = true;
        for item in value.split(',') {
            // A server has a `=` only in its setting or in the path of a unix socket.
            let has_target = item.split_once('=').is_some_and(|(before, _)| !before.contains(':'));
            match routes.last_mut().filter(|_| !is_first && !has_target) {
                Some(route) => route.extend([",", item]),
                None => routes.push(item.to_owned()),
            }
            is_first = false;
        }
    }
    routes
}

/// The maximum number of connections to one address: about as many as there are local ports
/// (`net.ipv4.ip_local_port_range`).
const MAX_CONNECTIONS: usize = 28_000;

pub(super) fn parse_connections(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .ok()
        .filter(|count: &NonZeroUsize| count.get() <= MAX_CONNECTIONS)
        .ok_or_else(|| format!("expected a number from 1 to {MAX_CONNECTIONS}"))
}

/// The most that is read ahead of one request: 32 of them fill a worker's memory for it.
const MAX_BUFFER: u64 = 1024 * 1024;

/// Parses `64KiB`; 0 turns it off.
pub(super) fn parse_buffer(text: &str) -> Result<usize, String> {
    if text == "0" {
        return Ok(0);
    }
    let size = parse_size(text)?;
    usize::try_from(size).ok().filter(|_| size <= MAX_BUFFER).ok_or_else(|| "expected at most 1MiB".to_owned())
}

/// Parses a path with an optional query.
pub(super) fn parse_path(text: &str) -> Result<String, String> {
    if !text.starts_with('/') {
        return Err(format!("a path starts with `/`; write `/{text}`"));
    }
    if text.contains('#') || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a path must be ASCII without spaces and `#`; escape other characters, as in `%20`".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses `3/2`, three failures and two successes; `3` is short for `3/3`.
pub(super) fn parse_threshold(text: &str) -> Result<(NonZeroU32, NonZeroU32), String> {
    let (unhealthy, healthy) = text.split_once('/').unwrap_or((text, text));
    match (unhealthy.parse(), healthy.parse()) {
        (Ok(unhealthy), Ok(healthy)) => Ok((unhealthy, healthy)),
        _ => Err("expected failures and successes of at least 1, such as `3/2`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        upstream: UpstreamArgs,
    }

    fn options(given: &[&str]) -> Result<UpstreamOptions, String> {
        let command = Command::try_parse_from(["weir"].iter().chain(given)).map_err(|error| error.to_string())?;
        command.upstream.routes().map(|routes| command.upstream.with_routes(routes))
    }

    #[test]
    fn routes_may_stand_in_one_value_with_spaces_between() {
        let apart = options(&["--upstream", "/v1=http://a,http://b", "--upstream", "echo"]).unwrap();
        let together = options(&["--upstream", "echo /v1=http://a,http://b"]).unwrap();
        assert_eq!(apart.routes, together.routes);
        assert_ne!(apart.routes, options(&["--upstream", "echo"]).unwrap().routes);
    }

    #[test]
    fn routes_may_stand_in_one_value_with_commas_between_like_other_lists() {
        let apart =
            options(&["--upstream", "unix:/a=b,http://c", "--upstream", "a.example/v1=http://a,http://b"]).unwrap();
        let together = options(&["--upstream", "unix:/a=b,http://c,a.example/v1=http://a,http://b"]).unwrap();
        assert_eq!(apart.routes, together.routes);
        assert_ne!(apart.routes, options(&["--upstream", "unix:/a=b,http://c"]).unwrap().routes);
    }

    #[test]
    fn the_flags_arrive() {
        let given = "--upstream echo --buffer-requests 64KiB --upstream-connections 7 --upstream-try-timeout 2s --upstream-resolve-interval 1m \
                     --health-check /up --health-interval 9s --health-timeout 3s --health-threshold 4/5";
        let options = options(&given.split_whitespace().collect::<Vec<_>>()).unwrap();
        assert_eq!((options.connections.get(), options.try_timeout), (7, Some(Duration::from_secs(2))));
        assert_eq!((options.resolve_interval, options.buffer), (Duration::from_mins(1), 65_536));
        let check = options.health_check.unwrap();
        assert_eq!((check.interval, check.timeout), (Duration::from_secs(9), Duration::from_secs(3)));
        assert_eq!((check.path.as_str(), check.unhealthy.get(), check.healthy.get()), ("/up", 4, 5));
    }

    #[test]
    fn every_mistaken_route_has_its_line() {
        let error = options(&["--upstream", "a", "--upstream", "http://b/c"]).unwrap_err();
        assert_eq!(error.lines().count(), 2, "{error}");
    }

    #[test]
    fn thresholds_are_two_numbers_or_one_for_both() {
        let numbers = |text| parse_threshold(text).map(|(unhealthy, healthy)| (unhealthy.get(), healthy.get()));
        assert_eq!((numbers("3/2"), numbers("4")), (Ok((3, 2)), Ok((4, 4))));
        for wrong in ["", "0/1", "3/", "3/2/1", "three"] {
            assert!(numbers(wrong).is_err_and(|error| error.contains("`3/2`")), "{wrong}");
        }
    }

    #[test]
    fn health_checks_ask_for_a_path() {
        assert_eq!(parse_path("/healthz?full=1").as_deref(), Ok("/healthz?full=1"));
        for (wrong, part) in
            [("healthz", "write `/healthz`"), ("/a b", "`%20`"), ("/a#b", "without spaces and `#`"), ("/ä", "ASCII")]
        {
            assert!(parse_path(wrong).is_err_and(|error| error.contains(part)), "{wrong}");
        }
    }

    #[test]
    fn requests_are_read_ahead_by_a_size_up_to_a_bound() {
        for (text, size) in [("0", 0), ("1", 1), ("64KiB", 65_536), ("1MiB", 1_048_576), ("1048576", 1_048_576)] {
            assert_eq!(parse_buffer(text), Ok(size), "{text}");
        }
        for wrong in ["1048577", "2MiB", "64kb", "-1", "", "0KiB"] {
            assert!(parse_buffer(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn there_is_at_least_one_connection() {
        assert_eq!(parse_connections("1024").map(NonZeroUsize::get), Ok(1024));
        for wrong in ["0", "-1", "28001", "many"] {
            assert!(parse_connections(wrong).is_err_and(|error| error.contains("from 1 to 28000")), "{wrong}");
        }
    }
}
