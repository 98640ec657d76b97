//! The process' reports: its log and the filter, its start, denials, ids, and traces.

mod collector;
mod context;
mod denials;
mod filter;
mod ids;
mod start;
mod traces;

use serde_json::Value;

use crate::support::weir::Weir;

/// The fields of all log lines with this message.
fn lines(weir: &Weir, message: &str) -> Vec<Value> {
    let log = weir.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|mut line| line["fields"].take()).filter(|fields| fields["message"] == message).collect()
}
