//! `elevated`: other numbers that take effect when a bucket is empty. A key of limits with `algorithm: gcra`.

use std::sync::Arc;

use super::super::lints::Lint;
use super::super::node::Key;
use super::super::numbers::{self, Period, period};
use super::super::problem::Place;
use super::super::request_numbers;
use super::{Algorithm, AlgorithmEntry, Allowance, Interner, Mapping, Node, Numbers, ReadResult, ReportedError, gcra};
use crate::engine::algorithms::charge::Elevated;
use crate::engine::algorithms::micros::EXACT;
use crate::engine::limit::allowance::ElevatedAllowance;

pub(super) const ENTRY: AlgorithmEntry =
    AlgorithmEntry { words: &[], settings: gcra::ENTRY.settings, keys: &["elevated"], override_keys: &["elevated"] };

pub(in super::super) const KEYS: [&str; 5] = ["burst", "count", "period", "for", "activations_per_month"];

/// Adds `elevated` to an allowance. An override with `elevated` alone inherits the numbers of its limit, the `base`; one with
/// numbers alone inherits the limit's `elevated`. `algorithm` is `None` if the limit has a mistake.
pub(in super::super) fn add(
    map: &Mapping<'_>,
    allowance: Allowance,
    algorithm: Option<Algorithm>,
    base: Option<&Allowance>,
    interner: &mut Interner,
) -> ReadResult<Allowance> {
    let inherited = base.and_then(Allowance::elevated);
    if let Some((key, node)) = map.get("elevated") {
        let elevated = read(node, inherited.map(Arc::as_ref));
        let own = base.filter(|_| allowance == Allowance::Disabled).unwrap_or(&allowance);
        check(key, own, algorithm)?;
        return Ok(combine(key.place, node, own, elevated?, interner));
    }
    let (Some(inherited), Some(windows)) = (inherited, allowance.windows()) else { return Ok(allowance) };
    if windows.len() == 1 {
        return Ok(combine(map.node.place, map.node, &allowance, inherited.as_ref().clone(), interner));
    }
    let message = "the limit's `elevated` does not apply here: it supports one window, and this override has several";
    map.value("rates").warning(Lint::NoEffect, message, "use `burst`, `count` and `period` instead of `rates`");
    Ok(allowance)
}

/// Reads the value of `elevated`. `for` and `activations_per_month` are inherited if not set.
fn read(node: &Node, inherited: Option<&Elevated>) -> ReadResult<Elevated> {
    let map = Mapping::of(node, "`elevated`", &KEYS)?;
    request_numbers::reject(&map, "`elevated`")?;
    let numbers = numbers::window(&map, true, &gcra::window);
    let span = map.read("for", span);
    let activations = map.read("activations_per_month", |node| {
        node.positive("`activations_per_month` must be at least 1", "use 1 or more, or remove `elevated`")
    });
    let (numbers, span, activations) = (numbers?, span?, activations?);
    let missing = |what: &str, help: &str| map.lacks(format!("`elevated` needs {what}"), help);
    let numbers = numbers.ok_or_else(|| missing("numbers", "add `count` and `period`, and optionally `burst`"));
    let span = span
        .or(inherited.map(|base| base.span))
        .ok_or_else(|| missing("`for`", "set how long an activation lasts, such as `for: 15m`"));
    let activations = activations
        .or(inherited.map(|base| base.activations_per_month))
        .ok_or_else(|| missing("`activations_per_month`", "set how often it may switch on per month"));
    Ok(Elevated { numbers: numbers?, span: span?, activations_per_month: activations?, quota: None })
}

/// Reads how long an activation lasts, in microseconds.
fn span(node: &Node) -> ReadResult<u64> {
    let (message, help) = match period(node)? {
        Period::Span(nanoseconds) if !nanoseconds.is_multiple_of(1_000) => {
            ("`for` must be a whole number of microseconds", "")
        }
        Period::Span(nanoseconds) if nanoseconds / 1_000 >= EXACT => ("`for` is longer than 285 years", ""),
        Period::Span(nanoseconds) => return Ok(nanoseconds / 1_000),
        Period::Month | Period::Year => ("`for` must be a duration", "use a duration such as 15m or 30d"),
    };
    Err(node.error(message, help))
}

/// Rejects what `elevated` cannot be combined with.
fn check(key: &Key, allowance: &Allowance, algorithm: Option<Algorithm>) -> ReadResult<()> {
    let (message, help) = match allowance {
        _ if algorithm.ok_or(ReportedError)? != Algorithm::Gcra => {
            ("`elevated` needs `algorithm: gcra`", "remove `algorithm` or `elevated`")
        }
        Allowance::Unlimited => ("`unlimited: true` and `elevated` cannot be combined", "remove one of them"),
        Allowance::Deny => ("`deny: true` and `elevated` cannot be combined", "remove one of them"),
        Allowance::Disabled => {
            ("`elevated` needs numbers beside it", "add `count` and `period`; they apply until the bucket is empty")
        }
        allowance if allowance.windows().is_some_and(|windows| windows.len() > 1) => {
            ("`elevated` and `rates` cannot be combined", "use `burst`, `count` and `period` instead of `rates`")
        }
        _ => return Ok(()),
    };
    Err(key.error(message, help))
}

/// Combines both, and warns of elevated numbers that have no effect.
fn combine(place: Place, node: &Node, allowance: &Allowance, elevated: Elevated, interner: &mut Interner) -> Allowance {
    let Some((windows, base)) = allowance.windows().and_then(|windows| Some((windows, windows.first()?))) else {
        return allowance.clone();
    };
    if elevated.numbers.burst() <= base.burst() {
        let message = format!("`elevated` never switches on: its burst must be greater than {}", base.burst());
        node.findings.warning(
            Lint::NoEffect,
            place,
            message,
            "raise its `burst`; tokens already used are deducted when it switches on",
        );
    } else if is_slower(&elevated.numbers, base) {
        let message =
            format!("`elevated` refills more slowly than the limit itself: {}, compared with {base}", elevated.numbers);
        node.findings.warning(Lint::NoEffect, place, message, "raise its `count` or shorten its `period`");
    }
    let both = ElevatedAllowance { base: Arc::clone(windows), elevated: Arc::new(elevated) };
    Allowance::Elevated(interner.share_elevated(both))
}

fn is_slower(one: &Numbers, other: &Numbers) -> bool {
    u128::from(one.drain()) * u128::from(other.token()) < u128::from(other.drain()) * u128::from(one.token())
}
