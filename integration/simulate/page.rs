//! The report as a page, in headless Chromium, and the picture that is made of one.

use std::fmt::Write as _;
use std::process::Command;

use crate::support::binary::{PATH, run_in};
use crate::support::process::succeed;
use crate::support::programs::client;

/// It would change the title of a page that takes text for markup.
const HOSTILE: &str = "<img src=x onerror=document.title='taken'>";

#[test]
fn the_report_is_a_page_that_loads_nothing_and_runs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let limits = "
limits:
  Agents: { match: { path: /a }, by: { header: user-agent }, count: 2, period: 1m }
  Beside: { match: { path: /a }, by: ip, algorithm: sliding_log, count: 2, period: 1m, mode: shadow }
  Everything: { by: ip, count: 100, period: 1m }
  Accounts: { by: { header: x-account }, count: 1, period: 1h }
";
    let rules = format!("{HOSTILE}.yaml");
    let mut log = String::new();
    for second in 0..40 {
        for path in ["/a", "/b"] {
            let _ = writeln!(
                log,
                "192.0.2.1 - - [22/Nov/2026:10:00:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 5 \"-\" \"{HOSTILE}\""
            );
        }
    }
    std::fs::write(directory.path().join(&rules), limits).unwrap();
    std::fs::write(directory.path().join("access.log"), log).unwrap();
    let done =
        run_in(directory.path(), &["simulate", "access.log", "--limits", &rules, "--format", "html", "--show-ids"]);
    assert_eq!(done.code, Some(0), "{}", done.text());
    let file = directory.path().join("report.html");
    std::fs::write(&file, done.out).unwrap();
    let checks = client("../simulate/page.py", &["--report", file.to_str().unwrap()]);
    assert!(checks["passed"].as_array().is_some_and(|passed| passed.len() == 6), "{checks}");
}

#[test]
fn the_picture_of_the_algorithms_is_that_of_a_simulation() {
    let directory = tempfile::tempdir().unwrap();
    let drawn = directory.path().join("algorithms.svg");
    let root = env!("CARGO_MANIFEST_DIR");
    let mut script = Command::new("python3");
    script.arg(format!("{root}/integration/simulate/algorithms.py")).args([PATH, "--output"]).arg(&drawn);
    succeed(&mut script);
    let kept = std::fs::read_to_string(format!("{root}/docs/images/algorithms.svg")).unwrap();
    assert!(
        kept == std::fs::read_to_string(&drawn).unwrap(),
        "docs/images/algorithms.svg is another picture: run integration/simulate/algorithms.py"
    );
}
