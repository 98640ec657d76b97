//! Pictures that programs draw: a session in a terminal, and the chart of the benchmark.

use std::fs;
use std::process::Command;

use super::page::root;
use crate::support::binary;
use crate::support::process::succeed;
use crate::support::programs::client;

const PICTURES: [&str; 2] = ["docs/images/session.svg", "docs/images/session-narrow.svg"];

#[test]
fn the_pictures_of_a_session_show_what_the_commands_print() {
    let mut session = Command::new("python3");
    session.args(["integration/documentation/session.py", binary::PATH, "--check"]).current_dir(root());
    succeed(&mut session);
}

#[test]
fn the_pictures_of_a_session_are_small_and_load_nothing() {
    for path in PICTURES {
        let picture = fs::read_to_string(root().join(path)).unwrap();
        assert!(picture.len() < 60 << 10, "{path} has {} bytes", picture.len());
        for part in ["<script", "<image", "<foreignObject", "href", "url(", "@import", "@font-face"] {
            assert!(!picture.contains(part), "{path} has {part}");
        }
    }
}

#[test]
fn the_pictures_of_a_session_are_read_at_once_on_their_screens() {
    let checks = client("../documentation/session_page.py", &[]);
    assert!(checks["passed"].as_array().is_some_and(|passed| passed.len() == 6), "{checks}");
}

#[test]
fn the_chart_of_the_benchmark_shows_the_figures_beside_it() {
    let mut chart = Command::new("python3");
    succeed(chart.args(["integration/bench/chart.py", "--check"]).current_dir(root()));
}
