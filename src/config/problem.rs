//! Mistakes in a file, printed with their place, the line with a caret, and help.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use anstyle::Style;

use super::ignores::Ignores;
use super::lints::Lint;
pub(crate) use crate::engine::text::quote::quoted;
use crate::engine::text::quote::shown;

/// The most problems of each severity that are kept per file; the rest is only counted.
const MOST_KEPT: usize = 100;

/// The most problems that are printed, errors first.
const MOST_PRINTED: usize = 50;

/// Longer lines are cut around the caret. In characters.
const WIDEST_LINE: usize = 120;

/// Longer lines are not shown: each of their problems would search them again. In bytes.
const LONGEST_LINE: usize = 64 * 1024;

/// Longer messages and help texts are cut, because they quote the file. In characters.
const LONGEST_TEXT: usize = 400;

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The rules do not load.
    Error,
    /// The rules load, but probably do not do what was meant.
    Warning,
}

/// A place in a file. Lines and columns count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub line: u32,
    /// In characters.
    pub column: u32,
    /// In characters on this line; at least 1.
    pub width: u32,
}

impl Default for Place {
    fn default() -> Self {
        Self::START
    }
}

impl Place {
    pub(super) const START: Self = Self { line: 1, column: 1, width: 1 };
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    pub severity: Severity,
    /// The name of the finding; every warning about rules has one.
    pub lint: Option<Lint>,
    pub file: String,
    /// `None` for a problem of the whole file.
    pub place: Option<Place>,
    /// One line.
    pub message: String,
    /// The fix; may be empty.
    pub help: String,
    /// The line at `place`.
    pub source_line: Option<String>,
}

/// All problems of a set of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first problems by severity, file and place.
    pub problems: Vec<Problem>,
    /// The number of errors, including those that are not kept.
    pub errors: usize,
    /// The number of warnings, including those that are not kept.
    pub warnings: usize,
}

/// The problems of one file while it is read. Clones share them: each value of the file has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Findings(Rc<FileFindings>);

#[derive(Debug, PartialEq, Eq)]
struct FileFindings {
    file: String,
    report: RefCell<Report>,
    ignores: Rc<Ignores>,
}

/// The error of a reader whose mistake is among the findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportedError;

pub(crate) type ReadResult<T> = Result<T, ReportedError>;

impl Findings {
    pub(crate) fn new(file: &str) -> Self {
        Self::with(file, &Rc::default())
    }

    /// Returns no findings yet; `ignores` silences some.
    pub(super) fn with(file: &str, ignores: &Rc<Ignores>) -> Self {
        let (file, ignores) = (file.to_owned(), Rc::clone(ignores));
        Self(Rc::new(FileFindings { file, report: RefCell::default(), ignores }))
    }

    pub(super) fn ignores(&self) -> &Ignores {
        &self.0.ignores
    }

    pub(super) fn shared_ignores(&self) -> &Rc<Ignores> {
        &self.0.ignores
    }

    pub(crate) fn file(&self) -> &str {
        &self.0.file
    }

    /// Returns whether further errors are only counted, so that their texts need not be made.
    pub(super) fn is_full(&self) -> bool {
        self.0.report.borrow().errors >= MOST_KEPT
    }

    pub(crate) fn error(&self, place: Place, message: impl AsRef<str>, help: impl AsRef<str>) -> ReportedError {
        self.keep(None, place, message.as_ref(), help.as_ref());
        ReportedError
    }

    /// Adds a warning, unless the file silences it.
    pub(super) fn warning(&self, lint: Lint, place: Place, message: impl AsRef<str>, help: impl AsRef<str>) {
        if !self.0.ignores.silences(lint) {
            self.keep(Some(lint), place, message.as_ref(), help.as_ref());
        }
    }

    fn keep(&self, lint: Option<Lint>, place: Place, message: &str, help: &str) {
        let severity = if lint.is_some() { Severity::Warning } else { Severity::Error };
        let mut report = self.0.report.borrow_mut();
        let count = match severity {
            Severity::Error => &mut report.errors,
            Severity::Warning => &mut report.warnings,
        };
        *count += 1;
        if *count <= MOST_KEPT {
            let (message, help) = (shown(message, LONGEST_TEXT), shown(help, LONGEST_TEXT));
            let file = self.0.file.clone();
            report.problems.push(Problem {
                severity,
                lint,
                file,
                place: Some(place),
                message,
                help,
                source_line: None,
            });
        }
    }
}

impl Report {
    /// Returns a report of one error.
    pub fn of(problem: Problem) -> Self {
        Self { problems: vec![problem], errors: 1, warnings: 0 }
    }

    pub(super) fn join(&mut self, other: Self) {
        self.problems.extend(other.problems);
        self.problems.sort_by_key(|problem| problem.severity);
        self.errors += other.errors;
        self.warnings += other.warnings;
    }

    /// Adds the findings in a file with this text.
    pub(crate) fn add(&mut self, findings: &Findings, text: &str) {
        let mut found = findings.0.report.take();
        found.problems.sort_by_key(|problem| problem.place);
        // One walk over the text serves all problems: a file of overrides has a million lines.
        let mut lines = (1u32..).zip(text.lines());
        let mut current = lines.next();
        for problem in &mut found.problems {
            let Some(place) = problem.place else { continue };
            while current.is_some_and(|(number, _)| number < place.line) {
                current = lines.next();
            }
            let line = current.map(|(_, line)| line).filter(|line| line.len() <= LONGEST_LINE);
            problem.source_line = line.map(str::to_owned);
        }
        self.join(found);
    }
}

