//! Reads `path` of `match`: patterns, prefixes and regular expressions.

use super::lints::Lint;
use super::mapping::Mapping;
use super::matching::regex_as;
use super::node::{Node, Value};
use super::problem::{ReadResult, quoted};
use crate::engine::request::path_condition::PathCondition;
use crate::engine::request::path_pattern::{PathPattern, PathReading};

/// The keys of a map among paths.
pub(super) const KEYS: [&str; 3] = ["prefix", "regex", "not"];

/// The keys of a map that is excluded.
pub(super) const EXCLUDED_KEYS: [&str; 2] = ["prefix", "regex"];

/// The most regular expressions on the path of one limit or exemption: all may run on each request.
const MOST_REGEXES: usize = 64;

/// Reads a condition other than `not`.
pub(super) fn condition(node: &Node, reading: PathReading) -> ReadResult<PathCondition> {
    if !matches!(node.value, Value::Map(_)) {
        return pattern(node, reading).map(PathCondition::Pattern);
    }
    let (key, value) = Mapping::of(node, "a condition", &EXCLUDED_KEYS)?.only(&EXCLUDED_KEYS)?;
    if key.text == "regex" {
        return regex_as(value, reading.ignores_case).map(PathCondition::Regex);
    }
    let given = value.text()?;
    PathCondition::prefix(given, reading).map_err(|why| value.error(format!("invalid prefix {}", quoted(given)), why))
}

/// Checks how many regular expressions there are among the paths that are covered and those that are excluded.
pub(super) fn check_count(node: &Node, paths: &(Vec<PathCondition>, Vec<PathCondition>)) -> ReadResult<()> {
    let is_regex = |condition: &&PathCondition| matches!(condition, PathCondition::Regex(_));
    let count = paths.0.iter().chain(&paths.1).filter(is_regex).count();
    if count <= MOST_REGEXES {
        return Ok(());
    }
    let help = format!("use at most {MOST_REGEXES}; `a|b` matches what `a` or `b` does");
    Err(node.error(format!("`path` has {count} regular expressions"), help))
}

fn pattern(node: &Node, reading: PathReading) -> ReadResult<PathPattern> {
    let given = node.text()?;
    if let Some((segment, meant)) = given.split('/').find_map(|segment| Some((segment, placeholder(segment)?))) {
        let message = format!("{} matches only this text: it is not a placeholder", quoted(segment));
        node.warning(Lint::LiteralPath, message, format!("write `{meant}` for any one segment"));
    }
    PathPattern::parse(given)
        .and_then(|pattern| pattern.read_as(reading))
        .map_err(|why| node.error(format!("invalid path pattern {}", quoted(given)), why))
}

/// Returns what is meant by a segment in another system's notation for any one segment: `:id`, `$id`, `<id>`, `[id]`, `[0-9]+`, `(.+)`.
fn placeholder(segment: &str) -> Option<String> {
    let is_name = |name: &&str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    let within = |open, close| segment.strip_prefix(open)?.strip_suffix(close);
    let after_colon = segment.strip_prefix(':').filter(|name| !is_custom_method(name));
    // OData and FHIR begin names of their own with `$`.
    let after_dollar = segment.strip_prefix('$').filter(|name| is_id(name));
    let named = after_colon.or(after_dollar).or_else(|| within('<', '>')).or_else(|| within('[', ']'));
    // Flask writes `<int:id>`.
    let named = named.map(|name| name.rsplit_once(':').map_or(name, |(_, name)| name)).filter(is_name);
    // `(default)` is a name.
    let is_group = || within('(', ')').is_some_and(|name| is_name(&name));
    let is_regex = segment.starts_with(['[', '(']) && segment.ends_with([']', ')', '+', '?', '}']) && !is_group();
    named.or(is_regex.then_some("id")).map(|name| format!("{{{name}}}"))
}

/// Returns whether a name is that of a custom method of an API by Google's guidelines (AIP-136), such as `batchGet`.
fn is_custom_method(name: &str) -> bool {
    let verbs =
        "batch cancel commit export import list move purge query rollback run search stream undelete watch write";
    let rest = verbs.split(' ').find_map(|verb| name.strip_prefix(verb));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(|first: char| first.is_ascii_uppercase()))
}

fn is_id(name: &str) -> bool {
    matches!(name, "id" | "slug" | "name" | "uuid") || ["Id", "_id", "-id"].iter().any(|end| name.ends_with(end))
}
