//! The credentials of a request (RFC 9110 section 11.4), read as servers' common libraries read them.
//!
//! Those libraries agree on `Bearer TOKEN` and differ in everything else: case, blanks, quotes, commas, which of several lines
//! counts. A spelling that one of them accepts must neither hide the credentials nor make others out of them.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// The scheme that may be left out: servers that cut `Bearer ` off take the bare token as well (Go's `strings.TrimPrefix`).
const BEARER: &str = "bearer";

/// The credentials of one line.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    pub scheme: Option<&'a str>,
    pub token: &'a str,
}

/// A header whose credentials are not a scheme and a token, or lines that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedCredentials;

impl<'a> Credentials<'a> {
    /// Reads all lines of a header. `None` if there is no token.
    pub fn read(mut lines: impl Iterator<Item = &'a [u8]>) -> Result<Option<Self>, MalformedCredentials> {
        let Some(first) = lines.next() else { return Ok(None) };
        let first = Self::of_line(first)?;
        for line in lines {
            let other = Self::of_line(line)?;
            let is_same = match (&first, &other) {
                (None, None) => true,
                (Some(one), Some(other)) => one.is_same(other),
                _ => false,
            };
            if !is_same {
                return Err(MalformedCredentials);
            }
        }
        Ok(first)
    }

    fn of_line(line: &'a [u8]) -> Result<Option<Self>, MalformedCredentials> {
        let mut words = line.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty());
        let mut word = || words.next().map(|word| text(word).ok_or(MalformedCredentials)).transpose();
        let (first, second, third) = (word()?, word()?, word()?);
        match (first, second, third) {
            (_, _, Some(_)) => Err(MalformedCredentials),
            (Some(scheme), Some(token), None) => Ok(Some(Self { scheme: Some(scheme), token })),
            (Some(token), None, None) if !token.eq_ignore_ascii_case(BEARER) => Ok(Some(Self { scheme: None, token })),
            _ => Ok(None),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let scheme = |one: &Self| one.scheme.unwrap_or_default().to_ascii_lowercase();
        self.token == other.token && (scheme(self) == scheme(other) || self.is_bearer() && other.is_bearer())
    }

    /// Returns true for the scheme `Bearer`, and without a scheme.
    pub fn is_bearer(&self) -> bool {
        self.scheme.is_none_or(|scheme| scheme.eq_ignore_ascii_case(BEARER))
    }

    /// The canonical text: `basic YTpi`, or the token alone if it is a bearer's. Text that servers decode to the same bytes
    /// is the same.
    pub fn canonical(&self) -> Result<Cow<'a, str>, MalformedCredentials> {
        if self.is_bearer() {
            return Ok(canonical_token(self.token));
        }
        let scheme = self.scheme.unwrap_or_default().to_ascii_lowercase();
        if scheme != "basic" {
            return Ok(format!("{scheme} {}", canonical_token(self.token)).into());
        }
        let decoded = decode_base64(self.token).ok_or(MalformedCredentials)?;
        Ok(format!("{scheme} {}", base64::engine::general_purpose::STANDARD.encode(decoded)).into())
    }
}

/// Returns true if some server may find a JSON Web Token in a line, however it is wrapped. The header of a token is JSON, which
/// begins with a brace and a quotation mark or white space: `ey` or `ew` in base64.
pub fn may_have_token(line: &[u8]) -> bool {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_+/=.".contains(&byte);
    line.split(|byte| !is_of_token(*byte)).any(|run| {
        let begin = run.windows(2).position(|two| two == b"ey" || two == b"ew");
        begin.is_some_and(|begin| run.iter().skip(begin).filter(|byte| **byte == b'.').count() >= 2)
    })
}

/// Returns true if a line begins with the scheme `Bearer`.
pub fn begins_as_bearer(line: &[u8]) -> bool {
    let mut words = line.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty());
    words.next().is_some_and(|word| word.eq_ignore_ascii_case(BEARER.as_bytes())) && words.next().is_some()
}

/// Decodes base64 as the most tolerant decoders do, Python's and Node's: in either alphabet, with any padding, whatever the
/// unused bits, without the characters that are in no alphabet.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(DecodePaddingMode::RequireNone),
    );
    let digits = text.split('=').next().unwrap_or_default().bytes().filter_map(|byte| match byte {
        b'-' => Some(b'+'),
        b'_' => Some(b'/'),
        byte if byte.is_ascii_alphanumeric() || b"+/".contains(&byte) => Some(byte),
        _ => None,
    });
    let mut digits: Vec<u8> = digits.collect();
    // A single digit does not make a byte. Node drops it.
    if digits.len() % 4 == 1 {
        digits.pop();
    }
    LENIENT.decode(digits).ok()
}

/// The one spelling of a signed token: its signature is all that can be spelled differently, as the rest is signed.
fn canonical_token(token: &str) -> Cow<'_, str> {
    let is_signed = (token.starts_with("ey") || token.starts_with("ew")) && token.matches('.').count() == 2;
    let Some((signed, signature)) = token.rsplit_once('.').filter(|_| is_signed) else { return token.into() };
    match decode_base64(signature).map(|bytes| encode_base64(&bytes)) {
        Some(canonical) if canonical != signature => format!("{signed}.{canonical}").into(),
        _ => token.into(),
    }
}

