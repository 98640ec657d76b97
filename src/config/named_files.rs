//! Reads the files that a rules file names: scripts, the bodies of denials, and key sets.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::mapping::find as find_entry;
use super::node::{Node, Value};
use super::problem::{Findings, ReadResult, ReportedError, quoted};
use super::yaml::{List, Reader};

/// The largest file that a limit may name, in bytes. A Redis server that does not know a script gets the whole text.
const LARGEST: u64 = 64 * 1024;

/// The key whose value names a file.
pub(super) const KEY: &str = "file";

/// The places that name files: in a limit, and in an issuer of tokens.
const PLACES: [(&str, &[&[&str]]); 2] =
    [("limits", &[&[KEY], &["deny_with", "body", KEY]]), ("jwt", &[&["jwks_file"]])];

/// A file that a rules file names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedFile {
    /// The path, as written in the rules file.
    pub name: String,
    /// Its text, or the reason why it cannot be read.
    pub text: Result<String, String>,
}

/// Reads the files that a rules file names.
pub(super) fn read_all(limits: &Path, rules: &str) -> Vec<NamedFile> {
    let folder = limits.parent().unwrap_or(Path::new("."));
    let read = |name: &str| read_text(&folder.join(name), LARGEST).map_err(|(message, _)| message);
    named(rules).into_iter().map(|name| NamedFile { text: read(&name), name }).collect()
}

/// Reads the files that a team's file names. They must be in its directory: a denial could show whatever else Weir can read.
pub(super) fn read_inside(limits: &Path, rules: &str) -> Vec<NamedFile> {
    let folder = limits.parent().unwrap_or(Path::new("."));
    let is_outside = |name: &str| match (folder.canonicalize(), folder.join(name).canonicalize()) {
        (Ok(folder), Ok(file)) => !file.starts_with(folder),
        _ => false,
    };
    let confined = |file: NamedFile| match file {
        NamedFile { name, .. } if is_outside(&name) => {
            NamedFile { name, text: Err("is outside of the directory".to_owned()) }
        }
        file => file,
    };
    read_all(limits, rules).into_iter().map(confined).collect()
}

/// Returns the paths of the files that a rules file names.
pub(super) fn paths(limits: &Path, files: &[NamedFile]) -> Vec<PathBuf> {
    let folder = limits.parent().unwrap_or(Path::new("."));
    files.iter().map(|file| folder.join(&file.name)).collect()
}

/// Returns the name and the text of the file that a node names.
pub(super) fn text<'n, 'f>(node: &'n Node, files: &'f [NamedFile]) -> ReadResult<(&'n str, &'f str)> {
    let name = node.text()?;
    let (why, help) = match files.iter().find(|file| file.name == name).map(|file| &file.text) {
        Some(Ok(text)) => return Ok((name, text)),
        Some(Err(reason)) => (reason.as_str(), "the path is relative to this file"),
        None => ("was not read", ""),
    };
    Err(node.error(format!("{} {why}", quoted(name)), help))
}

/// Reads a text of at most `largest` bytes. The error is a message and a help text.
pub(super) fn read_text(path: &Path, largest: u64) -> Result<String, (String, &'static str)> {
    let file = File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => ("does not exist".to_owned(), ""),
        _ => (format!("cannot be read: {error}"), ""),
    })?;
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

/// Returns the files that a rules file names, each once, up to the first mistake in the YAML, which
/// [`super::load()`] reports.
fn named(rules: &str) -> Vec<String> {
    let mut names = Vec::new();
    // Few rules name files, and a file with a million overrides should not be read twice.
    if rules.contains(KEY) {
        let (Ok(()) | Err(ReportedError)) = find(rules, &mut names);
    }
    names
}

fn find(rules: &str, names: &mut Vec<String>) -> ReadResult<()> {
    let mut reader = Reader::new(rules, &Findings::new(""));
    reader.root("", List::Rejected, "")?;
    while let Some(key) = reader.key()? {
        let Some((_, places)) = PLACES.iter().find(|(top, _)| *top == key.text) else {
            reader.skip()?;
            continue;
        };
        reader.open("", None, List::Rejected, "")?;
        while reader.key()?.is_some() {
            let node = reader.node()?;
            for name in places.iter().filter_map(|place| at(&node, place)) {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
    }
    Ok(())
}

/// Returns the text at a place in an entry.
fn at<'n>(mut node: &'n Node, place: &[&str]) -> Option<&'n String> {
    for key in place {
        let Value::Map(entries) = &node.value else { return None };
        node = &find_entry(entries, key)?.1;
    }
    if let Value::Scalar { text, .. } = &node.value { Some(text) } else { None }
}
