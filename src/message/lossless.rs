//! A lossless mapping of bytes to text.
//!
//! Values of headers, cookies and percent-encoded parameters are bytes (RFC 9110 section 5.5); ids, patterns and regular
//! expressions are text. A byte that is not part of valid UTF-8 becomes one of 128 stand-in characters, and a stand-in
//! in the input is mapped byte by byte. So different bytes are always different texts, and other UTF-8 is unchanged.

use std::borrow::Cow;

/// Stands for the byte 0x80. The last 128 code points are private use or noncharacters.
const FIRST: u32 = 0x10_FF80;

/// The first byte in UTF-8 of all characters from U+100000 on.
const LEAD: u8 = 0xF4;

/// The text of these bytes.
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => keep(text),
        Err(_) => Cow::Owned(carried(bytes)),
    }
}

/// Does the same as [`text`] for valid UTF-8, which is unchanged unless it has stand-ins.
pub fn keep(text: &str) -> Cow<'_, str> {
    if may_have_bytes(text) { Cow::Owned(carried(text.as_bytes())) } else { Cow::Borrowed(text) }
}

/// The inverse of [`text`].
pub fn bytes(text: &str) -> Cow<'_, [u8]> {
    if !may_have_bytes(text) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match byte(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

/// The text for people: stand-ins as escapes, `%E9`, and control characters as well, because input must not control a terminal or
/// begin lines.
pub fn shown(text: &str) -> Cow<'_, str> {
    use std::fmt::Write;
    if !may_have_bytes(text) && !has_controls(text) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        let mut encoded = [0; 4];
        let escaped = match byte(character) {
            Some(byte) => {
                encoded[0] = byte;
                &encoded[..1]
            }
            None if character.is_control() => character.encode_utf8(&mut encoded).as_bytes(),
            None => {
                shown.push(character);
                continue;
            }
        };
        for byte in escaped {
            let _ = write!(shown, "%{byte:02X}");
        }
    }
    Cow::Owned(shown)
}

/// Returns true if a text has control characters.
pub fn has_controls(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// Returns true if a text has stand-ins.
pub fn has_bytes(text: &str) -> bool {
    may_have_bytes(text) && text.chars().any(|character| byte(character).is_some())
}

fn may_have_bytes(text: &str) -> bool {
    memchr::memchr(LEAD, text.as_bytes()).is_some()
}

#[cold]
fn carried(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if byte(character).is_some() {
                text.extend(character.encode_utf8(&mut [0; 4]).bytes().map(stand_in));
            } else {
                text.push(character);
            }
        }
        text.extend(chunk.invalid().iter().copied().map(stand_in));
    }
    text
}

/// The stand-in for a byte, which is 0x80 or greater: all others are valid UTF-8.
fn stand_in(byte: u8) -> char {
    char::from_u32(FIRST + u32::from(byte & 0x7F)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte of a stand-in.
fn byte(character: char) -> Option<u8> {
    let place = u32::from(character).checked_sub(FIRST)?;
    u8::try_from(place).ok().map(|place| place | 0x80)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn utf8_is_its_own_text() {
        for plain in ["", "abc", "caf\u{e9}", "\u{10FF7F}"] {
            assert_eq!((text(plain.as_bytes()).as_ref(), shown(plain).as_ref()), (plain, plain));
        }
    }

    #[test]
    fn other_bytes_are_shown_as_escapes() {
        assert_eq!(shown(&text(b"caf\xe9 \x80\xff")), "caf%E9 %80%FF");
        assert_eq!(shown(&keep("\u{10FFE9}")), "%F4%8F%BF%A9");
    }

    #[test]
    fn control_characters_are_shown_as_escapes() {
        assert_eq!(shown("a\x1b[2J\nb\u{9b}\x7f"), "a%1B[2J%0Ab%C2%9B%7F");
    }

    proptest! {
        #[test]
        fn nothing_is_lost(given in prop::collection::vec(prop_oneof![any::<u8>(), 0x80_u8..=0xC0, Just(0xF4), Just(0x8F), Just(0xBF)], 0..12)) {
            let text = text(&given);
            prop_assert_eq!(bytes(&text), given.as_slice());
        }
    }
}
