//! `--format github`: workflow commands, which GitHub shows beside the lines of a pull request.

use std::fmt::Write;

use super::{Checked, problems, severity};
use crate::config::{Lint, Problem};

/// Returns one command per problem, each on its line.
pub(super) fn commands(checked: &[Checked]) -> String {
    let mut text = String::new();
    for (problem, help) in problems(checked) {
        push(&mut text, &problem, help);
    }
    text
}

fn push(text: &mut String, problem: &Problem, help: &str) {
    let _ = write!(text, "::{} file={}", severity(problem), property(&problem.file));
    if let Some(place) = problem.place {
        let (line, column) = (place.line, place.column);
        let _ = write!(text, ",line={line},col={column},endColumn={}", column.saturating_add(place.width));
    }
    let title = problem.lint.map_or("invalid rules", Lint::name);
    let _ = write!(text, ",title={}::{}", property(title), data(&problem.message));
    if !help.is_empty() {
        // The newline within a message.
        let _ = write!(text, "%0A{}", data(help));
    }
    text.push('\n');
}

/// Escapes a message.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a value before the message.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Place, Report, Severity};

    #[test]
    fn a_text_of_the_file_starts_no_command_of_its_own() {
        let place = Some(Place { line: 3, column: 7, width: 2 });
        let problem = Problem {
            severity: Severity::Warning,
            lint: Some(Lint::FreeId),
            file: "a:b,c\n::error::x".into(),
            place,
            message: "100%\r\n::error::y".into(),
            help: "do: this, or 50%".into(),
            source_line: None,
        };
        let report = Report { problems: vec![problem], errors: 0, warnings: 1 };
        let text = commands(&[Checked { report, ..Checked::default() }]);
        let expected = "::warning file=a%3Ab%2Cc%0A%3A%3Aerror%3A%3Ax,line=3,col=7,endColumn=9,title=free-id::100%25%0D%0A\
                        ::error::y%0Ado: this, or 50%25\n";
        assert_eq!(text, expected);
    }
}
