//! Percent-encoding (RFC 3986 section 2.1).

use std::borrow::Cow;

use super::lossless;

/// Percent-decodes `text` once, into [`lossless::text`]. A `%` that two hex digits do not follow stays as it is.
pub fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return lossless::keep(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escape = if let (b'%', [high, low, ..]) = (first, tail) { byte(*high, *low) } else { None };
        decoded.push(escape.unwrap_or(*first));
        rest = if escape.is_some() { &tail[2..] } else { tail };
    }
    Cow::Owned(lossless::text(&decoded).into_owned())
}

/// The byte that two hex digits encode; `None` if one of them is not a hex digit.
pub(crate) fn byte(high: u8, low: u8) -> Option<u8> {
    Some(digit(high)? << 4 | digit(low)?)
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' | b'A'..=b'F' => Some((digit | 0x20) - b'a' + 10),
        _ => None,
    }
}

/// Appends bytes to `encoded`, with escapes for those that are not plain.
pub(crate) fn encode(bytes: &[u8], is_plain: impl Fn(u8) -> bool, encoded: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes.iter().copied() {
        if is_plain(byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push(char::from(DIGITS[usize::from(byte >> 4)]));
            encoded.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_happens_once_and_keeps_what_is_no_escape() {
        assert_eq!(decode("%2541%zz%4"), "%41%zz%4");
        assert_eq!(decode("%ff"), "\u{10ffff}");
        assert_ne!(decode("%ff"), decode("%fe"));
    }
}
