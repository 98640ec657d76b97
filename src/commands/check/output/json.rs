//! `--format json`: one object with everything.

use serde_json::{Value, json};

use super::{Checked, Finding, findings, severity};
use crate::config::{Lint, Problem};

/// Returns what was checked and all problems, errors first in each file. `errors` and `warnings` also count the problems that
/// are too many to list.
pub(super) fn document(checked: &[Checked]) -> Value {
    let each = |checked: &Checked| {
        let counts = checked.counts;
        json!({
            "name": checked.name,
            "limits": counts.map(|(limits, _)| limits),
            "overrides": counts.map(|(_, overrides)| overrides),
            "not_compared": checked.not_compared,
            "tests": checked.tests.map(|tests| json!({ "passed": tests.passed, "failed": tests.failed, "not_run": tests.not_run })),
            "errors": checked.errors(),
            "warnings": checked.report.warnings,
        })
    };
    json!({
        "checked": checked.iter().map(each).collect::<Vec<_>>(),
        "errors": checked.iter().map(Checked::errors).sum::<usize>(),
        "warnings": checked.iter().map(|checked| checked.report.warnings).sum::<usize>(),
        "problems": findings(checked).map(|Finding { problem, help, .. }| shown(&problem, help)).collect::<Vec<_>>(),
    })
}

fn shown(problem: &Problem, help: &str) -> Value {
    json!({
        "severity": severity(problem),
        "lint": problem.lint.map(Lint::name),
        "file": problem.file,
        "line": problem.place.map(|place| place.line),
        "column": problem.place.map(|place| place.column),
        "width": problem.place.map(|place| place.width),
        "message": problem.message,
        "help": help,
    })
}
