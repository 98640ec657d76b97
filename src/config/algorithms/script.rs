//! `algorithm: script`: the user's Lua script decides. Keys: `file`, `args`, `headers`.

use std::sync::Arc;

use http::header::HeaderName;

use super::super::mapping::all;
use super::super::{deny_with, named_files};
use super::{
    Algorithm, AlgorithmEntry, Context, Limit, Mapping, NamedFile, Node, Numbers, ReadResult, Settings,
    check_redis_only, quoted, reject_token_keys,
};
use crate::engine::algorithms::script::{
    LONGEST_ARGUMENT, MOST_ARGUMENTS, MOST_HEADERS, Script, ScriptSource, arguments, may_set,
};

pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    words: &["script"],
    settings: || Box::new(ScriptSettings { arguments: None }),
    keys: &["file", "args", "headers"],
    override_keys: &["args"],
};

/// The default of `headers`: those that `PlugLimit`'s limiters set.
const HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-reset"),
    HeaderName::from_static("x-ratelimit-remaining"),
];

struct ScriptSettings {
    /// The index of the arguments among those of the script; `None` if they are not set.
    arguments: Option<u64>,
}

impl Settings for ScriptSettings {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Script
    }

    fn read(&self, _map: &Mapping<'_>) -> ReadResult<Box<dyn Settings>> {
        Ok(Box::new(Self { arguments: None }))
    }

    /// The index of the arguments takes the place of burst, count and period.
    fn numbers(&self, map: &Mapping<'_>) -> ReadResult<Vec<Numbers>> {
        let help = "pass it to the script: `args: [10, 60]`";
        map.reject(&["burst", "count", "period", "rates"], "script", help)?;
        Ok(self.arguments.map(Numbers::script).into_iter().collect())
    }

    fn number_keys(&self) -> &'static str {
        "`args`"
    }

    fn read_limit(&mut self, map: &Mapping<'_>, context: Context<'_>, limit: &mut Limit) {
        limit.script = script(map, context.files).map(Box::new).ok();
        self.arguments = Some(0);
    }

    fn read_override(&mut self, map: &Mapping<'_>, limit: &mut Limit) -> ReadResult<()> {
        if let (Some(args), Some(script)) = (map.read("args", args)?, &mut limit.script) {
            self.arguments = Some(script.index_of(args));
        }
        Ok(())
    }

    fn check(&self, map: &Mapping<'_>, limit: &mut Limit) {
        reject_token_keys(map, limit, (true, "the script decides the cost; remove `cost`"));
        check_redis_only(map, limit);
        if limit.owner.is_some() {
            let help = "move the limit to `base.yaml`; a script can change every key in Redis";
            map.value("algorithm").error("a team's limit cannot have a script", help);
        }
    }

    fn needs_redis(&self) -> bool {
        true
    }
}

/// Reads the script of a limit from the `files` that were read.
fn script(map: &Mapping<'_>, files: &[NamedFile]) -> ReadResult<Script> {
    let source = map.read("file", |node| source(node, files));
    let arguments = map.read("args", args);
    let headers = map.read("headers", headers);
    let (source, arguments, headers) = (source?, arguments?, headers?);
    let source = source.ok_or_else(|| {
        let help = "add `file: lua/my.lua`; the path is relative to this file";
        map.lacks("a script needs `file`", help)
    })?;
    let arguments = vec![arguments.unwrap_or_else(|| "".into())];
    Ok(Script { source, arguments, headers: headers.unwrap_or_else(|| HEADERS.to_vec()) })
}

fn source(node: &Node, files: &[NamedFile]) -> ReadResult<Arc<ScriptSource>> {
    let (name, text) = named_files::text(node, files)?;
    if text.starts_with("#!") {
        let help = "remove the first line; Weir runs the script inside its own, whose flags apply";
        return Err(node.error(format!("{} starts with `#!`", quoted(name)), help));
    }
    Ok(Arc::new(ScriptSource::new(name, text)))
}

fn args(node: &Node) -> ReadResult<Arc<str>> {
    let items = short_list(node, "`args`", "write `args: [10, 60]`", MOST_ARGUMENTS)?;
    let texts = all(items.iter().map(|item| match item.text()? {
        given if given.len() <= LONGEST_ARGUMENT => Ok(given),
        _ => Err(item.error("the argument is too long", format!("use at most {LONGEST_ARGUMENT} bytes"))),
    }))?;
    Ok(arguments(texts))
}

fn headers(node: &Node) -> ReadResult<Vec<HeaderName>> {
    if deny_with::is_none(node) {
        return Ok(Vec::new());
    }
    let items = short_list(node, "`headers`", "write `headers: [x-ratelimit-limit]`", MOST_HEADERS)?;
    let mut names: Vec<HeaderName> = Vec::with_capacity(items.len());
    for item in items {
        let name = item.header_name()?;
        if !may_set(name.as_str()) {
            let help = "it frames the response or belongs to the connection; use another header";
            return Err(item.error(format!("a script cannot set {}", quoted(name.as_str())), help));
        }
        if names.contains(&name) {
            return Err(item.error(format!("duplicate header {}", quoted(name.as_str())), "remove one of them"));
        }
        names.push(name);
    }
    Ok(names)
}

fn short_list<'n>(node: &'n Node, what: &str, help: &str, most: usize) -> ReadResult<&'n [Node]> {
    let items = node.list(what, help)?;
    if items.len() <= most {
        return Ok(items);
    }
    Err(node.error(format!("{what} has {} items", items.len()), format!("use at most {most}")))
}
