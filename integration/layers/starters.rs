//! Holds `integration/` to one place that starts processes: `support/`.

use super::{files, repository};

#[test]
fn only_support_starts_processes() {
    let sources = files(&repository().join("integration"));
    let others = sources
        .iter()
        .filter(|(path, _)| !["support/", "layers/", "bench/", "fuzz/"].iter().any(|folder| path.starts_with(folder)));
    let found: Vec<String> = others
        .flat_map(|(path, text)| (1..).zip(text.lines()).map(move |(number, line)| (path, number, line)))
        .filter(|(_, _, line)| line.contains(".spawn()") || line.contains("CARGO_BIN_EXE"))
        .map(|(path, number, line)| format!("integration/{path}:{number}: {}", line.trim()))
        .collect();
    assert!(found.is_empty(), "start these by `support::process` or `support::binary`:\n{}", found.join("\n"));
}
