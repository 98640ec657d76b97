//! Flags, variables, metrics and files on the pages exist, and every flag, metric, alert and key of the rules is on a page.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;

use regex::Regex;
use serde_json::Value;
use weir::config::Lint;

use super::page::{Page, pages, root};
use crate::support::binary;
use crate::support::process::succeed;

/// Flags of other programs.
const OTHERS: &[&str] = &[
    "--add-host",
    "--http2-prior-knowledge",
    "--eval",
    "--locked",
    "--no-capture",
    "--reset-then-reuse-values",
    "--reuse-values",
    "--set-file",
    "--timestamps",
];

/// The help of a command and its subcommands.
fn help(command: &[&str]) -> String {
    let mut help = succeed(binary::command(command).arg("--help"));
    let below = help.split_once("\nCommands:\n").map(|(_, list)| list.split("\n\n").next().unwrap().to_owned());
    for name in below.iter().flat_map(|list| list.lines()).filter_map(|line| line.split_whitespace().next()) {
        if name != "help" {
            help += &self::help(&[command, &[name]].concat());
        }
    }
    help
}

/// All matches of an expression.
fn found<'a>(expression: &'static str, text: &'a str) -> BTreeSet<&'a str> {
    // Each is used for thousands of spans, and compiling it takes far longer than searching one.
    static COMPILED: Mutex<BTreeMap<&str, Regex>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap();
    let expression = compiled.entry(expression).or_insert_with(|| Regex::new(expression).unwrap());
    expression.find_iter(text).map(|found| found.as_str()).collect()
}

