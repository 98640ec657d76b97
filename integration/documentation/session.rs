//! Pictures that programs draw: a session in a terminal, and the chart of the benchmark.

use std::fs;
use std::process::Command;

use super::page::root;
use crate::support::binary;
use crate::support::process::succeed;

const PICTURE: &str = "docs/images/session.svg";

#[test]
fn the_picture_of_a_session_shows_what_the_commands_print() {
    let mut session = Command::new("python3");
    session.args(["integration/documentation/session.py", binary::PATH, "--check"]).current_dir(root());
    succeed(&mut session);
}

#[test]
fn the_picture_of_a_session_is_small_and_loads_nothing() {
    let picture = fs::read_to_string(root().join(PICTURE)).unwrap();
    assert!(picture.len() < 60 << 10, "{} bytes", picture.len());
    for part in ["<script", "<image", "<foreignObject", "href", "url(", "@import", "@font-face"] {
        assert!(!picture.contains(part), "{PICTURE} has {part}");
    }
}

#[test]
fn the_chart_of_the_benchmark_shows_the_figures_beside_it() {
    let mut chart = Command::new("python3");
    succeed(chart.args(["integration/bench/chart.py", "--check"]).current_dir(root()));
}
