//! Reads `metadata`: arbitrary data with the types of the YAML 1.2 core schema.

use super::super::node::{Node, Value};
use super::super::problem::ReadResult;
use crate::engine::limit::descriptors::Metadata;

pub(super) fn read(node: &Node) -> ReadResult<Metadata> {
    node.map("`metadata`", "write `metadata: { key: value }`")?;
    Ok(value(node))
}

fn value(node: &Node) -> Metadata {
    match &node.value {
        Value::Map(entries) => {
            Metadata::Map(entries.iter().map(|(key, node)| (key.text.clone(), value(node))).collect())
        }
        Value::List(items) => Metadata::List(items.iter().map(value).collect()),
        Value::Scalar { .. } if node.is_null() => Metadata::Null,
        Value::Scalar { text, plain: true } => match text.as_str() {
            "true" | "True" | "TRUE" => Metadata::Bool(true),
            "false" | "False" | "FALSE" => Metadata::Bool(false),
            // Rust also reads `inf`, `nan` and a sign alone as numbers, which YAML does not.
            number if number.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) => {
                match number.parse::<f64>() {
                    Ok(parsed) if parsed.is_finite() => Metadata::Number(parsed),
                    _ => Metadata::Text(text.clone()),
                }
            }
            _ => Metadata::Text(text.clone()),
        },
        Value::Scalar { text, .. } => Metadata::Text(text.clone()),
    }
}
