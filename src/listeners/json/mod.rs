//! JSON bodies: readers of objects, which collect every mistake.

use serde_json::Value;

use crate::engine::algorithms::micros::Micros;
use crate::engine::text::quote::quoted;

pub(crate) mod headers;
mod object;

pub(crate) use object::{Mistake, Mistakes, Object, list, path_of};

/// Describes a value for messages.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("the text {}", quoted(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Returns a time as replies have it, rounded up.
pub(crate) fn milliseconds(time: Micros) -> u64 {
    time.0.div_ceil(1_000)
}
