//! What people typed, as a message shows it.

/// How much of one word a message shows.
pub const WIDEST_WORD: usize = 60;

/// What somebody typed: without control characters, cut, in backticks.
pub fn quoted(text: &str) -> String {
    format!("`{}`", shown(text, WIDEST_WORD))
}

/// Text of at most `most` characters, and without control characters: a file must not steer a terminal.
pub fn shown(text: &str, most: usize) -> String {
    let plain = |character: char| if character.is_control() { '\u{fffd}' } else { character };
    let mut shown: String = text.chars().take(most).map(plain).collect();
    if text.chars().nth(most).is_some() {
        shown.push_str("...");
    }
    shown
}
