//! The consumers whose requests an instance of a plugin counts.

use std::collections::BTreeSet;

use super::super::scope::{Condition, Scope, Test};
use super::super::settings::scalar;
use super::super::text::piece;
use super::super::tree::{list_at, member, text};
use super::route::Route;
use super::{CONSUMER, CUSTOM_ID, Gateway, Instance};
use crate::config::foreign::Node;

impl Gateway<'_> {
    /// The consumers of a group that the files name.
    pub(super) fn members(&self, group: usize) -> BTreeSet<usize> {
        let has = |groups: &[usize]| groups.contains(&group);
        self.groups.iter().filter(|(_, groups)| has(groups)).map(|(consumer, _)| *consumer).collect()
    }

    /// The consumers that an instance names; `None` for all.
    pub(super) fn consumers(&self, instance: &Instance<'_>) -> Option<BTreeSet<usize>> {
        match instance.owners {
            [Some(consumer), ..] => Some(BTreeSet::from([consumer])),
            [_, Some(group), ..] => Some(self.members(group)),
            _ => None,
        }
    }

    /// The consumers among them that it counts on a route.
    pub(super) fn named_consumers(&self, place: usize, route: Option<&Route>) -> Option<BTreeSet<usize>> {
        let instance = self.instances.get(place)?;
        let mut named = self.consumers(instance)?;
        named.retain(|consumer| self.winner(instance.plugin, route, Some(*consumer)) == Some(place));
        Some(named)
    }

    /// The consumers of an instance, as conditions on headers. A consumer has one of these headers.
    pub(super) fn people(&self, place: usize, route: Option<&Route>) -> Vec<Scope> {
        let Some(instance) = self.instances.get(place) else { return Vec::new() };
        let own = self.named_consumers(place, route);
        let others = || -> BTreeSet<usize> {
            let of_plugin = self.instances.iter().filter(|other| other.plugin == instance.plugin);
            let named = of_plugin.flat_map(|other| self.consumers(other).unwrap_or_default());
            let is_other = |consumer: &usize| self.winner(instance.plugin, route, Some(*consumer)) != Some(place);
            named.filter(is_other).collect()
        };
        let has_all = own.is_none() && self.is_before_authentication(instance);
        let consumers = own.clone().unwrap_or_else(|| if has_all { BTreeSet::new() } else { others() });
        let mut headers = Vec::new();
        for (header, has_custom_id) in [(CONSUMER, false), (CUSTOM_ID, true)] {
            let known = consumers.iter().filter_map(|consumer| self.entities.get(*consumer));
            let known = known.filter(|known| known.has_custom_id == has_custom_id);
            let tests: Vec<Test> = known.map(|known| Test::is(&*known.name)).collect();
            if !tests.is_empty() {
                let condition = if own.is_some() { Condition::of(tests) } else { Condition::except(tests) };
                headers.push((header.to_owned(), condition));
            }
        }
        let with = |headers| Scope { headers, ..Scope::default() };
        if own.is_some() { headers.into_iter().map(|header| with(vec![header])).collect() } else { vec![with(headers)] }
    }

    /// The consumers of groups that have a limit of their own in Kong, if no file says who they are, and those that Kong may not know yet.
    pub(super) fn unknown_people(&self, instance: &Instance<'_>) -> Vec<String> {
        let of_plugin = self.enabled.keys().filter(|(plugin, _)| *plugin == instance.plugin);
        let groups: BTreeSet<usize> = of_plugin.filter_map(|(_, owners)| owners[1]).collect();
        let unknown =
            groups.into_iter().filter(|group| instance.owners[0].is_none() && self.members(*group).is_empty());
        let names = unknown.map(|group| piece(self.name(group)));
        let told = names.map(|name| format!("consumers of group {name} count here, too."));
        let is_early = |other: &Instance<'_>| other.plugin == instance.plugin && self.is_before_authentication(other);
        let is_named = instance.owners[0].or(instance.owners[1]).is_some();
        let early = (is_named && self.instances.iter().any(is_early))
            .then(|| "by its `ordering`, Kong may not know the consumer yet.".to_owned());
        told.chain(early).map(|told| instance.origin.note(told)).collect()
    }

    /// Returns true if `ordering` has an instance run before all plugins that find out who the consumer is.
    pub(super) fn is_before_authentication(&self, instance: &Instance<'_>) -> bool {
        let names = |node: &Node, how: &str, plugin: &str| {
            list_at(node, &["ordering", how, "access"]).iter().any(|named| scalar(named) == Some(plugin))
        };
        !self.identifying.is_empty()
            && self.identifying.iter().all(|known| {
                names(instance.node, "before", text(known, "name").unwrap_or_default())
                    || names(known, "after", instance.plugin)
            })
    }

    /// Returns true if `ordering` may have an instance run before some of these plugins.
    pub(super) fn has_other_order(&self, instance: &Instance<'_>) -> bool {
        let mut nodes = self.identifying.iter().copied().chain([instance.node]);
        nodes.any(|node| member(node, "ordering").is_some()) && !self.is_before_authentication(instance)
    }
}
