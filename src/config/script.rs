//! A script of the user: `file`, `args`, `headers`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::header::HeaderName;

use super::by::header_name;
use super::fields::{Fields, text};
use super::load::KEYS as ROOT_KEYS;
use super::problem::{Findings, Reported, quoted};
use super::yaml::{Node, Opened, Reader, Value};
use crate::engine::algorithms::script::{
    LONGEST_ARGUMENT, LONGEST_SOURCE, MOST_ARGUMENTS, MOST_HEADERS, Script, ScriptSource, arguments, may_set,
};

/// The fields of a script.
pub(super) const KEYS: [&str; 3] = ["file", "args", "headers"];

/// The fields that `PlugLimit`'s own limiters speak of.
const HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-reset"),
    HeaderName::from_static("x-ratelimit-remaining"),
];

/// A file that a rules file names: what it says, or why that is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptFile {
    /// Its name, as the rules file writes it.
    pub name: String,
    /// Its text.
    pub text: Result<String, String>,
}

/// The scripts that a rules file names, read. Whatever is wrong with the rules is for [`super::load()`] to say.
pub(super) fn read_all(limits: &Path, rules: &str) -> Vec<ScriptFile> {
    let folder = limits.parent().unwrap_or(Path::new("."));
    named(rules).into_iter().map(|name| ScriptFile { text: read(&folder.join(&name)), name }).collect()
}

/// Where the scripts of a rules file are.
pub(super) fn paths(limits: &Path, scripts: &[ScriptFile]) -> Vec<PathBuf> {
    let folder = limits.parent().unwrap_or(Path::new("."));
    scripts.iter().map(|script| folder.join(&script.name)).collect()
}

fn read(path: &Path) -> Result<String, String> {
    use std::io::Read;

    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    file.take(LONGEST_SOURCE + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > LONGEST_SOURCE {
        return Err(format!("is too large: at most {LONGEST_SOURCE} bytes are supported"));
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())
}

/// The files that limits of a rules file name, each once, as far as the text can be read.
fn named(rules: &str) -> Vec<String> {
    let mut names = Vec::new();
    // Nearly no file has any, and a file of a million overrides is not read twice for that.
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
        if key.text != ROOT_KEYS[0] {
            reader.skip(&mut findings)?;
            continue;
        }
        if !matches!(reader.open(&mut findings)?, Opened::Map(_)) {
            return Ok(());
        }
        while reader.key(&mut findings)?.is_some() {
            let node = reader.node(&mut findings)?;
            let Value::Map(fields) = &node.value else { continue };
            let file = fields.iter().find(|(key, _)| key.text == "file").map(|(_, node)| &node.value);
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

/// What a limit runs, of the files that were read.
pub(super) fn script(limit: &Fields<'_>, files: &[ScriptFile], findings: &mut Findings) -> Result<Script, Reported> {
    let source = limit.read("file", findings, |node, findings| source(node, files, findings));
    let arguments = limit.read("args", findings, args);
    let headers = limit.read("headers", findings, headers);
    let (source, arguments, headers) = (source?, arguments?, headers?);
    let Some(source) = source else {
        let help = "add `file: lua/my.lua`; the path is relative to this file";
        return Err(findings.error(limit.place, "a script needs `file`", help));
    };
    let arguments = vec![arguments.unwrap_or_else(|| "".into())];
    Ok(Script { source, arguments, headers: headers.unwrap_or_else(|| HEADERS.to_vec()) })
}

fn source(node: &Node, files: &[ScriptFile], findings: &mut Findings) -> Result<Arc<ScriptSource>, Reported> {
    let name = text(node, findings)?;
    let text = match files.iter().find(|file| file.name == name).map(|file| &file.text) {
        Some(Ok(text)) => text,
        Some(Err(reason)) => {
            let help = "the path is relative to this file";
            return Err(findings.error(node.place, format!("{} {reason}", quoted(name)), help));
        }
        None => return Err(findings.error(node.place, format!("{} was not read", quoted(name)), "")),
    };
    if text.starts_with("#!") {
        let help = "remove the first line; Weir runs the script inside its own, whose flags apply";
        return Err(findings.error(node.place, format!("{} starts with `#!`", quoted(name)), help));
    }
    Ok(Arc::new(ScriptSource::new(name, text)))
}

/// The arguments of a script, as a call has them.
pub(super) fn args(node: &Node, findings: &mut Findings) -> Result<Arc<str>, Reported> {
    let Value::List(items) = &node.value else {
        let message = format!("`args` must be a list, found {}", node.kind());
        return Err(findings.error(node.place, message, "write `args: [10, 60]`"));
    };
    if items.len() > MOST_ARGUMENTS {
        let message = format!("`args` has {} items", items.len());
        return Err(findings.error(node.place, message, format!("use at most {MOST_ARGUMENTS}")));
    }
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        let given = text(item, findings)?;
        if given.len() > LONGEST_ARGUMENT {
            let help = format!("use at most {LONGEST_ARGUMENT} bytes");
            return Err(findings.error(item.place, "the argument is too long", help));
        }
        texts.push(given);
    }
    Ok(arguments(texts))
}

fn headers(node: &Node, findings: &mut Findings) -> Result<Vec<HeaderName>, Reported> {
    let Value::List(items) = &node.value else {
        let message = format!("`headers` must be a list, found {}", node.kind());
        return Err(findings.error(node.place, message, "write `headers: [x-ratelimit-limit]`"));
    };
    if items.len() > MOST_HEADERS {
        let message = format!("`headers` has {} names", items.len());
        return Err(findings.error(node.place, message, format!("use at most {MOST_HEADERS}")));
    }
    let mut names: Vec<HeaderName> = Vec::with_capacity(items.len());
    for item in items {
        let name = header_name(item, findings)?;
        if !may_set(name.as_str()) {
            let help = "it frames the response or belongs to the connection; use another header";
            return Err(findings.error(item.place, format!("a script cannot set {}", quoted(name.as_str())), help));
        }
        if names.contains(&name) {
            let message = format!("duplicate header {}", quoted(name.as_str()));
            return Err(findings.error(item.place, message, "remove one of them"));
        }
        names.push(name);
    }
    Ok(names)
}
