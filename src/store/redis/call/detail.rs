//! The details of a decision, beside its four integers: a list that begins with the algorithm's word for them.

use redis::Value;

use crate::engine::algorithms::decision::{Detail, Elevation};
use crate::engine::algorithms::lease::LeaseGrant;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::queue::EntryId;
use crate::engine::algorithms::script::{ScriptOutput, ScriptValue};

/// Reads a list of details.
pub(super) fn read(value: Value) -> Result<Detail, String> {
    let unexpected = |values: &[Value]| format!("the script's reply has unexpected details {values:?}");
    let Value::Array(values) = value else { return Err(unexpected(&[value])) };
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
        [Value::BulkString(name), Value::Int(tokens), Value::Int(span), Value::Int(until)] if name == b"lease" => {
            let [tokens, span, until] = [tokens, span, until].map(|number| u64::try_from(*number).unwrap_or_default());
            Ok(Detail::Leased(LeaseGrant { tokens, span: Micros(span), until: Micros(until) }))
        }
        [Value::BulkString(name), Value::Int(number)] if name == b"taken" || name == b"counted" => {
            let number = Micros(u64::try_from(*number).map_err(|_| unexpected(&values))?);
            Ok(if name == b"taken" { Detail::Taken(number) } else { Detail::Counted(number) })
        }
        [Value::BulkString(name), Value::BulkString(id)] if name == b"entry" => {
            let id = str::from_utf8(id).ok().and_then(EntryId::parse).ok_or_else(|| unexpected(&values))?;
            Ok(Detail::Entry(id))
        }
        [Value::BulkString(name), Value::Array(said), Value::Array(extras)] if name == b"script" => {
            let said = said.iter().map(said_value).collect::<Option<_>>().ok_or_else(|| unexpected(&values))?;
            let extras = extras.iter().map(text).collect::<Option<_>>().ok_or_else(|| unexpected(&values))?;
            Ok(Detail::Script(ScriptOutput { values: said, extras }))
        }
        values => Err(unexpected(values)),
    }
}

/// Reads a header value of a user script.
fn said_value(value: &Value) -> Option<ScriptValue> {
    match value {
        Value::Array(pair) => match pair.as_slice() {
            [name, value] => Some(ScriptValue { name: Some(text(name)?), text: text(value)? }),
            _ => None,
        },
        value => Some(ScriptValue { name: None, text: text(value)? }),
    }
}

/// Reads a text of a user script; invalid UTF-8 becomes U+FFFD.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}
