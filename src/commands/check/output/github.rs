//! `--format github`: workflow commands, which GitHub shows beside the lines of a pull request.

use super::{Checked, Finding, findings, severity};
use crate::commands::workflow_command::Annotation;

/// Returns one command per problem, each on its line.
pub(super) fn commands(checked: &[Checked]) -> String {
    let mut text = String::new();
    for Finding { problem, help, name: title } in findings(checked) {
        let (level, file, place) = (severity(&problem), &*problem.file, problem.place);
        let break_before_help = if help.is_empty() { "" } else { "\n" };
        let message = &*format!("{}{break_before_help}{help}", problem.message);
        Annotation { level, file, place, title, message }.push_to(&mut text);
    }
    text
}
