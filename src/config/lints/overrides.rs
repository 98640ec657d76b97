//! `override-never-applies`: overrides for ids and networks that the limit's `match` leaves out. `override-for-network`: overrides
//! that apply to more than they name.

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::problem::quoted;
use crate::engine::limit::Limit;
use crate::engine::limit::matching::Match;
use crate::engine::request::Duplicates;
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::message::host_pattern::HostPattern;

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
        Part::Path => !conditions.paths.is_empty() && !conditions.paths.iter().any(|path| path.matches(text)),
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
