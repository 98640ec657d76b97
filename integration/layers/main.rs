//! Holds the sources to the map in `src/lib.rs`: imports run downwards, a crate is named only in its place, no cycle leaves its
//! folder, no file or function is too long, types that differ have names that differ, and each file says what it is for.
//!
//! The sources are parsed, so that `super::` paths, groups, renames and re-exports count as what they lead to. Test code is
//! skipped: items behind `#[cfg(test)]` and `#[cfg(any(test, fuzzing))]`, and the files of such modules.

mod algorithms;
mod cycles;
mod examples;
mod pages;
mod patience;
mod resolve;
mod source;
mod starters;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use resolve::{Target, layer};
use source::{Crate, Files, Kind};

/// The top-level modules from the top, and those below that each may import.
const LAYERS: &[(&str, &[&str])] = &[
    ("main", &["commands"]),
    ("lib", &[]),
    (
        "commands",
        &[
            "server",
            "listeners",
            "simulation",
            "limiter",
            "store",
            "config",
            "logs",
            "telemetry",
            "engine",
            "http",
            "jwt",
            "message",
            "clock",
        ],
    ),
    ("server", &["listeners", "limiter", "store", "config", "telemetry", "jwt", "engine", "http", "message", "clock"]),
    ("listeners", &["limiter", "store", "telemetry", "jwt", "engine", "http", "message", "clock"]),
    ("simulation", &["store", "config", "logs", "engine", "message", "clock"]),
    ("limiter", &["store", "telemetry", "jwt", "engine", "message", "clock"]),
    ("store", &["engine", "clock"]),
    ("config", &["jwt", "engine", "message", "clock"]),
    ("logs", &["engine", "message"]),
    ("telemetry", &["engine", "message", "clock", "label"]),
    ("jwt", &["engine", "message"]),
    ("clock", &["engine"]),
    ("engine", &["message"]),
    ("http", &["message"]),
    ("message", &[]),
    ("label", &[]),
];

/// The rooms of `engine`, each of which may import those before it.
const ROOMS: &[&str] = &["algorithms", "text", "request", "limit", "charging", "deciding", "telling", "answer"];

/// Folders and files that must not import these others, though their layer may.
const APART: &[(&str, &str)] = &[("http/http1", "http/upstream"), ("http/http2", "http/upstream")];

/// Crates and clocks, and the only places that may name them.
const CONFINED: &[(&str, &[&str])] = &[
    ("flate2", &["logs/input"]),
    ("ruzstd", &["logs/input"]),
    ("h2", &["http"]),
    ("httparse", &["http"]),
    // The binary chooses the cryptography; connections to Redis are TLS over sockets of ours.
    ("rustls", &["http", "store/redis", "main"]),
    ("tokio_rustls", &["http", "store/redis"]),
    ("aws_lc_rs", &["jwt", "server"]),
    ("hyper", &["http"]),
    ("hyper_util", &["http"]),
    ("prometheus", &["telemetry"]),
    ("redis", &["store/redis"]),
    ("saphyr_parser", &["config"]),
    ("toml", &["config"]),
    ("tonic", &["http"]),
    ("tonic_prost", &["http"]),
    ("tower", &["http"]),
    ("tokio", &["commands", "server", "listeners", "limiter", "telemetry", "http", "store/answer", "store/redis"]),
    (
        "tracing",
        &["commands", "server", "listeners", "limiter", "telemetry", "http", "store/mod", "store/redis", "clock"],
    ),
    ("std::time::Instant", &["commands", "server", "listeners", "limiter", "telemetry", "http", "store", "clock"]),
    ("std::time::SystemTime", &["commands", "server", "listeners", "telemetry", "http", "config", "clock"]),
    ("jiff::Timestamp::now", &["commands", "server", "listeners", "telemetry", "clock"]),
    ("jiff::Zoned::now", &["commands", "server", "listeners", "telemetry", "clock"]),
];

/// Names for types that say little by themselves. Each may stand for types of one top-level module.
const BROAD_NAMES: &[&str] = &["Answer", "Place", "Target", "State", "Entry"];

/// Names for types, and what such a type is called instead: one word stands for one thing.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("Ask", "a request for a decision"),
    ("Question", "a request for a decision"),
    ("Ruling", "a verdict"),
    ("Standing", "the kind of a verdict, or the state of a bucket"),
];

