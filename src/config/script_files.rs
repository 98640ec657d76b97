//! Reads the script files that limits name.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::mapping::find as find_entry;
use super::node::{Node, Value};
use super::problem::{Findings, ReadResult, ReportedError};
use super::yaml::{List, Reader};
use crate::engine::algorithms::script::LONGEST_SOURCE;

/// A script file that a rules file names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScriptFile {
    /// The path, as written in the rules file.
    pub name: String,
    /// Its text, or the reason why it cannot be read.
    pub text: Result<String, String>,
}

/// Reads the scripts that a rules file names.
pub(super) fn read_all(limits: &Path, rules: &str) -> Vec<ScriptFile> {
    let folder = limits.parent().unwrap_or(Path::new("."));
    let read = |name: &str| read_text(&folder.join(name), LONGEST_SOURCE).map_err(|(message, _)| message);
    named(rules).into_iter().map(|name| ScriptFile { text: read(&name), name }).collect()
}

/// Returns the paths of a rules file's scripts.
pub(super) fn paths(limits: &Path, scripts: &[ScriptFile]) -> Vec<PathBuf> {
    let folder = limits.parent().unwrap_or(Path::new("."));
    scripts.iter().map(|script| folder.join(&script.name)).collect()
}

/// Reads a text of at most `largest` bytes. The error is a message and a help text.
pub(super) fn read_text(path: &Path, largest: u64) -> Result<String, (String, &'static str)> {
    let file = File::open(path).map_err(|error| (format!("cannot be read: {error}"), ""))?;
    read_all_of(file, largest)
}

/// Reads the whole of an input as [`read_text`] reads a file.
pub(super) fn read_all_of(input: impl Read, largest: u64) -> Result<String, (String, &'static str)> {
    let mut bytes = Vec::new();
    input.take(largest + 1).read_to_end(&mut bytes).map_err(|error| (format!("cannot be read: {error}"), ""))?;
    if bytes.len() as u64 > largest {
        let help = "overrides can be split into several files";
        return Err((format!("is too large: at most {largest} bytes are supported"), help));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.split(|byte| *byte == b'\n').count();
        (format!("line {line} is not valid UTF-8"), "save the file as UTF-8")
    })
}

/// Returns the files that the limits of a rules file name, each once, up to the first mistake in the YAML, which
/// [`super::load()`] reports.
fn named(rules: &str) -> Vec<String> {
    let mut names = Vec::new();
    // Few files have scripts, and a file with a million overrides should not be read twice.
    if rules.contains("script") {
        let (Ok(()) | Err(ReportedError)) = find(rules, &mut names);
    }
    names
}

fn find(rules: &str, names: &mut Vec<String>) -> ReadResult<()> {
    let mut reader = Reader::new(rules, &Findings::new(""));
    reader.root("", List::Rejected, "")?;
    if reader.find("limits")?.is_none() {
        return Ok(());
    }
    reader.open("", None, List::Rejected, "")?;
    while reader.key()?.is_some() {
        let node = reader.node()?;
        let Value::Map(entries) = &node.value else { continue };
        if let Some((_, Node { value: Value::Scalar { text, .. }, .. })) = find_entry(entries, "file")
            && !names.contains(text)
        {
            names.push(text.clone());
        }
    }
    Ok(())
}
