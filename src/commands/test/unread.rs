//! Rejects scenarios with keys that nobody reads, and scenarios that cannot fail.

use serde_json::Value;

use crate::engine::rules::suggest::nearest;

/// The keys of a scenario. `source` and `note` are for people.
const KEYS: &[&str] = &["case", "source", "note", "limits", "steps", "epoch_ms", "tolerance_ms"];

/// The keys of a step, which is a charge unless it has `charges`, and those of a charge in a batch.
const STEP_KEYS: &[&str] =
    &["at_ms", "op", "limit", "id", "cost", "expect", "charges", "limits", "slot", "taken_ms_ago", "n"];
const CHARGE_KEYS: &[&str] = &["limit", "id", "cost", "mode", "slot", "taken_ms_ago"];

/// Checks a scenario, but for what its steps have.
pub(super) fn check_scenario(scenario: &Value) -> Result<(), String> {
    check_keys(scenario, KEYS)?;
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
    check_keys(step, STEP_KEYS)?;
    given(step, "expect", Value::as_object)?;
    let charges = given(step, "charges", Value::as_array)?.map_or(&[][..], Vec::as_slice);
    charges.iter().try_for_each(|charge| check_keys(charge, CHARGE_KEYS))
}

fn check_keys(value: &Value, known: &[&str]) -> Result<(), String> {
    let object = value.as_object().ok_or_else(|| format!("expected an object, found {value}"))?;
    let Some(unknown) = object.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
    let help = nearest(unknown, known.iter().copied());
    let help = help.map_or_else(String::new, |known| format!("; did you mean `{known}`?"));
    Err(format!("unknown key `{unknown}`{help}"))
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