/// A file's lines and a function's, without test code.
const MOST_LINES: (usize, usize) = (400, 70);

/// Mistakes by name, each with its places.
type Mistakes = BTreeMap<String, BTreeSet<String>>;

#[test]
fn the_sources_follow_the_map() {
    let parsed = Crate::parse(&files(&repository().join("src")));
    assert!(parsed.lines.len() > 100, "only {} files were found", parsed.lines.len());
    let mistakes = mistakes(&parsed);
    let mut text = String::new();
    for (name, places) in &mistakes {
        text.extend([name, "\n"]);
        text.extend(places.iter().flat_map(|place| ["    ", place, "\n"]));
    }
    assert!(text.is_empty(), "the sources leave the map:\n{text}");
}

/// `missing_docs` would ask for a comment on each field, too.
#[test]
fn each_file_says_what_it_is_for() {
    for folder in ["src", "integration"] {
        let files = files(&repository().join(folder)).into_iter();
        let silent: Vec<String> = files.filter(|(_, text)| !text.starts_with("//! ")).map(|(path, _)| path).collect();
        assert!(silent.is_empty(), "these files in {folder}/ have no module documentation: {silent:#?}");
    }
}

/// `doctest = false` in `Cargo.toml`: readers would take such a block for a test.
#[test]
fn no_documentation_has_code_that_looks_tested() {
    let files = files(&repository().join("src")).into_iter();
    let found: Vec<String> = files
        .flat_map(|(path, text)| doc_tests(&text).map(move |line| format!("{path}:{line}")).collect::<Vec<_>>())
        .collect();
    assert!(found.is_empty(), "mark these blocks as `text`, or make them unit tests: {found:#?}");
    for (text, expected) in [
        ("/// ```\n/// f();\n/// ```\n", vec![1]),
        (
            "//! A\n//!  ```rust\n//! f();\n//!  ```\n/// ```text\n/// a\n/// ```\n/// ~~~no_run,rust\n/// ~~~",
            vec![2, 8],
        ),
        ("/// ```text\n/// ```rust\n/// ```\n/// ```yaml\n/// a: 1\n/// ```\n// ```\nf(\"```\");", vec![]),
    ] {
        assert_eq!(doc_tests(text).collect::<Vec<_>>(), expected, "{text}");
    }
}

/// The lines at which blocks of documentation begin that rustdoc would run.
fn doc_tests(text: &str) -> impl Iterator<Item = usize> {
    const OF_TESTS: [&str; 7] = ["rust", "ignore", "should_panic", "no_run", "compile_fail", "edition", "test_harness"];
    let mut fence: Option<&str> = None;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let line = line.trim_start();
        let line = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?.trim();
        let mark = line.get(..3).filter(|mark| ["```", "~~~"].contains(mark))?;
        let language = &line[3..];
        match fence {
            None => fence = Some(mark),
            Some(open) if open == mark && language.is_empty() => {
                fence = None;
                return None;
            }
            Some(_) => return None,
        }
        (language.is_empty() || OF_TESTS.iter().any(|word| language.starts_with(word))).then_some(number)
    })
}

fn mistakes(parsed: &Crate) -> Mistakes {
    let mut mistakes = Mistakes::new();
    layers(parsed, &mut mistakes);
    confined(parsed, &mut mistakes);
    imports(parsed, &mut mistakes);
    sizes(parsed, &mut mistakes);
    names(parsed, &mut mistakes);
    mistakes
}

fn note(mistakes: &mut Mistakes, name: String, place: String) {
    mistakes.entry(name).or_default().insert(place);
}

/// Imports that run up.
fn layers(parsed: &Crate, mistakes: &mut Mistakes) {
    // One line for each pair of files is enough.
    let mut seen = BTreeSet::new();
    for reference in &parsed.references {
        let file = parsed.modules[reference.module].file.as_str();
        let own = layer(file);
        let below = LAYERS.iter().find(|(name, _)| *name == own).map_or::<&[_], _>(&[], |(_, below)| below);
        for (imported, to) in parsed.layers(reference) {
            if imported != own && own != "lib" && !below.contains(&imported) && seen.insert((file, to)) {
                let place = format!("src/{file}:{} imports {to}", reference.line);
                note(mistakes, format!("{own} imports {imported}"), place);
            }
        }
    }
}

