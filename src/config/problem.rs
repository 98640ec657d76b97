//! Mistakes in a file, and how people see them: message, place, the line with a caret, and what would be right.

use std::fmt;

pub(crate) use crate::engine::rules::quote::quoted;
use crate::engine::rules::quote::shown;

/// A file with more mistakes than this is not looked at line by line; the rest is only counted.
const MOST_KEPT: usize = 100;

/// So many are printed, the worst first.
const MOST_PRINTED: usize = 50;

/// Longer lines are shown cut, around the caret.
const WIDEST_LINE: usize = 120;

/// Of a line longer than this in bytes nothing is shown: it would be searched anew for each of its problems.
const LONGEST_LINE: usize = 64 * 1024;

/// Messages and help are cut here, because they repeat what the file says.
const LONGEST_TEXT: usize = 400;

/// Whether a problem keeps the rules from loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The rules do not load.
    Error,
    /// They load, and probably do not what was meant.
    Warning,
}

/// A place in a file, in characters, both counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The first character.
    pub column: u32,
    /// How many characters on this line; at least 1.
    pub width: u32,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether the rules can be used.
    pub severity: Severity,
    /// The name of the file.
    pub file: String,
    /// Where in the file, if at some place of it.
    pub place: Option<Place>,
    /// What is wrong, in one line.
    pub message: String,
    /// What would be right; may be empty.
    pub help: String,
    /// The line at `place`.
    pub source_line: Option<String>,
}

/// All problems of a set of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first of them by severity, file and place. There may be more than are kept.
    pub problems: Vec<Problem>,
    /// How many errors there are in all.
    pub errors: usize,
    /// How many warnings there are in all.
    pub warnings: usize,
}

/// The problems of one file, while it is read.
pub(crate) struct Findings {
    file: String,
    problems: Vec<Problem>,
    errors: usize,
    warnings: usize,
}

/// Says that a value is unusable and that the reason is among the findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reported;

impl Findings {
    pub(crate) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), problems: Vec::new(), errors: 0, warnings: 0 }
    }

    /// Whether there are so many errors that further ones are only counted: nothing costly should be worked out for
    /// their text.
    pub(super) fn is_full(&self) -> bool {
        self.errors >= MOST_KEPT
    }

    pub(crate) fn error(&mut self, place: Place, message: impl AsRef<str>, help: impl AsRef<str>) -> Reported {
        self.errors += 1;
        if self.errors <= MOST_KEPT {
            self.keep(Severity::Error, place, message.as_ref(), help.as_ref());
        }
        Reported
    }

    pub(super) fn warning(&mut self, place: Place, message: impl AsRef<str>, help: impl AsRef<str>) {
        self.warnings += 1;
        if self.warnings <= MOST_KEPT {
            self.keep(Severity::Warning, place, message.as_ref(), help.as_ref());
        }
    }

    fn keep(&mut self, severity: Severity, place: Place, message: &str, help: &str) {
        let (message, help) = (shown(message, LONGEST_TEXT), shown(help, LONGEST_TEXT));
        let file = self.file.clone();
        self.problems.push(Problem { severity, file, place: Some(place), message, help, source_line: None });
    }
}

impl Report {
    /// A report of one error that has no place in its file.
    pub fn of(problem: Problem) -> Self {
        Self { problems: vec![problem], errors: 1, warnings: 0 }
    }

    /// Adds what another report says.
    pub(super) fn join(&mut self, other: Self) {
        self.problems.extend(other.problems);
        self.problems.sort_by_key(|problem| problem.severity);
        self.errors += other.errors;
        self.warnings += other.warnings;
    }

    /// Adds what was found in a file with this text.
    pub(crate) fn add(&mut self, findings: Findings, text: &str) {
        let mut found = findings.problems;
        found.sort_by_key(|problem| problem.place);
        // One walk over the text serves all problems: a file of overrides has a million lines.
        let mut lines = (1u32..).zip(text.lines());
        let mut current = lines.next();
        for problem in &mut found {
            let Some(place) = problem.place else { continue };
            while current.is_some_and(|(number, _)| number < place.line) {
                current = lines.next();
            }
            problem.source_line =
                current.map(|(_, line)| line).filter(|line| line.len() <= LONGEST_LINE).map(str::to_owned);
        }
        self.problems.append(&mut found);
        self.problems.sort_by_key(|problem| problem.severity);
        self.errors += findings.errors;
        self.warnings += findings.warnings;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems.iter().take(MOST_PRINTED) {
            writeln!(f, "{problem}")?;
        }
        let more = (self.errors + self.warnings).saturating_sub(MOST_PRINTED.min(self.problems.len()));
        if more > 0 { writeln!(f, "and {more} more") } else { Ok(()) }
    }
}

