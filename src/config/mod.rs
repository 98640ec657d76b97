//! Compiles `limits.yaml`, overrides and envoyproxy/ratelimit's files into [`Rules`], and reports every mistake with its
//! place.
//!
//! This is the only module that names the YAML crate. A file is read as a stream of entries, each entry becomes a limit or an
//! override, and mistakes go into a [`Report`]. The rules load if it has no errors.

mod algorithms;
mod ban;
mod by;
mod candidate;
mod cost;
mod delay;
mod deny_with;
pub(crate) mod directory;
pub(crate) mod envoy_ratelimit;
mod exempt;
pub(crate) mod foreign;
mod ignores;
mod instant;
mod jwt;
mod lease;
mod limit;
pub mod lints;
mod live;
mod load;
mod mapping;
mod matching;
mod named_files;
mod node;
mod numbers;
mod overrides;
mod paths;
mod plain_overrides;
mod pointer;
mod problem;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod reload;
mod request_numbers;
mod response_cost;
mod review;
pub mod rule_tests;
mod runtime_directory;
mod scalars;
mod schema;
#[cfg(test)]
pub(crate) mod schema_page;
mod settings;
mod teams;
mod toml;
mod warn_at;
mod words;
mod yaml;

use std::collections::HashSet;
use std::path::Path;

pub use lints::Lint;
pub use live::Definitions;
pub use load::{check, load};
pub use named_files::NamedFile;
pub use problem::{Place, Problem, Report, ReportStyles, Severity};
pub use reload::{Change, Files, OverridesCopy, PollMode, PushedSources, Sources, Watcher};
pub use runtime_directory::RuntimeDirectory;
pub use schema::SCHEMA;
pub(crate) use settings::settings;
pub use settings::{KnownFlag, Setting};
pub use teams::{BASE, OwnedFile};

use crate::engine::limit::Limit;
use crate::engine::limit::rules::Rules;
use crate::engine::text::suggest;

/// The rules file that is read and written unless another is named.
pub const DEFAULT_RULES: &str = "limits.yaml";

/// The maximum size of a file. A million overrides take 70 MB.
pub const LARGEST_FILE: u64 = 512 * 1024 * 1024;

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// For messages.
    pub name: String,
    pub text: String,
}

/// The result of loading the files.
#[derive(Debug)]
pub struct LoadResult {
    /// The rules; `None` if the report has errors.
    pub rules: Option<Rules>,
    pub report: Report,
    /// Additional errors for buckets in memory, where some limits do not work.
    pub needs_redis: Report,
    /// The number of overrides that the lints have not compared with other limits, as there are too many.
    pub not_compared: usize,
    /// The mistakes in files of a directory whose last good versions are in force, or that are left out.
    pub held_back: Report,
    /// The owners of the files of a directory, and whether the file of each is among them.
    pub owners: Vec<(String, bool)>,
    /// The silenced lints by limit; the name of a team with a slash stands for its whole file, and an empty one for other files.
    ignored: HashSet<(String, Lint)>,
}

impl LoadResult {
    /// Returns the result for unreadable files.
    pub fn broken(report: Report) -> Self {
        Self {
            rules: None,
            report,
            needs_redis: Report::default(),
            not_compared: 0,
            held_back: Report::default(),
            owners: Vec::new(),
            ignored: HashSet::new(),
        }
    }

    /// Returns whether the rules file silences a lint for a limit.
    pub fn ignores(&self, limit: &Limit, lint: Lint) -> bool {
        let file = limit.owner.as_deref().map(teams::prefix).unwrap_or_default();
        [limit.name.clone(), file].into_iter().any(|name| self.ignored.contains(&(name, lint)))
    }

    /// Adds the errors for buckets in memory.
    #[must_use]
    pub fn in_memory(mut self) -> Self {
        if self.needs_redis.errors > 0 {
            self.rules = None;
            self.report.join(std::mem::take(&mut self.needs_redis));
        }
        self
    }
}

/// Reads rules from standard input, as [`read`] does from a file.
fn read_from(input: impl std::io::Read) -> Result<Source, Problem> {
    let name = "<stdin>".to_owned();
    match named_files::read_all_of(input, LARGEST_FILE) {
        Ok(text) => Ok(Source { name, text }),
        Err((message, help)) => Err(Problem::of_file(&name, message, help)),
    }
}

/// Reads a file of rules or overrides: UTF-8 of at most [`LARGEST_FILE`] bytes.
pub fn read(path: &Path) -> Result<Source, Problem> {
    let name = path.display().to_string();
    match named_files::read_text(path, LARGEST_FILE) {
        Ok(text) => Ok(Source { name, text }),
        Err((message, help)) => Err(Problem::of_file(&name, message, help)),
    }
}

/// Reads a rules file as [`read`] does. Helps those who have none yet.
pub fn read_rules(path: &Path) -> Result<Source, Problem> {
    read(path).map_err(|problem| {
        if path.try_exists().unwrap_or(true) {
            return problem;
        }
        let name = &problem.file;
        let help = if path == Path::new(DEFAULT_RULES) {
            "`weir init` writes a first one; `--limits FILE` reads another".to_owned()
        } else {
            format!("`weir init {name}` writes a first one; is the path right?")
        };
        Problem::of_file(name, "there is no rules file here".to_owned(), &help)
    })
}

#[cfg(test)]
mod tests;