/// Crates and clocks outside their places.
fn confined(parsed: &Crate, mistakes: &mut Mistakes) {
    for reference in &parsed.references {
        let file = parsed.modules[reference.module].file.as_str();
        for target in parsed.resolve(reference) {
            let Target::External(path) = target else { continue };
            // A single name in an expression is a variable.
            if path.len() < 2 && reference.kind == Kind::Use {
                continue;
            }
            let path = path.join("::");
            for (name, places) in CONFINED {
                if is_within(&path, name, "::") && !places.iter().any(|place| is_at(file, place)) {
                    note(mistakes, format!("{file} names {name}"), format!("src/{file}:{}: {path}", reference.line));
                }
            }
        }
    }
}

/// Imports between parts that must stay apart, and cycles.
fn imports(parsed: &Crate, mistakes: &mut Mistakes) {
    let imports = parsed.imports();
    for (from, others) in &imports {
        for (to, line) in others {
            if let (Some((room, own)), Some((imported, other))) = (room(from), room(to))
                && other > own
            {
                note(mistakes, format!("engine/{room} imports engine/{imported}"), format!("src/{from}:{line}: {to}"));
            }
            for (left, right) in APART {
                if is_at(from, left) && is_at(to, right) {
                    note(mistakes, format!("{left} imports {right}"), format!("src/{from}:{line}: {to}"));
                }
            }
        }
    }
    for cycle in cycles::across_folders(&imports) {
        let layers: BTreeSet<&str> = cycle.files.iter().map(|file| layer(file)).collect();
        let name = format!("cycle in {}", Vec::from_iter(layers).join(", "));
        let list = |names: BTreeSet<String>| Vec::from_iter(names).join(" ");
        note(
            mistakes,
            name.clone(),
            format!("in {}, these {}: {}", list(cycle.folders), cycle.files.len(), list(cycle.files)),
        );
        for (number, (from, line, to)) in (1..).zip(cycle.way) {
            note(mistakes, name.clone(), format!("{number:2}. src/{from}:{line} imports {to}"));
        }
    }
}

fn sizes(parsed: &Crate, mistakes: &mut Mistakes) {
    let (file_lines, function_lines) = MOST_LINES;
    for (file, lines) in parsed.lines.iter().filter(|(_, lines)| **lines > file_lines) {
        note(mistakes, format!("{file} has more than {file_lines} lines"), format!("{lines} without its tests"));
    }
    for function in parsed.functions.iter().filter(|function| function.lines > function_lines) {
        let name = format!("{} in {} has more than {function_lines} lines", function.name, function.file);
        note(mistakes, name, format!("{}", function.lines));
    }
}

/// Types whose names say too little, or are other words for what has a name.
fn names(parsed: &Crate, mistakes: &mut Mistakes) {
    let files = |name: &str| -> BTreeSet<&str> {
        let modules = parsed.modules.iter().filter(|module| module.items.contains(name));
        modules.map(|module| module.file.as_str()).collect()
    };
    for name in BROAD_NAMES {
        let files = files(name);
        let layers: BTreeSet<&str> = files.iter().map(|file| layer(file)).collect();
        for file in files.iter().filter(|_| layers.len() > 1) {
            note(mistakes, format!("{name} names types of {} modules", layers.len()), format!("src/{file}"));
        }
    }
    for (name, instead) in OTHER_WORDS {
        for file in files(name) {
            note(mistakes, format!("{name} is another word for {instead}"), format!("src/{file}"));
        }
    }
}

/// The room of `engine` that a file is in, and its place among them.
fn room(file: &str) -> Option<(&'static str, usize)> {
    let name = file.strip_prefix("engine/")?.split('/').next()?;
    ROOMS.iter().position(|room| *room == name).map(|place| (ROOMS[place], place))
}

/// Returns whether a file lies at a place, which is a file without `.rs` or a folder.
fn is_at(file: &str, place: &str) -> bool {
    is_within(file.trim_end_matches(".rs"), place, "/")
}

fn is_within(path: &str, prefix: &str, separator: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(separator))
}

/// The root of the repository.
fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// All Rust files below a folder, without those of builds.
fn files(root: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read_to_string(path).unwrap());
            }
        }
    }
    files
}
