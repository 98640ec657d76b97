//! Words on the pages, in sources and in configurations are spelled as codespell's dictionaries have them.

use super::page::{pages, program, root};
use crate::support::process::finish;

/// Text with other people's names and deliberate mistakes: code spans, and quoted strings.
const DATA: &str = r#"`[^`]*`|"[^"]*""#;

/// Words that are right here: a header, and half a word beside an escape (`caf%E9`).
const KNOWN: &str = "te,caf";

/// Files without words.
const SKIPPED: &str =
    "*.png,*.svg,*.lock,*.log,*.jsonl,*.pem,*.der,*.gz,__pycache__,corpus,artifacts,target,dashboards";

fn misspelled(dictionaries: &str, paths: &[String]) -> String {
    let mut codespell = program("codespell");
    codespell.args([
        "--builtin",
        dictionaries,
        "--ignore-words-list",
        KNOWN,
        "--ignore-regex",
        DATA,
        "--skip",
        SKIPPED,
    ]);
    finish(codespell.args(paths).current_dir(root())).text()
}

#[test]
fn pages_are_spelled_as_in_the_united_states() {
    let paths: Vec<_> = pages().into_iter().map(|page| page.path).collect();
    assert_eq!(misspelled("clear,rare,en-GB_to_en-US", &paths), "");
}

#[test]
fn sources_and_configurations_have_no_typing_mistakes() {
    let paths = ["src", "lua", "helm", "systemd", "integration", "limits.yaml", "Dockerfile", "mkdocs.yml"];
    assert_eq!(misspelled("clear,rare", &paths.map(str::to_owned)), "");
}
