//! Makes limits, and a tree of them per domain, of what was read.

use std::collections::HashMap;

use super::{Descriptor, Domain, EntryValue, Level, RateLimit};
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::descriptors::{PerUnit, Tree, limit_name};
use crate::engine::limit::matching::{Match, PartMatch, ValueTest};
use crate::engine::limit::{Limit, LimitMode, StoreErrorPolicy};
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;

/// Adds the descriptors of one domain.
struct DomainLimits<'d> {
    domain: &'d str,
    limits: &'d mut Vec<Limit>,
    tree: Tree,
}

/// Adds the limits of the domains to `limits`, and returns the tree of each domain.
pub(in crate::config) fn add(domains: Vec<Domain>, limits: &mut Vec<Limit>) -> HashMap<String, Tree> {
    let mut trees = HashMap::new();
    for Domain { name, descriptors, .. } in domains {
        let mut domain = DomainLimits { domain: &name, limits, tree: Tree::default() };
        domain.level(descriptors, &[]);
        let tree = domain.tree;
        trees.insert(name, tree);
    }
    trees
}

impl DomainLimits<'_> {
    fn level(&mut self, descriptors: Vec<Descriptor>, above: &[Level]) {
        for Descriptor { level, limit, number, below, .. } in descriptors {
            let path = [above, &[level]].concat();
            self.level(below, &path);
            let entries: Vec<(String, ValueTest)> = path.iter().map(Level::entry).collect();
            let index = limit.is_some().then(|| u32::try_from(self.limits.len()).unwrap_or(u32::MAX));
            self.tree.insert(&entries, index);
            if let Some(limit) = limit {
                self.limit(limit, number, &path, entries);
            }
        }
    }

    fn limit(&mut self, limit: RateLimit, number: usize, path: &[Level], entries: Vec<(String, ValueTest)>) {
        let name = limit_name(self.domain, &entries, limit.unit().filter(|_| number > 0));
        let wanted = |(place, (key, test))| PartMatch { part: Part::Entry { key, place }, test };
        let wanted = entries.into_iter().enumerate().map(wanted).collect();
        self.limits.push(Limit {
            conditions: Match {
                domains: vec![self.domain.to_owned()],
                parts: wanted,
                is_whole: true,
                ..Match::default()
            },
            by: parts(path),
            allowance: limit.rule.per_unit.map_or(Allowance::Unlimited, allowance),
            mode: if limit.is_shadow { LimitMode::Shadow } else { LimitMode::Enforce },
            // Envoy's `failure_mode_deny` decides about requests that cannot be counted.
            on_store_error: StoreErrorPolicy::Deny,
            // That service counts what is over the limit as well.
            drain_over_limit: true,
            rule: Some(Box::new(limit.rule)),
            ..Limit::new(&name)
        });
    }
}

impl Level {
    fn entry(&self) -> (String, ValueTest) {
        let test = match &self.value {
            EntryValue::Any => ValueTest::Present(true),
            EntryValue::One(value) => ValueTest::Value(value.clone()),
            EntryValue::Glob(glob) => ValueTest::Glob(glob.clone()),
        };
        (self.key.clone(), test)
    }
}

fn allowance(per_unit: PerUnit) -> Allowance {
    // Only 0 has no numbers.
    per_unit.numbers().map_or(Allowance::Deny, |numbers| Allowance::Windows([numbers].into()))
}

/// Returns the parts of ids: the entries whose values the path leaves open.
fn parts(path: &[Level]) -> Vec<TypedPart> {
    let open = path.iter().enumerate().filter(|(_, level)| level.is_open());
    open.map(|(place, level)| TypedPart::new(Part::Entry { key: level.key.clone(), place }, ValueType::Text)).collect()
}
