//! Reads `candidate`: other numbers of a limit, which are decided beside its own.

use super::algorithms::Settings;
use super::limit::{burst_below_cost, share};
use super::lints::Lint;
use super::mapping::Mapping;
use super::numbers::Interner;
use super::problem::{ReadResult, ReportedError};
use crate::engine::limit::Limit;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::candidate::Candidate;

pub(super) const KEYS: [&str; 5] = ["burst", "count", "period", "rates", "enforce_for"];

const EXAMPLE: &str = "write `candidate: { count: 5, period: 1s }`";

/// Reads the `candidate` of a limit whose other keys are read. `settings` are those of its algorithm, and `numbers_are_known` says
/// whether its own numbers have no mistakes.
pub(super) fn read(
    map: &Mapping<'_>,
    settings: &dyn Settings,
    numbers_are_known: bool,
    limit: &mut Limit,
    interner: &mut Interner,
) {
    if map.get("candidate").is_none() {
        return;
    }
    let beside = if numbers_are_known { check_limit(map, limit) } else { Err(ReportedError) };
    let candidate = candidate(map, settings, interner);
    let (Ok(()), Ok(candidate)) = (beside, candidate) else { return };
    warn(map, limit, &candidate);
    limit.candidate = Some(Box::new(candidate));
}

fn candidate(map: &Mapping<'_>, settings: &dyn Settings, interner: &mut Interner) -> ReadResult<Candidate> {
    let node = map.value("candidate");
    let map = Mapping::of(node, "`candidate`", &KEYS)?;
    let windows = if settings.algorithm().has_tokens() { settings.numbers(&map) } else { Err(ReportedError) };
    let enforce_for = map.read("enforce_for", share);
    let (windows, enforce_for) = (windows?, enforce_for?.unwrap_or(0));
    if windows.is_empty() {
        return Err(map.lacks("`candidate` has no numbers", EXAMPLE));
    }
    Ok(Candidate { allowance: Allowance::Windows(interner.share(windows)), enforce_for })
}

/// Rejects limits that cannot have a candidate. It is compared with their own numbers, in tokens: requests in flight, queues and
/// scripts have none.
fn check_limit(map: &Mapping<'_>, limit: &Limit) -> ReadResult<()> {
    if !limit.algorithm.has_tokens() {
        return map.reject(&["candidate"], limit.algorithm.name(), "remove `candidate`");
    }
    let shadow = "write these numbers as the limit's, with `mode: shadow`";
    let (message, help) = match &limit.allowance {
        Allowance::Windows(_) => return Ok(()),
        Allowance::Disabled => ("a limit with `candidate` needs numbers of its own", shadow),
        Allowance::Unlimited => ("`unlimited: true` and `candidate` cannot be combined", shadow),
        Allowance::Deny => ("`deny: true` and `candidate` cannot be combined", shadow),
        Allowance::Elevated(_) => ("`elevated` and `candidate` cannot be combined", "remove one of them"),
    };
    Err(map.value("candidate").error(message, help))
}

/// Warns of a candidate that tells nothing.
fn warn(map: &Mapping<'_>, limit: &Limit, candidate: &Candidate) {
    let node = map.value("candidate");
    if candidate.allowance == limit.allowance {
        node.warning(
            Lint::NoEffect,
            "the candidate has the numbers of the limit",
            "change them, or remove `candidate`",
        );
    } else if let Some(burst) = burst_below_cost(&limit.cost, &candidate.allowance) {
        let message = format!("the cost exceeds the candidate's burst of {burst}: it would deny every request");
        node.warning(Lint::CostAboveBurst, message, "raise its `burst`");
    }
}
