//! The rules files that commands read.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::config::{self, Loaded, Report};
use crate::engine::fingerprint::Fingerprinter;
use crate::engine::numbers::Micros;
use crate::engine::rules::Rules;

/// Where the rules are.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Rules")]
pub(super) struct RulesArgs {
    /// The rules file
    #[arg(long, value_name = "FILE", env = "WEIR_LIMITS", default_value = "limits.yaml")]
    pub(super) limits: PathBuf,

    /// A file of overrides, beside those in the rules file; repeatable
    #[arg(long, value_name = "FILE", env = "WEIR_OVERRIDES", value_delimiter = ',')]
    pub(super) overrides: Vec<PathBuf>,
}

impl RulesArgs {
    /// Reads and compiles the rules, and prints every mistake; `None` if there is one.
    pub(super) fn load(
        &self,
        fingerprinter: Fingerprinter,
        now: Micros,
        err: &mut dyn Write,
    ) -> io::Result<Option<Rules>> {
        let read = || {
            let overrides = self.overrides.iter().map(|path| config::read(path)).collect::<Result<Vec<_>, _>>()?;
            Ok((config::read(&self.limits)?, overrides))
        };
        let loaded = match read() {
            Ok((limits, overrides)) => config::load(&limits, &overrides, fingerprinter, now),
            Err(problem) => Loaded { rules: None, report: Report::of(problem) },
        };
        write!(err, "{}", loaded.report)?;
        Ok(loaded.rules)
    }
}
