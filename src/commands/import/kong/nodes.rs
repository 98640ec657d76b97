//! The nodes of declarative configuration: shared configuration of plugins, and lists of objects.

use super::super::document::{Document, Origin};
use super::super::settings::scalar;
use super::super::text::piece;
use super::super::tree::{list, member};
use crate::config::foreign::{Key, Node, Value, find};

/// Completes plugins with the configuration that their `_config` names, as decK does.
pub(super) fn complete(node: &mut Node, configs: &[(Key, Node)]) {
    let entries = match &mut node.value {
        Value::List(items) => return items.iter_mut().for_each(|item| complete(item, configs)),
        Value::Map(entries) => entries,
        Value::Scalar { .. } => return,
    };
    let named = find(entries, "_config").and_then(|(key, name)| Some((key.clone(), find(configs, scalar(name)?)?)));
    if let Some((mut key, (_, shared))) = named {
        match entries.iter_mut().find(|(key, _)| key.text == "config").map(|(_, config)| &mut config.value) {
            Some(Value::Map(own)) => {
                let Value::Map(shared) = &shared.value else { return };
                let more: Vec<_> = shared.iter().filter(|(key, _)| find(own, &key.text).is_none()).cloned().collect();
                own.extend(more);
            }
            Some(_) => {}
            None => {
                "config".clone_into(&mut key.text);
                entries.push((key, shared.clone()));
            }
        }
    }
    for (_, node) in entries {
        complete(node, configs);
    }
}

/// The maps of a list. A comment names anything else.
pub(super) fn objects<'n>(file: &str, node: &'n Node, name: &str, document: &mut Document) -> Vec<&'n Node> {
    let items = match member(node, name) {
        None => return Vec::new(),
        Some(Node { value: Value::List(items), .. }) => items.iter().collect(),
        Some(other) => vec![other],
    };
    let is_in_list = !list(node, name).is_empty();
    let is_object = |node: &&Node| is_in_list && matches!(node.value, Value::Map(_));
    let (objects, odd): (Vec<_>, Vec<_>) = items.into_iter().partition(is_object);
    for node in odd.into_iter().filter(|node| !matches!(&node.value, Value::List(items) if items.is_empty())) {
        document.unused(
            Origin::of(file, node.place).note(format!("{} is left out: Kong reads a list of maps.", piece(name))),
        );
    }
    objects
}
