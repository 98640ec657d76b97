//! `weir test --watch`, driven by the files that it watches.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::support::binary::{command, run_in};
use crate::support::process::Process;

const RULES: &str = "limits:\n  A: { burst: 1 }\n";
const TESTS: &str =
    "limits: rules.yaml\ntests:\n  t:\n    - { get: /, expect: allow }\n    - { get: /, expect: deny }\n";

/// Replaces a file as editors do, so that it is never half written.
fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join("new"), text).unwrap();
    std::fs::rename(folder.join("new"), folder.join(name)).unwrap();
}

#[test]
fn each_change_of_tests_and_rules_runs_them_again() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "rules.yaml", RULES);
    write(folder.path(), "tests.yaml", TESTS);
    let mut watching = command(&["test", "--watch", "tests.yaml"]);
    watching.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watching = Process::start(&mut watching);
    let mut told = BufReader::new(watching.child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut until_it_waits = || {
        let run = told.by_ref().take_while(|line| line != "waiting for changes; press Ctrl-C to stop");
        run.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(until_it_waits(), "1 passed, 0 failed");
    write(folder.path(), "rules.yaml", &RULES.replace("burst: 1", "burst: 2"));
    let run = until_it_waits();
    assert!(run.contains(": files have changed\ntests.yaml:5: t\n") && run.ends_with("0 passed, 1 failed"), "{run}");
    write(folder.path(), "tests.yaml", &TESTS.replace("rules.yaml", "other.yaml"));
    let run = until_it_waits();
    assert!(run.ends_with(": files have changed"), "{run}");
    write(folder.path(), "other.yaml", RULES);
    let run = until_it_waits();
    assert!(run.ends_with(": files have changed\n1 passed, 0 failed"), "{run}");
    write(folder.path(), "rules.yaml", "limits: []\n");
    write(folder.path(), "tests.yaml", &TESTS.replace("rules.yaml", "other.yaml").replace("  t:", "  again:"));
    let run = until_it_waits();
    assert!(run.ends_with(": files have changed\n1 passed, 0 failed"), "a file that is no longer named: {run}");
    let mut errors = BufReader::new(watching.child.stderr.take().unwrap());
    let mut error = String::new();
    errors.read_line(&mut error).unwrap();
    assert_eq!(error, "error: there is no rules file here\n");
}

#[test]
fn formats_for_programs_are_not_watched() {
    let folder = tempfile::tempdir().unwrap();
    let finished = run_in(folder.path(), &["test", "--watch", "--format", "tap", "t.yaml"]);
    assert_eq!((finished.code, &*finished.err), (Some(2), "error: `--watch` prints for people: remove `--format`\n"));
}
