//! Queues of work: what a limit with `algorithm: queue` puts into an entry, and where entries wait.
//!
//! Only a server keeps a queue, because its workers are programs of others: the entries live in Redis, and `lua/queue.lua`
//! says how.

use std::fmt;

use crate::message::{lossless, percent};

/// The largest capacity. A queue that is longer than that is no buffer but a backlog.
pub const MOST_WAITING: u64 = 10_000;

/// The most fields of an entry.
pub const MOST_FIELDS: usize = 16;

/// Bytes of an entry's names and values: what a request's target or a longer field of it has at most.
pub const LONGEST_ENTRY: usize = 8 * 1024;

/// `kind:`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    /// In a stream.
    #[default]
    Stream,
    /// In a list.
    List,
}

/// What a charge does to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Where entries wait.
    pub storage: Storage,
    /// The entry that is added.
    pub entry: QueueEntry,
    /// The one that a refund takes away again, if it is known.
    pub given_back: Option<EntryId>,
}

/// The fields of an entry: `name=value` pairs with commas between them, percent-encoded so that no value of a client can
/// make a pair, a word or a line of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueEntry(String);

/// The id of an entry: a number, a hyphen and another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryId(String);

/// An entry of more than [`LONGEST_ENTRY`] bytes; it has so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryTooLong(pub usize);

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

impl QueueEntry {
    pub(crate) fn of<'a, V: AsRef<str>>(fields: impl Iterator<Item = (&'a str, V)>) -> Result<Self, EntryTooLong> {
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
        if bytes > LONGEST_ENTRY { Err(EntryTooLong(bytes)) } else { Ok(Self(text)) }
    }

    /// The pairs as a call has them.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Adds a text that has neither blanks nor anything else that means something between words of a call.
pub(crate) fn escape(text: &str, to: &mut String) {
    percent::encode(&lossless::bytes(text), |byte| byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte), to);
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
    use super::*;

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
