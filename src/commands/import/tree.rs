//! Walks through the values of a file. A key without a value counts as absent.

use super::settings::scalar;
use crate::config::foreign::{Node, Value, find};

/// The objects of a document: those of a list, or itself.
pub(super) fn items(node: &Node) -> Vec<&Node> {
    match member(node, "items").map(|items| &items.value) {
        Some(Value::List(items)) => items.iter().collect(),
        _ => vec![node],
    }
}

/// The value of a key.
pub(super) fn member<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    let Value::Map(entries) = &node.value else { return None };
    find(entries, name).map(|(_, node)| node).filter(|node| !node.is_null())
}

/// The value at a path of keys.
pub(super) fn at<'n>(node: &'n Node, path: &[&str]) -> Option<&'n Node> {
    path.iter().try_fold(node, |node, key| member(node, key))
}

/// The single value of a key.
pub(super) fn text<'n>(node: &'n Node, name: &str) -> Option<&'n str> {
    member(node, name).and_then(scalar)
}

pub(super) fn text_at<'n>(node: &'n Node, path: &[&str]) -> Option<&'n str> {
    at(node, path).and_then(scalar)
}

/// The values of a key that has a list.
pub(super) fn list<'n>(node: &'n Node, name: &str) -> &'n [Node] {
    list_at(node, &[name])
}

pub(super) fn list_at<'n>(node: &'n Node, path: &[&str]) -> &'n [Node] {
    match at(node, path).map(|node| &node.value) {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}
