//! What algorithms say beside the four integers of a charge: a list that begins with its name.

use redis::Value;

use crate::engine::algorithms::details::{Detail, Elevation};
use crate::engine::algorithms::queue::EntryId;
use crate::engine::algorithms::script::{Said, SaidValue};

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
        [Value::BulkString(name), Value::BulkString(id)] if name == b"entry" => {
            let id = str::from_utf8(id).ok().and_then(EntryId::parse).ok_or_else(|| nonsense(&values))?;
            Ok(Detail::Entry(id))
        }
        [Value::BulkString(name), Value::Array(said), Value::Array(extras)] if name == b"script" => {
            let said = said.iter().map(said_value).collect::<Option<_>>().ok_or_else(|| nonsense(&values))?;
            let extras = extras.iter().map(text).collect::<Option<_>>().ok_or_else(|| nonsense(&values))?;
            Ok(Detail::Script(Said { values: said, extras }))
        }
        values => Err(nonsense(values)),
    }
}

/// What a script says for a header.
fn said_value(value: &Value) -> Option<SaidValue> {
    match value {
        Value::Array(pair) => match pair.as_slice() {
            [name, value] => Some(SaidValue { name: Some(text(name)?), text: text(value)? }),
            _ => None,
        },
        value => Some(SaidValue { name: None, text: text(value)? }),
    }
}

/// A text of a script; bytes that are none become U+FFFD.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}
