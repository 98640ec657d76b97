//! `denies-everything`, `enforces-nothing`, `exempts-nothing`, `never-refills` and `shadow-candidate`: limits whose numbers or mode do
//! nothing, or too much.

use super::super::problem::Place;
use super::hidden::has_an_id_always;
use super::{Lint, Subject};
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::matching::Match;
use crate::engine::limit::{Limit, LimitMode};
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::telling::coverage::covers;

/// A finding: its place, the message and the help.
type Told = (Lint, Place, &'static str, &'static str);

pub(super) fn find(subject: &Subject<'_>) -> impl Iterator<Item = Told> {
    [of_allowance(subject), of_mode(subject)].into_iter().flatten()
}

fn of_allowance(subject: &Subject<'_>) -> Option<Told> {
    let limit = subject.limit;
    let is_plain = limit.overrides.is_empty() && !limit.per_call;
    match &limit.allowance {
        Allowance::Deny if is_plain && limit.is_enforced() && covers_everything(limit) => {
            let help = "add `match` for the requests to deny, or overrides for the ids to let pass";
            Some((Lint::DeniesEverything, subject.places.of("deny"), "this limit denies every request", help))
        }
        Allowance::Unlimited if is_plain => {
            let message = "this limit does nothing: it exempts no request from other limits";
            let help = "write `exempt` for these requests at the top of the file, or give the other limits overrides";
            Some((Lint::ExemptsNothing, subject.places.of("unlimited"), message, help))
        }
        Allowance::Windows(windows) if windows.iter().any(never_refills) && limit.by.iter().any(is_address) => {
            let message = "a client that has used up this burst stays denied: nothing refills the bucket";
            Some((Lint::NeverRefills, subject.places.of("burst"), message, "add `count` and `period`"))
        }
        _ => None,
    }
}

fn of_mode(subject: &Subject<'_>) -> Option<Told> {
    let limit = subject.limit;
    match limit.mode {
        LimitMode::Enforce if limit.enforce_for == 0 => {
            let help = "write `mode: shadow`, or a larger share";
            Some((Lint::EnforcesNothing, subject.places.of("enforce_for"), "`enforce_for: 0%` denies nobody", help))
        }
        LimitMode::Shadow if !limit.candidates.is_empty() => {
            let (key, message) = match limit.candidates[0].name {
                None => ("candidate", "this candidate stands beside numbers that deny nobody"),
                Some(_) => ("candidates", "these candidates stand beside numbers that deny nobody"),
            };
            let help = "write its numbers as the limit's, or enforce the limit";
            Some((Lint::ShadowCandidate, subject.places.of(key), message, help))
        }
        _ => None,
    }
}

/// Returns whether every request matches, and has an id or is treated as if it had one.
fn covers_everything(limit: &Limit) -> bool {
    let is_anything = |fallback| fallback != Fallback::Skip;
    let has_id = has_an_id_always(limit) || is_anything(limit.missing) && is_anything(limit.malformed);
    has_id && covers(&limit.conditions, &Match::default())
}

fn never_refills(numbers: &Numbers) -> bool {
    numbers.algorithm().keeps_level() && numbers.count() == 0
}

fn is_address(by: &TypedPart) -> bool {
    matches!(by.part, Part::Ip { .. })
}
