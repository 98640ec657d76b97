//! `algorithm: script`: the user's Lua script decides. Keys: `file`, `args`, `headers`.

use std::sync::Arc;

use http::header::HeaderName;

use super::super::by::header_name;
use super::super::mapping::{Mapping, list};
use super::super::problem::{Findings, Reported, quoted};
use super::super::scalars::text;
use super::super::script_files::ScriptFile;
use super::super::yaml::Node;
use super::{Entry, Settings};
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::script::{
    LONGEST_ARGUMENT, MOST_ARGUMENTS, MOST_HEADERS, Script, ScriptSource, arguments, may_set,
};

pub(super) const ENTRY: Entry = Entry {
    words: &["script"],
    settings: Settings::Script { arguments: None },
    keys: &["file", "args", "headers"],
    override_keys: &["args"],
};

/// The default of `headers`: those that `PlugLimit`'s limiters set.
const HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-reset"),
    HeaderName::from_static("x-ratelimit-remaining"),
];

/// Returns the number of the arguments, which takes the place of burst, count and period.
pub(super) fn numbers(
    map: &Mapping<'_>,
    arguments: Option<u64>,
    findings: &mut Findings,
) -> Result<Option<Numbers>, Reported> {
    let help = "pass it to the script: `args: [10, 60]`";
    map.reject(&["burst", "count", "period", "rates"], "script", help, findings)?;
    Ok(arguments.map(Numbers::script))
}

/// Reads the script of a limit from the `files` that were read.
pub(in super::super) fn script(
    map: &Mapping<'_>,
    files: &[ScriptFile],
    findings: &mut Findings,
) -> Result<Script, Reported> {
    let source = map.read("file", findings, |node, findings| source(node, files, findings));
    let arguments = map.read("args", findings, args);
    let headers = map.read("headers", findings, headers);
    let (source, arguments, headers) = (source?, arguments?, headers?);
    let Some(source) = source else {
        let help = "add `file: lua/my.lua`; the path is relative to this file";
        return Err(findings.error(map.place, "a script needs `file`", help));
    };
    let arguments = vec![arguments.unwrap_or_else(|| "".into())];
    Ok(Script { source, arguments, headers: headers.unwrap_or_else(|| HEADERS.to_vec()) })
}

fn source(node: &Node, files: &[ScriptFile], findings: &mut Findings) -> Result<Arc<ScriptSource>, Reported> {
    let name = text(node, findings)?;
    let (why, help) = match files.iter().find(|file| file.name == name).map(|file| &file.text) {
        Some(Ok(text)) if text.starts_with("#!") => {
            ("starts with `#!`", "remove the first line; Weir runs the script inside its own, whose flags apply")
        }
        Some(Ok(text)) => return Ok(Arc::new(ScriptSource::new(name, text))),
        Some(Err(reason)) => (reason.as_str(), "the path is relative to this file"),
        None => ("was not read", ""),
    };
    Err(findings.error(node.place, format!("{} {why}", quoted(name)), help))
}

/// Reads the arguments of a script.
pub(in super::super) fn args(node: &Node, findings: &mut Findings) -> Result<Arc<str>, Reported> {
    let items = short_list(node, "`args`", "write `args: [10, 60]`", MOST_ARGUMENTS, findings)?;
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
    let items = short_list(node, "`headers`", "write `headers: [x-ratelimit-limit]`", MOST_HEADERS, findings)?;
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

fn short_list<'n>(
    node: &'n Node,
    what: &str,
    help: &str,
    most: usize,
    findings: &mut Findings,
) -> Result<&'n [Node], Reported> {
    let items = list(node, what, help, findings)?;
    if items.len() <= most {
        return Ok(items);
    }
    Err(findings.error(node.place, format!("{what} has {} items", items.len()), format!("use at most {most}")))
}