/// Encodes as RFC 7515 does: in the URL-safe alphabet, without padding.
pub fn encode_base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

/// White space as servers split at it. Python and JavaScript read headers as Latin-1, in which 0x85 and 0xA0 are white space.
const fn is_blank(byte: u8) -> bool {
    matches!(byte, b'\t' | b' ' | 0x85 | 0xA0)
}

/// A word of printable ASCII. A comma begins other credentials to some servers, and a quotation mark a parameter. Rails ends
/// a token at a semicolon, too, and drops `token=` before it.
fn text(word: &[u8]) -> Option<&str> {
    let is_plain = |byte: &u8| matches!(byte, b'!'..=b'~') && !matches!(byte, b',' | b';' | b'"');
    std::str::from_utf8(word).ok().filter(|_| word.iter().all(is_plain) && !word.starts_with(b"token="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(lines: &[&[u8]], expected: Result<Option<&str>, MalformedCredentials>) {
        let read = Credentials::read(lines.iter().copied());
        let found = read.and_then(|found| found.map(|found| found.canonical()).transpose());
        assert_eq!(found.as_ref().map(Option::as_deref), expected.as_ref().copied(), "{lines:?}");
    }

    #[test]
    fn every_spelling_of_a_key_is_the_same_text() {
        for line in [
            &b"Bearer sk-1"[..],
            b"bearer sk-1",
            b"BEARER   sk-1",
            b"Bearer\tsk-1",
            b"Bearer \t sk-1\t ",
            b" Bearer sk-1",
            b"Bearer\xa0sk-1",
            b"sk-1",
        ] {
            check(&[line], Ok(Some("sk-1")));
        }
        check(&[b"ApiKey k:1"], Ok(Some("apikey k:1")));
        check(&[b"APIKEY  k:1"], Ok(Some("apikey k:1")));
        check(&[b"Bearer sk-1", b"bearer  sk-1", b"sk-1"], Ok(Some("sk-1")));
        for line in ["YTpi", "YTpi=", "YTpi==", "YT.pi"] {
            check(&[format!("basic {line}").as_bytes()], Ok(Some("basic YTpi")));
        }
        for line in ["YTo=", "YTo", "YTp", "YTr=="] {
            check(&[format!("Basic {line}").as_bytes()], Ok(Some("basic YTo=")));
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_malformed() {
        for lines in [
            &[&b"Bearer sk-1"[..], b"Bearer sk-2"][..],
            &[b"Bearer sk-1", b""],
            &[b"Basic YTpi", b"Bearer sk-1"],
            &[b"Bearer sk-1 x"],
            &[b"Bearer sk-1,x"],
            &[b"Bearer sk-1;x=1"],
            &[b"sk-1;x=1"],
            &[b"ApiKey sk-1;"],
            &[b"Bearer token=sk-1"],
            &[b"Basic YTpi, Bearer sk-1"],
            &[b"Bearer \"sk-1\""],
            &[b"Bearer sk-1\xe9"],
            &[b"Bearer\xc2\xa0sk-1"],
            &[b"Digest username=\"a\", nonce=\"1\""],
        ] {
            check(lines, Err(MalformedCredentials));
        }
        for lines in [&[][..], &[&b""[..]], &[b" \t"], &[b"Bearer"], &[b"bearer  "]] {
            check(lines, Ok(None));
        }
    }

    #[test]
    fn a_signature_has_one_spelling() {
        let token = "eyJhIjoxfQ.eyJhIjoxfQ.AQ";
        for spelled in ["AQ", "AR", "AQ=", "AQ==", "AQ==x", "A.Q", "A!Q", "AQ~"] {
            let spelled = spelled.replace('.', "*");
            check(&[format!("Bearer eyJhIjoxfQ.eyJhIjoxfQ.{spelled}").as_bytes()], Ok(Some(token)));
        }
        check(&[b"Bearer eyJhIjoxfQ.eyJhIjoxfQ.-_-_A"], Ok(Some("eyJhIjoxfQ.eyJhIjoxfQ.-_-_")));
        check(&[b"Bearer eyJhIjoxfQ.eyJhIjoxfQ.+/+/"], Ok(Some("eyJhIjoxfQ.eyJhIjoxfQ.-_-_")));
        check(&[b"Bearer key.of.dots="], Ok(Some("key.of.dots=")));
    }

    #[test]
    fn tokens_are_found_in_any_wrapping() {
        for line in ["x eyJh.b.c", "Bearer:eyJh.b.c", "BearereyJh.b.c", "a=1, Bearer eyJh.b.", "\"ewoi.b.c\""] {
            assert!(may_have_token(line.as_bytes()), "{line}");
        }
        for line in ["Basic YTpi", "Digest realm=\"api.eu.example.com\"", "eyJh", "eyJh.b", "a.b.eyJh"] {
            assert!(!may_have_token(line.as_bytes()), "{line}");
        }
    }
}
