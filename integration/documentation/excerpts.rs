//! The pages on gateways show configurations that the tests run: the lines of a block with a `from:` comment are lines of that
//! file.

use std::collections::BTreeSet;
use std::fs;

use regex::Regex;

use super::page::{pages, root};

#[test]
fn what_pages_show_of_a_file_is_in_it() {
    let (mut wrong, mut shown) = (Vec::new(), 0);
    for page in pages() {
        for block in page.blocks() {
            let Some(path) = block.source else { continue };
            shown += 1;
            let file = fs::read_to_string(root().join(path)).unwrap_or_default();
            if let Some(missing) = missing(&block.text, &file) {
                wrong.push(format!("{}: these lines are not in {path}:\n{missing}", page.place(&block)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(shown > 15, "the pages show {shown} parts of files");
}

#[test]
fn the_page_on_a_gateway_shows_its_configuration() {
    let example = Regex::new(r"integration/examples/[a-z0-9-]+\b").unwrap();
    for page in pages().iter().filter(|page| page.path.starts_with("docs/gateways/")) {
        let named: BTreeSet<_> = example.find_iter(&page.text).map(|found| found.as_str()).collect();
        let blocks = page.blocks();
        let shown: BTreeSet<_> = blocks.iter().filter_map(|block| block.source?.rsplit_once('/')).collect();
        let shown: BTreeSet<_> = shown.into_iter().map(|(folder, _)| folder).collect();
        assert_eq!(
            named.difference(&shown).collect::<Vec<_>>(),
            Vec::<&&str>::new(),
            "{} shows none of these",
            page.path
        );
    }
}

/// The first part of a block that is not in the file, in order. A line `...` separates parts.
fn missing(block: &str, file: &str) -> Option<String> {
    let (block, file) = (settings(block), settings(file));
    let mut rest = &file[..];
    for part in block.split(|line| line.trim() == "...").filter(|part| !part.is_empty()) {
        let Some(start) = rest.windows(part.len()).position(|lines| outdented(lines) == outdented(part)) else {
            return Some(part.join("\n"));
        };
        rest = &rest[start + part.len()..];
    }
    None
}

/// The lines that are neither blank nor comments: a page explains in its own words.
fn settings(text: &str) -> Vec<&str> {
    let is_comment = |line: &str| line.starts_with('#') || line.starts_with("--");
    text.lines().filter(|line| !line.trim().is_empty() && !is_comment(line.trim())).collect()
}

fn outdented<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let indent = lines.iter().map(|line| line.len() - line.trim_start().len()).min().unwrap_or_default();
    lines.iter().map(|line| &line[indent..]).collect()
}
