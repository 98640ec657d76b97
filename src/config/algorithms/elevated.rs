//! `elevated`: other numbers that take effect when a bucket is empty. A key of limits with `algorithm: gcra`.

use std::sync::Arc;

use super::super::mapping::Mapping;
use super::super::numbers::{self, Interner, Period, period};
use super::super::problem::{Findings, Place, Reported};
use super::super::scalars::positive;
use super::super::yaml::{Key, Node};
use super::{Entry, Settings, gcra};
use crate::engine::algorithms::charge::Elevated;
use crate::engine::algorithms::micros::EXACT;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::rules::allowance::{Allowance, ElevatedAllowance};

pub(super) const ENTRY: Entry =
    Entry { words: &[], settings: Settings::Gcra, keys: &["elevated"], override_keys: &["elevated"] };

pub(in super::super) const KEYS: [&str; 5] = ["burst", "count", "period", "for", "activations_per_month"];

/// Adds `elevated`, if the limit has it, to what the limit allows otherwise. `settings` is `None` if they have a mistake.
pub(in super::super) fn of_limit(
    map: &Mapping<'_>,
    allowance: Allowance,
    settings: Option<&Settings>,
    interner: &mut Interner,
    findings: &mut Findings,
) -> Result<Allowance, Reported> {
    let Some((key, node)) = map.get("elevated") else { return Ok(allowance) };
    let elevated = read(node, None, findings);
    check(key, &allowance, settings, findings)?;
    Ok(with(key.place, &allowance, elevated?, interner, findings))
}

/// Adds `elevated` to what an override allows otherwise. An override with `elevated` alone inherits the limit's numbers,
/// one with numbers alone the limit's `elevated`. `base` is the limit, `None` if it has a mistake.
pub(in super::super) fn of_override(
    map: &Mapping<'_>,
    allowance: Allowance,
    base: Option<(&Allowance, Option<&Settings>)>,
    interner: &mut Interner,
    findings: &mut Findings,
) -> Result<Allowance, Reported> {
    let inherited = base.and_then(|(base, _)| base.elevated());
    let Some((key, node)) = map.get("elevated") else {
        return Ok(match (inherited, allowance.windows().map(|windows| windows.len())) {
            (Some(elevated), Some(1)) => with(map.place, &allowance, elevated.as_ref().clone(), interner, findings),
            (Some(_), Some(_)) => {
                let message =
                    "the limit's `elevated` does not apply here: it supports one window, and this override has several";
                let help = "use `burst`, `count` and `period` instead of `rates`";
                findings.warning(map.value_place("rates"), message, help);
                allowance
            }
            _ => allowance,
        });
    };
    let elevated = read(node, inherited.map(Arc::as_ref), findings);
    let Some((base, settings)) = base else { return elevated.map(|_| allowance) };
    let own = if allowance == Allowance::Disabled { base.clone() } else { allowance };
    check(key, &own, settings, findings)?;
    Ok(with(key.place, &own, elevated?, interner, findings))
}

/// Reads the value of `elevated`. `for` and `activations_per_month` are inherited if not set.
fn read(node: &Node, inherited: Option<&Elevated>, findings: &mut Findings) -> Result<Elevated, Reported> {
    let map = Mapping::of(node, "`elevated`", &KEYS, findings)?;
    let numbers = numbers::window(&map, true, &gcra::window, findings);
    let span = map.read("for", findings, span);
    let activations = map.read("activations_per_month", findings, |node, findings| {
        let help = "use 1 or more, or remove `elevated`";
        positive(node, "`activations_per_month` must be at least 1", help, findings)
    });
    let (numbers, span, activations) = (numbers?, span?, activations?);
    let mut missing = |what: &str, help: &str| findings.error(node.place, format!("`elevated` needs {what}"), help);
    let numbers = numbers.ok_or_else(|| missing("numbers", "add `count` and `period`, and optionally `burst`"));
    let span = span
        .or(inherited.map(|base| base.span))
        .ok_or_else(|| missing("`for`", "set how long an activation lasts, such as `for: 15m`"));
    let activations = activations
        .or(inherited.map(|base| base.activations_per_month))
        .ok_or_else(|| missing("`activations_per_month`", "set how often it may switch on per month"));
    Ok(Elevated { numbers: numbers?, span: span?, activations_per_month: activations? })
}

/// Reads how long an activation lasts, in microseconds.
fn span(node: &Node, findings: &mut Findings) -> Result<u64, Reported> {
    let (message, help) = match period(node, findings)? {
        Period::Span(nanoseconds) if !nanoseconds.is_multiple_of(1_000) => {
            ("`for` must be a whole number of microseconds", "")
        }
        Period::Span(nanoseconds) if nanoseconds / 1_000 >= EXACT => ("`for` is longer than 285 years", ""),
        Period::Span(nanoseconds) => return Ok(nanoseconds / 1_000),
        Period::Month | Period::Year => ("`for` must be a duration", "use a duration such as 15m or 30d"),
    };
    Err(findings.error(node.place, message, help))
}

/// Rejects what `elevated` cannot be combined with.
fn check(
    key: &Key,
    allowance: &Allowance,
    settings: Option<&Settings>,
    findings: &mut Findings,
) -> Result<(), Reported> {
    let (message, help) = match (settings.ok_or(Reported)?, allowance) {
        (Settings::Gcra, Allowance::Unlimited) => {
            ("`unlimited: true` and `elevated` cannot be combined", "remove one of them")
        }
        (Settings::Gcra, Allowance::Deny) => ("`deny: true` and `elevated` cannot be combined", "remove one of them"),
        (Settings::Gcra, Allowance::Disabled) => {
            ("`elevated` needs numbers beside it", "add `count` and `period`; they apply until the bucket is empty")
        }
        (Settings::Gcra, allowance) if allowance.windows().is_some_and(|windows| windows.len() > 1) => {
            ("`elevated` and `rates` cannot be combined", "use `burst`, `count` and `period` instead of `rates`")
        }
        (Settings::Gcra, _) => return Ok(()),
        _ => ("`elevated` needs `algorithm: gcra`", "remove `algorithm` or `elevated`"),
    };
    Err(findings.error(key.place, message, help))
}

/// Puts both together, and warns of numbers by which it makes no sense.
fn with(
    place: Place,
    allowance: &Allowance,
    elevated: Elevated,
    interner: &mut Interner,
    findings: &mut Findings,
) -> Allowance {
    let Some((windows, base)) = allowance.windows().and_then(|windows| Some((windows, windows.first()?))) else {
        return allowance.clone();
    };
    if elevated.numbers.burst() <= base.burst() {
        let message = format!("`elevated` never switches on: its burst must be greater than {}", base.burst());
        findings.warning(place, message, "raise its `burst`; tokens already used are deducted when it switches on");
    } else if is_slower(&elevated.numbers, base) {
        let message =
            format!("`elevated` refills more slowly than the limit itself: {}, compared with {base}", elevated.numbers);
        findings.warning(place, message, "raise its `count` or shorten its `period`");
    }
    let with = ElevatedAllowance { base: Arc::clone(windows), elevated: Arc::new(elevated) };
    Allowance::Elevated(interner.share_elevated(with))
}

fn is_slower(one: &Numbers, other: &Numbers) -> bool {
    u128::from(one.drain()) * u128::from(other.token()) < u128::from(other.drain()) * u128::from(one.token())
}
