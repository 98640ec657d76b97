//! Workflow commands of GitHub, which it shows as annotations beside the lines of a pull request.

use std::fmt::Write;

use crate::config::Place;

/// An annotation.
pub(super) struct Annotation<'a> {
    /// `error` or `warning`.
    pub(super) level: &'a str,
    pub(super) file: &'a str,
    pub(super) place: Option<Place>,
    pub(super) title: &'a str,
    pub(super) message: &'a str,
}

impl Annotation<'_> {
    /// Adds the command, on a line of its own.
    pub(super) fn push_to(&self, text: &mut String) {
        let Self { level, file, place, title, message } = self;
        let _ = write!(text, "::{level} file={}", property(file));
        if let Some(Place { line, column, width }) = place {
            let _ = write!(text, ",line={line},col={column},endColumn={}", column.saturating_add(*width));
        }
        let _ = writeln!(text, ",title={}::{}", property(title), data(message));
    }
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

    #[test]
    fn a_text_of_the_file_starts_no_command_of_its_own() {
        let mut text = String::new();
        let annotation = Annotation {
            level: "warning",
            file: "a:b,c\n::error::x",
            place: Some(Place { line: 3, column: 7, width: 2 }),
            title: "free-id",
            message: "100%\r\n::error::y\ndo: this, or 50%",
        };
        annotation.push_to(&mut text);
        let expected = "::warning file=a%3Ab%2Cc%0A%3A%3Aerror%3A%3Ax,line=3,col=7,endColumn=9,title=free-id::100%25%0D%0A\
                        ::error::y%0Ado: this, or 50%25\n";
        assert_eq!(text, expected);
    }
}