impl Problem {
    /// An error about a file as a whole.
    pub(crate) fn of_file(file: &str, message: String, help: &str) -> Self {
        Self {
            severity: Severity::Error,
            file: file.to_owned(),
            place: None,
            message,
            help: help.to_owned(),
            source_line: None,
        }
    }

    /// The problem in one line, for a log or a status page: `limits.yaml:4:5: message (help)`.
    pub fn one_line(&self) -> String {
        let place = self.place.map(|place| format!(":{}:{}", place.line, place.column)).unwrap_or_default();
        let help = if self.help.is_empty() { String::new() } else { format!(" ({})", self.help) };
        format!("{}{place}: {}{help}", self.file, self.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        writeln!(f, "{severity}: {}", self.message)?;
        let Some(place) = self.place else {
            writeln!(f, " --> {}", self.file)?;
            return if self.help.is_empty() { Ok(()) } else { writeln!(f, "  = help: {}", self.help) };
        };
        let margin = place.line.to_string().len();
        writeln!(f, "{:margin$}--> {}:{}:{}", "", self.file, place.line, place.column)?;
        if let Some(line) = &self.source_line {
            let (shown, column, width) = window(line, place);
            writeln!(f, "{:margin$} |", "")?;
            writeln!(f, "{} | {shown}", place.line)?;
            writeln!(f, "{:margin$} | {:column$}{}", "", "", "^".repeat(width))?;
        }
        if self.help.is_empty() { Ok(()) } else { writeln!(f, "{:margin$} = help: {}", "", self.help) }
    }
}

/// The part of a line that is shown, and the caret's offset and width in it. Tabs and control characters become
/// spaces: the caret must stand below its character.
fn window(line: &str, place: Place) -> (String, usize, usize) {
    let column = place.column.saturating_sub(1) as usize;
    let start = if column < WIDEST_LINE { 0 } else { column - WIDEST_LINE / 2 };
    let plain = |character: char| if character.is_control() { ' ' } else { character };
    let shown: String = line.chars().skip(start).take(WIDEST_LINE).map(plain).collect();
    let offset = column - start;
    let width = (place.width as usize).min(WIDEST_LINE.saturating_sub(offset)).max(1);
    (shown.trim_end().to_owned(), offset, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rules::quote::WIDEST_WORD;

    fn place(line: u32, column: u32, width: u32) -> Place {
        Place { line, column, width }
    }

    #[test]
    fn a_problem_shows_its_line_and_what_would_be_right() {
        let mut findings = Findings::new("limits.yaml");
        findings.warning(place(1, 1, 6), "second", "");
        findings.error(place(2, 4, 2), "first", "write 10");
        let mut report = Report::default();
        report.add(findings, "limits:\n\tb: 010 # x\n");
        let expected = "\
error: first
 --> limits.yaml:2:4
  |
2 |  b: 010 # x
  |    ^^
  = help: write 10

warning: second
 --> limits.yaml:1:1
  |
1 | limits:
  | ^^^^^^

";
        assert_eq!(report.to_string(), expected);
        assert_eq!((report.errors, report.warnings), (1, 1));
        assert_eq!(report.problems[0].one_line(), "limits.yaml:2:4: first (write 10)");
        assert_eq!(Problem::of_file("a", "gone".into(), "").one_line(), "a: gone");
    }

    #[test]
    fn long_lines_and_long_lists_are_cut() {
        let mut findings = Findings::new("f");
        for _ in 0..1_000 {
            findings.error(place(1, 500, 900), "wrong", "");
        }
        assert!(findings.is_full());
        let mut report = Report::default();
        report.add(findings, &"x".repeat(2_000));
        let text = report.to_string();
        assert!(text.ends_with("and 950 more\n"), "{text}");
        assert_eq!(text.matches("error: wrong").count(), MOST_PRINTED);
        assert!(text.lines().all(|line| line.len() < WIDEST_LINE + 10));
        let mut findings = Findings::new("f");
        findings.error(place(1, 90_000, 1), "m".repeat(1_000_000), "\u{1b}[2J");
        let mut report = Report::default();
        report.add(findings, &"x".repeat(100_000));
        assert!(report.to_string().len() < 600 && !report.to_string().contains('\u{1b}'));
        assert_eq!(quoted(&"y\u{1b}".repeat(100)).chars().count(), WIDEST_WORD + 5);
    }
}
