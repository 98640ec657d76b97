//! Reads `ban`: the block of ids that a limit denies too often.

use super::mapping::Mapping;
use super::node::{Key, Node, Value};
use super::problem::{ReadResult, ReportedError};
use super::scalars::one_of;
use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::Limit;
use crate::engine::limit::ban::{Ban, BanScope, Escalation};
use crate::engine::limit::blocks::LONGEST_BLOCK;
use crate::engine::request::part::Part;

pub(super) const KEYS: [&str; 6] = ["after", "within", "for", "escalate", "at_most", "scope"];

pub(super) const SCOPES: [(&str, BanScope); 2] = [("limit", BanScope::Limit), ("all", BanScope::All)];

const EXAMPLE: &str = "write `ban: { after: 3, within: 1m, for: 1h }`";

/// Reads the `ban` of a limit.
pub(super) fn read(map: &Mapping<'_>, limit: &mut Limit) {
    map.set("ban", &mut limit.ban, |node| ban(node).map(|ban| Some(ban.into())));
    let (Ok(()) | Err(ReportedError)) = check(map, limit);
}

fn ban(node: &Node) -> ReadResult<Ban> {
    let map = Mapping::of(node, "`ban`", &KEYS)?;
    let after = map.need("after", EXAMPLE).and_then(|node| node.positive("a ban needs at least 1 denial", EXAMPLE));
    let within = map.need("within", EXAMPLE).and_then(span);
    let length = map.need("for", EXAMPLE).and_then(span);
    let factor = map.read("escalate", factor);
    let at_most = map.read("at_most", span);
    let scope = map.read("scope", one_of(&SCOPES));
    let (after, within, length) = (after?, within?, length?);
    let (factor, at_most, scope) = (factor?, at_most?, scope?.unwrap_or_default());
    let strikes = Numbers::events_within(after, within.0.saturating_mul(1_000))
        .map_err(|error| map.value("after").error(format!("invalid ban: {error}"), "use fewer denials"))?;
    let escalation = match (factor, at_most) {
        (None, None) => None,
        (None, Some(_)) => {
            return Err(map.lacks("`at_most` needs `escalate`", "add `escalate: 2`, or remove `at_most`"));
        }
        (Some(_), None) => {
            return Err(map.lacks("`escalate` needs `at_most`", "add the longest ban, such as `at_most: 24h`"));
        }
        (Some(_), Some(at_most)) if at_most < length => {
            return Err(map
                .value("at_most")
                .error("`at_most` is shorter than the first ban", "make it longer than `for`"));
        }
        (Some(factor), Some(at_most)) => {
            let escalation = Escalation::new(factor, at_most);
            Some(
                escalation
                    .map_err(|error| map.value("at_most").error(format!("invalid ban: {error}"), "shorten it"))?,
            )
        }
    };
    Ban::new(strikes, length, escalation, scope)
        .map_err(|error| map.value("for").error(format!("invalid ban: {error}"), "shorten it"))
}

fn factor(node: &Node) -> ReadResult<u64> {
    match node.whole()? {
        factor @ 2..=1_000 => Ok(factor),
        _ => Err(node.error("each ban is 2 to 1000 times as long as the one before", "write `escalate: 2`")),
    }
}

fn span(node: &Node) -> ReadResult<Micros> {
    let nanoseconds = node.duration()?;
    let micros = Micros(nanoseconds / 1_000);
    if nanoseconds.is_multiple_of(1_000) && Micros(1_000) <= micros && micros <= LONGEST_BLOCK {
        return Ok(micros);
    }
    let help = "to deny an id forever, write an override with `deny: true`";
    Err(node.error("times of a ban are 1ms to 366d long, in whole microseconds", help))
}

/// Rejects what a ban cannot be combined with.
fn check(map: &Mapping<'_>, limit: &Limit) -> ReadResult<()> {
    let Some((key, _)) = map.get("ban") else { return Ok(()) };
    let is_set = |other: &str| {
        map.get(other).is_some_and(|(_, node)| !matches!(&node.value, Value::Scalar { text, .. } if text == "false"))
    };
    let (other, why) = match limit.algorithm {
        Algorithm::Queue => ("`algorithm: queue`", "a full queue says nothing about who adds to it"),
        _ if limit.owner.is_some() && limit.bans_from_all() => {
            return Err(key.error(
                "a team's ban cannot be from the limits of others",
                "remove `scope: all`, or move the limit to `base.yaml`",
            ));
        }
        _ if limit.lease.is_some() => {
            ("`lease`", "a gateway with leased tokens denies without asking the store, which counts the denials")
        }
        _ if is_set("unlimited") => ("`unlimited`", "a limit that denies nobody bans nobody"),
        _ if is_set("deny") => ("`deny`", "a limit that denies everybody has nobody left to ban"),
        _ if limit.by.is_empty() => ("`by: global`", "it would ban everybody; name a part of the request in `by`"),
        _ => return check_scope(key, limit),
    };
    Err(key.error(format!("`ban` and {other} cannot be combined"), why))
}

/// Rejects a ban from everything of ids that other requests do not have.
fn check_scope(key: &Key, limit: &Limit) -> ReadResult<()> {
    let is_own = |part: &&Part| matches!(part, Part::PathParameter { .. } | Part::Body(_));
    let Some(part) = limit.by.iter().map(|typed| &typed.part).find(is_own).filter(|_| limit.bans_from_all()) else {
        return Ok(());
    };
    let why =
        "requests that the limit does not cover have no such id; remove `scope: all`, or name another part in `by`";
    Err(key.error(format!("`scope: all` of a ban and the {part} in `by` cannot be combined"), why))
}
