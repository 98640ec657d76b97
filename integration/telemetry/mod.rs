//! What the process tells of itself and of requests: its log and the filter of that, refusals, ids, and traces.

#[cfg(feature = "otel")]
mod collector;
mod context;
mod filter;
mod ids;
mod refusals;
#[cfg(feature = "otel")]
mod traces;

use serde_json::Value;

use crate::support::weir::Weir;

/// The fields of all lines of the log that have this message.
fn lines(weir: &Weir, message: &str) -> Vec<Value> {
    let log = weir.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|mut line| line["fields"].take()).filter(|fields| fields["message"] == message).collect()
}
