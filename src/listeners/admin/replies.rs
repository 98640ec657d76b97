//! Buckets and blocks as JSON. Times are whole milliseconds, rounded up; null means never.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::engine::algorithms::decision::Decision;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::blocks::Block;
use crate::limiter::operator::{BucketReport, CandidateReport};
use crate::listeners::json::milliseconds;
use crate::listeners::rules_json;

pub(super) fn state(state: &BucketReport) -> Value {
    let windows = |windows: &[(Numbers, Decision)]| windows.iter().map(window).collect::<Value>();
    let mut value = json!({
        "bucket": state.bucket,
        "mode": rules_json::mode(state.mode),
        "enforced": state.enforced,
        "allows": rules_json::allows(&state.allowance),
        "given_by": state.given_by.as_ref().map(|(place, comment)| json!({ "place": place, "comment": comment })),
        "blocked": state.blocked.as_ref().map(|(block, left)| self::block(block, *left)),
        "windows": windows(&state.windows),
        "candidate": null,
    });
    for CandidateReport { name, windows: of_candidate } in &state.candidates {
        *rules_json::of_candidate(&mut value, name.as_deref()) = windows(of_candidate);
    }
    value
}

fn window((numbers, state): &(Numbers, Decision)) -> Value {
    let mut allows = String::new();
    numbers.describe(&mut allows);
    let mut value = json!({
        "algorithm": numbers.algorithm().name(),
        "allows": allows,
        "limit": state.limit,
        "remaining": state.remaining,
        "used": state.limit.saturating_sub(state.remaining),
        "retry_after_ms": state.retry_after.map(milliseconds),
        "reset_after_ms": state.reset_after.map(milliseconds),
    });
    if state.delay() > Micros(0) {
        value["delay_ms"] = milliseconds(state.delay()).into();
    }
    value
}

/// `left` is the time until its end.
pub(super) fn block(block: &Block, left: Micros) -> Value {
    let until = Timestamp::from_second(i64::try_from(block.until.ceil_seconds()).unwrap_or(i64::MAX));
    json!({
        "bucket": block.bucket,
        "until": until.map(|until| until.to_string()).ok(),
        "left_ms": milliseconds(left),
        "reason": block.reason,
        "by": block.by,
    })
}
