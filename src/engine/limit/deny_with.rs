//! `deny_with`: the response to a request that a limit denies, if it is not the usual one.

use std::fmt::Write;

use http::StatusCode;
use http::header::HeaderName;

/// The parts of the response that differ from the usual denial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenyWith {
    /// 400 to 599; `None` for 429.
    pub status: Option<StatusCode>,
    /// They replace headers of the same name, and are valid values once the placeholders are filled in.
    pub headers: Vec<(HeaderName, Template)>,
    /// `None` for problem details.
    pub body: Option<DenialBody>,
}

/// `headers:`, whether clients get to know of the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visibility {
    #[default]
    Shown,
    /// `headers: none`: neither headers nor denials tell clients of it.
    Hidden,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialBody {
    pub content_type: String,
    /// An empty one is sent without a content type.
    pub text: Template,
}

/// Text with the placeholders `{limit}` and `{retry_after}`. `{{` stands for a brace; other braces stand for themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Limit,
    RetryAfter,
}

/// A word in braces that is not a placeholder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown placeholder `{{{0}}}`")]
pub struct UnknownPlaceholder(pub String);

impl Template {
    /// The placeholders.
    pub const PLACEHOLDERS: [&str; 2] = ["limit", "retry_after"];

    pub fn parse(text: &str) -> Result<Self, UnknownPlaceholder> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            plain.push_str(before);
            if let Some(after) = after.strip_prefix('{') {
                plain.push('{');
                rest = after;
                continue;
            }
            // JSON and style sheets have braces, but no lower-case word alone in them.
            let word = after.split_once('}').filter(|(word, _)| is_word(word));
            let Some((word, after)) = word else {
                plain.push('{');
                rest = after;
                continue;
            };
            let piece = match word {
                "limit" => Piece::Limit,
                "retry_after" => Piece::RetryAfter,
                _ => return Err(UnknownPlaceholder(word.to_owned())),
            };
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(piece);
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Self(pieces))
    }

    /// Fills in the placeholders. `retry_after` is in seconds, and 0 if waiting does not help.
    pub fn fill(&self, limit: &str, retry_after: u64) -> String {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(plain) => text.push_str(plain),
                Piece::Limit => text.push_str(limit),
                Piece::RetryAfter => drop(write!(text, "{retry_after}")),
            }
        }
        text
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in_and_other_braces_stay() {
        for (text, expected) in [
            ("", ""),
            ("Come back later", "Come back later"),
            ("{limit}: {retry_after} s", "Logins: 7 s"),
            ("{\"limit\":\"{limit}\",\"wait\":{retry_after}}", "{\"limit\":\"Logins\",\"wait\":7}"),
            ("a { color: red } b{margin:0}", "a { color: red } b{margin:0}"),
            ("{{limit}} and {{{limit}", "{limit}} and {Logins"),
            ("{} { } {limit", "{} { } {limit"),
            ("{Limit}", "{Limit}"),
        ] {
            assert_eq!(Template::parse(text).unwrap().fill("Logins", 7), expected, "{text}");
        }
    }

    #[test]
    fn an_unknown_placeholder_is_an_error() {
        assert_eq!(Template::parse("wait {retryafter} s"), Err(UnknownPlaceholder("retryafter".to_owned())));
    }
}
