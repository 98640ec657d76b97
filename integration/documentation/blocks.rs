//! Blocks of the pages that are no consoles: rules are checked, and what is to be run elsewhere is read as far as it goes.

use std::fs;
use std::process::Command;

use super::page::{pages, root};

/// What a fence may say. `console` is run here; `sh` is for commands that change this machine or need a cluster, a
/// container's engine or a program that is not installed here, so only its syntax and its names are looked at.
const LANGUAGES: &[&str] = &["console", "sh", "yaml", "json", "http", "text", "promql", "ini", "lua", "dockerfile"];

#[test]
fn every_block_says_what_it_is() {
    let mut wrong = Vec::new();
    for page in pages() {
        for block in page.blocks().iter().filter(|block| !LANGUAGES.contains(&block.language)) {
            wrong.push(format!("{}: `{}` is none of {LANGUAGES:?}", page.place(block), block.language));
        }
        // Four spaces make a block too, which no test would see. In lists they are the text of an item.
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
            let check = Command::new(env!("CARGO_BIN_EXE_weir"))
                .args(["check", "limits.yaml"])
                .current_dir(directory.path())
                .output()
                .unwrap();
            checked += 1;
            if !check.status.success() {
                wrong.push(format!("{}: {}", page.place(block), String::from_utf8_lossy(&check.stderr)));
            }
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
            let read = Command::new("bash").args(["-n", "-c", &block.text]).output().unwrap();
            if !read.status.success() {
                wrong.push(format!("{}: {}", page.place(block), String::from_utf8_lossy(&read.stderr)));
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
