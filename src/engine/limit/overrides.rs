//! Overrides: other numbers for some ids of a limit.

use std::cell::Cell;
use std::collections::hash_map;
use std::net::IpAddr;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use ipnet::IpNet;
use regex::RegexSet;

use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::networks::Networks;

#[derive(Clone, Debug)]
pub struct Override {
    pub allowance: Allowance,
    /// `None` if it never expires.
    pub until: Option<Micros>,
    pub origin: OverrideOrigin,
}

/// The source of an override, for people. Files are numbered, because a million overrides share a few files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverrideOrigin {
    /// The index of the file among those of the rules; the largest number for a live override.
    pub file: u16,
    /// Counted from 1.
    pub line: u32,
    pub comment: Option<Box<str>>,
}

impl OverrideOrigin {
    /// The origin of a live override, which is in no file.
    pub fn live(comment: Option<&str>) -> Self {
        Self { file: u16::MAX, line: 0, comment: comment.map(Into::into) }
    }

    pub const fn is_live(&self) -> bool {
        self.file == u16::MAX
    }
}

/// The overrides of one limit.
///
/// The most specific wins: ids with more parts before ids with fewer, then the longest network, then the first
/// regular expression in file order. Expired overrides are ignored.
#[derive(Debug, Default)]
pub struct Overrides {
    list: Vec<Override>,
    /// `exact[n]` has the fingerprints of ids with `n + 1` parts, and indices into `list`.
    exact: Vec<HashTable<(u128, u32)>>,
    networks: Networks<u32>,
    patterns: Vec<(String, u32)>,
    regexes: Option<RegexSet>,
}

/// The ids that an override is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OverrideSubject {
    /// The id with this number of parts and this fingerprint, and those that begin with it.
    Id(usize, u128),
    /// The clients in a network.
    Network(IpNet),
    /// The ids that a regular expression matches.
    Regex(String),
}

/// The id and the instant that overrides are looked up by.
#[derive(Clone, Copy)]
pub struct OverrideLookup<'a> {
    /// The fingerprints of the first one, two, ... parts of the id.
    pub prefixes: &'a [u128],
    pub client: Option<IpAddr>,
    /// The readable id; called only if the limit has regular expressions.
    pub text: &'a dyn Fn() -> String,
    /// The wall clock.
    pub now: Micros,
}

impl Overrides {
    /// Adds an override for the id with this number of parts and this fingerprint. If there is one already, its index
    /// is the error.
    pub fn add_id(&mut self, parts: usize, fingerprint: u128, given: Override) -> Result<(), usize> {
        if self.exact.len() < parts {
            self.exact.resize_with(parts, HashTable::new);
        }
        let index = self.next();
        let Some(table) = parts.checked_sub(1).and_then(|last| self.exact.get_mut(last)) else { return Ok(()) };
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

    /// Adds an override for the clients in a network, with the error of [`Self::add_id`].
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

    /// Adds an override for the ids that a regular expression matches. Its syntax must have been checked.
    pub fn add_regex(&mut self, pattern: &str, given: Override) {
        let index = self.next();
        self.patterns.push((pattern.to_owned(), index));
        self.list.push(given);
    }

    /// Compiles all regular expressions into a set, which matches in linear time whatever their number. Fails if the set is
    /// too large.
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

    /// All overrides with their subjects, in the order of the files.
    pub fn entries(&self) -> impl Iterator<Item = (OverrideSubject, &Override)> {
        let ids = (1..).zip(&self.exact).flat_map(|(parts, table)| {
            table.iter().map(move |(fingerprint, index)| (OverrideSubject::Id(parts, *fingerprint), *index))
        });
        let networks = self.networks.iter().map(|(network, index)| (OverrideSubject::Network(*network), *index));
        let regexes = self.patterns.iter().map(|(pattern, index)| (OverrideSubject::Regex(pattern.clone()), *index));
        let mut subjects: Vec<_> = ids.chain(networks).chain(regexes).collect();
        subjects.sort_unstable_by_key(|(_, index)| *index);
        subjects.into_iter().filter_map(|(subject, index)| Some((subject, self.list.get(index as usize)?)))
    }

    /// The override at an index that [`Self::find`] or an error returned.
    pub fn get(&self, index: usize) -> Option<&Override> {
        self.list.get(index)
    }

    /// All of them, expired ones too.
    pub fn list(&self) -> &[Override] {
        &self.list
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The networks of its overrides.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.networks.keys()
    }

    pub fn has_networks(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Returns true if none is for a network or for what a regular expression matches.
    pub fn are_for_single_ids(&self) -> bool {
        self.networks.is_empty() && self.patterns.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the override in force with its index, and since when it holds: the end of the last override that preceded it, or
    /// 0 if none has expired.
    pub fn find(&self, subject: &OverrideLookup<'_>) -> (Option<(usize, &Override)>, Micros) {
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

/// The low half of the fingerprint, which is a hash already.
#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn fingerprint_hash(fingerprint: u128) -> u64 {
    fingerprint as u64
}
