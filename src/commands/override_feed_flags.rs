//! Flags for overrides that come by URL.

use std::path::PathBuf;
use std::time::Duration;

use super::exit::Failure;
use super::rules_flags::RulesArgs;
use super::runtime::block_on;
use super::values::parse_duration;
use crate::config::Files;
use crate::limiter::Shared;
use crate::server::OverrideFeed;
use crate::server::compiler::Compiler;
use crate::telemetry::metrics::OverridesFetch;

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Rules")]
#[expect(clippy::struct_field_names, reason = "a field's name is that of its flag")]
pub(super) struct OverrideFeedArgs {
    /// The time between two fetches of `--overrides URL`, at least 1s
    #[arg(long, value_name = "DURATION", env = "WEIR_OVERRIDES_INTERVAL", default_value = "30s", value_parser = interval)]
    overrides_interval: Duration,

    /// A PEM file of certificate authorities that `--overrides https://...` trusts [default: the public ones]
    #[arg(long, value_name = "FILE", env = "WEIR_OVERRIDES_CA")]
    overrides_ca: Option<PathBuf>,

    /// A file with the token that fetches of `--overrides URL` send as `Authorization: Bearer`
    #[arg(long, value_name = "FILE", env = "WEIR_OVERRIDES_TOKEN_FILE")]
    overrides_token_file: Option<PathBuf>,
}

impl OverrideFeedArgs {
    /// Returns a feed for each URL. The error names the flag.
    pub(super) fn feeds(
        &self,
        rules: &RulesArgs,
        files: &Files,
        compiler: &Compiler,
    ) -> Result<Vec<OverrideFeed>, String> {
        let feed = |copy| {
            let (ca, token) = (self.overrides_ca.as_deref(), self.overrides_token_file.as_deref());
            OverrideFeed::new(copy, (ca, token), self.overrides_interval, files, compiler.clone())
        };
        rules.copies().into_iter().map(feed).collect::<Result<_, _>>().map_err(|error| format!("--overrides: {error}"))
    }
}

/// Fetches each URL for the first time. Returns true if a copy is new.
pub(super) fn fetch_first(feeds: &mut [OverrideFeed], shared: &Shared) -> Result<bool, Failure> {
    let fetching = async {
        let mut is_changed = false;
        for feed in feeds {
            is_changed |= feed.fetch(shared).await == OverridesFetch::Changed;
        }
        is_changed
    };
    block_on(fetching).map_err(Failure::could_not_start)
}

fn interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        short if short < Duration::from_secs(1) => Err("must be at least 1s".to_owned()),
        interval => Ok(interval),
    }
}
