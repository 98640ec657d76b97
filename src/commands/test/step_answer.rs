//! The answer to a step of a scenario, and its comparison with what the step expects.

use serde_json::{Value, json};

use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::decision::{Decision, Decisions, Detail, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::limit::rules::Rules;

/// The answer to a step, as an object with the keys of `expect`. The error is that of an invalid step, which a scenario
/// expects with `error: true`.
pub(super) type StepAnswer = Result<Value, String>;

/// The answer of the binding decision. Charges that cannot deny count only if there are no others, and so do refunds that gave
/// nothing back.
pub(super) fn binding(rules: &Rules, plan: &Plan, decisions: &Decisions) -> Value {
    let cannot_deny = |charge: &Charge| match charge.mode {
        Mode::Refund | Mode::Reset => false,
        _ => !charge.can_deny(),
    };
    let counts = |charge: &Charge, decision: &Decision| match charge.mode {
        Mode::Refund => decision.outcome == Outcome::Allowed,
        _ => !cannot_deny(charge),
    };
    let all = || plan.charges.iter().zip(decisions.iter()).filter(|(charge, _)| !charge.origin.is_beside());
    let any_counts = all().any(|(charge, decision)| counts(charge, decision));
    let strictest = all()
        .filter(|(charge, decision)| !any_counts || counts(charge, decision))
        .max_by(|(_, one), (_, other)| one.strictness(other));
    let Some((charge, decision)) = strictest else { return json!({}) };
    let mut decision = *decision;
    if decision.outcome != Outcome::Allowed && all().all(|(charge, _)| cannot_deny(charge)) {
        // The request still passes.
        decision.outcome = Outcome::Allowed;
    }
    if decision.is_denied() {
        // The wait in the `Retry-After` header: a bucket that has counted the request may deny for longer.
        let counts = |place: usize| plan.charges.get(place).is_some_and(|charge| charge.origin.is_enforced());
        let waits =
            decisions.details.iter().filter(|(place, _)| counts(*place)).filter_map(|(_, detail)| match detail {
                Detail::Counted(wait) => Some(*wait),
                _ => None,
            });
        let longest = waits.max().unwrap_or_default();
        decision.retry_after = decision.retry_after.map(|wait| wait.max(longest));
    }
    let limit = charge.origin.limit;
    let first_of_limit = plan.charges.iter().position(|charge| charge.origin.limit == limit).unwrap_or_default();
    let mut values = answer(rules, Some(limit), &decision, decisions.detail(first_of_limit));
    let delays = all().filter(|(charge, _)| !cannot_deny(charge)).map(|(_, decision)| decision.delay());
    values["delay_ms"] = millis(delays.max().filter(|_| !decision.is_denied()).unwrap_or_default()).into();
    values
}

/// The decision in the keys of `expect`. "Never" is null.
pub(super) fn answer(rules: &Rules, limit: Option<u32>, decision: &Decision, detail: Option<&Detail>) -> Value {
    let limit = limit.filter(|_| decision.is_denied()).and_then(|limit| rules.limit(limit));
    let mut values = json!({
        "allowed": decision.outcome == Outcome::Allowed,
        "remaining": decision.remaining,
        "retry_after_ms": decision.retry_after.map(millis),
        "reset_ms": decision.reset_after.map(millis),
        "denied_by": limit.map(|limit| &limit.name),
    });
    if let Some(elevation) = detail.and_then(Detail::elevation) {
        values["triggered"] = elevation.triggered.into();
        values["activated"] = elevation.active.into();
        // -1 unless this charge has switched the elevated numbers on, as in limitd.
        values["quota_remaining"] = elevation.activations_left.map_or_else(|| (-1).into(), Value::from);
    }
    values
}

/// The remaining tokens of a bucket without a limit, which equal any number.
pub(super) const UNLIMITED: &str = "unlimited";

pub(super) fn compare(answer: &StepAnswer, expect: &Value, tolerance: f64) -> Result<(), String> {
    let Some(expect) = expect.as_object() else { return Ok(()) };
    let values = match answer {
        Ok(values) => values,
        Err(_) if expect.get("error") == Some(&Value::Bool(true)) => return Ok(()),
        Err(reason) => return Err(format!("rejected as a mistake: {reason}")),
    };
    for (key, expected) in expect {
        let found = if key == "error" { Some(&Value::Bool(false)) } else { values.get(key) };
        let found = found.ok_or_else(|| format!("`{key}` cannot be compared here"))?;
        // A count has no tolerance: one token more is another answer.
        let tolerance = if key.ends_with("_ms") { tolerance } else { 0.0 };
        if !same(found, expected, tolerance) {
            return Err(format!("{key} is {found}, expected {expected}"));
        }
    }
    Ok(())
}

fn same(found: &Value, expected: &Value, tolerance: f64) -> bool {
    // redis-cell writes "never" as -1.
    let never = found.is_null() && expected.as_i64() == Some(-1);
    let unlimited = found == UNLIMITED && expected.is_u64();
    match (found.as_f64(), expected.as_f64()) {
        // Half a nanosecond, the precision of milliseconds as doubles.
        (Some(found), Some(expected)) => (found - expected).abs() <= tolerance + 5e-7,
        _ => found == expected || never || unlimited,
    }
}

#[expect(clippy::cast_precision_loss, reason = "spans are below 2^53 microseconds")]
fn millis(span: Micros) -> f64 {
    span.0 as f64 / 1_000.0
}
