//! Rejects scenarios with keys that nobody reads, and scenarios that cannot fail.

use serde_json::Value;

use super::super::print::joined;
use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::limit::LimitMode;
use crate::engine::limit::rules::Rules;
use crate::engine::text::suggest::nearest;

/// The keys of a scenario. `source` and `note` are for people.
const KEYS: &[&str] = &["case", "source", "note", "limits", "steps", "epoch_ms", "tolerance_ms"];

/// The keys of every step.
const STEP_KEYS: [&str; 3] = ["at_ms", "op", "expect"];

/// The operations, with the other keys of their steps, and those of each charge in `charges`.
const OPERATIONS: [(&str, &[&str], &[&str]); 10] = [
    ("spend", &["limit", "id", "cost", "slot"], &[]),
    ("check", &["limit", "id", "cost", "slot"], &[]),
    ("spend_only", &["limit", "id", "cost", "slot"], &[]),
    ("refund", &["limit", "id", "cost", "slot", "taken_ms_ago"], &[]),
    ("reset", &["limit", "id"], &[]),
    ("concurrent_spend", &["limit", "id", "cost", "n"], &[]),
    ("batch", &["charges"], &["limit", "id", "cost", "mode", "slot", "taken_ms_ago"]),
    ("batch_refund", &["charges"], &["limit", "id", "cost", "slot", "taken_ms_ago"]),
    ("batch_reset", &["charges"], &["limit", "id"]),
    ("limits", &["limits"], &[]),
];

/// The mode of a charge to a limit that is not in force, such as one of Boulder without a default. It is skipped.
pub(super) const ALLOW_ONLY: &str = "allow_only";

/// The calls of a `concurrent_spend`, at most: each is a task.
const MOST_CALLS: u64 = 10_000;

/// Checks a scenario, but for what its steps have.
pub(super) fn check_scenario(scenario: &Value) -> Result<(), String> {
    check_keys(scenario, KEYS)?;
    given(scenario, "case", Value::as_str)?;
    let mut steps = scenario["steps"].as_array().into_iter().flatten();
    // One of another type fails its step.
    let expects =
        |step: &Value| step["expect"].as_object().map_or(!step["expect"].is_null(), |expect| !expect.is_empty());
    if steps.any(expects) {
        Ok(())
    } else {
        Err("it expects nothing, so it cannot fail; add `expect` to a step".to_owned())
    }
}

pub(super) fn check_step(step: &Value) -> Result<(), String> {
    let every: Vec<&str> = OPERATIONS.iter().flat_map(|(_, keys, _)| *keys).copied().chain(STEP_KEYS).collect();
    check_keys(step, &every)?;
    let op = given(step, "op", Value::as_str)?.unwrap_or_default();
    let Some((_, keys, of_charges)) = OPERATIONS.iter().find(|(known, ..)| *known == op) else {
        let known = || OPERATIONS.iter().map(|(known, ..)| *known);
        let help = match nearest(op, known()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it is one of {}", joined(known(), ", ")),
        };
        return Err(format!("unknown operation `{op}`; {help}"));
    };
    check_fits(step, &[&STEP_KEYS[..], keys].concat(), &format!("`op: {op}`"))?;
    check_types(step)?;
    let expected = given(step, "expect", Value::as_object)?;
    if expected.is_some_and(|expected| expected.get("error") == Some(&true.into()) && expected.len() > 1) {
        return Err(
            "a step that expects `error: true` has no answer to compare; remove the other keys of `expect`".into()
        );
    }
    if keys.contains(&"n") && !given(step, "n", Value::as_u64)?.is_some_and(|calls| (1..=MOST_CALLS).contains(&calls)) {
        return Err(format!("`op: {op}` needs `n`, the number of calls, from 1 to {MOST_CALLS}"));
    }
    if !keys.contains(&"charges") {
        return Ok(());
    }
    match given(step, "charges", Value::as_array)?.map_or(&[][..], Vec::as_slice) {
        [] => Err(format!("`op: {op}` charges nothing; add a charge to `charges`")),
        charges => (1..).zip(charges).try_for_each(|(number, charge)| {
            check_charge(charge, of_charges, op).map_err(|mistake| format!("charge {number}: {mistake}"))
        }),
    }
}

