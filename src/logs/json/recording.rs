//! The members of a recording that other logs do not have: headers and descriptors by name, and what its first line says of
//! them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::scan::{Mistake, Scanned, Scanner};
use crate::engine::charging::descriptors::Hits;
use crate::logs::escape::unescaped;
use crate::logs::field::Draft;
use crate::logs::told::{StandIns, Told, ToldHeaders};
use crate::logs::{Descriptor, Descriptors, RecordingEnd};
use crate::message::lossless;

/// The first line.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    headers: BTreeSet<String>,
    descriptors: BTreeSet<String>,
    stand_ins: StandIns,
}

impl Head {
    /// Adds a member of the line.
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"headers" => self.headers.extend(texts(value)),
            // They are kept as a header.
            b"cookies" if !texts(value).is_empty() => self.headers.extend(["cookie".to_owned()]),
            b"descriptors" => self.descriptors.extend(texts(value)),
            b"stand_ins" => {
                for (part, values) in members(value) {
                    let all = members(values).into_iter();
                    let all: BTreeMap<String, BTreeSet<String>> =
                        all.map(|(name, kept)| (text(name).into_owned(), texts(kept).into_iter().collect())).collect();
                    match part {
                        b"headers" => self.stand_ins.headers = all,
                        b"descriptors" => self.stand_ins.descriptors = all,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    pub(super) fn told(&self, told: &Told) -> Told {
        Told {
            headers: ToldHeaders::Named(self.headers.clone()),
            descriptors: Some(self.descriptors.clone()),
            stand_ins: self.stand_ins.clone(),
            ..told.clone()
        }
    }
}

/// Keys and values in their order.
type Entries<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// The descriptors of a line, while its members are read.
#[derive(Debug, Default)]
pub(super) struct RecordedDescriptors<'a> {
    each: Vec<Entries<'a>>,
    hits: Vec<Hits>,
    domain: Option<Cow<'a, str>>,
    only_checks: bool,
    /// Limits came with the call. They are not in the recording.
    pub(super) carries_limits: bool,
}

impl<'a> RecordedDescriptors<'a> {
    /// Adds a member. Returns false if it has another meaning.
    pub(super) fn add(&mut self, name: &[u8], value: Scanned<'a>) -> Result<bool, Mistake> {
        match (name, value) {
            (b"domain" | b"headers" | b"descriptors" | b"hits" | b"only_checks" | b"carries_limits", _)
                if !fits(name, value) =>
            {
                return Err((
                    "a text for `domain`, arrays for `headers`, `descriptors` and `hits`, true or false for others",
                    0,
                ));
            }
            (b"domain", Scanned::Text(domain)) => self.domain = Some(text(domain)),
            (b"descriptors", Scanned::Nested(array)) => self.each = descriptors(array)?,
            (b"hits", Scanned::Nested(array)) => self.hits = hits(array)?,
            (b"only_checks", Scanned::Plain(value)) => self.only_checks = value == b"true",
            (b"carries_limits", Scanned::Plain(value)) => self.carries_limits = value == b"true",
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn finish(self) -> Option<Descriptors<'a>> {
        if self.domain.is_none() && self.each.is_empty() {
            return None;
        }
        let hits = self.hits.into_iter().chain(std::iter::repeat(Hits::Take(1)));
        let each = self.each.into_iter().zip(hits).map(|(entries, hits)| Descriptor { entries, hits });
        Some(Descriptors { domain: self.domain, only_checks: self.only_checks, each: each.collect() })
    }
}

/// Returns true if a value has the type that recordings have for this member.
fn fits(name: &[u8], value: Scanned<'_>) -> bool {
    match name {
        b"domain" => matches!(value, Scanned::Text(_)),
        b"only_checks" | b"carries_limits" => matches!(value, Scanned::Plain(b"true" | b"false")),
        _ => matches!(value, Scanned::Nested(array) if array.starts_with(b"[")),
    }
}

/// Adds headers, each an array of a name and a value.
pub(super) fn headers<'a>(array: &'a [u8], draft: &mut Draft<'a>) -> Result<(), Mistake> {
    let mut items = Scanner::array(array)?;
    while let Some(item) = items.item()? {
        // The first line of a recording has names only.
        let Scanned::Nested(pair) = item else { continue };
        let (name, value) = raw_pair(pair)?;
        draft.add_header(String::from_utf8_lossy(name).into_owned(), value);
    }
    Ok(())
}

/// Returns true for the first and the last line.
pub(super) fn has_no_request(line: &[u8]) -> bool {
    members(line).iter().any(|(name, _)| matches!(*name, b"weir_recording" | b"ended"))
}

/// Reads the last line; `None` if it is another one.
pub(super) fn end(line: &[u8]) -> Option<RecordingEnd> {
    let line: serde_json::Value = serde_json::from_slice(line).ok()?;
    line.get("ended")?;
    let counts = line.get("counts")?;
    let number = |name: &str| counts[name].as_u64().unwrap_or(0);
    Some(RecordingEnd {
        kept: counts["kept"].as_u64(),
        dropped: number("dropped"),
        outside_the_share: number("outside_the_share"),
        without_a_request: number("without_a_request"),
    })
}

fn descriptors(array: &[u8]) -> Result<Vec<Entries<'_>>, Mistake> {
    let (mut all, mut items) = (Vec::new(), Scanner::array(array)?);
    while let Some(item) = items.item()? {
        // The first line of a recording has keys only.
        let Scanned::Nested(descriptor) = item else { continue };
        let (mut entries, mut pairs) = (Vec::new(), Scanner::array(descriptor)?);
        while let Some(item) = pairs.item()? {
            let Scanned::Nested(pair) = item else { return Err(("a key and a value", 0)) };
            let (key, value) = raw_pair(pair)?;
            entries.push((text(key), text(value)));
        }
        all.push(entries);
    }
    Ok(all)
}

fn hits(array: &[u8]) -> Result<Vec<Hits>, Mistake> {
    let (mut all, mut items) = (Vec::new(), Scanner::array(array)?);
    while let Some(item) = items.item()? {
        let Scanned::Nested(pair) = item else { return Err(("a kind of hits and their number", 0)) };
        let mut pair = Scanner::array(pair)?;
        let (kind, number) = (pair.item()?, pair.item()?);
        let number = number.and_then(|number| std::str::from_utf8(number.bytes()).ok()?.parse().ok());
        all.push(match (kind, number) {
            (Some(Scanned::Text(b"take")), Some(number)) => Hits::Take(number),
            (Some(Scanned::Text(b"take_or_drain")), Some(number)) => Hits::TakeOrDrain(number),
            (Some(Scanned::Text(b"give_back")), Some(number)) => Hits::GiveBack(number),
            _ => return Err(("a kind of hits and their number", 0)),
        });
    }
    Ok(all)
}

fn raw_pair(pair: &[u8]) -> Result<(&[u8], &[u8]), Mistake> {
    let mut pair = Scanner::array(pair)?;
    match (pair.item()?, pair.item()?) {
        (Some(Scanned::Text(name)), Some(Scanned::Text(value))) => Ok((name, value)),
        _ => Err(("a name and a value", 0)),
    }
}

/// The texts of an array; none of another value.
fn texts(array: &[u8]) -> Vec<String> {
    let Ok(mut scanner) = Scanner::array(array) else { return Vec::new() };
    let items = std::iter::from_fn(|| scanner.item().ok().flatten());
    items.map(|item| text(item.bytes()).into_owned()).collect()
}

/// The members of an object that are arrays or objects; none of another value.
fn members(object: &[u8]) -> Vec<(&[u8], &[u8])> {
    let Ok(mut scanner) = Scanner::object(object) else { return Vec::new() };
    let members = std::iter::from_fn(|| scanner.member().ok().flatten());
    members.map(|(name, value)| (name, value.bytes())).collect()
}

fn text(raw: &[u8]) -> Cow<'_, str> {
    match unescaped(raw) {
        Cow::Borrowed(raw) => lossless::text(raw),
        Cow::Owned(raw) => Cow::Owned(lossless::text(&raw).into_owned()),
    }
}
