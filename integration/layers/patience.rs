//! Holds `integration/` to one deadline, `support::PATIENCE`: no test says how fast a machine must be.

use super::{files, repository};

/// Returns true for a line with a tight deadline.
fn is_hasty(line: &str) -> bool {
    let is_asserted = line.contains("assert") && ["elapsed() <", "took <"].iter().any(|part| line.contains(part));
    let is_read = ["recv_timeout(Duration", "_timeout(Some(Duration"].iter().any(|part| line.contains(part));
    (is_asserted && !line.contains("PATIENCE")) || is_read
}

#[test]
fn only_support_says_how_long_a_test_waits() {
    let sources = files(&repository().join("integration"));
    let others = sources
        .iter()
        .filter(|(path, _)| !["support/", "layers/", "bench/", "fuzz/"].iter().any(|folder| path.starts_with(folder)));
    let found: Vec<String> = others
        .flat_map(|(path, text)| (1..).zip(text.lines()).map(move |(number, line)| (path, number, line)))
        .filter(|(_, _, line)| is_hasty(line))
        .map(|(path, number, line)| format!("integration/{path}:{number}: {}", line.trim()))
        .collect();
    let help = "wait for a state with `eventually` or `becomes`, or with `PATIENCE`";
    assert!(found.is_empty(), "a busy machine may take longer; {help}:\n{}", found.join("\n"));
}

#[test]
fn a_tight_deadline_is_found() {
    for line in [
        "assert!(start.elapsed() < Duration::from_secs(5));",
        "assert!(took < timeout + SHORT, \"took {took:?}\");",
        "ended.recv_timeout(Duration::from_secs(5)).unwrap();",
        "stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();",
    ] {
        assert!(is_hasty(line), "{line}");
    }
    for line in [
        "assert!(start.elapsed() >= LEASE);",
        "while begun.elapsed() < LEASE {",
        "assert!(start.elapsed() < PATIENCE);",
        "ended.recv_timeout(PATIENCE).unwrap();",
    ] {
        assert!(!is_hasty(line), "{line}");
    }
}
