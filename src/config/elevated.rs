//! `elevated`: other numbers that switch on by themselves when a bucket is empty.

use std::sync::Arc;

use super::algorithm::{Period, Style, period};
use super::fields::{Fields, whole};
use super::numbers::{self, Interner, value_place};
use super::problem::{Findings, Place, Reported};
use super::yaml::{Key, Node};
use crate::engine::algorithms::details::{Elevated, WithElevated};
use crate::engine::algorithms::numbers::{Allowance, EXACT, Numbers};

/// The fields of `elevated`.
pub(super) const KEYS: [&str; 5] = ["burst", "count", "period", "for", "activations_per_month"];

/// What a limit allows with its `elevated`, if it has some, of which `allowance` is the rest.
pub(super) fn of_limit(
    fields: &Fields<'_>,
    allowance: Allowance,
    style: Option<&Style>,
    interner: &mut Interner,
    findings: &mut Findings,
) -> Result<Allowance, Reported> {
    let Some((key, node)) = fields.get("elevated") else { return Ok(allowance) };
    let elevated = read(node, None, findings);
    together(key, &allowance, style, findings)?;
    Ok(with(key.place, &allowance, elevated?, interner, findings))
}

/// What an override allows of a limit that allows `base`: an override that has no numbers beside `elevated` keeps the
/// limit's, and one that has nothing but numbers keeps its `elevated`. `base` is `None` if that has a mistake.
pub(super) fn of_override(
    fields: &Fields<'_>,
    allowance: Allowance,
    base: Option<(&Allowance, Option<&Style>)>,
    interner: &mut Interner,
    findings: &mut Findings,
) -> Result<Allowance, Reported> {
    let Some((key, node)) = fields.get("elevated") else {
        let kept = base.and_then(|(base, _)| base.elevated());
        return match (kept, allowance.windows().map(|windows| windows.len())) {
            (Some(elevated), Some(1)) => Ok(with(fields.place, &allowance, **elevated, interner, findings)),
            (Some(_), Some(_)) => {
                let message =
                    "the limit's `elevated` does not apply here: it supports one window, and this override has several";
                findings.warning(
                    value_place(fields, "rates"),
                    message,
                    "use `burst`, `count` and `period` instead of `rates`",
                );
                Ok(allowance)
            }
            _ => Ok(allowance),
        };
    };
    let elevated = read(node, base.map(|(base, _)| base.elevated().map(Arc::as_ref)).unwrap_or_default(), findings);
    let Some((base, style)) = base else { return elevated.map(|_| allowance) };
    let own = if allowance == Allowance::Disabled { base.clone() } else { allowance };
    together(key, &own, style, findings)?;
    Ok(with(key.place, &own, elevated?, interner, findings))
}

/// The value of `elevated`. What it does not say of `for` and `activations_per_month` is as in `base`.
fn read(node: &Node, base: Option<&Elevated>, findings: &mut Findings) -> Result<Elevated, Reported> {
    let fields = Fields::of(node, "`elevated`", &KEYS, findings)?;
    let numbers = numbers::window(&fields, &Style::Gcra, false, findings);
    let span = fields.read("for", findings, span);
    let activations = fields.read("activations_per_month", findings, activations);
    let (numbers, span, activations) = (numbers?, span?, activations?);
    let mut missing = |what: &str, help: &str| findings.error(node.place, format!("`elevated` needs {what}"), help);
    let numbers = numbers.ok_or_else(|| missing("numbers", "add `count` and `period`, and optionally `burst`"));
    let span = span
        .or(base.map(|base| base.span))
        .ok_or_else(|| missing("`for`", "set how long an activation lasts, such as `for: 15m`"));
    let activations = activations
        .or(base.map(|base| base.activations_per_month))
        .ok_or_else(|| missing("`activations_per_month`", "set how often it may switch on per month"));
    Ok(Elevated { numbers: numbers?, span: span?, activations_per_month: activations? })
}

/// How long an activation lasts, in microseconds.
fn span(node: &Node, findings: &mut Findings) -> Result<u64, Reported> {
    let given = match period(node, findings)? {
        Period::Span(nanoseconds) => nanoseconds,
        Period::Month | Period::Year => {
            let help = "use a duration such as 15m or 30d";
            return Err(findings.error(node.place, "`for` must be a duration", help));
        }
    };
    match (given / 1_000, given.is_multiple_of(1_000)) {
        (_, false) => Err(findings.error(node.place, "`for` must be a whole number of microseconds", "")),
        (EXACT.., _) => Err(findings.error(node.place, "`for` is longer than 285 years", "")),
        (micros, true) => Ok(micros),
    }
}

/// How often it may switch on.
fn activations(node: &Node, findings: &mut Findings) -> Result<u64, Reported> {
    match whole(node, findings)? {
        0 => Err(findings.error(
            node.place,
            "`activations_per_month` must be at least 1",
            "use 1 or more, or remove `elevated`",
        )),
        number if number >= EXACT => Err(findings.error(node.place, "that is more than can be counted", "")),
        number => Ok(number),
    }
}

/// Refuses what `elevated` cannot stand beside.
fn together(key: &Key, allowance: &Allowance, style: Option<&Style>, findings: &mut Findings) -> Result<(), Reported> {
    let (message, help) = match (style, allowance) {
        (None, _) => return Err(Reported),
        (Some(style), _) if !matches!(style, Style::Gcra) => {
            ("`elevated` needs `algorithm: gcra`", "remove `algorithm` or `elevated`")
        }
        (_, Allowance::Unlimited) => ("`unlimited: true` and `elevated` cannot be combined", "remove one of them"),
        (_, Allowance::Deny) => ("`deny: true` and `elevated` cannot be combined", "remove one of them"),
        (_, Allowance::Disabled) => {
            let help = "add `count` and `period`; they apply until the bucket is empty";
            ("`elevated` needs numbers beside it", help)
        }
        (_, Allowance::Windows(windows)) if windows.len() > 1 => {
            ("`elevated` and `rates` cannot be combined", "use `burst`, `count` and `period` instead of `rates`")
        }
        _ => return Ok(()),
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
    let with = WithElevated { base: Arc::clone(windows), elevated: Arc::new(elevated) };
    Allowance::Elevated(interner.share_elevated(with))
}

fn is_slower(one: &Numbers, other: &Numbers) -> bool {
    u128::from(one.drain()) * u128::from(other.token()) < u128::from(other.drain()) * u128::from(one.token())
}
