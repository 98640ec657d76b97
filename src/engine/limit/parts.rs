//! The parts of requests that a limit reads.

use crate::engine::limit::Limit;
use crate::engine::request::claims::ClaimRef;
use crate::engine::request::part::{ADDRESS, Part};

/// The use that a limit has for a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartUse {
    /// `by`
    Id,
    /// `fields` of a queue.
    Field,
    /// `match`
    Condition,
    /// The networks of overrides.
    Override,
    Cost,
    /// `burst`, `count` and `capacity`.
    Numbers,
}

impl Limit {
    /// All parts that it reads.
    pub fn parts(&self) -> impl Iterator<Item = (PartUse, &Part)> {
        let ids = self.by.iter().map(|by| (PartUse::Id, &by.part));
        let fields = self.queue.iter().flat_map(|queue| &queue.fields).map(|(_, field)| (PartUse::Field, &field.part));
        let conditions = self.conditions.parts_read().map(|part| (PartUse::Condition, part));
        let networks = self.overrides.has_networks().then_some((PartUse::Override, &ADDRESS));
        let cost = self.cost.part().map(|part| (PartUse::Cost, part));
        let numbers = self.request_numbers.iter().flat_map(|numbers| numbers.sources());
        let numbers = numbers.map(|(_, source)| (PartUse::Numbers, &source.part));
        ids.chain(fields).chain(conditions).chain(networks).chain(cost).chain(numbers)
    }

    /// The claims that it uses.
    pub fn claims(&self) -> impl Iterator<Item = &ClaimRef> {
        self.parts().filter_map(|(_, part)| if let Part::Claim(claim) = part { Some(claim) } else { None })
    }

    /// Returns true if it reads the bodies of requests.
    pub fn reads_body(&self) -> bool {
        self.parts().any(|(_, part)| matches!(part, Part::Body(_)))
    }
}
