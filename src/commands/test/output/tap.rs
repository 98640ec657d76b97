//! `--format tap`: the Test Anything Protocol, version 14.

use std::fmt::Write;

use serde_json::Value;

use super::{TestFailure, TestResult, printable};

pub(super) fn document(results: &[TestResult], unseen: &[(String, String)]) -> String {
    let mut text = format!("TAP version 14\n1..{}\n", results.len());
    for (number, result) in (1..).zip(results) {
        let not = if result.failure.is_some() { "not " } else { "" };
        let _ = writeln!(text, "{not}ok {number} - {}", description(&format!("{}: {}", result.file, result.name)));
        if let Some(failure) = &result.failure {
            push_diagnostic(&mut text, &result.file, failure);
        }
    }
    for (file, sentence) in unseen {
        let _ = writeln!(text, "# {}", printable(&format!("{file}: {sentence}")).replace('\n', " "));
    }
    text
}

/// Adds a block of YAML.
fn push_diagnostic(text: &mut String, file: &str, failure: &TestFailure) {
    let _ = write!(text, "  ---\n  at:\n    file: {}\n    line: {}\n", Value::from(file), failure.line);
    text.push_str("  message: |2-\n");
    for line in printable(&failure.details).lines() {
        let _ = writeln!(text, "    {}", line.strip_prefix("  ").unwrap_or(line));
    }
    text.push_str("  ...\n");
}

/// Escapes what would begin a directive, on one line.
fn description(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ").replace('\\', "\\\\").replace('#', "\\#")
}