/// Checks a charge in a batch.
fn check_charge(charge: &Value, keys: &[&str], op: &str) -> Result<(), String> {
    let every: Vec<&str> = OPERATIONS.iter().flat_map(|(.., keys)| *keys).copied().collect();
    check_keys(charge, &every)?;
    check_fits(charge, keys, &format!("`op: {op}`"))?;
    check_types(charge)?;
    let mode = given(charge, "mode", Value::as_str)?;
    let mode = mode.unwrap_or("spend");
    // An unknown one is a mistake that a scenario may expect.
    let skipped: &[&str] = &["limit", "id", "cost"];
    let is_mode = |keys: &[&str]| keys.contains(&"id") && !keys.contains(&"n");
    let of_mode = OPERATIONS.iter().find(|(known, keys, _)| *known == mode && is_mode(keys)).map(|(_, keys, _)| *keys);
    match of_mode.or((mode == ALLOW_ONLY).then_some(skipped)) {
        Some(keys) if op == "batch" => check_fits(charge, &[&["mode"], keys].concat(), &format!("`mode: {mode}`")),
        _ => Ok(()),
    }
}

fn check_types(charge: &Value) -> Result<(), String> {
    for key in ["limit", "id", "slot"] {
        given(charge, key, Value::as_str)?;
    }
    given(charge, "taken_ms_ago", Value::as_u64).map(drop)
}

/// Checks that the limits of these charges have slots, or are absent, where the charges say so.
pub(super) fn check_limits(rules: &Rules, charges: &[Value]) -> Result<(), String> {
    for charge in charges {
        let limit = rules.limits().iter().find(|limit| Some(limit.name.as_str()) == charge["limit"].as_str());
        let Some(limit) = limit else { continue };
        if charge["mode"].as_str() == Some(ALLOW_ONLY) && limit.mode != LimitMode::Off {
            let name = &limit.name;
            return Err(format!(
                "`mode: {ALLOW_ONLY}` charges nothing, and `{name}` is in force; name a limit that is not"
            ));
        }
        if charge.get("slot").is_some() && limit.algorithm != Algorithm::Concurrency {
            return Err(format!("`slot` applies to `algorithm: concurrency`, which `{}` does not have", limit.name));
        }
    }
    Ok(())
}

fn check_keys(value: &Value, known: &[&str]) -> Result<(), String> {
    let object = value.as_object().ok_or_else(|| format!("expected an object, found {value}"))?;
    let Some(unknown) = object.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
    let help = nearest(unknown, known.iter().copied());
    let help = help.map_or_else(String::new, |known| format!("; did you mean `{known}`?"));
    Err(format!("unknown key `{unknown}`{help}"))
}

/// Rejects a key that other operations have.
fn check_fits(value: &Value, fitting: &[&str], what: &str) -> Result<(), String> {
    let mut keys = value.as_object().into_iter().flat_map(|object| object.keys());
    let Some(other) = keys.find(|key| !fitting.contains(&key.as_str())) else { return Ok(()) };
    let own = fitting.iter().filter(|key| !STEP_KEYS.contains(key)).map(|key| format!("`{key}`"));
    Err(format!("`{other}` does not apply to {what}, which has {}", joined(own, ", ")))
}

/// A member that may be absent, but not of another type.
pub(super) fn given<'v, T>(
    object: &'v Value,
    key: &str,
    read: impl FnOnce(&'v Value) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(value) = object.get(key) else { return Ok(None) };
    read(value).map(Some).ok_or_else(|| format!("`{key}` cannot be {value}"))
}
