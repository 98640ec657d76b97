//! `--format junit`: the XML that servers of continuous integration read, by the schema of Jenkins' xUnit plugin (`junit-10.xsd`).

use std::fmt::Write;
use std::time::Duration;

use super::{TestResult, printable};

pub(super) fn document(results: &[TestResult]) -> String {
    let mut text =
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"weir test\" {}>\n", counts(results));
    // The results of a file are next to each other.
    for suite in results.chunk_by(|one, other| one.file == other.file) {
        let file = suite.first().map(|first| attribute(&first.file)).unwrap_or_default();
        let _ = writeln!(text, "  <testsuite name=\"{file}\" file=\"{file}\" {} skipped=\"0\">", counts(suite));
        for result in suite {
            push_case(&mut text, &file, result);
        }
        text.push_str("  </testsuite>\n");
    }
    text.push_str("</testsuites>\n");
    text
}

fn push_case(text: &mut String, file: &str, result: &TestResult) {
    let (name, time) = (attribute(&result.name), seconds(result.took));
    let _ = write!(text, "    <testcase name=\"{name}\" classname=\"{file}\" time=\"{time}\"");
    let Some(failure) = &result.failure else {
        text.push_str("/>\n");
        return;
    };
    let (at, details) = (format!("{file}:{}", failure.line), failure.details.trim_end());
    let message = attribute(details.lines().next().unwrap_or_default().trim());
    let _ = write!(text, ">\n      <failure type=\"difference\" message=\"{message}\">{at}\n{}", content(details));
    text.push_str("</failure>\n    </testcase>\n");
}

/// The attributes that count results.
fn counts(results: &[TestResult]) -> String {
    let failed = results.iter().filter(|result| result.failure.is_some()).count();
    let time = seconds(results.iter().map(|result| result.took).sum());
    format!("tests=\"{}\" failures=\"{failed}\" errors=\"0\" time=\"{time}\"", results.len())
}

fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}

fn content(text: &str) -> String {
    printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Escapes a value between double quotes. A reader would turn a line break into a blank.
fn attribute(text: &str) -> String {
    content(text).replace('"', "&quot;").replace('\n', "&#10;").replace('\t', "&#9;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_the_file_is_no_markup() {
        assert_eq!(attribute("a<b>&\"\n\u{1b}"), "a&lt;b&gt;&amp;&quot;&#10;\u{fffd}");
        assert_eq!(content("]]>\r\n"), "]]&gt;\u{fffd}\n");
    }
}
