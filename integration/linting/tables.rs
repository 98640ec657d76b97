//! Rules files as people write them: those with a mistake, and those without one.

use std::fmt::Write;
use std::fs;

use serde_json::Value;

use crate::support::binary::run_in;

/// The files of a table by their titles. What follows `=>` in a title is the second value.
fn files(table: &str) -> Vec<(&str, &str, &str)> {
    let each = table.split("\n== ").skip(1).map(|file| {
        let (title, text) = file.split_once('\n').unwrap();
        let (title, found) = title.split_once(" => ").unwrap_or((title, ""));
        (title, found, text)
    });
    each.collect()
}

/// Returns the findings in each file, by one `weir check`.
fn findings(files: &[(&str, &str, &str)]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..files.len()).map(|number| format!("{number}.yaml")).collect();
    for (name, (_, _, text)) in names.iter().zip(files) {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let arguments = ["check", "--format", "json"].into_iter().chain(names.iter().map(String::as_str));
    let finished = run_in(folder.path(), &arguments.collect::<Vec<_>>());
    let document: Value = serde_json::from_str(&finished.out).unwrap();
    let problems = document["problems"].as_array().unwrap();
    let of = |name: &String| {
        let own = problems.iter().filter(|problem| problem["file"] == **name);
        own.map(|problem| format!("{} {} {}", problem["lint"], problem["message"], problem["help"])).collect()
    };
    names.iter().map(of).collect()
}

#[test]
fn mistakes_are_found_and_named() {
    let files = files(include_str!("mistakes.txt"));
    let mut differences = String::new();
    for ((title, expected, _), found) in files.iter().zip(findings(&files)) {
        let is_named = found.iter().any(|finding| expected.split(" | ").all(|part| finding.contains(part)));
        if !is_named {
            let _ = writeln!(differences, "{title}: expected {expected}, found {found:#?}");
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert!(files.len() >= 60);
}

#[test]
fn good_files_have_no_findings() {
    let files = files(include_str!("good.txt"));
    assert!(files.len() >= 30);
    for ((title, ..), found) in files.iter().zip(findings(&files)) {
        assert!(found.is_empty(), "{title}: {found:#?}");
    }
}
