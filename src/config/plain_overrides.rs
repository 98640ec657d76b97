//! Overrides as programs write them: one entry behind the other in the plainest YAML. A file of a million spends half of its time in the
//! YAML parser, which this does without. A file with anything else in it goes to the parser as a whole.
//!
//! ```text
//! # Comments and empty lines between entries.
//! PerAccount:7: { count: 40, period: 1s }
//! PerAccount:8:
//!   count: 60
//!   period: 1s
//! ```

use super::node::{Key, Node, Value};
use super::problem::{Findings, Place};

/// Longer keys go to the parser, which has a bound on them.
const LONGEST_KEY: usize = 512;

/// More numbers than an override has.
const MOST_PAIRS: usize = 16;

/// Returns the entries of a text; `None` if the parser has to read it.
pub(super) fn entries<'t>(text: &'t str, findings: &'t Findings) -> Option<impl Iterator<Item = (Key, Node)> + 't> {
    let mut has_entries = false;
    for entry in Entries::new(text) {
        has_entries = entry.is_some();
        if !has_entries {
            break;
        }
    }
    has_entries.then(|| Entries::new(text).flatten().map(|entry| entry.tree(findings)))
}

/// A word of the text, and its place.
#[derive(Clone, Copy)]
struct Word<'t> {
    text: &'t str,
    place: Place,
}

struct Entry<'t> {
    key: Word<'t>,
    /// The place of the map.
    map: Place,
    pairs: Vec<(Word<'t>, Word<'t>)>,
}

impl Entry<'_> {
    fn tree(self, findings: &Findings) -> (Key, Node) {
        let key = |word: Word<'_>| Key { text: word.text.to_owned(), place: word.place, findings: findings.clone() };
        let pair = |(name, value): (Word<'_>, Word<'_>)| {
            let text = Value::Scalar { text: value.text.to_owned(), plain: true };
            (key(name), Node { place: value.place, value: text, findings: findings.clone() })
        };
        let value = Value::Map(self.pairs.into_iter().map(pair).collect());
        (key(self.key), Node { place: self.map, value, findings: findings.clone() })
    }
}

/// The entries of a text. An item is `None` where the text has something else; items after it mean nothing.
struct Entries<'t> {
    lines: std::iter::Peekable<std::iter::Zip<std::ops::RangeFrom<u32>, std::str::Split<'t, char>>>,
}

impl<'t> Entries<'t> {
    fn new(text: &'t str) -> Self {
        Self { lines: (1..).zip(text.split('\n')).peekable() }
    }

    fn entry(&mut self, line: u32, text: &'t str) -> Option<Entry<'t>> {
        let (name, rest) = key_of(text)?;
        let key = word(text, name, line);
        if let Some(pairs) = rest.strip_prefix(" {") {
            let inner = pairs.strip_suffix('}')?;
            let begin = inner.strip_prefix(' ').unwrap_or(inner);
            // The parser counts a space behind the brace as part of it.
            let map = place(text, &rest[1..2 + inner.len() - begin.len()], line);
            let inner = begin.strip_suffix(' ').unwrap_or(begin);
            // No pair has a comma. Searching for one byte takes a fraction of what searching for two takes.
            let pairs = (0..).zip(inner.split(','));
            let plain = |(index, part): (u32, &'t str)| if index == 0 { Some(part) } else { part.strip_prefix(' ') };
            let pairs = distinct(pairs.map(|part| pair(text, plain(part)?, line)))?;
            return Some(Entry { key, map, pairs });
        }
        let mut lines = std::iter::from_fn(|| self.lines.next_if(|(_, text)| text.starts_with("  ")));
        let first = lines.by_ref().take(1).next().filter(|_| rest.is_empty())?;
        let all = std::iter::once(first).chain(lines);
        let pairs = distinct(all.map(|(line, text)| pair(text, &text[2..], line)))?;
        Some(Entry { key, map: Place { width: 1, ..pairs.first()?.0.place }, pairs })
    }
}

impl<'t> Iterator for Entries<'t> {
    type Item = Option<Entry<'t>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.lines.next()? {
                (_, "") => {}
                (_, comment) if comment.starts_with('#') => {
                    if !comment.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
                        return Some(None);
                    }
                }
                (line, text) => return Some(self.entry(line, text)),
            }
        }
    }
}

/// Splits a line behind its key: a name that begins with a letter, and ends at a colon before a space or the end.
fn key_of(text: &str) -> Option<(&str, &str)> {
    let is_end = |place: &usize| matches!(text.as_bytes().get(place + 1), None | Some(b' '));
    let end = memchr::memchr_iter(b':', text.as_bytes()).find(is_end)?;
    let key = text.get(..end).filter(|key| key.len() <= LONGEST_KEY)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:@%+=~,".contains(&byte);
    let is_key = key.starts_with(|first: char| first.is_ascii_alphabetic()) && key.bytes().all(is_plain);
    is_key.then(|| (key, &text[end + 1..]))
}

