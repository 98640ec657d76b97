//! Configurations of Kong and APISIX, and requests with the verdicts of these: imported rules must give the same.

use crate::support::binary::run_in;
use crate::support::programs::repository;

/// The configurations of a file are divided by lines of `---- why`. Below `tests:` are those of a rules file, which replace the
/// importer's own. Lines of `told: ` are parts of comments that it writes.
#[track_caller]
fn check(format: &str) {
    let path = repository().join(format!("integration/cases/import/{format}-verdicts.txt"));
    let text = std::fs::read_to_string(path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for case in text.split("---- ").skip(1) {
        let (why, rest) = case.split_once('\n').unwrap();
        let (configuration, tests) = rest.split_once("tests:\n").unwrap();
        let (told, tests): (Vec<&str>, Vec<&str>) = tests.lines().partition(|line| line.starts_with("told: "));
        std::fs::write(folder.path().join("in.yaml"), configuration).unwrap();
        let imported = run_in(folder.path(), &["import", format, "in.yaml"]);
        let (rules, _) = imported.out.split_once("\ntests:\n").unwrap_or((&imported.out, ""));
        std::fs::write(folder.path().join("limits.yaml"), format!("{rules}\ntests:\n{}\n", tests.join("\n"))).unwrap();
        let tested = run_in(folder.path(), &["test", "limits.yaml"]);
        let is_told = told.iter().all(|told| imported.err.contains(told.trim_start_matches("told: ")));
        let has_verdicts = tests.is_empty() || tested.code == Some(0);
        if imported.code != Some(0) || !has_verdicts || !is_told {
            wrong.push(format!("{why}:\n{}\n{rules}\n{}", imported.err, tested.text()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n----\n"));
}

#[test]
fn requests_have_the_verdicts_of_kong() {
    check("kong");
}

#[test]
fn requests_have_the_verdicts_of_apisix() {
    check("apisix");
}