/// The styles of a printed report, plain by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportStyles {
    pub error: Style,
    pub warning: Style,
    pub message: Style,
    /// The arrow, the line's number and the bars around it.
    pub frame: Style,
}

/// A report with styles.
#[derive(Debug)]
pub struct StyledReport<'a>(&'a Report, ReportStyles);

impl Report {
    pub const fn styled(&self, styles: ReportStyles) -> StyledReport<'_> {
        StyledReport(self, styles)
    }
}

impl fmt::Display for StyledReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(report, styles) = self;
        for problem in report.problems.iter().take(MOST_PRINTED) {
            problem.write(f, styles)?;
            writeln!(f)?;
        }
        let more = (report.errors + report.warnings).saturating_sub(MOST_PRINTED.min(report.problems.len()));
        if more > 0 { writeln!(f, "and {more} more") } else { Ok(()) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.styled(ReportStyles::default()).fmt(f)
    }
}

impl Problem {
    /// Returns an error about a whole file.
    pub(crate) fn of_file(file: &str, message: String, help: &str) -> Self {
        Self {
            severity: Severity::Error,
            lint: None,
            file: file.to_owned(),
            place: None,
            message,
            help: help.to_owned(),
            source_line: None,
        }
    }

    /// Formats the problem on one line, for a log or a status page: `limits.yaml:4:5: message (help)`.
    pub fn one_line(&self) -> String {
        let place = self.place.map(|place| format!(":{}:{}", place.line, place.column)).unwrap_or_default();
        let help = if self.help.is_empty() { String::new() } else { format!(" ({})", self.help) };
        format!("{}{place}: {}{help}", self.file, self.message)
    }
}

impl Problem {
    /// Writes the problem on several lines, with its place in the file.
    fn write(&self, f: &mut fmt::Formatter<'_>, styles: &ReportStyles) -> fmt::Result {
        let ReportStyles { error, warning, message, frame } = styles;
        let (severity, tone) = if self.severity == Severity::Error { ("error", error) } else { ("warning", warning) };
        let name = self.lint.map(|lint| format!(" [{}]", lint.name())).unwrap_or_default();
        writeln!(f, "{tone}{severity}{tone:#}{message}: {}{name}{message:#}", self.message)?;
        let margin = self.place.map_or(1, |place| place.line.to_string().len());
        write!(f, "{:margin$}{frame}-->{frame:#} {}", "", self.file)?;
        if let Some(place) = self.place {
            write!(f, ":{}:{}", place.line, place.column)?;
        }
        writeln!(f)?;
        if let (Some(place), Some(line)) = (self.place, &self.source_line) {
            let (shown, column, width) = window(line, place);
            writeln!(f, "{:margin$} {frame}|{frame:#}", "")?;
            writeln!(f, "{frame}{} |{frame:#} {shown}", place.line)?;
            writeln!(f, "{:margin$} {frame}|{frame:#} {:column$}{tone}{}{tone:#}", "", "", "^".repeat(width))?;
        }
        if self.help.is_empty() {
            return Ok(());
        }
        writeln!(f, "{:margin$} {frame}={frame:#} {message}help{message:#}: {}", "", self.help)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &ReportStyles::default())
    }
}

/// Returns the part of a line to show, and the caret's offset and width in it. Tabs and control characters become spaces,
/// so that the caret is below its character.
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
    use crate::engine::text::quote::WIDEST_WORD;

    fn place(line: u32, column: u32, width: u32) -> Place {
        Place { line, column, width }
    }

    #[test]
    fn a_problem_shows_its_line_and_what_would_be_right() {
        let findings = Findings::new("limits.yaml");
        findings.warning(Lint::NoLimits, place(1, 1, 6), "second", "");
        findings.error(place(2, 4, 2), "first", "write 10");
        let mut report = Report::default();
        report.add(&findings, "limits:\n\tb: 010 # x\n");
        let expected = "\
error: first
 --> limits.yaml:2:4
  |
2 |  b: 010 # x
  |    ^^
  = help: write 10

warning: second [no-limits]
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
        let findings = Findings::new("f");
        for _ in 0..1_000 {
            findings.error(place(1, 500, 900), "wrong", "");
        }
        assert!(findings.is_full());
        let mut report = Report::default();
        report.add(&findings, &"x".repeat(2_000));
        let text = report.to_string();
        assert!(text.ends_with("and 950 more\n"), "{text}");
        assert_eq!(text.matches("error: wrong").count(), MOST_PRINTED);
        assert!(text.lines().all(|line| line.len() < WIDEST_LINE + 10));
        let findings = Findings::new("f");
        findings.error(place(1, 90_000, 1), "m".repeat(1_000_000), "\u{1b}[2J");
        let mut report = Report::default();
        report.add(&findings, &"x".repeat(100_000));
        assert!(report.to_string().len() < 600 && !report.to_string().contains('\u{1b}'));
        assert_eq!(quoted(&"y\u{1b}".repeat(100)).chars().count(), WIDEST_WORD + 5);
    }
}
