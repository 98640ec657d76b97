//! Reads the headers of a request that a body describes: names with one value or a list of values.

use serde_json::Value;

use super::{Object, path_of};
use crate::engine::text::quote::quoted;
use crate::message::headers::{Headers, is_name, is_value};

pub(crate) fn headers(object: &Object<'_>) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in object.members {
        let path = path_of(name);
        if !is_name(name.as_bytes()) || name.len() > usize::from(u16::MAX) {
            object.wrong(&path, &format!("invalid header name {}", quoted(name)));
            continue;
        }
        for value in if let Value::Array(values) = value { values.as_slice() } else { std::slice::from_ref(value) } {
            match value {
                Value::String(text) if is_value(text.trim().as_bytes()) => headers.append(name, text.trim()),
                Value::String(_) => object.wrong(&path, "a header value must not contain control characters"),
                other => object.expected(&path, "text or a list of texts", other),
            }
        }
    }
    headers
}
