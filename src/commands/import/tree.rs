//! Walks through the values of a file.

use super::settings::scalar;
use crate::config::foreign::{Node, Value, find};

/// The objects of a document: those of a list, or itself.
pub(super) fn items(node: &Node) -> Vec<&Node> {
    match at(node, &["items"]).map(|items| &items.value) {
        Some(Value::List(items)) => items.iter().collect(),
        _ => vec![node],
    }
}

/// The value at a path of keys.
pub(super) fn at<'n>(node: &'n Node, path: &[&str]) -> Option<&'n Node> {
    path.iter().try_fold(node, |node, key| match &node.value {
        Value::Map(entries) => find(entries, key).map(|(_, node)| node),
        _ => None,
    })
}

pub(super) fn text<'n>(node: &'n Node, path: &[&str]) -> Option<&'n str> {
    at(node, path).and_then(scalar)
}

pub(super) fn list<'n>(node: &'n Node, path: &[&str]) -> &'n [Node] {
    match at(node, path).map(|node| &node.value) {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}
