//! Blocks on the pages other than consoles: rules are checked, the rest is parsed.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::page::{pages, root};
use crate::support::binary;
use crate::support::process::finish;

/// The languages of blocks. `console` is run. `sh` is for commands that change the machine or need a cluster, a
/// container engine or a program that is not installed, so only its syntax and names are checked.
const LANGUAGES: &[&str] =
    &["console", "sh", "yaml", "json", "http", "text", "promql", "ini", "lua", "nginx", "dockerfile"];

#[test]
fn every_block_says_what_it_is() {
    let mut wrong = Vec::new();
    for page in pages() {
        for block in page.blocks().iter().filter(|block| !LANGUAGES.contains(&block.language)) {
            wrong.push(format!("{}: `{}` is not one of {LANGUAGES:?}", page.place(block), block.language));
        }
        // Four spaces also make a block, which no test would see. In lists they continue an item.
        let mut above = "";
        for (number, line) in (1..).zip(page.prose()) {
            if line.starts_with("    ") && above.is_empty() && !line.trim_start().starts_with(['-', '*']) {
                wrong.push(format!("{}:{number}: a block without fences", page.path));
            }
            above = line;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The warning that rules on a page may have: a page shows one limit, and other limits or a gateway bound the ids.
const LONE: &str = "free-id";

#[test]
fn rules_on_the_pages_pass_the_check() {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("lua"), directory.path().join("lua")).unwrap();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages() {
        let blocks = page.blocks();
        let rules = |text: &str| text.lines().any(|line| line.starts_with("limits:"));
        for block in blocks.iter().filter(|block| block.language == "yaml" && rules(&block.text)) {
            fs::write(directory.path().join("limits.yaml"), &block.text).unwrap();
            let check = binary::run_in(directory.path(), &["check", "--format", "json", "limits.yaml"]);
            checked += 1;
            let told: Value = serde_json::from_str(&check.out).unwrap();
            let problems = told["problems"].as_array().unwrap().iter().filter(|problem| problem["lint"] != LONE);
            wrong.extend(problems.map(|problem| format!("{}: {problem}", page.place(block))));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked >= 6, "the pages have {checked} blocks of rules");
}

#[test]
fn shells_can_read_what_is_not_run() {
    let mut wrong = Vec::new();
    for page in pages() {
        for block in page.blocks().iter().filter(|block| block.language == "sh") {
            let read = finish(Command::new("bash").args(["-n", "-c", &block.text]));
            if read.code != Some(0) {
                wrong.push(format!("{}: {}", page.place(block), read.err));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn json_on_the_pages_is_json() {
    for page in pages() {
        for block in page.blocks().iter().filter(|block| block.language == "json") {
            let read = serde_json::from_str::<serde_json::Value>(&block.text);
            assert!(read.is_ok(), "{}: {}", page.place(block), read.unwrap_err());
        }
    }
}
