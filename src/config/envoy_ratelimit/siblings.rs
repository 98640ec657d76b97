//! Finds duplicate descriptors on one level.

use std::collections::HashMap;

use super::super::node::Node;
use super::super::problem::{Findings, ReadResult, quoted};
use super::{EntryValue, Level};
use crate::engine::limit::descriptors::RateUnit;

/// The entries of one level, by key and value.
#[derive(Default)]
pub(super) struct Siblings(HashMap<(String, EntryValue), FirstDescriptor>);

/// The first descriptor with a key and a value.
struct FirstDescriptor {
    findings: Findings,
    line: u32,
    /// The units of all limits with this key and value; `None` for a descriptor without one.
    units: Vec<Option<RateUnit>>,
    has_descriptors: bool,
}

impl Siblings {
    /// Adds a descriptor's entry and the unit of its limit. Returns the number of earlier descriptors with the same entry:
    /// each needs another unit, and only one may have descriptors.
    pub(super) fn add(
        &mut self,
        level: &Level,
        node: &Node,
        unit: Option<RateUnit>,
        has_descriptors: bool,
    ) -> ReadResult<usize> {
        let first = self.0.entry((level.key.clone(), level.value.clone())).or_insert_with(|| FirstDescriptor {
            findings: node.findings.clone(),
            line: node.place.line,
            units: Vec::new(),
            has_descriptors: false,
        });
        let known = first.units.len();
        let at = match first.findings.file() {
            file if file == node.findings.file() => format!("on line {}", first.line),
            file => format!("at {file}:{}", first.line),
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
            return Err(node.error(format!("duplicate descriptor {}", quoted(&level.shown())), help));
        }
        first.units.push(unit);
        first.has_descriptors |= has_descriptors;
        Ok(known)
    }
}
