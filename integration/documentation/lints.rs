//! The page on linting has every lint, in the words of the linter, and its examples have the findings that it shows.

use std::fs;

use serde_json::Value;
use weir::config::Lint;

use super::page::root;
use crate::support::binary;

#[test]
fn the_page_on_linting_has_every_lint() {
    let page = fs::read_to_string(root().join("docs/linting.md")).unwrap();
    let table = page.split("\n## Silencing\n").next().unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| `")).collect();
    let cells = |row: &str| row.split(" | ").map(|cell| cell.trim_matches(['|', ' ']).to_owned()).collect::<Vec<_>>();
    assert_eq!(rows.len(), Lint::ALL.len());
    for (row, lint) in rows.into_iter().zip(Lint::ALL) {
        let cells = cells(row);
        assert_eq!(cells[0], format!("`{}`", lint.name()));
        assert_eq!(cells[1], lint.reason(), "{}", lint.name());
        let limit = cells[2].trim_matches('`');
        if limit.starts_with('A') {
            assert!(
                found(limit).contains(&lint.name().to_owned()),
                "{limit} has no {}: {:?}",
                lint.name(),
                found(limit)
            );
        }
    }
}

/// The findings in a file with this limit.
fn found(limit: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("limits.yaml"), format!("limits: {{ {limit} }}\n")).unwrap();
    let told = binary::run_in(folder.path(), &["check", "--format", "json"]);
    let told: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(told["errors"], 0, "{told}");
    let problems = told["problems"].as_array().unwrap().iter();
    problems.map(|problem| problem["lint"].as_str().unwrap().to_owned()).collect()
}
