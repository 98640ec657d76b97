//! Flags for the rules files.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::BoolishValueParser;

use super::colors;
use super::exit::Failure;
use crate::config::{self, Files, OverridesCopy};
use crate::engine::algorithms::micros::Micros;
use crate::engine::digest::sha256;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;
use crate::message::url::HttpUrl;

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Rules")]
pub(super) struct RulesArgs {
    /// The rules file, or a directory with one file per team [default: limits.yaml, or none with --envoy-ratelimit-config or --xds-server]
    #[arg(long, value_name = "FILE", env = "WEIR_LIMITS")]
    limits: Option<PathBuf>,

    /// A file of overrides or its http:// or https:// URL, in addition to those in the rules file; repeatable
    #[arg(long, value_name = "FILE|URL", env = "WEIR_OVERRIDES", value_delimiter = ',')]
    overrides: Vec<OverridesPlace>,

    /// The directory for the last good overrides of each URL, which must exist
    #[arg(long, value_name = "DIRECTORY", env = "WEIR_OVERRIDES_CACHE")]
    overrides_cache: Option<PathBuf>,

    /// A configuration file of envoyproxy/ratelimit, or a directory of them; repeatable
    #[arg(long, value_name = "PATH", env = "WEIR_ENVOY_RATELIMIT_CONFIG", value_delimiter = ',')]
    envoy_ratelimit_config: Vec<PathBuf>,

    /// Deny nothing: every limit counts and reports as with `mode: shadow`
    #[arg(long, value_name = "BOOL", env = "WEIR_SHADOW", value_parser = BoolishValueParser::new(), num_args = 0..=1,
        require_equals = true, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    pub(super) shadow: bool,
}

/// A value of `--overrides`.
#[derive(Clone, Debug)]
enum OverridesPlace {
    File(PathBuf),
    Url(HttpUrl),
}

impl FromStr for OverridesPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains("://") { text.parse().map(Self::Url) } else { Ok(Self::File(text.into())) }
    }
}

impl RulesArgs {
    /// Returns whether any file is given, so that there is more to read than the default.
    pub(super) const fn are_given(&self) -> bool {
        self.limits.is_some() || !self.overrides.is_empty() || !self.envoy_ratelimit_config.is_empty()
    }

    /// Warns of a rules file that is not read, because the command line names other `files`.
    pub(super) fn warn_of_unread_limits(&self, files: &[PathBuf], err: &mut dyn Write) -> io::Result<()> {
        match &self.limits {
            Some(limits) if files.iter().all(|file| file != limits) => {
                writeln!(err, "warning: --limits {} is not read: the files to read are named", limits.display())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn files(&self) -> Files {
        let default = || self.envoy_ratelimit_config.is_empty().then(|| PathBuf::from(config::DEFAULT_RULES));
        Files { limits: self.limits.clone().or_else(default), ..self.files_beside_others() }
    }

    /// Returns the files that are given. There may be none, as the limits come from elsewhere.
    pub(super) fn files_beside_others(&self) -> Files {
        Files {
            limits: self.limits.clone(),
            overrides: self.override_files(),
            copies: self.copies().into_iter().map(|(_, copy)| copy).collect(),
            envoy_ratelimit: self.envoy_ratelimit_config.clone(),
            ..Files::default()
        }
    }

    /// Returns the files for a command that does not fetch. Warns of each URL without a copy.
    pub(super) fn fetched_files(&self, err: &mut dyn Write) -> Result<Files, Failure> {
        self.check().map_err(Failure::usage)?;
        let files = self.files();
        for copy in files.copies.iter().filter(|copy| !copy.path.exists()) {
            writeln!(
                err,
                "warning: {}: `weir serve` has not fetched these overrides yet, so they are left out",
                copy.url
            )?;
        }
        Ok(files)
    }

    /// Checks the flags that depend on each other.
    pub(super) fn check(&self) -> Result<(), String> {
        match (self.urls().next(), &self.overrides_cache) {
            (Some(url), None) => Err(format!(
                "--overrides {url}: add --overrides-cache DIRECTORY, which keeps the last good ones for a restart"
            )),
            (Some(_), Some(directory)) if !directory.is_dir() => {
                Err(format!("--overrides-cache {}: not a directory; create it", directory.display()))
            }
            _ => Ok(()),
        }
    }

    fn override_files(&self) -> Vec<PathBuf> {
        let file =
            |place: &OverridesPlace| if let OverridesPlace::File(file) = place { Some(file.clone()) } else { None };
        self.overrides.iter().filter_map(file).collect()
    }

    fn urls(&self) -> impl Iterator<Item = &HttpUrl> {
        self.overrides.iter().filter_map(|place| if let OverridesPlace::Url(url) = place { Some(url) } else { None })
    }

    /// Returns the URLs with their copies.
    pub(super) fn copies(&self) -> Vec<(HttpUrl, OverridesCopy)> {
        let Some(directory) = &self.overrides_cache else { return Vec::new() };
        let copy = |url: &HttpUrl| {
            // A URL is no file name, and may be longer than one.
            let digest = sha256(&url.to_string());
            let path = directory.join(format!("overrides-{}.yaml", &digest[..16]));
            (url.clone(), OverridesCopy { url: url.to_string(), path })
        };
        self.urls().map(copy).collect()
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
        self.load_files(&self.fetched_files(err)?, fingerprinter, now, err)
    }

    /// Does the same with another rules file, and the same overrides.
    pub(super) fn load_instead(
        &self,
        limits: &Path,
        fingerprinter: Fingerprinter,
        now: Micros,
        err: &mut dyn Write,
    ) -> Result<Rules, Failure> {
        let files = Files { limits: Some(limits.to_owned()), envoy_ratelimit: Vec::new(), ..self.fetched_files(err)? };
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
        write!(err, "{}", loaded.report.styled(colors::of_reports()))?;
        Ok(if self.shadow { rules.in_shadow() } else { rules })
    }
}
