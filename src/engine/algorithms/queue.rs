//! Queues of work. Their entries wait in Redis for the workers of other programs. `lua/queue.lua` decides.

use std::fmt;

use super::algorithm::Algorithm;
use super::micros::EXACT;
use super::numbers::{Numbers, NumbersError};
use super::windows::Refill;
use crate::message::{lossless, percent};

/// The largest capacity. A longer queue is a backlog, not a buffer.
pub const MOST_WAITING: u64 = 10_000;

pub const MOST_FIELDS: usize = 16;

/// In bytes, names and values together.
pub const LONGEST_ENTRY: usize = 8 * 1024;

/// `kind:`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    #[default]
    Stream,
    List,
}

/// The input of a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    pub storage: Storage,
    pub entry: QueueEntry,
    /// The entry that a refund removes, if known.
    pub given_back: Option<EntryId>,
}

/// The fields of an entry: comma-separated `name=value` pairs, percent-encoded so that a client's value cannot add a pair, word
/// or line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueEntry(String);

/// The id of an entry: two numbers with a hyphen between them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryId(String);

/// An entry has this many bytes, more than [`LONGEST_ENTRY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryTooLong(pub usize);

impl Numbers {
    /// Numbers of a queue in which `capacity` entries may wait, each for at most `max_age` nanoseconds if set.
    pub fn queue(capacity: u64, max_age: Option<u64>) -> Result<Self, NumbersError> {
        let max_age = match (capacity, max_age) {
            (0, _) => return Err(NumbersError::Capacity),
            (capacity, _) if capacity > MOST_WAITING => return Err(NumbersError::TooManyWaiting(MOST_WAITING)),
            (_, None) => 0,
            (_, Some(0)) => return Err(NumbersError::MaxAge),
            (_, Some(max_age)) if !max_age.is_multiple_of(1_000) || max_age / 1_000 >= EXACT => {
                return Err(NumbersError::MaxAgeTick);
            }
            (_, Some(max_age)) => max_age / 1_000,
        };
        Ok(Self::with(capacity, 0, 0, Algorithm::Queue, Refill::span(max_age)))
    }
}

impl Storage {
    /// The name in the rules file and in a call.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::List => "list",
        }
    }

    /// The suffix of keys that keeps lists and streams apart.
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
            // Longer values are only counted.
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

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Appends a text, with escapes for the spaces and separators of a call.
pub(crate) fn escape(text: &str, to: &mut String) {
    percent::encode(&lossless::bytes(text), |byte| byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte), to);
}

impl EntryId {
    pub fn parse(text: &str) -> Option<Self> {
        let is_number = |part: &str| (1..=20).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        let (first, second) = text.split_once('-')?;
        (is_number(first) && is_number(second)).then(|| Self(text.to_owned()))
    }

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

    #[test]
    fn an_id_is_shown_as_it_is() {
        let id = EntryId::parse("1700000000000-7").unwrap();
        assert_eq!((id.as_str(), &*id.to_string()), ("1700000000000-7", "1700000000000-7"));
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let queue =
            |capacity, max_age| Numbers::queue(capacity, max_age).map(|numbers| (numbers.burst(), numbers.span()));
        assert_eq!(queue(1, None), Ok((1, 0)));
        assert_eq!(queue(MOST_WAITING, Some(7_000)), Ok((MOST_WAITING, 7)));
        assert_eq!(queue(0, None), Err(NumbersError::Capacity));
        for capacity in [MOST_WAITING + 1, MOST_WAITING * 2] {
            assert_eq!(queue(capacity, None), Err(NumbersError::TooManyWaiting(MOST_WAITING)));
        }
        assert_eq!(queue(1, Some(0)), Err(NumbersError::MaxAge));
        assert_eq!(queue(1, Some((EXACT - 1) * 1_000)), Ok((1, EXACT - 1)));
        for max_age in [1, 1_001, EXACT * 1_000] {
            assert_eq!(queue(1, Some(max_age)), Err(NumbersError::MaxAgeTick), "{max_age}");
        }
    }

    /// `lua/queue.lua` compares the words.
    #[test]
    fn storages_have_their_words() {
        assert_eq!([Storage::Stream, Storage::List].map(Storage::word), ["stream", "list"]);
    }

    #[test]
    fn an_entry_has_all_its_fields_up_to_the_longest() {
        let value = "x".repeat(LONGEST_ENTRY - 3);
        let entry = |value: &str| QueueEntry::of([("a", "1"), ("b", value)].into_iter());
        assert_eq!(entry("2,3").unwrap().as_str(), "a=1,b=2%2C3");
        assert_eq!(entry(&value).unwrap().as_str().len(), "a=1,b=".len() + LONGEST_ENTRY - 3);
        assert_eq!(entry(&format!("{value}x")), Err(EntryTooLong(LONGEST_ENTRY + 1)));
    }
}
