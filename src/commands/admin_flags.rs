//! Flags of the admin listener, and of the commands that call it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::engine::limit::live::LiveOverride;
use crate::limiter::operator::kept_overrides;
use crate::listeners::admin::tokens::{self, Tokens};
use crate::message::host::host_of;
use crate::server::{ListenAddress, ServerError};

/// The admin listener of `weir serve`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Admin listener")]
pub(super) struct AdminArgs {
    /// The admin listener's address: metrics, health and the admin API
    #[arg(long, value_name = "ADDR", env = "WEIR_ADMIN", default_value = "127.0.0.1:9090")]
    pub(super) admin: SocketAddr,

    /// An address for the metrics alone, which anybody may read there
    #[arg(long, value_name = "ADDR", env = "WEIR_METRICS")]
    metrics: Option<SocketAddr>,

    /// The path of the metrics at `--metrics`
    #[arg(long, value_name = "PATH", env = "WEIR_METRICS_PATH", default_value = "/metrics")]
    metrics_path: String,

    /// A name of the admin listener, as requests have it in `Host`, besides `localhost` and IP addresses; repeatable. It
    /// answers to other names only for metrics and health, so that no web page can use it under a name of its own
    #[arg(long, value_name = "NAME", env = "WEIR_ADMIN_HOST", value_delimiter = ',', value_parser = parse_host)]
    admin_host: Vec<String>,

    /// The file that keeps live overrides (`weir override`) for the next start, if buckets live in memory. Redis keeps them
    /// itself. Without it they end with the process
    #[arg(long, value_name = "FILE", env = "WEIR_LIVE_OVERRIDES")]
    pub(super) live_overrides: Option<PathBuf>,

    #[command(flatten)]
    tokens: TokenArgs,
}

/// A token or a file of tokens. Global, so that `weir bucket` also accepts the flags after a bucket's name.
#[derive(clap::Args, Debug)]
pub(super) struct TokenArgs {
    /// The operators' token; without one, buckets are read-only. Prefer the environment variable or a file: flags are
    /// visible to every user of the machine
    #[arg(long, global = true, value_name = "TOKEN", env = "WEIR_ADMIN_TOKEN", hide_env_values = true)]
    admin_token: Option<String>,

    /// A file with one token per line, optionally after a name for the log: `alice TOKEN`
    #[arg(long, global = true, value_name = "FILE", env = "WEIR_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
}

impl AdminArgs {
    /// Says why the server could not start; names the flag if it is the admin listener's address, which may be the default.
    pub(super) fn explained(&self, error: &ServerError) -> String {
        match error {
            ServerError::Bind { address: ListenAddress::Tcp(address), .. } if *address == self.admin => {
                format!("{error}; set another address with --admin or WEIR_ADMIN")
            }
            _ => error.to_string(),
        }
    }

    /// The address and the path for the metrics alone.
    pub(super) fn metrics(&self) -> Option<(SocketAddr, Arc<str>)> {
        self.metrics.map(|address| (address, self.metrics_path.as_str().into()))
    }

    pub(super) fn hosts(&self) -> Arc<[String]> {
        self.admin_host.clone().into()
    }

    /// Reads the live overrides that the file has kept.
    pub(super) fn kept_overrides(&self) -> Result<Vec<LiveOverride>, String> {
        let kept = self.live_overrides.as_deref().map(kept_overrides).transpose();
        kept.map(Option::unwrap_or_default).map_err(|error| format!("--live-overrides: {error}"))
    }

    /// The tokens that may change buckets.
    pub(super) fn tokens(&self) -> Result<Tokens, String> {
        self.tokens.read(Tokens::one, Tokens::parse).map(Option::unwrap_or_default)
    }
}

impl TokenArgs {
    /// The token to send; from a file, the first one.
    pub(super) fn token(&self) -> Result<Option<String>, String> {
        self.read(|token| Ok(token.trim().to_owned()), |text| tokens::first(text).map(str::to_owned))
    }

    /// Reads the token or the text of the file.
    fn read<T>(
        &self,
        token: impl FnOnce(&str) -> Result<T, String>,
        text: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        match (&self.admin_token, &self.admin_token_file) {
            (None, None) => Ok(None),
            (Some(given), None) => token(given).map(Some).map_err(|reason| format!("--admin-token: {reason}")),
            (None, Some(file)) => {
                let read = std::fs::read_to_string(file).map_err(|error| error.to_string());
                let wrong = |reason| format!("--admin-token-file `{}`: {reason}", file.display());
                read.and_then(|given| text(&given)).map(Some).map_err(wrong)
            }
            (Some(_), Some(_)) => Err("--admin-token and --admin-token-file cannot be combined".to_owned()),
        }
    }
}

/// Parses the name of a host, without a port, into lower case.
fn parse_host(text: &str) -> Result<String, String> {
    match host_of(text) {
        Some(host) if !text.is_empty() && host.eq_ignore_ascii_case(text) => Ok(host.into_owned()),
        _ => Err("expected the name of a host, without a port".to_owned()),
    }
}