/// Reads `name: value`, a part of a line.
fn pair<'t>(line_text: &'t str, text: &'t str, line: u32) -> Option<(Word<'t>, Word<'t>)> {
    let (name, value) = text.split_once(':')?;
    let value = value.strip_prefix(' ')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./%+".contains(&byte);
    let is_value = value.starts_with(|first: char| first.is_ascii_alphanumeric()) && value.bytes().all(is_plain);
    (is_name && is_value).then(|| (word(line_text, name, line), word(line_text, value, line)))
}

/// Returns the pairs; `None` if some text is not a pair, or if two pairs have the same name.
fn distinct<'t>(pairs: impl Iterator<Item = Option<(Word<'t>, Word<'t>)>>) -> Option<Vec<(Word<'t>, Word<'t>)>> {
    let mut known: Vec<(Word<'t>, Word<'t>)> = Vec::with_capacity(2);
    for pair in pairs {
        let (name, value) = pair?;
        if known.len() == MOST_PAIRS || known.iter().any(|(other, _)| other.text == name.text) {
            return None;
        }
        known.push((name, value));
    }
    Some(known)
}

/// A part of a line, all ASCII up to its end.
fn word<'t>(line_text: &'t str, text: &'t str, line: u32) -> Word<'t> {
    Word { text, place: place(line_text, text, line) }
}

fn place(line_text: &str, text: &str, line: u32) -> Place {
    let column = text.as_ptr().addr() - line_text.as_ptr().addr() + 1;
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    Place { line, column: number(column), width: number(text.len()) }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::super::problem::ReadResult;
    use super::super::yaml::{List, Reader};
    use super::*;

    /// The number of entries that both read, or nothing if the parser has to read the text.
    #[track_caller]
    fn check(text: &str) -> Option<usize> {
        let findings = Findings::new("f");
        let entries: Vec<(Key, Node)> = entries(text, &findings)?.collect();
        let parsed = parsed(text, &findings);
        let count = entries.len();
        assert!(parsed == Ok(entries), "{text:?} is read otherwise: {parsed:?}");
        Some(count)
    }

    fn parsed(text: &str, findings: &Findings) -> ReadResult<Vec<(Key, Node)>> {
        let mut reader = Reader::without_tabs(text, findings)?;
        assert!(!reader.root("", List::Allowed, "")?);
        let mut entries = Vec::new();
        while let Some(key) = reader.key()? {
            entries.push((key, reader.node()?));
        }
        reader.end()?;
        Ok(entries)
    }

    #[test]
    fn entries_are_those_of_the_parser() {
        for (text, expected) in [
            ("A:7: { count: 40, period: 1s }\nA:8: {count: 40, period: 1s}\n", Some(2)),
            ("# x\n\nA:7:\n  count: 40\n  period: 1s\n\n# y\nB:192.0.2.0/24: { deny: true }", Some(2)),
            ("A:2001:db8::7: { unlimited: true }\n", Some(1)),
            ("A:::: { unlimited: true }\n", Some(1)),
            ("", None),
            ("# nothing\n", None),
            ("A:7: { count: 40 } # why\n", None),
            ("A:7: { count: 40, count: 41 }\n", None),
            ("A:7: { count: '40' }\n", None),
            ("A:7: {}\n", None),
            ("A:7:\n", None),
            ("A:7:\n   count: 40\n", None),
            ("A:7:\n  count: 40\n    more\n", None),
            ("A:7:\n  count: 40\n # x\n", None),
            ("A:7: { count: 40 }\r\n", None),
            ("A:é: { count: 40 }\n", None),
            ("- A:7: { count: 40 }\n", None),
            ("A: { count: 40, ids: [7] }\n", None),
            ("A:7: { count: 40 }\n---\nA:8: { count: 40 }\n", None),
            ("\u{feff}A:7: { count: 40 }\n", None),
        ] {
            assert_eq!(check(text), expected, "{text}");
        }
    }

    fn pieces() -> impl Strategy<Value = String> {
        let whole = vec(
            select(vec![
                "A:7: { count: 40, period: 1s }\n",
                "A:x@y.z/1: {burst: 5,  count: 4}\n",
                "B:1:\n  count: 40\n  period: 1s\n",
                "  burst: 7\n",
                "# c\n",
                "\n",
            ]),
            0..8,
        );
        whole.prop_map(|pieces| pieces.concat())
    }

    proptest! {
        /// Texts of such pieces, in which some characters are others.
        #[test]
        fn what_is_accepted_is_read_as_the_parser_reads_it(
            text in pieces(),
            changes in vec((0_usize..200, select(" \n:{},#-?&*!|>'\"%@`~x0\t\r[]=<.é".chars().collect::<Vec<_>>())), 0..3),
            is_inserted in any::<bool>(),
        ) {
            let mut text: Vec<char> = text.chars().collect();
            for (place, character) in changes {
                if is_inserted && place <= text.len() {
                    text.insert(place, character);
                } else if let Some(changed) = text.get_mut(place) {
                    *changed = character;
                }
            }
            check(&text.into_iter().collect::<String>());
        }
    }
}
