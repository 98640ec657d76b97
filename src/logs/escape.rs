//! Escapes in the values of logs.

use std::borrow::Cow;

use crate::message::{lossless, percent};

/// The change that a program makes to the values that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escapes {
    None,
    Backslash,
    /// IIS writes `+` for a space, and for `+` as well.
    Plus,
    Percent,
    /// HAProxy writes `#HH`.
    Hash,
}

impl Escapes {
    pub(super) fn undone(self, value: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Backslash => unescaped(value),
            Self::Plus if value.contains(&b'+') => {
                Cow::Owned(value.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect())
            }
            Self::Percent => Cow::Owned(lossless::bytes(&percent::decode(&lossless::text(value))).into_owned()),
            Self::Hash if value.contains(&b'#') => Cow::Owned(without_hashes(value)),
            Self::None | Self::Plus | Self::Hash => Cow::Borrowed(value),
        }
    }
}

fn without_hashes(mut rest: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(rest.len());
    while let [first, tail @ ..] = rest {
        let escaped = if let (b'#', [high, low, ..]) = (first, tail) { percent::byte(*high, *low) } else { None };
        text.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    text
}

/// The value without its escapes: `\xHH` of nginx and Apache, and those of JSON strings. Servers that escape at all escape
/// the backslash itself, too, so one reading serves all of them. A backslash that begins no escape stays.
pub(super) fn unescaped(value: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr::memchr(b'\\', value) else { return Cow::Borrowed(value) };
    let (plain, mut rest) = value.split_at(first);
    let mut text = Vec::with_capacity(value.len());
    text.extend_from_slice(plain);
    while let [byte, tail @ ..] = rest {
        let (length, is_escape) = match tail {
            [b'x', high, low, ..] if *byte == b'\\' => match percent::byte(*high, *low) {
                Some(escaped) => {
                    text.push(escaped);
                    (4, true)
                }
                None => (1, false),
            },
            [b'u', ..] if *byte == b'\\' => push_unicode(rest, &mut text),
            [escaped, ..] if *byte == b'\\' => match simple(*escaped) {
                Some(escaped) => {
                    text.push(escaped);
                    (2, true)
                }
                None => (1, false),
            },
            _ => (1, false),
        };
        if !is_escape {
            text.push(*byte);
        }
        rest = &rest[length..];
    }
    Cow::Owned(text)
}

fn simple(escaped: u8) -> Option<u8> {
    Some(match escaped {
        b'"' | b'\\' | b'/' => escaped,
        b'b' => 0x08,
        b'f' => 0x0C,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0B,
        _ => return None,
    })
}

/// Appends the character of `\uHHHH`, or of two of them that are surrogates. Returns their length.
fn push_unicode(rest: &[u8], text: &mut Vec<u8>) -> (usize, bool) {
    let Some(unit) = code_unit(rest) else { return (1, false) };
    let second = rest.get(6..).and_then(code_unit);
    let (character, length) = match (unit, second) {
        (0xD800..=0xDBFF, Some(low @ 0xDC00..=0xDFFF)) => {
            (char::from_u32(0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00)), 12)
        }
        _ => (char::from_u32(unit), 6),
    };
    let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    (length, true)
}

fn code_unit(rest: &[u8]) -> Option<u32> {
    let [b'\\', b'u', digits @ ..] = rest else { return None };
    let [first, second, third, fourth, ..] = digits else { return None };
    let (high, low) = (percent::byte(*first, *second)?, percent::byte(*third, *fourth)?);
    Some(u32::from(u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_all_servers_are_read() {
        for (given, expected) in [
            (&b"plain"[..], &b"plain"[..]),
            (br"a\x22b\xC3\xa9\x5Cn", b"a\"b\xC3\xA9\\n"),
            (br#"\"\\\/\n\t\r\b\f\v"#, b"\"\\/\n\t\r\x08\x0C\x0B"),
            (br"\u00e9\ud83d\ude00\u001F", "\u{e9}\u{1f600}\u{1f}".as_bytes()),
            (br"\ud83d\u0041", "\u{fffd}A".as_bytes()),
            (br"\xZZ\q\u12\", br"\xZZ\q\u12\"),
        ] {
            assert_eq!(unescaped(given), given_bytes(expected), "{}", String::from_utf8_lossy(given));
        }
    }

    fn given_bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
        Cow::Borrowed(bytes)
    }
}
