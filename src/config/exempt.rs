//! Reads `exempt`: requests that limits neither charge nor deny.

use std::collections::HashSet;

use ipnet::IpNet;

use super::jwt::Issuers;
use super::limit::Limits;
use super::lints::Lint;
use super::mapping::Mapping;
use super::matching;
use super::node::{Node, Value};
use super::problem::{ReadResult, ReportedError, quoted};
use crate::engine::limit::exemptions::Exemption;
use crate::engine::limit::matching::{Match, PartMatch};
use crate::engine::limit::overrides::OverrideOrigin;
use crate::engine::request::part::Part;

pub(super) const KEY: &str = "exempt";

/// The keys of an exemption.
pub(super) const KEYS: [&str; 3] = ["match", "limits", "comment"];

/// The most exemptions.
pub(super) const MOST: usize = 10_000;

/// What exemptions refer to.
pub(super) struct Known<'a> {
    pub(super) limits: &'a Limits,
    pub(super) issuers: &'a Issuers,
    /// False if any name may be that of a limit, because the limits could not be read.
    pub(super) has_all_limits: bool,
    /// The number of the file.
    pub(super) file: u16,
}

/// Reads the value of `exempt`, without the exemptions that have mistakes.
pub(super) fn read(node: &Node, known: &Known<'_>) -> Vec<Exemption> {
    let Ok(items) = node.list("`exempt`", "write `exempt: [{ match: { cidr: 192.0.2.0/24 } }]`") else {
        return Vec::new();
    };
    if items.len() > MOST {
        node.error(format!("`exempt` has {} exemptions", items.len()), format!("at most {MOST} are supported"));
    }
    items.iter().filter_map(|item| exemption(item, known).ok()).collect()
}

fn exemption(node: &Node, known: &Known<'_>) -> ReadResult<Exemption> {
    let map = Mapping::of(node, "an exemption", &KEYS)?;
    let of = map.need("match", "write `{ match: { cidr: 192.0.2.0/24 } }`")?;
    if matches!(&of.value, Value::Map(entries) if entries.is_empty()) {
        return Err(of.error("this exempts every request", "add a condition, or write `mode: off` on the limits"));
    }
    let mut conditions = Match::default();
    matching::read(of, &mut conditions);
    for wanted in &mut conditions.parts {
        if let Part::Claim(claim) = &mut wanted.part {
            known.issuers.resolve(claim).map_err(|(message, help)| of.error(message, help))?;
        }
    }
    let mut seen = HashSet::new();
    let limits = map.read("limits", |node| {
        node.each(|name| {
            let place = known.place(name)?;
            if !seen.insert(place) {
                name.warning(Lint::NoEffect, "duplicate limit", "remove it");
            }
            Ok(place)
        })
    });
    let comment = map.read("comment", Node::text);
    if is_claimable(&conditions) {
        let help = "add `cidr` or `claims`; ignore this if your gateway sets what it tests";
        of.warning(Lint::ClaimableExemption, "any client that sends such requests is exempt", help);
    }
    let mut limits = limits?.unwrap_or_default();
    if limits.is_empty() && known.limits.is_of_team() {
        limits.extend(known.limits.of_team());
        if limits.is_empty() {
            return Err(node.error("there are no limits to be exempt from", "add one below `limits`, or remove this"));
        }
    }
    let origin = OverrideOrigin { file: known.file, line: node.place.line, comment: comment?.map(Into::into) };
    Ok(Exemption { conditions, limits, origin })
}

impl Known<'_> {
    /// The index of a limit.
    fn place(&self, node: &Node) -> ReadResult<u32> {
        let name = node.text()?;
        if let Some(place) = self.limits.find(name) {
            return Ok(u32::try_from(place).unwrap_or(u32::MAX));
        }
        if !self.has_all_limits {
            return Err(ReportedError);
        }
        Err(node.error(format!("there is no limit {}", quoted(name)), self.limits.suggest(name)))
    }
}

/// Returns true if clients can meet the conditions by what they send: no address, token or gateway has to vouch for them.
fn is_claimable(conditions: &Match) -> bool {
    let networks = &conditions.networks;
    let is_everywhere = |network: &IpNet| network.prefix_len() == 0;
    let is_verified = |wanted: &PartMatch| matches!(wanted.part, Part::Claim(_)) && wanted.test.needs_value();
    (networks.is_empty() || networks.iter().any(is_everywhere))
        && !conditions.parts.iter().any(is_verified)
        && !conditions.needs_descriptor()
}
