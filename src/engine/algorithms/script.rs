//! Scripts of the user: what a limit with `algorithm: script` runs, and what a client is told of what it says.
//!
//! The contract is `PlugLimit`'s: a script gets the key of its bucket and its arguments, and answers with a verdict and the
//! values of header headers. `lua/script.lua` says what a server does with one.

use std::sync::Arc;

use http::header::HeaderName;

use super::queue::escape;
use crate::engine::digest::sha256;
use crate::message::headers::{is_name, is_value};

/// The largest source, in bytes. It is sent whole to a server that does not know it.
pub const LONGEST_SOURCE: u64 = 64 * 1024;

/// The most arguments of a script.
pub const MOST_ARGUMENTS: usize = 64;

/// Bytes of one argument.
pub const LONGEST_ARGUMENT: usize = 256;

/// The most header headers that values are named after.
pub const MOST_HEADERS: usize = 32;

/// Headers that no script may set: they frame or route the message, or are the connection's.
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

/// A script's text.
#[derive(Debug, PartialEq, Eq)]
pub struct ScriptSource {
    name: String,
    text: String,
    /// The file, for people.
    file: String,
}

/// `algorithm: script`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// What runs.
    pub source: Arc<ScriptSource>,
    /// The arguments of the limit, and those of its overrides, as a call has them. Its [`super::numbers::Numbers`] say
    /// which of them hold.
    pub arguments: Vec<Arc<str>>,
    /// Which header each value is for, by its place.
    pub headers: Vec<HeaderName>,
}

/// What a charge runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The script.
    pub source: Arc<ScriptSource>,
    /// Its arguments as a call has them: `=value` for each, percent-encoded.
    pub arguments: Arc<str>,
}

/// What a script has said beside its verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The values of headers.
    pub values: Vec<SaidValue>,
    /// What is for logs.
    pub extras: Vec<String>,
}

/// The value of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaidValue {
    /// The header's name, if the script gives one.
    pub name: Option<String>,
    /// The value.
    pub text: String,
}

impl ScriptSource {
    /// The script of a file.
    pub fn new(file: &str, text: &str) -> Self {
        let name = sha256(text).get(..32).unwrap_or_default().to_owned();
        Self { name, text: text.to_owned(), file: file.to_owned() }
    }

    /// What calls name it by: hexadecimal digits, the same for the same text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The file that it was read from.
    pub fn file(&self) -> &str {
        &self.file
    }
}

impl Script {
    /// What runs with the arguments of this number, counted from 0.
    pub fn run(&self, number: u64) -> Run {
        let arguments = usize::try_from(number).ok().and_then(|number| self.arguments.get(number));
        Run { source: Arc::clone(&self.source), arguments: arguments.cloned().unwrap_or_else(|| "".into()) }
    }

    /// The number of these arguments, which overrides share if they give the same.
    pub fn number_of(&mut self, arguments: Arc<str>) -> u64 {
        let known = self.arguments.iter().position(|known| *known == arguments).unwrap_or_else(|| {
            self.arguments.push(arguments);
            self.arguments.len() - 1
        });
        known as u64
    }

    /// The headers that a client is told of what the script has said; an error stands for a value that cannot be one.
    ///
    /// What no header can hold, CR and LF above all, becomes a blank.
    pub fn headers<'a>(&'a self, said: &'a Said) -> impl Iterator<Item = Result<(&'a str, String), &'a SaidValue>> {
        said.values.iter().enumerate().map(|(place, value)| {
            let name = match &value.name {
                Some(name) => Some(name.as_str()).filter(|name| may_set(name)),
                None => self.headers.get(place).map(HeaderName::as_str),
            };
            name.map(|name| (name, clean(&value.text))).ok_or(value)
        })
    }
}

/// Whether a script may set a header of this name.
pub fn may_set(name: &str) -> bool {
    is_name(name.as_bytes()) && !RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
}

/// Arguments as a call has them.
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
        let values = values.iter().map(|(name, text)| SaidValue { name: name.map(Into::into), text: (*text).into() });
        let said = Said { values: values.collect(), extras: Vec::new() };
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
        assert_eq!((script.number_of("=1".into()), script.number_of("=10=60".into())), (1, 0));
        assert_eq!((&*script.run(1).arguments, &*script.run(9).arguments), ("=1", ""));
    }

    #[test]
    fn the_same_text_has_the_same_name() {
        let (a, b, c) = (ScriptSource::new("a", "x"), ScriptSource::new("b", "x"), ScriptSource::new("a", "y"));
        assert_eq!((a.name().len(), a.name() == b.name(), a.name() == c.name()), (32, true, false));
        assert!(a.name().bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
