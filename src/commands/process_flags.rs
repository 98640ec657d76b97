//! Flags for the process: workers, connections, shutdown, access log.

use std::io;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::BoolishValueParser;

use super::values::{one_of, parse_duration, parse_duration_or_zero, parse_positive};
use crate::http::{Admission, ConnectionLimits, MAX_CONNECTIONS, MAX_PER_ADDRESS, MAX_STREAMS, RESPONSE_MEMORY};
use crate::message::client_address::TrustedProxies;
use crate::server::descriptors;
use crate::telemetry::access_log::{AccessLog, Destination, Format};
use crate::telemetry::metrics::Metrics;

/// A default of fewer connections is worth a warning. `weir_connections_max` has the number in any case.
const FEW_CONNECTIONS: usize = 1_024;

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Process")]
pub(super) struct ProcessArgs {
    /// Worker threads; defaults to one per core
    #[arg(long, value_name = "N", env = "WEIR_WORKERS", value_parser = parse_positive::<NonZeroUsize>)]
    workers: Option<NonZeroUsize>,

    /// Concurrent client connections; defaults to 16384, or fewer if the system allows too few file descriptors
    #[arg(long, value_name = "N", env = "WEIR_MAX_CONNECTIONS", value_parser = parse_positive::<NonZeroUsize>)]
    max_connections: Option<NonZeroUsize>,

    /// Concurrent connections per client address (IPv6: per /64); defaults to 1024, or a quarter of the connections that the
    /// system's file descriptors allow, if that is fewer; 0 for no limit. Trusted proxies are exempt
    #[arg(long, value_name = "N", env = "WEIR_MAX_CONNECTIONS_PER_ADDRESS")]
    max_connections_per_address: Option<u32>,

    /// Concurrent HTTP/2 requests per client address, over all its connections; defaults to 1024, or fewer in the same way; 0
    /// for no limit. Trusted proxies are exempt
    #[arg(long, value_name = "N", env = "WEIR_STREAMS_PER_ADDRESS")]
    streams_per_address: Option<u32>,

    /// Memory for responses to slow clients, in bytes, 128 KiB each; responses beyond it are aborted
    #[arg(long, value_name = "BYTES", env = "WEIR_RESPONSE_MEMORY", default_value_t = RESPONSE_MEMORY, value_parser = clap::value_parser!(u64).range(131_072..))]
    response_memory: u64,

    /// How long to keep accepting connections after SIGTERM while /readyz answers 503, so that load balancers can react
    #[arg(long, value_name = "DURATION", env = "WEIR_DRAIN_DELAY", default_value = "0s", value_parser = parse_duration_or_zero)]
    pub(super) drain_delay: Duration,

    /// How long requests may continue after SIGTERM and the drain delay
    #[arg(long, value_name = "DURATION", env = "WEIR_GRACE", default_value = "30s", value_parser = parse_duration)]
    pub(super) grace: Duration,

    /// Write an access log to a file, stdout (or `-`) or stderr. SIGUSR1 and SIGHUP reopen the file
    #[arg(long, value_name = "FILE", env = "WEIR_ACCESS_LOG")]
    access_log: Option<PathBuf>,

    /// Format of the access log
    #[arg(long, value_name = "FORMAT", env = "WEIR_ACCESS_LOG_FORMAT", default_value = "json", value_parser = one_of(FORMATS))]
    access_log_format: Format,

    /// Add the headers that rules read to the access log, so that `weir simulate` decides their limits; credentials and cookies
    /// are hashed
    #[arg(long, value_name = "BOOL", env = "WEIR_ACCESS_LOG_PARTS", value_parser = BoolishValueParser::new(), num_args = 0..=1,
        require_equals = true, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    access_log_parts: bool,
}

const FORMATS: &[(&str, &str, Format)] = &[
    ("json", "One JSON object per line, with upstream, limit and verdict", Format::Json),
    ("combined", "The combined format of Apache and nginx", Format::Combined),
];

impl ProcessArgs {
    pub(super) fn workers(&self) -> NonZeroUsize {
        self.workers.unwrap_or_else(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }

    /// Raises the limit of file descriptors and limits connections to what fits.
    pub(super) fn admission(&self, trusted: &TrustedProxies, metrics: &Metrics) -> Arc<Admission> {
        let limit = descriptors::raise_limit();
        let fit = descriptors::connections_within(limit);
        let total = self.max_connections.map_or(MAX_CONNECTIONS.min(fit), NonZeroUsize::get);
        if total > fit {
            tracing::warn!(
                "--max-connections is {total}, but the limit of {limit} file descriptors only allows {fit}; raise it \
                 (`ulimit -n`, `LimitNOFILE=`)"
            );
        }
        let share = |given: Option<u32>, most| match given {
            Some(number) => NonZeroU32::new(number),
            None => Some(descriptors::share_of_one_address(fit, most)),
        };
        let per_address = share(self.max_connections_per_address, MAX_PER_ADDRESS);
        let streams_per_address = share(self.streams_per_address, MAX_STREAMS);
        if fit < FEW_CONNECTIONS && self.max_connections.is_none() {
            let per_address = per_address.map_or_else(|| "any number".to_owned(), |number| number.to_string());
            tracing::warn!(
                "accepting at most {total} connections, {per_address} of them from one address, because the limit of file \
                 descriptors is {limit}; raise that limit (`ulimit -n`, `LimitNOFILE=`)"
            );
        }
        metrics.server.connections_max.set(i64::try_from(total).unwrap_or(i64::MAX));
        let (response_memory, exempt) = (self.response_memory, trusted.clone());
        Admission::new(ConnectionLimits { total, per_address, streams_per_address, response_memory, exempt })
    }

    fn access_log_destination(&self) -> Option<Destination> {
        let path = self.access_log.as_ref()?;
        Some(match path.to_str() {
            Some("-" | "stdout") => Destination::Stdout,
            Some("stderr") => Destination::Stderr,
            _ => Destination::File(path.clone()),
        })
    }

    /// Checks that the access log's directory exists. Opening the log would create it.
    pub(super) fn check_access_log(&self) -> Result<(), String> {
        if self.access_log_parts && (self.access_log.is_none() || self.access_log_format != Format::Json) {
            return Err("--access-log-parts needs --access-log, and --access-log-format json".to_owned());
        }
        let Some(Destination::File(path)) = self.access_log_destination() else { return Ok(()) };
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if path.is_dir() {
            return Err(format!("--access-log: {} is a directory", path.display()));
        }
        if directory.is_dir() {
            Ok(())
        } else {
            Err(format!("--access-log: {} is not a directory", directory.display()))
        }
    }

    /// Opens the access log, if there is one. The error names the file.
    pub(super) fn access_log(&self, metrics: &Metrics) -> Result<Option<AccessLog>, String> {
        let Some(destination) = self.access_log_destination() else { return Ok(None) };
        let path = self.access_log.clone().unwrap_or_default();
        let failed = |error: io::Error| format!("--access-log: cannot open {}: {error}", path.display());
        let dropped = metrics.server.access_log_dropped.clone();
        let log = AccessLog::start(destination, self.access_log_format, dropped).map_err(failed)?;
        Ok(Some(if self.access_log_parts { log.with_parts() } else { log }))
    }
}
