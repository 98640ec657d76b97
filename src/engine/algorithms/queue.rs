//! Queues of work: what a limit with `algorithm: queue` puts into an entry, and where entries wait.
//!
//! Only a server keeps a queue, because its workers are programs of others: the entries live in Redis, and `lua/queue.lua`
//! says how.

use std::fmt::{self, Write};

use crate::engine::rules::by::Component;
use crate::engine::rules::request::Request;
use crate::message::lossless::bytes;

/// The largest capacity. A queue that is longer than that is no buffer but a backlog.
pub const MOST_WAITING: u64 = 10_000;

/// The most fields of an entry.
pub const MOST_FIELDS: usize = 16;

/// Bytes of an entry's names and values: what a request's target or a longer field of it has at most.
pub const LONGEST_ENTRY: usize = 8 * 1024;

/// `algorithm: queue`, beside the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Where entries wait.
    pub storage: Storage,
    /// What becomes of a request whose entry was added.
    pub then: Then,
    /// The fields of an entry by name, 1 to [`MOST_FIELDS`]. Names have letters, digits, `_`, `.` and `-`.
    pub fields: Vec<(String, Component)>,
}

/// `kind:`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    /// In a stream.
    #[default]
    Stream,
    /// In a list.
    List,
}

/// `then:`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Then {
    /// It is answered with 202 and goes no further.
    #[default]
    Accept,
    /// It goes on to the upstream, which is told the entry.
    Forward,
}

/// What a charge does to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Where entries wait.
    pub storage: Storage,
    /// The entry that is added.
    pub entry: Entry,
    /// The one that a refund takes away again, if it is known.
    pub given_back: Option<EntryId>,
}

/// The fields of an entry: `name=value` pairs with commas between them, percent-encoded so that no value of a client can
/// make a pair, a word or a line of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry(String);

/// The id of an entry: a number, a hyphen and another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryId(String);

/// An entry of more than [`LONGEST_ENTRY`] bytes; it has so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong(pub usize);

impl Queue {
    /// The entry of a request. A field that the request lacks or that is malformed is empty, so that all entries have the
    /// same fields.
    pub fn entry(&self, request: &Request<'_>) -> Result<Entry, TooLong> {
        let value = |component: &Component| component.of(request).unwrap_or_default();
        Entry::of(self.fields.iter().map(|(name, component)| (name.as_str(), value(component))))
    }

    /// The entry of these values, which somebody gives by name; a field that is not given is empty. The error says what
    /// is wrong with them.
    pub fn entry_of(&self, given: &[(String, String)]) -> Result<Entry, String> {
        if let Some((unknown, _)) = given.iter().find(|(name, _)| !self.fields.iter().any(|(known, _)| known == name)) {
            let known: Vec<&str> = self.fields.iter().map(|(name, _)| name.as_str()).collect();
            return Err(format!(
                "there is no field {}; there are {}",
                crate::engine::rules::quote::quoted(unknown),
                known.join(", ")
            ));
        }
        let value = |name: &str| given.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.as_str());
        let entry = Entry::of(self.fields.iter().map(|(name, _)| (name.as_str(), value(name))));
        entry.map_err(|TooLong(bytes)| format!("an entry has at most {LONGEST_ENTRY} bytes, this one has {bytes}"))
    }
}

impl Storage {
    /// Its word in the rules file and in a call.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::List => "list",
        }
    }

    /// What tells the key of a list from that of a stream, which is another type of Redis'.
    pub const fn mark(self) -> &'static str {
        match self {
            Self::Stream => "",
            Self::List => ".list",
        }
    }
}

