//! Rules with the text that they are from.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::super::exit::{ExitCode, Failure};
use crate::config::{self, Files, LARGEST_FILE, Report, Source, Sources};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::Limit;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::overrides::Override;
use crate::engine::limit::rules::Rules;

/// The name of standard input.
const INPUT: &str = "-";

/// The longest text that is shown of an override in a list.
const LONGEST_LABEL: usize = 60;

/// Rules, and the lines of their files.
pub(super) struct Rulebook {
    pub(super) rules: Rules,
    /// By the index of the file.
    files: Vec<Vec<String>>,
}

impl Rulebook {
    /// Reads and compiles a rules file, or standard input if it is `-`.
    pub(super) fn read(limits: &Path, overrides: &[PathBuf], input: &mut dyn Read) -> Result<Self, Failure> {
        let mut files = Files { overrides: overrides.to_vec(), ..Files::default() };
        let is_input = limits == Path::new(INPUT);
        if !is_input {
            files.limits = Some(limits.to_owned());
        }
        let not_loaded = |report: Report| Failure::reported(ExitCode::CouldNotStart, &report);
        let mut sources = files.read().map_err(|problem| not_loaded(Report::of(problem)))?;
        if is_input {
            sources.limits = Some(standard_input(input)?);
        }
        let loaded = config::load(&sources, Fingerprinter::new((0, 0)), Micros(0));
        let Some(rules) = loaded.rules else { return Err(not_loaded(loaded.report)) };
        Ok(Self { rules, files: lines(&sources) })
    }

    /// The id of an override as it is written, and its place.
    pub(super) fn label(&self, limit: &Limit, given: &Override) -> (String, String) {
        let (file, line) = (usize::from(given.origin.file), given.origin.line);
        let place = format!("{}:{line}", self.rules.file(given.origin.file));
        let text = self.files.get(file).and_then(|lines| lines.get(usize::try_from(line).ok()?.checked_sub(1)?));
        let text = text.map_or("", |text| text.trim()).trim_start_matches(['-', ' ', '{']);
        let name = format!("{}:", limit.name);
        let unquoted = text.trim_start_matches(['"', '\'']);
        let own = format!("{}:", limit.own_name());
        let id = match unquoted.strip_prefix(&name).or_else(|| unquoted.strip_prefix(&own)) {
            // A key ends at the first colon before a space or the line's end.
            Some(rest) => {
                let end = rest.find(": ").or_else(|| rest.strip_suffix(':').map(str::len)).unwrap_or(rest.len());
                rest.get(..end).unwrap_or(rest).trim_matches(['"', '\'']).to_owned()
            }
            None => text.chars().take(LONGEST_LABEL).collect(),
        };
        (id, place)
    }
}

/// The lines of each file, in the order of the rules' origins.
fn lines(sources: &Sources) -> Vec<Vec<String>> {
    sources.all_files().map(|source| source.text.lines().map(str::to_owned).collect()).collect()
}

fn standard_input(input: &mut dyn Read) -> Result<Source, Failure> {
    let mut text = String::new();
    let wrong = |error| Failure::could_not_start(format!("standard input cannot be read: {error}"));
    input.take(LARGEST_FILE).read_to_string(&mut text).map_err(wrong)?;
    Ok(Source { name: "standard input".to_owned(), text })
}
