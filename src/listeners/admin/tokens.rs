//! Who may change buckets: the tokens of operators.

use std::fmt;

use sha2::{Digest, Sha256};

/// Tokens that may be given: one for each who needs a name in the log, and a second one while they are exchanged.
const MOST_TOKENS: usize = 64;

/// What a name may have, in bytes.
const LONGEST_NAME: usize = 64;

/// The tokens by which operators are known. Kept as hashes: a token in memory would end up in a core dump.
#[derive(Clone, Default)]
pub struct Tokens {
    list: Vec<Token>,
}

/// A token.
#[derive(Clone)]
pub struct Token {
    /// Whose it is, if that was said.
    pub name: Option<String>,
    digest: [u8; 32],
}

impl Tokens {
    /// One token, which has no name.
    pub fn one(token: &str) -> Result<Self, String> {
        let digest = digest(checked(token.trim())?);
        Ok(Self { list: vec![Token { name: None, digest }] })
    }

    /// The tokens of a file: one a line, behind a name and a blank if it has a name. Empty lines and those that begin with
    /// `#` are passed over.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut list = Vec::new();
        for (number, name, token) in lines(text) {
            let wrong = |reason: String| format!("line {number}: {reason}");
            if name.is_some_and(|name| name.len() > LONGEST_NAME || name.contains(char::is_control)) {
                return Err(wrong(format!("a name has at most {LONGEST_NAME} bytes, and no control characters")));
            }
            let digest = digest(checked(token).map_err(wrong)?);
            list.push(Token { name: name.map(str::to_owned), digest });
        }
        match list.len() {
            0 => Err("there is no token in it; write one on a line, or `NAME TOKEN`".to_owned()),
            1..=MOST_TOKENS => Ok(Self { list }),
            more => Err(format!("there are {more} tokens in it, more than {MOST_TOKENS}")),
        }
    }

    /// Whether nobody may change anything.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The token that is given, if it is one of these. How long it takes does not depend on what is given and how much of
    /// it is right.
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

/// The first token of a file that [`Tokens::parse`] takes: what a client sends.
pub fn first(text: &str) -> Result<&str, String> {
    let (number, _, token) = lines(text).next().ok_or("there is no token in it")?;
    checked(token).map_err(|reason| format!("line {number}: {reason}"))
}

/// The lines of a file that have a token: their number, the name, the token.
fn lines(text: &str) -> impl Iterator<Item = (usize, Option<&str>, &str)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(number, line)| {
        match line.rsplit_once([' ', '\t']) {
            Some((name, token)) => (number, Some(name.trim()), token),
            None => (number, None, line),
        }
    })
}

/// What can be sent behind `Bearer`: visible characters of ASCII.
fn checked(token: &str) -> Result<&str, String> {
    match token {
        "" => Err("the token is empty".to_owned()),
        token if token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(token),
        _ => Err("a token has visible ASCII characters and no blanks".to_owned()),
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
        let many = "t\n".repeat(MOST_TOKENS + 1);
        for (text, part) in [
            ("", "there is no token in it"),
            ("# s3cret", "there is no token in it"),
            ("a b\nc gr\u{fc}n", "line 2: a token has visible ASCII"),
            (many.as_str(), "65 tokens"),
            (&format!("{} t", "n".repeat(65)), "line 1: a name has at most"),
        ] {
            assert!(Tokens::parse(text).unwrap_err().contains(part), "{text}");
        }
        for token in ["", "  ", "a b"] {
            assert!(Tokens::one(token).is_err(), "{token}");
        }
    }
}
