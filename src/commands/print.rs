//! Text that several commands print.

use std::fmt::{Display, Write};

pub(super) use crate::engine::text::quote::joined;

/// `1 limit`, `2 limits`
pub(super) fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Adds an indented line of a name and a value.
pub(super) fn detail(text: &mut String, name: &str, value: impl Display) {
    let _ = writeln!(text, "  {name:<10}{value}");
}

/// ` (a comment)`, or nothing.
pub(super) fn in_parentheses(comment: Option<&str>) -> String {
    comment.map_or_else(String::new, |comment| format!(" ({comment})"))
}
