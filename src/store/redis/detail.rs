//! What algorithms say beside the four integers of a charge: a list that begins with its name.

use redis::Value;

use crate::engine::terms::{Detail, Elevation};

/// What a list says; an error tells what it is instead.
pub(super) fn read(value: Value) -> Result<Detail, String> {
    let nonsense = |values: &[Value]| format!("the script's reply has {values:?} for a detail");
    let Value::Array(values) = value else { return Err(nonsense(&[value])) };
    match values.as_slice() {
        [Value::BulkString(name), Value::Int(triggered), Value::Int(active), Value::Int(left)]
            if name == b"elevated" =>
        {
            Ok(Detail::Elevated(Elevation {
                triggered: *triggered == 1,
                active: *active == 1,
                activations_left: u64::try_from(*left).ok(),
            }))
        }
        values => Err(nonsense(values)),
    }
}
