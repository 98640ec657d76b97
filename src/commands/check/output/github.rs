//! `--format github`: workflow commands, which GitHub shows beside the lines of a pull request.

use super::{Checked, problems, severity};
use crate::commands::workflow_command::Annotation;
use crate::config::Lint;

/// Returns one command per problem, each on its line.
pub(super) fn commands(checked: &[Checked]) -> String {
    let mut text = String::new();
    for (problem, help) in problems(checked) {
        let (level, file, place) = (severity(&problem), &*problem.file, problem.place);
        let title = problem.lint.map_or("invalid rules", Lint::name);
        let break_before_help = if help.is_empty() { "" } else { "\n" };
        let message = &*format!("{}{break_before_help}{help}", problem.message);
        Annotation { level, file, place, title, message }.push_to(&mut text);
    }
    text
}
