//! `override-never-applies`: overrides for ids and networks that the limit's `match` leaves out. `override-for-network`: overrides
//! that apply to more than they name. `other-limit-denies`, and `no-effect`: overrides that change less than they seem to.

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::node::Node;
use super::super::problem::quoted;
use super::bounds::counts_some_responses;
use super::{Lint, MOST_COMPARED, Subject};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::Limit;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::ids::Id;
use crate::engine::limit::matching::Match;
use crate::engine::limit::overrides::OverrideLookup;
use crate::engine::request::Duplicates;
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::path_condition::PathCondition;
use crate::engine::request::value_type::ValueType;
use crate::engine::telling::coverage::covers;
use crate::message::host_pattern::HostPattern;

/// The most overrides that are kept to be compared with the others. A file may have a million.
const MOST_DOUBTFUL: usize = 1_000;

/// The overrides to compare with all others once these are read.
#[derive(Default)]
pub(in crate::config) struct DoubtfulOverrides {
    first: Vec<DoubtfulOverride>,
    /// The number of those beyond [`MOST_DOUBTFUL`].
    pub(in crate::config) not_compared: usize,
}

/// An override for an id that is `unlimited`, or has the numbers of its limit.
pub(in crate::config) struct DoubtfulOverride {
    /// The index of the limit.
    pub(in crate::config) limit: usize,
    /// The id.
    pub(in crate::config) node: Node,
    pub(in crate::config) parts: Vec<String>,
}

impl DoubtfulOverrides {
    pub(in crate::config) fn add(&mut self, doubtful: impl FnOnce() -> DoubtfulOverride) {
        if self.first.len() < MOST_DOUBTFUL {
            self.first.push(doubtful());
        } else {
            self.not_compared += 1;
        }
    }

    pub(in crate::config) fn iter(&self) -> impl Iterator<Item = &DoubtfulOverride> {
        self.first.iter()
    }
}

impl DoubtfulOverride {
    /// Reports what the override does not change, once all limits and overrides are read.
    pub(in crate::config) fn look(&self, subjects: &[Subject<'_>], fingerprinter: Fingerprinter) {
        let limit = subjects[self.limit].limit;
        if !limit.is_enforced() {
            return;
        }
        let own = self.in_force(limit, fingerprinter);
        if own.as_ref() == Some(&limit.allowance) {
            // It may shield an id from an override for more ids.
            if limit.by.len() == 1 && limit.overrides.are_for_single_ids() {
                let help = "change the numbers, or remove the override";
                self.node.warning(Lint::NoEffect, "this override has the numbers of its limit", help);
            }
        } else if own == Some(Allowance::Unlimited) && subjects.len() <= MOST_COMPARED {
            let denies = |other: &&Subject<'_>| {
                other.limit.name != limit.name
                    && other.is_enforced_for_all()
                    && other.limit.by == limit.by
                    && covers(&other.limit.conditions, &limit.conditions)
                    && other.limit.allowance.can_deny()
                    // An exempt id is seldom meant to fail at will.
                    && !counts_some_responses(other.limit)
                    && self.in_force(other.limit, fingerprinter).is_none()
            };
            if let Some(other) = subjects.iter().find(denies) {
                let name = quoted(&other.limit.name);
                let message = format!("{name} still counts this id and may deny it");
                self.node.warning(
                    Lint::OtherLimitDenies,
                    message,
                    format!("add this override to {name}, too, if it is exempt"),
                );
            }
        }
    }

    /// Returns the allowance of the override that the id has in a limit.
    fn in_force(&self, limit: &Limit, fingerprinter: Fingerprinter) -> Option<Allowance> {
        let first = |length| Id { parts: self.parts[..length].to_vec() }.fingerprint(&limit.short, &fingerprinter);
        let prefixes: Vec<u128> = (1..=self.parts.len()).map(first).collect();
        let network = |text: &String| text.parse::<IpNet>().map(|network| network.addr()).ok();
        let address = |(by, text): (&TypedPart, &String)| match by.part {
            Part::Ip { .. } => text.parse().ok().or_else(|| network(text)),
            _ => None,
        };
        let client = limit.by.iter().zip(&self.parts).find_map(address);
        let text = || self.parts.join(":");
        let lookup = OverrideLookup { prefixes: &prefixes, client, text: &text, now: Micros(0) };
        limit.overrides.find(&lookup).0.map(|(_, given)| given.allowance.clone())
    }
}

/// Returns why no request has an id that begins with these parts.
pub(in crate::config) fn never_charged(limit: &Limit, parts: &[String]) -> Option<String> {
    let excluded = limit.by.iter().zip(parts).find(|(by, text)| excludes(&limit.conditions, by, text))?;
    Some(format!("this override never applies: `match` leaves out {}", quoted(excluded.1)))
}

/// Returns the network that an IPv6 address stands for, if the limit counts networks.
pub(in crate::config) fn for_network(limit: &Limit, id: &str, parts: &[String]) -> Option<String> {
    let is_network = |(by, text): &(&TypedPart, &String)| {
        matches!(by.part, Part::Ip { .. })
            && text.split_once('/').is_some_and(|(_, prefix)| !id.contains(&format!("/{prefix}")))
    };
    let (_, network) = limit.by.iter().zip(parts).find(is_network)?;
    Some(format!("this override applies to all of {network}"))
}

/// Returns why no client in a network is charged.
pub(in crate::config) fn never_in_network(limit: &Limit, network: &IpNet) -> Option<String> {
    excludes_network(&limit.conditions, network)
        .then(|| format!("this override never applies: `match` leaves out {network}"))
}

fn excludes(conditions: &Match, by: &TypedPart, text: &str) -> bool {
    match &by.part {
        Part::Ip { .. } => {
            let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
            network.is_some_and(|network| excludes_network(conditions, &network))
        }
        _ if by.form != ValueType::Text => false,
        Part::Host => {
            let is_among = |hosts: &[HostPattern]| hosts.iter().any(|host| host.matches(text));
            !conditions.hosts.is_empty() && !is_among(&conditions.hosts) || is_among(&conditions.other_hosts)
        }
        Part::Method => !conditions.methods.is_empty() && !conditions.methods.iter().any(|method| method == text),
        Part::Path => {
            let is_among = |paths: &[PathCondition]| paths.iter().any(|path| path.matches(text));
            !conditions.paths.is_empty() && !is_among(&conditions.paths) || is_among(&conditions.other_paths)
        }
        // Another of several values may meet the condition.
        _ if by.duplicates != Duplicates::Ambiguous => false,
        part => conditions.parts.iter().any(|wanted| wanted.part == *part && !wanted.test.meets(text)),
    }
}

fn excludes_network(conditions: &Match, network: &IpNet) -> bool {
    let overlaps = |other: &IpNet| other.contains(network) || network.contains(other);
    !conditions.networks.is_empty() && !conditions.networks.iter().any(overlaps)
        || conditions.other_networks.iter().any(|other| other.contains(network))
}
