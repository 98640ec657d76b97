//! Holds each algorithm to its parts, which `CONTRIBUTING.md` lists.

use std::fs;

use serde_json::Value;

use super::{files, repository};

/// The words of `algorithm:` in the rules file without the second name of `gcra`, and `elevated`, which is a key of its own.
fn algorithms() -> Vec<String> {
    let schema: Value = serde_json::from_str(&read("src/config/schema.json")).unwrap();
    let words = schema.pointer("/$defs/limit/properties/algorithm/enum").and_then(Value::as_array);
    let words = words.expect("the schema lists the algorithms").iter().map(|word| word.as_str().unwrap().to_owned());
    words.filter(|word| word != "token_bucket").chain(["elevated".to_owned()]).collect()
}

#[track_caller]
fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn each_algorithm_has_all_its_parts() {
    let algorithms = algorithms();
    assert!(algorithms.len() >= 8, "{algorithms:?}");
    let mut missing: Vec<String> = algorithms.iter().flat_map(|name| missing(name)).collect();
    // A file whose name is not in the schema is an algorithm that nobody can select.
    for file in files(&repository().join("src/config/algorithms")).into_keys() {
        let name = file.trim_end_matches(".rs");
        if name != "mod" && !algorithms.iter().any(|known| known == name) {
            missing.push(format!("{name}: not in src/config/schema.json"));
        }
    }
    assert!(missing.is_empty(), "see `Adding an algorithm` in CONTRIBUTING.md:\n{}", missing.join("\n"));
}

fn missing(name: &str) -> Vec<String> {
    let exists = |path: &str| repository().join(path).exists();
    let mut missing = Vec::new();
    let mut require = |is_there: bool, part: String| {
        if !is_there {
            missing.push(format!("{name}: {part}"));
        }
    };
    for layer in ["engine", "config"] {
        let module = format!("src/{layer}/algorithms/{name}");
        require(exists(&format!("{module}.rs")) || exists(&format!("{module}/mod.rs")), format!("no {module}.rs"));
        let registry = format!("src/{layer}/algorithms/mod.rs");
        require(exists(&registry) && read(&registry).contains(&format!("mod {name};")), format!("not in {registry}"));
    }
    let script = format!("lua/{name}.lua");
    require(exists(&script), format!("no {script}"));
    let mut store = files(&repository().join("src/store/redis")).into_values();
    require(store.any(|text| text.contains(&format!("\"{name}.lua\""))), "not in the files of src/store/redis".into());
    require(read("lua/decide.lua").contains(&format!("include {name}.lua ")), "not included in lua/decide.lua".into());
    let pages = ["docs/rules/limit.md", "docs/algorithms.md", "docs/queues.md", "docs/scripts.md"].map(read).concat();
    require(pages.lines().any(|line| documents(line, name)), "no page has a heading, a row or an item on it".into());
    let cases = fs::read_dir(repository().join("integration/cases")).unwrap().map(|entry| entry.unwrap().path());
    let mut cases = cases.filter(|path| path.extension().is_some_and(|kind| kind == "jsonl"));
    let is_used = cases.any(|path| fs::read_to_string(path).unwrap().lines().any(|case| uses(case, name)));
    // `queue` and `script` are not in memory, so their cases are not in the common table.
    let own = format!("integration/server_only/{name}.rs");
    require(is_used || exists(&own), format!("no case in integration/cases/*.jsonl, and no {own}"));
    missing
}

fn documents(line: &str, name: &str) -> bool {
    (line.starts_with('#') || line.starts_with('|') || line.starts_with("- ")) && line.contains(&format!("`{name}`"))
}

/// Returns whether a case has a limit with this algorithm. The default is `gcra`.
fn uses(case: &str, name: &str) -> bool {
    let case: Value = serde_json::from_str(case).unwrap();
    let limits = case["limits"].as_object().into_iter().flatten().map(|(_, limit)| limit);
    let mut limits = limits.filter(|limit| limit.is_object());
    match name {
        "gcra" => limits.any(|limit| limit.get("algorithm").is_none()),
        "elevated" => limits.any(|limit| limit.get("elevated").is_some()),
        _ => limits.any(|limit| limit["algorithm"] == name),
    }
}
