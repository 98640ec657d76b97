//! The colors of what commands print: the one place that decides whether there are any, and which.

use std::io;
use std::sync::OnceLock;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::builder::Styles;

use crate::config::{ReportStyles, Severity};

/// Whether standard output and standard error have colors. Empty, which means no colors, until [`decide`] has run.
static STREAMS: OnceLock<(bool, bool)> = OnceLock::new();

/// Decides for both streams: colors for a terminal, and not for a pipe or a file. `NO_COLOR`, `CLICOLOR_FORCE` and `TERM=dumb` are
/// obeyed.
pub fn decide() {
    let has_colors = |choice| choice != ColorChoice::Never;
    STREAMS
        .get_or_init(|| (has_colors(AutoStream::choice(&io::stdout())), has_colors(AutoStream::choice(&io::stderr()))));
}

pub(super) fn on_out() -> bool {
    STREAMS.get().is_some_and(|(out, _)| *out)
}

pub(super) fn on_err() -> bool {
    STREAMS.get().is_some_and(|(_, err)| *err)
}

/// The styles of results. Each is `{style}text{style:#}`.
#[derive(Clone, Copy, Default)]
pub(super) struct Palette {
    /// For results that are right, and limits that become looser.
    pub(super) good: Style,
    /// For results that are wrong, and limits that become stricter.
    pub(super) bad: Style,
    pub(super) doubtful: Style,
    /// For the names that a report is about.
    pub(super) name: Style,
    /// For the lines around an excerpt of a file.
    frame: Style,
}

const fn bold(color: AnsiColor) -> Style {
    color.on_default().bold()
}

impl Palette {
    const COLORED: Self = Self {
        good: bold(AnsiColor::Green),
        bad: bold(AnsiColor::Red),
        doubtful: bold(AnsiColor::Yellow),
        name: Style::new().bold(),
        frame: bold(AnsiColor::Blue),
    };

    pub(super) const fn of(self, severity: Severity) -> Style {
        match severity {
            Severity::Error => self.bad,
            Severity::Warning => self.doubtful,
        }
    }

    pub(super) fn out() -> Self {
        if on_out() { Self::COLORED } else { Self::default() }
    }

    pub(super) fn err() -> Self {
        if on_err() { Self::COLORED } else { Self::default() }
    }
}

/// The styles of problems on standard error, which are those of rustc.
pub(super) fn of_reports() -> ReportStyles {
    let Palette { bad, doubtful, name, frame, .. } = Palette::err();
    ReportStyles { error: bad, warning: doubtful, message: name, frame }
}

/// Colors the `error:` of a failure's lines. A report has colors already.
pub(super) fn of_failure(message: &str) -> String {
    let Palette { bad, .. } = Palette::err();
    let painted = |line: &str| match line.strip_prefix("error:") {
        Some(rest) => format!("{bad}error:{bad:#}{rest}"),
        None => line.to_owned(),
    };
    message.split_inclusive('\n').map(painted).collect()
}

/// The styles of help and of mistakes on the command line.
pub(super) const HELP: Styles = Styles::styled()
    .header(bold(AnsiColor::Green))
    .usage(bold(AnsiColor::Green))
    .literal(bold(AnsiColor::Cyan))
    .placeholder(AnsiColor::Cyan.on_default())
    .error(bold(AnsiColor::Red))
    .valid(bold(AnsiColor::Cyan))
    .invalid(bold(AnsiColor::Yellow));
