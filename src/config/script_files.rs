//! The script files that limits name.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::problem::{Findings, Reported};
use super::yaml::{Opened, Reader, Value};
use crate::engine::algorithms::script::LONGEST_SOURCE;

/// A script file that a rules file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptFile {
    /// The path, as written in the rules file.
    pub name: String,
    /// Its text, or why it cannot be read.
    pub text: Result<String, String>,
}

/// Reads the scripts that a rules file names. Mistakes in the rules are reported by [`super::load()`].
pub(super) fn read_all(limits: &Path, rules: &str) -> Vec<ScriptFile> {
    let folder = limits.parent().unwrap_or(Path::new("."));
    named(rules).into_iter().map(|name| ScriptFile { text: read(&folder.join(&name)), name }).collect()
}

/// The paths of a rules file's scripts.
pub(super) fn paths(limits: &Path, scripts: &[ScriptFile]) -> Vec<PathBuf> {
    let folder = limits.parent().unwrap_or(Path::new("."));
    scripts.iter().map(|script| folder.join(&script.name)).collect()
}

fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(LONGEST_SOURCE + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > LONGEST_SOURCE {
        return Err(format!("is too large: at most {LONGEST_SOURCE} bytes are supported"));
    }
    String::from_utf8(bytes).map_err(|_| "is not valid UTF-8".to_owned())
}

/// The files that the limits of a rules file name, each once, as far as the text can be read.
fn named(rules: &str) -> Vec<String> {
    let mut names = Vec::new();
    // Hardly any file has scripts, and a file of a million overrides should not be read twice.
    if rules.contains("script") {
        let (Ok(()) | Err(Reported)) = find(rules, &mut names);
    }
    names
}

fn find(rules: &str, names: &mut Vec<String>) -> Result<(), Reported> {
    let mut findings = Findings::new("");
    let mut reader = Reader::new(rules);
    reader.root(&mut findings)?;
    while let Some(key) = reader.key(&mut findings)? {
        if key.text != "limits" {
            reader.skip(&mut findings)?;
            continue;
        }
        if !matches!(reader.open(&mut findings)?, Opened::Map(_)) {
            return Ok(());
        }
        while reader.key(&mut findings)?.is_some() {
            let node = reader.node(&mut findings)?;
            let Value::Map(entries) = &node.value else { continue };
            let file = entries.iter().find(|(key, _)| key.text == "file").map(|(_, node)| &node.value);
            if let Some(Value::Scalar { text, .. }) = file
                && !names.contains(text)
            {
                names.push(text.clone());
            }
        }
        return Ok(());
    }
    Ok(())
}
