//! `--format github`: an annotation for each test that fails, at the line of its step.

use super::TestResult;
use crate::commands::workflow_command::Annotation;

pub(super) fn commands(results: &[TestResult], unseen: &[(String, String)]) -> String {
    let mut text = String::new();
    for result in results {
        let Some(failure) = &result.failure else { continue };
        let (place, message) = (Some(failure.place()), failure.details.trim());
        Annotation { level: "error", file: &result.file, place, title: &result.name, message }.push_to(&mut text);
    }
    for (file, message) in unseen {
        Annotation { level: "warning", file, place: None, title: "untested limits", message }.push_to(&mut text);
    }
    text
}
