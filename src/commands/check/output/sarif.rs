//! `--format sarif`: the Static Analysis Results Interchange Format 2.1.0, which code scanning reads.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Checked, FAILING_TEST, Finding, INVALID_RULES, findings, severity};
use crate::config::Lint;

/// Returns a log of one run.
pub(super) fn document(checked: &[Checked]) -> Value {
    let lints = Lint::ALL.iter().map(|lint| rule(lint.name(), lint.reason(), lint.advice(), "warning"));
    let invalid = rule(
        INVALID_RULES,
        "Rules with a mistake do not load.",
        "Correct the mistake: until then a new process does not start, and a running one keeps its last good rules.",
        "error",
    );
    let failing = rule(
        FAILING_TEST,
        "A test beside the rules has a mistake, or gets another answer than it expects.",
        "Correct the rules or the test. A gateway starts all the same: it does not run tests.",
        "error",
    );
    let rules: Vec<Value> = lints.chain([invalid, failing]).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "weir", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "columnKind": "unicodeCodePoints",
            "results": findings(checked).map(|found| result(&found)).collect::<Vec<_>>(),
        }],
    })
}

fn rule(name: &str, reason: &str, advice: &str, level: &str) -> Value {
    let is_lint = ![INVALID_RULES, FAILING_TEST].contains(&name);
    let silence = if is_lint { format!(" Silence it with `ignore_lints: [{name}]`.") } else { String::new() };
    json!({
        "id": name,
        "shortDescription": { "text": reason },
        "help": { "text": format!("{advice}{silence}"), "markdown": format!("{advice}{silence}") },
        "defaultConfiguration": { "level": level },
    })
}

fn result(found: &Finding<'_>) -> Value {
    let Finding { problem, help, name } = found;
    // The rules are in the order of the lints, with those of errors behind them.
    let of_lint = Lint::ALL.iter().position(|lint| Some(*lint) == problem.lint);
    let index = of_lint.unwrap_or(Lint::ALL.len() + usize::from(*name == FAILING_TEST));
    let mut place = json!({ "artifactLocation": { "uri": uri(&problem.file) } });
    if let Some(at) = problem.place {
        let end = at.column.saturating_add(at.width);
        place["region"] =
            json!({ "startLine": at.line, "startColumn": at.column, "endLine": at.line, "endColumn": end });
        if let Some(line) = &problem.source_line {
            place["region"]["snippet"] = json!({ "text": line });
        }
    }
    let text = match *help {
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