/// The code spans in a page's text.
fn code(page: &Page) -> Vec<&str> {
    page.prose().into_iter().flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn flags_and_variables_on_the_pages_are_those_of_the_commands() {
    let help = help(&[]);
    let mut flags = found(r"--[a-z][a-z0-9-]+", &help);
    let mut scripts = String::new();
    for entry in fs::read_dir(root().join("integration/bench")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "py") {
            scripts += &fs::read_to_string(path).unwrap();
        }
    }
    flags.extend(found(r"--[a-z][a-z0-9-]+", &scripts));
    flags.extend(OTHERS);
    let mut variables = found(r"WEIR_[A-Z0-9_]+", &help);
    // The tests read them.
    variables.extend(["WEIR_EXCHANGES_SEED", "WEIR_SOAK_SECONDS", "WEIR_TEST_REDIS_SERVER", "WEIR_WRITE_PAGES"]);
    let mut wrong = Vec::new();
    for page in pages() {
        for span in code(&page) {
            let flag = found(r"^--[a-z][a-z0-9-]+", span);
            wrong.extend(flag.difference(&flags).map(|flag| format!("{}: no command has {flag}", page.path)));
        }
        for block in page.blocks() {
            for line in
                block.text.lines().map(|line| line.trim_start_matches("$ ")).filter(|line| line.contains("weir "))
            {
                let Some((_, arguments)) = line.split_once("weir ").filter(|(before, _)| before.trim().is_empty())
                else {
                    continue;
                };
                let named = found(r"--[a-z][a-z0-9-]+", arguments);
                wrong.extend(named.difference(&flags).map(|flag| format!("{}: no {flag}", page.place(&block))));
            }
        }
        let named = found(r"\bWEIR_[A-Z0-9_]+", &page.text);
        wrong.extend(named.difference(&variables).map(|name| format!("{}: no command reads {name}", page.path)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The code on the pages of the site, in the text and in blocks.
fn code_of_the_site() -> String {
    let pages: Vec<_> = pages().into_iter().filter(|page| page.path.starts_with("docs/")).collect();
    let code = pages.iter().flat_map(|page| {
        let blocks = page.blocks().into_iter().map(|block| block.text);
        blocks.chain(code(page).into_iter().map(str::to_owned)).collect::<Vec<_>>()
    });
    code.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_flag_is_on_a_page() {
    let (help, pages) = (help(&[]), code_of_the_site());
    let named = found(r"--[a-z][a-z0-9-]+", &pages);
    let flags = Regex::new(r"(?m)^ +(?:-., )?(--[a-z][a-z0-9-]+)").unwrap();
    let flags: BTreeSet<_> = flags.captures_iter(&help).map(|flag| flag.get(1).unwrap().as_str()).collect();
    let missing: Vec<_> = flags.difference(&named).filter(|flag| !["--help", "--version"].contains(flag)).collect();
    assert!(flags.len() > 100 && missing.is_empty(), "no page in docs has {missing:?}");
}

#[test]
fn every_key_of_the_rules_is_on_a_page() {
    let schema: Value = serde_json::from_str(include_str!("../../src/config/schema.json")).unwrap();
    let (mut keys, pages) = (BTreeSet::new(), code_of_the_site());
    keys_of(&schema, &mut keys);
    let named = found(r"[a-z][a-z0-9_]*", &pages);
    let missing: Vec<_> = keys.iter().filter(|key| !named.contains(key.as_str())).collect();
    assert!(keys.len() > 50 && missing.is_empty(), "no page in docs has {missing:?}");
}

/// The keys that a schema describes.
fn keys_of(schema: &Value, keys: &mut BTreeSet<String>) {
    let below: Vec<_> = match schema {
        Value::Object(members) => members.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    keys.extend(schema["properties"].as_object().into_iter().flatten().map(|(key, _)| key.clone()));
    for part in below {
        keys_of(part, keys);
    }
}

#[test]
fn files_that_the_pages_name_are_there() {
    let ours = r"(?:^|[^/\w.-])((?:src|integration|helm|systemd|lua|docs|fuzz|proptest-regressions)/[\w./-]+\.[a-z]+)";
    let ours = Regex::new(ours).unwrap();
    let mut wrong = Vec::new();
    for page in pages() {
        for path in ours.captures_iter(&page.text).map(|place| place.get(1).unwrap().as_str()) {
            if !root().join(path).exists() {
                wrong.push(format!("{}: there is no {path}", page.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lints_that_the_pages_name_are_those_of_the_linter() {
    let lints: BTreeSet<_> = Lint::ALL.iter().map(|lint| lint.name()).collect();
    let named = Regex::new(r"`([a-z0-9]+(?:-[a-z0-9]+)+)` (?:is|and|are) |lints? `([a-z0-9-]+)`").unwrap();
    let mut wrong = Vec::new();
    for page in pages() {
        let text = page.prose().join(" ");
        for found in named.captures_iter(&text) {
            let (name, is_lint) = found.get(1).map_or_else(|| (&found[2], true), |name| (name.as_str(), false));
            if (is_lint || page.path == "docs/linting.md") && !lints.contains(name) {
                wrong.push(format!("{}: no lint is {name}", page.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_on_metrics_has_every_metric_and_no_page_has_another() {
    let mut source = String::new();
    for entry in fs::read_dir(root().join("src/telemetry/metrics")).unwrap() {
        source += &fs::read_to_string(entry.unwrap().path()).unwrap();
    }
    let told: BTreeSet<_> = found(r#""weir_[a-z0-9_]+""#, &source).iter().map(|name| name.trim_matches('"')).collect();
    assert!(told.len() > 30, "{told:?}");
    let operations = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let named = found(r"\bweir_[a-z0-9_]+", &operations);
    let missing: Vec<_> = told.difference(&named).collect();
    assert!(missing.is_empty(), "docs/metrics.md does not tell what {missing:?} are");

    let mut wrong = Vec::new();
    for page in pages() {
        let blocks = page.blocks();
        let spans = code(&page).into_iter().flat_map(|span| found(r"^weir_[a-z0-9_]+", span));
        // In quotes, it is a key of JSON.
        let blocks = blocks.iter().flat_map(|block| found(r#"(?:^|[^"\w])weir_[a-z0-9_]+"#, &block.text));
        let blocks = blocks.map(|name| &name[name.find("weir_").unwrap()..]);
        for name in spans.chain(blocks) {
            let whole = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            if !told.contains(whole) && !told.contains(name) {
                wrong.push(format!("{}: no metric is {name}", page.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_on_metrics_has_every_alert_and_the_runbook_says_what_to_do() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let rules = read("helm/weir/alerts/weir.yaml");
    let alerts: BTreeSet<_> =
        rules.lines().filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix("alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    let named = |path: &str, expression: &'static str| -> BTreeSet<String> {
        found(expression, &read(path)).iter().map(|name| name.trim_matches(['`', '#', ' ']).to_owned()).collect()
    };
    let alerts: BTreeSet<_> = alerts.into_iter().map(str::to_owned).collect();
    assert_eq!(named("docs/metrics.md", "`Weir[A-Z][A-Za-z]+`"), alerts, "docs/metrics.md");
    assert_eq!(named("docs/runbook.md", "(?m)^## Weir[A-Z][A-Za-z]+"), alerts, "docs/runbook.md");
}
