//! The claims that limits use.

use crate::engine::limit::{Cost, Limit};
use crate::engine::request::claims::ClaimRef;
use crate::engine::request::part::Part;

impl Limit {
    /// The claims that it uses.
    pub fn claims(&self) -> impl Iterator<Item = &ClaimRef> {
        let in_queue = self.queue.iter().flat_map(|queue| &queue.fields).map(|(_, part)| part);
        let parts = self.by.iter().chain(in_queue);
        let named = parts.filter_map(|part| match &part.part {
            Part::Claim(claim) => Some(claim),
            _ => None,
        });
        let cost = if let Cost::Part(Part::Claim(claim)) = &self.cost { Some(claim) } else { None };
        named.chain(self.conditions.claims.iter().map(|wanted| &wanted.claim)).chain(cost)
    }
}
