//! Exit codes, and the errors that end a command.

use std::fmt::Display;
use std::io;

use super::colors;
use crate::config::{Problem, Report};

/// The process's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// The command succeeded.
    Success = 0,
    /// Invalid input (a rules file, a scenario, a request), or the service is not ready.
    BadInput = 1,
    /// Invalid command line.
    Usage = 2,
    /// The service could not start, or could not be reached.
    CouldNotStart = 3,
}

/// An error that ends a command.
#[derive(Debug)]
pub enum Failure {
    /// Text for standard error.
    Message(ExitCode, String),
    /// Standard output or standard error cannot be written, such as a closed pipe.
    Output(io::Error),
}

impl Failure {
    /// The failure that a report explains, with the colors of standard error.
    pub(super) fn reported(code: ExitCode, report: &Report) -> Self {
        Self::Message(code, report.styled(colors::of_reports()).to_string())
    }

    pub(super) fn bad_input(error: impl Display) -> Self {
        Self::Message(ExitCode::BadInput, format!("error: {error}\n"))
    }

    pub(super) fn usage(error: impl Display) -> Self {
        Self::Message(ExitCode::Usage, format!("error: {error}\n"))
    }

    pub(super) fn could_not_start(error: impl Display) -> Self {
        Self::Message(ExitCode::CouldNotStart, format!("error: {error}\n"))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<Report> for Failure {
    fn from(report: Report) -> Self {
        Self::reported(ExitCode::BadInput, &report)
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Report::of(problem).into()
    }
}
