//! The formats of logs.

use std::borrow::Cow;

use super::told::Told;
use super::{Entry, Unreadable};

/// The longest line that is read, in bytes.
pub const MAX_LINE: usize = 64 * 1024;

/// The format of a log.
#[derive(Clone, Debug)]
pub struct Format {
    name: String,
    told: Told,
}

impl Format {
    /// The format that `--log-format` names, or gives as nginx, Apache and Envoy write it. The error says what is wrong.
    pub fn named(given: &str) -> Result<Self, String> {
        Ok(Self { name: given.to_owned(), told: Told::default() })
    }

    /// The format of the lines with which a log begins; `None` if it is not known.
    pub fn detect<'a>(_lines: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Self> {
        Self::named("combined").ok()
    }

    /// For people: `combined`, `JSON of Caddy`.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn told(&self) -> &Told {
        &self.told
    }

    /// A parser of lines, for one thread.
    pub fn parser(&self) -> Parser<'_> {
        Parser { format: self }
    }
}

/// Parses the lines of one format. Remembers the last instant, which the next line often shares.
#[derive(Debug)]
pub struct Parser<'f> {
    format: &'f Format,
}

impl<'f> Parser<'f> {
    /// Returns the request that a line tells; `None` if the line tells of something else, such as the start of a server.
    pub fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Option<Entry<'a>>, Unreadable>
    where
        'f: 'a,
    {
        let _ = (self.format, line);
        Err(Unreadable { expected: Cow::Borrowed("a known format"), at: 0 })
    }
}
