//! Imports run downwards only; the map is in `src/lib.rs`.

use std::fs;
use std::path::{Path, PathBuf};

/// The layers from the top, and what each may import of the layers below it.
const LAYERS: &[(&str, &[&str])] = &[
    ("commands", &["server", "listeners", "limiter", "store", "config", "engine", "metrics"]),
    ("server", &["listeners", "limiter", "store", "config", "engine", "metrics"]),
    ("listeners", &["limiter", "store", "engine", "metrics"]),
    ("limiter", &["store", "engine", "metrics"]),
    ("store", &["engine"]),
    ("config", &["engine"]),
    ("metrics", &[]),
    ("engine", &[]),
];

/// Text that only one place may name: the crates that it hides, and the clocks that the engine must not read.
const SECRETS: &[(&str, &[&str])] = &[
    ("saphyr_parser", &["config"]),
    ("redis::", &["store"]),
    ("hyper::", &["listeners", "server", "telemetry", "http"]),
    ("tokio::", &["commands", "server", "listeners", "limiter", "http", "telemetry", "store/redis"]),
    (
        "tracing::",
        &["commands", "server", "listeners", "limiter", "http", "telemetry", "store/mod.rs", "store/redis", "clock.rs"],
    ),
    ("Instant::", &["commands", "server", "listeners", "limiter", "http", "telemetry", "store", "clock.rs"]),
    ("SystemTime::", &["commands", "server", "listeners", "http", "telemetry", "clock.rs", "config"]),
];

#[test]
fn no_import_runs_up() {
    let mut wrong = Vec::new();
    for (path, code) in sources() {
        let layer = path.split(['/', '.']).next().unwrap();
        let Some((_, below)) = LAYERS.iter().find(|(name, _)| *name == layer) else { continue };
        for (number, line) in (1..).zip(code.lines()) {
            for imported in imports(line) {
                let known = LAYERS.iter().any(|(name, _)| *name == imported);
                if known && imported != layer && !below.contains(&imported) {
                    wrong.push(format!("{path}:{number}: {layer} imports {imported}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "imports run up:\n{}", wrong.join("\n"));
}

#[test]
fn what_a_module_hides_is_named_nowhere_else() {
    let mut wrong = Vec::new();
    for (path, code) in sources() {
        for (number, line) in (1..).zip(code.lines()) {
            for (secret, places) in SECRETS {
                let names = line.match_indices(secret).any(|(start, _)| {
                    // `store::redis::` and `crate::..` are paths of ours, not the crate's.
                    !line[..start].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':')
                });
                if names && !places.iter().any(|place| path.starts_with(place)) {
                    wrong.push(format!("{path}:{number}: names `{secret}`"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "named outside its place:\n{}", wrong.join("\n"));
}

#[test]
fn the_rules_of_this_test_catch_what_they_are_for() {
    assert_eq!(imports("use crate::limiter::Limiter;"), ["limiter"]);
    assert_eq!(
        imports("    let x = crate::listeners::proxy::run(crate::engine::numbers::Micros(0));"),
        ["listeners", "engine"]
    );
    assert_eq!(imports("use super::charge::Charge;"), Vec::<&str>::new());
}

/// The modules of ours that a line names.
fn imports(line: &str) -> Vec<&str> {
    line.match_indices("crate::")
        .map(|(start, _)| {
            let rest = &line[start + "crate::".len()..];
            &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())]
        })
        .collect()
}

/// Every source file, by its path below `src/`, without comments and without its tests.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    assert!(files.len() > 20, "the sources were not found");
    files.into_iter().map(|file| (relative(&root, &file), code(&fs::read_to_string(&file).unwrap()))).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
}

fn relative(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap().to_str().unwrap().to_owned()
}

fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap();
    let lines = text.lines().map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}
