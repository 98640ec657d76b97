//! Users' scripts. Redis runs them to decide charges.
//!
//! The contract is `PlugLimit`'s: a script gets its bucket's key and its arguments, and returns a verdict and the values of
//! headers. `lua/script.lua` calls it.

use std::sync::Arc;

use http::header::HeaderName;

use super::algorithm::Algorithm;
use super::micros::EXACT;
use super::numbers::Numbers;
use super::queue::escape;
use super::windows::Refill;
use crate::engine::digest::sha256;
use crate::message::headers::{is_name, is_value};

pub const MOST_ARGUMENTS: usize = 64;

/// In bytes.
pub const LONGEST_ARGUMENT: usize = 256;

pub const MOST_HEADERS: usize = 32;

/// Headers that scripts may not set, because they frame or route the message, or belong to the connection.
const RESERVED: [&str; 12] = [
    "connection",
    "content-length",
    "content-type",
    "date",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-queue-entry",
];

#[derive(Debug, PartialEq, Eq)]
pub struct ScriptSource {
    /// The name in calls: hexadecimal digits, the same for the same text.
    pub name: String,
    pub text: String,
    pub file: String,
}

/// `algorithm: script`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub source: Arc<ScriptSource>,
    /// The arguments of the limit and its overrides, encoded for calls. The `count` of their [`Numbers`] is an index.
    pub arguments: Vec<Arc<str>>,
    /// The headers for the returned values, in order.
    pub headers: Vec<HeaderName>,
}

/// The input of a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub source: Arc<ScriptSource>,
    /// `=value` for each, percent-encoded.
    pub arguments: Arc<str>,
}

impl Numbers {
    /// Numbers of a script that runs with the arguments at this index. Only the script knows how much it allows, so the burst is
    /// the largest.
    pub const fn script(arguments: u64) -> Self {
        Self::with(EXACT - 1, arguments, 0, Algorithm::Script, Refill::evenly(0))
    }
}

/// The output of a script beside its verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptOutput {
    /// The values of headers.
    pub values: Vec<ScriptValue>,
    /// Text for logs.
    pub extras: Vec<String>,
}

/// The value of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptValue {
    /// The header's name, if the script gives one.
    pub name: Option<String>,
    pub text: String,
}

impl ScriptSource {
    pub fn new(file: &str, text: &str) -> Self {
        let name = sha256(text).get(..32).unwrap_or_default().to_owned();
        Self { name, text: text.to_owned(), file: file.to_owned() }
    }
}

impl Script {
    /// Returns the input of a charge with the arguments at this index.
    pub fn run(&self, index: u64) -> Run {
        let arguments = usize::try_from(index).ok().and_then(|index| self.arguments.get(index));
        Run { source: Arc::clone(&self.source), arguments: arguments.cloned().unwrap_or_else(|| "".into()) }
    }

    /// Returns the index of these arguments. Adds them if they are new.
    pub fn index_of(&mut self, arguments: Arc<str>) -> u64 {
        let known = self.arguments.iter().position(|known| *known == arguments).unwrap_or_else(|| {
            self.arguments.push(arguments);
            self.arguments.len() - 1
        });
        known as u64
    }

    /// Returns the headers for a response. A value without a header, or with one that scripts may not set, is an error.
    ///
    /// Characters that are invalid in headers, above all CR and LF, become spaces.
    pub fn headers<'a>(
        &'a self,
        output: &'a ScriptOutput,
    ) -> impl Iterator<Item = Result<(&'a str, String), &'a ScriptValue>> {
        output.values.iter().enumerate().map(|(index, value)| {
            let name = match &value.name {
                Some(name) => Some(name.as_str()).filter(|name| may_set(name)),
                None => self.headers.get(index).map(HeaderName::as_str),
            };
            name.map(|name| (name, clean(&value.text))).ok_or(value)
        })
    }
}

pub fn may_set(name: &str) -> bool {
    is_name(name.as_bytes()) && !RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
}

/// Encodes arguments for a call.
pub fn arguments<'a>(given: impl IntoIterator<Item = &'a str>) -> Arc<str> {
    let mut text = String::new();
    for argument in given {
        text.push('=');
        escape(argument, &mut text);
    }
    text.into()
}

fn clean(text: &str) -> String {
    let may_be = |letter: char| is_value(letter.encode_utf8(&mut [0; 4]).as_bytes());
    let text: String = text.chars().map(|letter| if may_be(letter) { letter } else { ' ' }).collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(headers: &[&'static str]) -> Script {
        Script {
            source: Arc::new(ScriptSource::new("my.lua", "return { 'allow', {} }")),
            arguments: vec!["=10=60".into()],
            headers: headers.iter().copied().map(HeaderName::from_static).collect(),
        }
    }

    /// The headers that values become, by names where they have one, and the texts of values that become none.
    #[track_caller]
    fn check(headers: &[&'static str], values: &[(Option<&str>, &str)], expected: &[Result<(&str, &str), &str>]) {
        let values = values.iter().map(|(name, text)| ScriptValue { name: name.map(Into::into), text: (*text).into() });
        let said = ScriptOutput { values: values.collect(), extras: Vec::new() };
        let script = script(headers);
        let found: Vec<_> = script.headers(&said).collect();
        let found: Vec<_> = found
            .iter()
            .map(|header| match header {
                Ok((name, value)) => Ok((*name, value.as_str())),
                Err(value) => Err(value.text.as_str()),
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn values_go_to_names_by_their_place() {
        check(&["x-a", "x-b", "x-c"], &[(None, "10"), (None, "60")], &[Ok(("x-a", "10")), Ok(("x-b", "60"))]);
        check(&["x-a"], &[(None, "10"), (None, "60")], &[Ok(("x-a", "10")), Err("60")]);
    }

    #[test]
    fn a_pair_replaces_the_name_and_adds_a_field_beyond_the_names() {
        check(
            &["x-a", "x-b", "x-c"],
            &[(None, "10"), (Some("x-acme"), "60"), (None, "9"), (Some("X-Extra"), "1")],
            &[Ok(("x-a", "10")), Ok(("x-acme", "60")), Ok(("x-c", "9")), Ok(("X-Extra", "1"))],
        );
        check(
            &[],
            &[(Some("content-length"), "1"), (Some("Transfer-Encoding"), "2"), (Some("a b"), "3"), (Some(""), "4")],
            &[Err("1"), Err("2"), Err("3"), Err("4")],
        );
    }

    #[test]
    fn no_value_ends_its_line() {
        check(&["x-a"], &[(None, " 1\r\nset-cookie: a=b\0 ")], &[Ok(("x-a", "1  set-cookie: a=b"))]);
    }

    #[test]
    fn arguments_are_words_of_a_call() {
        assert_eq!(&*arguments(["10", "", "a b=c\n"]), "=10==a%20b%3Dc%0A");
        assert_eq!(&*arguments([]), "");
        let mut script = script(&[]);
        assert_eq!((script.index_of("=1".into()), script.index_of("=10=60".into())), (1, 0));
        assert_eq!((&*script.run(1).arguments, &*script.run(9).arguments), ("=1", ""));
    }

    #[test]
    fn the_same_text_has_the_same_name() {
        let (a, b, c) = (ScriptSource::new("a", "x"), ScriptSource::new("b", "x"), ScriptSource::new("a", "y"));
        assert_eq!((a.name.len(), a.name == b.name, a.name == c.name), (32, true, false));
        assert!(a.name.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn a_script_allows_as_much_as_can_be_counted() {
        let numbers = Numbers::script(3);
        assert_eq!((numbers.burst(), numbers.count()), (EXACT - 1, 3));
    }
}
