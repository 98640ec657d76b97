//! Configurations of others, by their shape: each is imported or refused in words, and nothing in it about limits is dropped.

use std::path::Path;

use serde_json::Value;

use crate::support::binary::run_in;
use crate::support::programs::repository;

/// A line of table.jsonl: `file`, `format`, what it is (`what`, `shape_of`) and the last line of the import (`summary`), or a part
/// of the error (`refused`).
#[test]
fn configurations_of_others_are_imported_or_refused_in_words() {
    let folder = repository().join("integration/cases/import/corpus");
    let table = std::fs::read_to_string(folder.join("table.jsonl")).unwrap();
    let mut wrong = Vec::new();
    for line in table.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| row[key].as_str().unwrap_or_default();
        let found = import(&folder, text("format"), text("file"));
        let is_expected = match found.split_once("refused: ") {
            Some((_, error)) => !text("refused").is_empty() && error.contains(text("refused")),
            None => found == text("summary"),
        };
        if !is_expected {
            wrong.push(format!("{}: {found}", text("file")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the summary, after the result was checked, or the reason why the file is refused.
#[track_caller]
fn import(folder: &Path, format: &str, file: &str) -> String {
    let path = if folder.join(file).is_dir() { format!("{file}/nginx.conf") } else { file.to_owned() };
    let finished = run_in(folder, &["import", format, &path]);
    if finished.code == Some(1) {
        return format!("refused: {}", finished.err);
    }
    assert_eq!(finished.code, Some(0), "{file}: {}", finished.text());
    // Those with the most branches are compared whole.
    let expected = folder.join(format!("{file}.expected"));
    if let Ok(expected) = std::fs::read_to_string(&expected) {
        assert_eq!(finished.out, expected, "{file}");
    }
    let (told, summary) = finished.err.trim_end().rsplit_once('\n').unwrap_or(("", finished.err.trim_end()));
    // Each is a comment in the result as well.
    let words = |text: &str| text.split_whitespace().filter(|word| *word != "#").collect::<Vec<_>>().join(" ");
    let comments = words(&finished.out);
    for line in told.lines() {
        let line = line.split(" is left out: ").last().unwrap();
        assert!(comments.contains(&words(line)), "{file}: {line} is not in\n{}", finished.out);
    }
    // Each limit has a test, unless other limits deny before so many requests are in flight.
    for limit in finished.out.split("\n\n").filter(|limit| limit.contains("untested-limit")) {
        assert!(limit.contains("algorithm: concurrency"), "{file}: {limit}");
    }
    let result = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(result.path(), &finished.out).unwrap();
    let checked = run_in(folder, &["check", "--strict", result.path().to_str().unwrap()]);
    let has_limits = !summary.starts_with("0 limits");
    assert_eq!(checked.code == Some(0), has_limits, "{file}: {}\n{}", checked.text(), finished.out);
    assert!(has_limits || checked.err.contains("[no-limits]"), "{file}: {}", checked.text());
    summary.to_owned()
}

/// More limits than a report keeps warnings.
#[test]
fn many_limits_pass_check() {
    let folder = tempfile::tempdir().unwrap();
    let location = |burst| format!("location /p{burst}/ {{ limit_req zone=a burst={burst}; }}\n");
    let locations = (1..=150).map(location).collect::<Vec<_>>().concat();
    let zone = "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s;";
    let text = format!("events {{}}\nhttp {{ {zone}\nserver {{ listen 80;\n{locations}}} }}\n");
    std::fs::write(folder.path().join("nginx.conf"), text).unwrap();
    assert!(import(folder.path(), "nginx", "nginx.conf").starts_with("150 limits, 0 overrides, 150 comments"));
}
