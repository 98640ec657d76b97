//! Input as it is shown in messages.

use std::fmt::Display;

/// In characters.
pub const WIDEST_WORD: usize = 60;

/// Input in backticks, cut and without control characters.
pub fn quoted(text: &str) -> String {
    format!("`{}`", shown(text, WIDEST_WORD))
}

/// At most `most` characters of `text`, without control characters: input must not control a terminal.
pub fn shown(text: &str, most: usize) -> String {
    let plain = |character: char| if character.is_control() { '\u{fffd}' } else { character };
    let mut shown: String = text.chars().take(most).map(plain).collect();
    if text.chars().nth(most).is_some() {
        shown.push_str("...");
    }
    shown
}

/// All items in one line.
pub fn joined(items: impl IntoIterator<Item: Display>, separator: &str) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(separator)
}
