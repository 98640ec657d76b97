//! Holds pages for contributors to the sources: the files that they name exist, and a table in `CONTRIBUTING.md` says how many files
//! of `src/` know of one example of each kind of thing that is added now and then.

use std::collections::BTreeSet;
use std::fs;

use super::{files, repository};

/// Things that are added now and then, with an example, the names by which files know of it, and the number of these files. The numbers
/// should only go down: a new file that has to know of every algorithm is a place that the next one forgets. A folder of its own, as
/// `limitador`, counts as one file.
const TOUCHED: &[(&str, &str, &[&str], usize)] = &[
    ("an algorithm", "`sliding_log`", &["SlidingLog", "sliding_log", "LogEdit"], 10),
    ("a part of a request", "a cookie", &["Cookie"], 4),
    ("a word of a limit", "`drain_over_limit`", &["drain_over_limit"], 11),
    ("a listener", "SPOE", &["Spoe", "spoe"], 8),
    ("an import", "limitador", &["limitador"], 2),
];

/// The text without its unit tests.
fn without_tests(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod ").map_or(text, |(code, _)| code)
}

fn touched(names: &[&str]) -> BTreeSet<String> {
    let sources = files(&repository().join("src")).into_iter();
    // Importers name the parts that others have, and a new part of ours leaves them as they are.
    let is_import = |path: &str| path.contains("commands/import/") && names.contains(&"Cookie");
    let is_test = |path: &str| path.contains("tests") || path.ends_with("model.rs") || is_import(path);
    let has_name = |text: &str| {
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| names.contains(&word))
    };
    let found = sources.filter(|(path, text)| !is_test(path) && has_name(without_tests(text)));
    found.map(|(path, _)| own_folder(&path, names).unwrap_or(path)).collect()
}

/// The folder of the thing itself, if the file is in it.
fn own_folder(path: &str, names: &[&str]) -> Option<String> {
    let folders: Vec<&str> = path.split('/').collect();
    let depth = folders.iter().position(|folder| names.contains(folder))?;
    Some(folders[..=depth].join("/"))
}

#[test]
fn few_files_know_of_one_thing() {
    let page = fs::read_to_string(repository().join("CONTRIBUTING.md")).unwrap();
    for (what, example, names, most) in TOUCHED {
        let found = touched(names);
        assert_eq!(found.len(), *most, "{what}: files know of {example}: {found:#?}");
        let row = format!("| {what} | {example} | {most} |");
        assert!(page.contains(&row), "CONTRIBUTING.md lacks {row}");
    }
}

/// The types between a request and its verdict. The number only goes down.
#[test]
fn the_types_on_the_way_are_those_that_the_page_lists() {
    const MOST: usize = 33;
    let page = fs::read_to_string(repository().join("docs/architecture.md")).unwrap();
    let (_, rest) = page.split_once("## From request to verdict").unwrap();
    let (section, _) = rest.split_once("\n## ").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name));
    let listed: Vec<&str> = rows.collect();
    assert!((20..=MOST).contains(&listed.len()), "{} types: {listed:?}", listed.len());
    let engine = files(&repository().join("src/engine")).into_values().collect::<String>();
    let defined = engine + &fs::read_to_string(repository().join("src/store/batch.rs")).unwrap();
    for name in listed {
        let is_defined = ["struct", "enum"].iter().any(|kind| {
            let start = format!("{kind} {name}");
            defined
                .match_indices(&start)
                .any(|(at, _)| !defined[at + start.len()..].starts_with(|c: char| c.is_alphanumeric()))
        });
        assert!(is_defined, "the page lists {name}");
    }
}

#[test]
fn files_that_pages_name_exist() {
    let docs = fs::read_dir(repository().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.chain([repository().join("CONTRIBUTING.md")]);
    let mut named = 0;
    for page in pages.filter(|path| path.extension().is_some_and(|kind| kind == "md")) {
        let text = fs::read_to_string(&page).unwrap();
        for path in text.split('`').filter(|path| path.starts_with("src/") || path.starts_with("lua/")) {
            // `<name>` stands for any.
            if path.contains(['<', ' ']) {
                continue;
            }
            named += 1;
            assert!(repository().join(path).exists(), "{} names {path}", page.display());
        }
    }
    assert!(named > 40, "{named}");
}
