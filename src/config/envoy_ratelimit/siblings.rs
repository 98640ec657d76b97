//! What stands twice on one level.

use std::collections::HashMap;

use super::super::problem::{Findings, Place, Reported, quoted};
use crate::engine::rules::descriptors::RateUnit;
use crate::engine::rules::matching::{EntryMatch, EntryTest};

/// The entries of one level, to find those that stand there twice.
#[derive(Default)]
pub(super) struct Siblings(HashMap<(String, String), First>);

/// Those of one key and value.
struct First {
    file: String,
    line: u32,
    /// The units of their limits; `None` for one that has none.
    units: Vec<Option<RateUnit>>,
    has_descriptors: bool,
}

impl Siblings {
    /// Adds an entry, with the unit of its limit, and gives how many there are of it already: with a
    /// limit in another unit each, and descriptors below one of them at most.
    pub(super) fn add(
        &mut self,
        entry: &EntryMatch,
        (file, place): (&str, Place),
        unit: Option<RateUnit>,
        has_descriptors: bool,
        findings: &mut Findings,
    ) -> Result<usize, Reported> {
        let value = match &entry.test {
            EntryTest::Value(value) => value.clone(),
            EntryTest::Glob(glob) => glob.to_string(),
            EntryTest::Present(_) | EntryTest::Not(_) => String::new(),
        };
        let shown = if value.is_empty() { quoted(&entry.key) } else { quoted(&format!("{}={value}", entry.key)) };
        let first = self.0.entry((entry.key.clone(), value)).or_insert_with(|| First {
            file: file.to_owned(),
            line: place.line,
            units: Vec::new(),
            has_descriptors: false,
        });
        let known = first.units.len();
        let at = if first.file == file {
            format!("on line {}", first.line)
        } else {
            format!("at {}:{}", first.file, first.line)
        };
        let help = match unit {
            _ if known == 0 => None,
            Some(unit) if first.units.contains(&Some(unit)) => {
                Some(format!("the first one, {at}, also has a limit per {}", unit.name()))
            }
            Some(_) if first.units.contains(&None) => Some(format!("the first one, {at}, has no limit per unit")),
            None => Some(format!("the first one is {at}; only limits with different units can share a descriptor")),
            Some(_) if has_descriptors && first.has_descriptors => {
                Some(format!("the first one is {at}; move all `descriptors` there"))
            }
            Some(_) => None,
        };
        if let Some(help) = help {
            return Err(findings.error(place, format!("duplicate descriptor {shown}"), help));
        }
        first.units.push(unit);
        first.has_descriptors |= has_descriptors;
        Ok(known)
    }
}
