//! Other numbers for some ids of a limit, and which of them holds for a request.

use std::cell::Cell;
use std::collections::hash_map;
use std::net::IpAddr;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use ipnet::IpNet;
use regex::RegexSet;

use super::networks::Networks;
use crate::engine::algorithms::numbers::{Allowance, Micros};

/// One override.
#[derive(Clone, Debug)]
pub struct Override {
    /// What it allows instead of the limit's own numbers.
    pub allowance: Allowance,
    /// It holds until then; `None` for ever.
    pub until: Option<Micros>,
    /// Where it was written, for people: file, line and comment.
    pub origin: OverrideOrigin,
}

/// Where an override was written. Files are numbered, because a million overrides share a few of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverrideOrigin {
    /// The index of the file among those of the rules.
    pub file: u16,
    /// Counted from 1.
    pub line: u32,
    /// The override's `comment`.
    pub comment: Option<Box<str>>,
}

/// The overrides of one limit.
///
/// The most specific wins: an id with more components before one with fewer, then the longest network, then the first
/// regular expression in the order of the files. One that has expired counts as absent.
#[derive(Debug, Default)]
pub struct Overrides {
    list: Vec<Override>,
    /// `exact[n]` holds ids of the first `n + 1` components: fingerprints and indices into `list`.
    exact: Vec<HashTable<(u128, u32)>>,
    networks: Networks<u32>,
    patterns: Vec<(String, u32)>,
    regexes: Option<RegexSet>,
}

/// What an override can be looked up by.
#[derive(Clone, Copy)]
pub struct OverrideLookup<'a> {
    /// Fingerprints of the first one, two, ... components of the id.
    pub prefixes: &'a [u128],
    /// The client's address.
    pub client: Option<IpAddr>,
    /// The id as people read it; asked for only if the limit has regular expressions.
    pub text: &'a dyn Fn() -> String,
    /// The wall clock.
    pub now: Micros,
}

impl Overrides {
    /// Adds an override for the id of `components` components with this fingerprint. If there is one already, the new
    /// one is not added and the index of the old one is the error.
    pub fn add_id(&mut self, components: usize, fingerprint: u128, given: Override) -> Result<(), usize> {
        if self.exact.len() < components {
            self.exact.resize_with(components, HashTable::new);
        }
        let index = self.next();
        let Some(table) = components.checked_sub(1).and_then(|last| self.exact.get_mut(last)) else { return Ok(()) };
        match table.entry(
            fingerprint_hash(fingerprint),
            |(key, _)| *key == fingerprint,
            |(key, _)| fingerprint_hash(*key),
        ) {
            Entry::Occupied(old) => Err(old.get().1 as usize),
            Entry::Vacant(place) => {
                place.insert((fingerprint, index));
                self.list.push(given);
                Ok(())
            }
        }
    }

    /// Adds an override for the clients in a network; refused like [`Self::add_id`] if it is there already.
    pub fn add_network(&mut self, network: IpNet, given: Override) -> Result<(), usize> {
        let index = self.next();
        match self.networks.entry(network) {
            hash_map::Entry::Occupied(old) => Err(*old.get() as usize),
            hash_map::Entry::Vacant(slot) => {
                slot.insert(index);
                self.list.push(given);
                Ok(())
            }
        }
    }

    /// Adds an override for the ids that a regular expression finds something in; its syntax must be checked already.
    pub fn add_regex(&mut self, pattern: &str, given: Override) {
        let index = self.next();
        self.patterns.push((pattern.to_owned(), index));
        self.list.push(given);
    }

    /// Makes the set of the regular expressions, once all are added. They run in linear time together, whatever their
    /// number; the error is theirs if they are too large together.
    pub fn finish(&mut self) -> Result<(), regex::Error> {
        if !self.patterns.is_empty() {
            self.regexes = Some(RegexSet::new(self.patterns.iter().map(|(pattern, _)| pattern))?);
        }
        for table in &mut self.exact {
            table.shrink_to_fit(|(key, _)| fingerprint_hash(*key));
        }
        self.list.shrink_to_fit();
        Ok(())
    }

    /// The override at an index that [`Self::find`] or a refusal gave.
    pub fn get(&self, index: usize) -> Option<&Override> {
        self.list.get(index)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are some that go by the client's network.
    pub fn has_networks(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The override that holds for a subject, and its index.
    pub fn find(&self, subject: &OverrideLookup<'_>) -> Option<(usize, &Override)> {
        self.find_since(subject).0
    }

    /// The same, and since when it is not another one that holds: the end of the last one that came before it. Zero if
    /// none has ended.
    pub fn find_since(&self, subject: &OverrideLookup<'_>) -> (Option<(usize, &Override)>, Micros) {
        if self.list.is_empty() {
            return (None, Micros(0));
        }
        let changed = Cell::new(Micros(0));
        let holds = |index: u32| {
            let given = self.list.get(index as usize)?;
            match given.until {
                Some(until) if until <= subject.now => {
                    changed.set(changed.get().max(until));
                    None
                }
                _ => Some((index as usize, given)),
            }
        };
        let exact = self.exact.iter().zip(subject.prefixes).rev().find_map(|(table, fingerprint)| {
            let (_, index) = table.find(fingerprint_hash(*fingerprint), |(key, _)| key == fingerprint)?;
            holds(*index)
        });
        let network = |client| self.networks.containing(client).find_map(|index| holds(*index));
        let given = exact.or_else(|| subject.client.and_then(network)).or_else(|| {
            let found = self.regexes.as_ref()?.matches(&(subject.text)());
            found.iter().find_map(|place| holds(self.patterns.get(place)?.1))
        });
        (given, changed.get())
    }

    fn next(&self) -> u32 {
        u32::try_from(self.list.len()).unwrap_or(u32::MAX)
    }
}

/// A fingerprint is a hash already; its low half serves the table.
#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn fingerprint_hash(fingerprint: u128) -> u64 {
    fingerprint as u64
}
