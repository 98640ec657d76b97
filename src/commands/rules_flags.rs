//! Flags for the rules files.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;

use super::exit::Failure;
use crate::config::{self, Files};
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::engine::rules::rule_set::Rules;

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Rules")]
pub(super) struct RulesArgs {
    /// The rules file [default: limits.yaml, or none with --envoy-ratelimit-config]
    #[arg(long, value_name = "FILE", env = "WEIR_LIMITS")]
    limits: Option<PathBuf>,

    /// A file of overrides, in addition to those in the rules file; repeatable
    #[arg(long, value_name = "FILE", env = "WEIR_OVERRIDES", value_delimiter = ',')]
    overrides: Vec<PathBuf>,

    /// A configuration file of envoyproxy/ratelimit, or a directory of them; repeatable
    #[arg(long, value_name = "PATH", env = "WEIR_ENVOY_RATELIMIT_CONFIG", value_delimiter = ',')]
    envoy_ratelimit_config: Vec<PathBuf>,

    /// Deny nothing: every limit counts and reports as with `mode: shadow`
    #[arg(long, value_name = "BOOL", env = "WEIR_SHADOW", value_parser = BoolishValueParser::new(), num_args = 0..=1,
        require_equals = true, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    pub(super) shadow: bool,
}

impl RulesArgs {
    /// Returns whether any file is given, so that there is more to read than the default.
    pub(super) const fn are_given(&self) -> bool {
        self.limits.is_some() || !self.overrides.is_empty() || !self.envoy_ratelimit_config.is_empty()
    }

    pub(super) fn files(&self) -> Files {
        let default = || self.envoy_ratelimit_config.is_empty().then(|| PathBuf::from("limits.yaml"));
        Files {
            limits: self.limits.clone().or_else(default),
            overrides: self.overrides.clone(),
            envoy_ratelimit: self.envoy_ratelimit_config.clone(),
        }
    }

    /// The rules file's name.
    pub(super) fn name(&self) -> String {
        let files = self.files();
        let name = files.limits.or_else(|| files.envoy_ratelimit.into_iter().next());
        name.map(|path| path.display().to_string()).unwrap_or_default()
    }

    /// Reads and compiles the rules and prints all problems.
    pub(super) fn load(
        &self,
        fingerprinter: Fingerprinter,
        now: Micros,
        err: &mut dyn Write,
    ) -> Result<Rules, Failure> {
        self.load_files(&self.files(), fingerprinter, now, err)
    }

    /// Does the same with another rules file, and the same overrides.
    pub(super) fn load_instead(
        &self,
        limits: &Path,
        fingerprinter: Fingerprinter,
        now: Micros,
        err: &mut dyn Write,
    ) -> Result<Rules, Failure> {
        let files = Files { limits: Some(limits.to_owned()), envoy_ratelimit: Vec::new(), ..self.files() };
        self.load_files(&files, fingerprinter, now, err)
    }

    fn load_files(
        &self,
        files: &Files,
        fingerprinter: Fingerprinter,
        now: Micros,
        err: &mut dyn Write,
    ) -> Result<Rules, Failure> {
        let loaded = config::load(&files.read()?, fingerprinter, now);
        let Some(rules) = loaded.rules else { return Err(loaded.report.into()) };
        write!(err, "{}", loaded.report)?;
        Ok(if self.shadow { rules.in_shadow() } else { rules })
    }
}
