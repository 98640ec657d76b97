//! A release's version, change log, licence and dependencies agree.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::page::root;
use crate::support::binary;
use crate::support::process::succeed;
use crate::support::programs::installed;

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The metadata of all packages that are built on this system.
fn packages() -> Vec<Value> {
    let here = installed("rustc", &["--print", "host-tuple"]);
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", here.trim()]);
    let metadata: Value = serde_json::from_str(&succeed(command.current_dir(root()))).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "{} packages", packages.len());
    packages.clone()
}

/// The entries of a list in deny.toml.
fn listed(name: &str) -> BTreeSet<String> {
    let text = read("deny.toml");
    let list = text.split_once(&format!("\n{name} = [")).unwrap_or_else(|| panic!("deny.toml has no `{name}`")).1;
    let list = list.split(']').next().unwrap();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns whether a licence expression is allowed. `AND` binds tighter than `OR`, and a slash is an old `OR`.
fn is_met(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let words = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = words.split_whitespace().peekable();
    either(&mut words, is_allowed)
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(words: &mut Words<'_>, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut is_met = all(words, is_allowed);
    while words.next_if_eq(&"OR").is_some() {
        is_met |= all(words, is_allowed);
    }
    is_met
}

fn all(words: &mut Words<'_>, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut is_met = one(words, is_allowed);
    while words.next_if_eq(&"AND").is_some() {
        is_met &= one(words, is_allowed);
    }
    is_met
}

fn one(words: &mut Words<'_>, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    match words.next() {
        Some("(") => {
            let is_met = either(words, is_allowed);
            words.next();
            is_met
        }
        Some(licence) => {
            // An exception only adds rights.
            if words.next_if_eq(&"WITH").is_some() {
                words.next();
            }
            is_allowed(licence)
        }
        None => false,
    }
}

#[test]
fn licence_expressions_are_read() {
    for (expression, is_fine) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("MIT/GPL-3.0", true),
        ("MIT AND GPL-3.0", false),
        ("(GPL-3.0 OR MIT) AND MIT", true),
        ("MIT AND (GPL-3.0 AND MIT OR GPL-3.0)", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", false),
        ("", false),
    ] {
        assert_eq!(is_met(expression, &|licence| licence == "MIT"), is_fine, "{expression}");
    }
}

#[test]
fn dependencies_have_licences_that_are_allowed_and_come_from_one_place() {
    let allowed = listed("allow");
    let mut wrong = Vec::new();
    for package in packages() {
        let name = format!("{} {}", package["name"].as_str().unwrap(), package["version"].as_str().unwrap());
        let licence = package["license"].as_str().unwrap_or_default();
        if !is_met(licence, &|licence| allowed.contains(licence)) {
            wrong.push(format!("{name}: its licence is {licence:?}"));
        }
        let source = package["source"].as_str();
        let is_ours = package["name"] == "weir" && source.is_none();
        if !is_ours && source != Some("registry+https://github.com/rust-lang/crates.io-index") {
            wrong.push(format!("{name}: it comes from {source:?}"));
        }
    }
    assert!(wrong.is_empty(), "against deny.toml:\n{}", wrong.join("\n"));
}

#[test]
fn the_version_is_told_alike_everywhere() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(binary::run(&["-V"]).out.trim(), format!("weir {version}"));
    let changes = read("CHANGELOG.md");
    let releases: Vec<_> = changes.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(releases[0], "Unreleased");
    assert!(releases[1].starts_with(&format!("{version} - ")), "the newest release in CHANGELOG.md is {}", releases[1]);
    let classes = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];
    for class in changes.lines().filter_map(|line| line.strip_prefix("### ")) {
        assert!(classes.contains(&class), "{class} is no class of changes");
    }
    let security = read("SECURITY.md");
    let line = version.rsplit_once('.').unwrap().0;
    assert!(security.contains(&format!("{line}.x")), "SECURITY.md does not say whether {line}.x is supported");
}

#[test]
fn the_licence_is_the_one_that_is_declared() {
    let ours = packages().into_iter().find(|package| package["name"] == "weir").unwrap();
    assert_eq!(ours["license"], "Apache-2.0");
    let text = read("LICENSE");
    assert!(text.contains("Apache License") && text.contains("END OF TERMS AND CONDITIONS"));
}
