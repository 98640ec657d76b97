//! `--format sarif`: the Static Analysis Results Interchange Format 2.1.0, which code scanning reads.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Checked, problems, severity};
use crate::config::{Lint, Problem};

/// The rule of problems that are errors.
const INVALID: &str = "invalid-rules";

/// Returns a log of one run.
pub(super) fn document(checked: &[Checked]) -> Value {
    let lints = Lint::ALL.iter().map(|lint| rule(lint.name(), lint.reason(), lint.advice(), "warning"));
    let invalid = rule(
        INVALID,
        "Rules with a mistake do not load.",
        "Correct the mistake: until then a new process does not start, and a running one keeps its last good rules.",
        "error",
    );
    let rules: Vec<Value> = lints.chain([invalid]).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "weir", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "columnKind": "unicodeCodePoints",
            "results": problems(checked).map(|(problem, help)| result(&problem, help)).collect::<Vec<_>>(),
        }],
    })
}

fn rule(name: &str, reason: &str, advice: &str, level: &str) -> Value {
    let silence = if name == INVALID { String::new() } else { format!(" Silence it with `ignore_lints: [{name}]`.") };
    json!({
        "id": name,
        "shortDescription": { "text": reason },
        "help": { "text": format!("{advice}{silence}"), "markdown": format!("{advice}{silence}") },
        "defaultConfiguration": { "level": level },
    })
}

fn result(problem: &Problem, help: &str) -> Value {
    let name = problem.lint.map_or(INVALID, Lint::name);
    // The rules are in the order of the lints, the rule of errors last.
    let index = Lint::ALL.iter().position(|lint| Some(*lint) == problem.lint).unwrap_or(Lint::ALL.len());
    let mut place = json!({ "artifactLocation": { "uri": uri(&problem.file) } });
    if let Some(at) = problem.place {
        let end = at.column.saturating_add(at.width);
        place["region"] =
            json!({ "startLine": at.line, "startColumn": at.column, "endLine": at.line, "endColumn": end });
        if let Some(line) = &problem.source_line {
            place["region"]["snippet"] = json!({ "text": line });
        }
    }
    let text = match help {
        "" => problem.message.clone(),
        help => format!("{}: {help}", problem.message),
    };
    json!({
        "ruleId": name,
        "ruleIndex": index,
        "level": severity(problem),
        "message": { "text": text },
        "locations": [{ "physicalLocation": place }],
    })
}

/// Returns a path as a URI: a whole one as `file:`, another relative to the directory of the run.
fn uri(path: &str) -> String {
    let mut text = if path.starts_with('/') { "file://".to_owned() } else { String::new() };
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_uris() {
        for (path, expected) in [
            ("limits.yaml", "limits.yaml"),
            ("rules/a b%.yaml", "rules/a%20b%25.yaml"),
            ("/etc/weir/l.yaml", "file:///etc/weir/l.yaml"),
            ("a:b", "a%3Ab"),
        ] {
            assert_eq!(uri(path), expected);
        }
    }
}
