//! The tokens of operators, for changes.

use std::fmt;

use sha2::{Digest, Sha256};

/// Enough for one per operator, and a second one during rotation.
const MAX_TOKENS: usize = 64;

/// In bytes.
const MAX_NAME: usize = 64;

/// Tokens, kept as hashes: plain ones would end up in core dumps.
#[derive(Clone, Default)]
pub struct Tokens {
    list: Vec<Token>,
}

#[derive(Clone)]
pub struct Token {
    pub name: Option<String>,
    digest: [u8; 32],
}

impl Tokens {
    /// One token without a name.
    pub fn one(token: &str) -> Result<Self, String> {
        let digest = digest(checked(token.trim())?);
        Ok(Self { list: vec![Token { name: None, digest }] })
    }

    /// Parses a file with one `TOKEN` or `NAME TOKEN` per line. Empty lines and those that begin with `#` are skipped.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut list = Vec::new();
        for (number, name, token) in lines(text) {
            let wrong = |reason: String| format!("line {number}: {reason}");
            if name.is_some_and(|name| name.len() > MAX_NAME || name.contains(char::is_control)) {
                return Err(wrong(format!("a name must have at most {MAX_NAME} bytes and no control characters")));
            }
            let digest = digest(checked(token).map_err(wrong)?);
            list.push(Token { name: name.map(str::to_owned), digest });
        }
        match list.len() {
            0 => Err("the file has no token; write one per line, or `NAME TOKEN`".to_owned()),
            1..=MAX_TOKENS => Ok(Self { list }),
            more => Err(format!("the file has {more} tokens, more than {MAX_TOKENS}")),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Finds a token in constant time.
    pub fn find(&self, given: &str) -> Option<&Token> {
        let given = digest(given);
        let mut found = None;
        for token in &self.list {
            let difference = token.digest.iter().zip(&given).fold(0, |sum, (a, b)| sum | (a ^ b));
            if difference == 0 {
                found = Some(token);
            }
        }
        found
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.list.iter().map(|token| token.name.as_deref().unwrap_or("(unnamed)")).collect();
        f.debug_tuple("Tokens").field(&names).finish()
    }
}

/// Returns the first token of a file, for clients.
pub fn first(text: &str) -> Result<&str, String> {
    let (number, _, token) = lines(text).next().ok_or("the file has no token")?;
    checked(token).map_err(|reason| format!("line {number}: {reason}"))
}

/// Returns the lines with a token: number, name, token.
fn lines(text: &str) -> impl Iterator<Item = (usize, Option<&str>, &str)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(number, line)| {
        match line.rsplit_once([' ', '\t']) {
            Some((name, token)) => (number, Some(name.trim()), token),
            None => (number, None, line),
        }
    })
}

/// Checks that a token can follow `Bearer`.
fn checked(token: &str) -> Result<&str, String> {
    match token {
        "" => Err("the token is empty".to_owned()),
        token if token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(token),
        _ => Err("a token must be visible ASCII without blanks".to_owned()),
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_whole_or_not_at_all() {
        let tokens = Tokens::parse("# of 2026\nalice  s3cret\n\nthe night shift\tother==\nnameless\n").unwrap();
        for (given, expected) in [
            ("s3cret", Some(Some("alice"))),
            ("other==", Some(Some("the night shift"))),
            ("nameless", Some(None)),
            ("s3cre", None),
            ("s3crets", None),
            ("S3cret", None),
            ("alice", None),
            ("", None),
        ] {
            assert_eq!(tokens.find(given).map(|token| token.name.as_deref()), expected, "{given}");
        }
        assert!(Tokens::one(" x\n").unwrap().find("x").is_some_and(|token| token.name.is_none()));
        assert!(Tokens::default().is_empty() && Tokens::default().find("").is_none());
        assert_eq!(format!("{tokens:?}"), r#"Tokens(["alice", "the night shift", "(unnamed)"])"#);
        assert_eq!(first("# x\nalice s3cret\nb"), Ok("s3cret"));
    }

    #[test]
    fn invalid_tokens_are_rejected() {
        let many = "t\n".repeat(MAX_TOKENS + 1);
        for (text, part) in [
            ("", "the file has no token"),
            ("# s3cret", "the file has no token"),
            ("a b\nc gr\u{fc}n", "line 2: a token must be visible ASCII"),
            (many.as_str(), "65 tokens"),
            (&format!("{} t", "n".repeat(65)), "line 1: a name must have at most"),
        ] {
            assert!(Tokens::parse(text).unwrap_err().contains(part), "{text}");
        }
        for token in ["", "  ", "a b"] {
            assert!(Tokens::one(token).is_err(), "{token}");
        }
    }
}