impl Entry {
    fn of<'a, V: AsRef<str>>(fields: impl Iterator<Item = (&'a str, V)>) -> Result<Self, TooLong> {
        let (mut text, mut bytes) = (String::new(), 0);
        for (name, value) in fields {
            let value = value.as_ref();
            bytes += name.len() + value.len();
            // No more is written than may be, however long the values are.
            if bytes <= LONGEST_ENTRY {
                if !text.is_empty() {
                    text.push(',');
                }
                escape(name, &mut text);
                text.push('=');
                escape(value, &mut text);
            }
        }
        if bytes > LONGEST_ENTRY { Err(TooLong(bytes)) } else { Ok(Self(text)) }
    }

    /// The pairs as a call has them.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Adds a text that has neither blanks nor anything else that means something between words of a call.
pub(crate) fn escape(text: &str, to: &mut String) {
    for byte in bytes(text).iter().copied() {
        if byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte) {
            to.push(char::from(byte));
        } else {
            let _ = write!(to, "%{byte:02X}");
        }
    }
}

impl EntryId {
    /// Reads an id; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let is_number = |part: &str| (1..=20).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        let (first, second) = text.split_once('-')?;
        (is_number(first) && is_number(second)).then(|| Self(text.to_owned()))
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;
    use crate::engine::rules::by::Source;
    use crate::engine::rules::request::sample;
    use crate::engine::rules::value_type::Form;
    use crate::message::headers::Headers;

    fn queue() -> Queue {
        let part = |source| Component::new(source, Form::Text);
        let user = part(Source::Header(HeaderName::from_static("x-user")));
        let fields = vec![("user".to_owned(), user), ("path".to_owned(), part(Source::Path))];
        Queue { storage: Storage::Stream, then: Then::Accept, fields }
    }

    #[track_caller]
    fn check(user: Option<&str>, path: &str, expected: Result<&str, usize>) {
        let headers: Headers = user.map(|user| ("x-user", user)).into_iter().collect();
        let entry = queue().entry(&Request { path, ..sample(&headers) });
        let entry = entry.as_ref().map(Entry::as_str).map_err(|TooLong(bytes)| *bytes);
        assert_eq!(entry, expected);
    }

    #[test]
    fn no_value_makes_a_pair_or_a_word_of_its_own() {
        check(Some("alice"), "/a", Ok("user=alice,path=/a"));
        check(Some("a b,user=eve 1 spend"), "/%41", Ok("user=a%20b%2Cuser%3Deve%201%20spend,path=/%2541"));
        check(Some("{}:*\"\\#"), "/ü\r\n", Ok("user=%7B%7D%3A%2A%22%5C%23,path=/%C3%BC%0D%0A"));
    }

    #[test]
    fn what_a_request_lacks_is_empty_and_entries_have_a_bound() {
        check(None, "/a", Ok("user=,path=/a"));
        check(None, &format!("/{}", "a".repeat(LONGEST_ENTRY - 9)), Ok(&format!("user=,path=/{}", "a".repeat(8183))));
        check(None, &format!("/{}", "a".repeat(LONGEST_ENTRY)), Err(LONGEST_ENTRY + 9));
    }

    #[test]
    fn values_are_given_by_name() {
        let given = |fields: &[(&str, &str)]| {
            let fields: Vec<_> = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            queue().entry_of(&fields).map(|entry| entry.as_str().to_owned())
        };
        assert_eq!(given(&[("path", "/b"), ("user", "bob")]), Ok("user=bob,path=/b".into()));
        assert_eq!(given(&[]), Ok("user=,path=".into()));
        assert_eq!(given(&[("who", "bob")]), Err("there is no field `who`; there are user, path".into()));
        assert!(given(&[("user", &"a".repeat(9_000))]).unwrap_err().contains("has 9008"));
    }

    #[test]
    fn ids_are_two_numbers() {
        for (text, is_id) in [
            ("1700000000000-0", true),
            ("0-0", true),
            ("1700000000000", false),
            ("1-", false),
            ("-1", false),
            ("1-1-1", false),
            ("1-*", false),
            ("+", false),
            ("123456789012345678901-0", false),
            ("1-0 1 spend", false),
        ] {
            assert_eq!(EntryId::parse(text).is_some(), is_id, "{text}");
        }
    }
}
