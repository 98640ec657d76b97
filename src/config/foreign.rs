//! Reads files whose meaning is not known here: those of other limiters, for `weir import`, and the routes of the proxy. Values are
//! a tree, and errors have their places.

pub(crate) use super::mapping::{Mapping, all, find};
pub(crate) use super::matching::MOST_REGEXES;
pub(crate) use super::node::{Key, Node, Value};
pub(crate) use super::problem::{Findings, ReadResult, ReportedError, quoted};
use super::toml;
use super::yaml::{Reader, tree};

/// Reads a file. JSON is YAML in flow style, where tabs are spaces; in block style they are rejected.
pub(crate) fn read(text: &str, findings: &Findings) -> ReadResult<Node> {
    if !text.trim_start().starts_with(['{', '[']) {
        Reader::without_tabs(text, findings)?;
    }
    tree(text, findings)
}

/// Reads a file in TOML.
pub(crate) fn read_toml(text: &str, findings: &Findings) -> ReadResult<Node> {
    toml::tree(text, findings)
}

/// Reads all documents of a file in block style.
pub(crate) fn documents(text: &str, findings: &Findings) -> ReadResult<Vec<Node>> {
    Reader::without_tabs(text, findings)?.documents()
}

#[cfg(test)]
mod tests {
    use super::super::Report;
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let findings = Findings::new("f");
        let node = read(text, &findings);
        let mut report = Report::default();
        report.add(&findings, text);
        match expected {
            Ok(part) => assert!(node.is_ok() && format!("{node:?}").contains(part), "{node:?} {report}"),
            Err(part) => assert!(node.is_err() && report.to_string().contains(part), "{node:?} {report}"),
        }
    }

    #[test]
    fn json_may_have_tabs_and_regular_expressions_a_tag() {
        check("{\n\t\"a\": [\n\t\t1\n\t]\n}\n", Ok("\"1\""));
        check("a:\n\tb: 1\n", Err("a tab in the indentation"));
        check("a: !!js/regexp /192\\.168\\//gi\n", Ok("\"192\\\\.168\\\\/\""));
        check("a: !!js/regexp foo\n", Err("invalid regular expression `foo`"));
        check("a: !!timestamp 2016-05-01T00:00:00Z\n", Ok("\"2016-05-01T00:00:00Z\""));
        check("a: !!js/function 1\n", Err("tags (`!`) are not supported"));
        check("a: &x 1\n", Err("anchors"));
        check("", Err("missing"));
    }
}
