//! Reads maps and lists.

use super::problem::{Findings, Place, Reported, quoted};
use super::suggest::did_you_mean;
use super::yaml::{Key, Node, Value};

/// A key of the file format that this version does not support. Ignoring it would enforce something else.
const UNSUPPORTED: &str = "when";

/// A map whose keys are known.
#[derive(Clone, Copy)]
pub(crate) struct Mapping<'n> {
    entries: &'n [(Key, Node)],
    pub(crate) place: Place,
}

impl<'n> Mapping<'n> {
    /// Reads a map that may have the `known` keys; `what` names it in errors.
    pub(crate) fn of(node: &'n Node, what: &str, known: &[&str], findings: &mut Findings) -> Result<Self, Reported> {
        let mapping = Self::sparse(node, what, known, findings)?;
        for (key, value) in mapping.entries {
            if known.contains(&key.text.as_str()) && value.is_null() {
                findings.error(key.place, format!("{} has no value", quoted(&key.text)), "add one or remove the key");
            }
        }
        Ok(mapping)
    }

    /// Reads a map in another limiter's file, where keys may be without a value.
    pub(crate) fn sparse(
        node: &'n Node,
        what: &str,
        known: &[&str],
        findings: &mut Findings,
    ) -> Result<Self, Reported> {
        let Value::Map(entries) = &node.value else {
            let known: Vec<String> = known.iter().map(|word| format!("`{word}`")).collect();
            let message = format!("{what} must be a map, found {}", node.kind());
            return Err(findings.error(node.place, message, format!("its keys are {}", known.join(", "))));
        };
        for (key, _) in entries.iter().filter(|(key, _)| !known.contains(&key.text.as_str())) {
            unknown(key, what, known, findings);
        }
        Ok(Self { entries, place: node.place })
    }

    /// Returns the entry of a key. One without a value counts as absent: it has been reported.
    pub(crate) fn get(&self, name: &str) -> Option<&'n (Key, Node)> {
        find(self.entries, name)
    }

    /// Returns the first of these keys that is present.
    pub(super) fn first(&self, names: &[&str]) -> Option<&'n (Key, Node)> {
        names.iter().find_map(|name| self.get(name))
    }

    /// Reads the value of a key, if it is present.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        findings: &mut Findings,
        read: impl FnOnce(&'n Node, &mut Findings) -> Result<T, Reported>,
    ) -> Result<Option<T>, Reported> {
        self.get(name).map(|(_, node)| read(node, findings)).transpose()
    }

    /// Reads the value of a key into `target`, which stays as it is if the key is absent or wrong.
    pub(super) fn set<T>(
        &self,
        name: &str,
        target: &mut T,
        findings: &mut Findings,
        read: impl FnOnce(&'n Node, &mut Findings) -> Result<T, Reported>,
    ) {
        if let Ok(Some(value)) = self.read(name, findings, read) {
            *target = value;
        }
    }

    /// The place of a key's value, or of the map.
    pub(super) fn value_place(&self, name: &str) -> Place {
        self.get(name).map_or(self.place, |(_, node)| node.place)
    }

    /// Reports the first of these keys that is present: the algorithm does not support it.
    pub(super) fn reject(
        &self,
        names: &[&str],
        algorithm: &str,
        help: &str,
        findings: &mut Findings,
    ) -> Result<(), Reported> {
        let Some((key, _)) = self.first(names) else { return Ok(()) };
        let message = format!("`{}` does not apply to `algorithm: {algorithm}`", key.text);
        Err(findings.error(key.place, message, help))
    }
}

fn unknown(key: &Key, what: &str, known: &[&str], findings: &mut Findings) {
    let shown = quoted(&key.text);
    if key.text == UNSUPPORTED {
        let message = format!("{shown} is not supported by this version of Weir");
        findings.error(key.place, message, "remove it; it would not be enforced");
    } else if findings.is_full() {
        findings.error(key.place, "", "");
    } else {
        let help = did_you_mean(&key.text, known.iter().copied());
        findings.error(key.place, format!("unknown key {shown} in {what}"), help);
    }
}

/// Returns the entry of a key that has a value.
pub(crate) fn find<'n>(entries: &'n [(Key, Node)], name: &str) -> Option<&'n (Key, Node)> {
    entries.iter().find(|(key, value)| key.text == name && !value.is_null())
}

/// Returns the entries of a map.
pub(crate) fn map<'n>(
    node: &'n Node,
    what: &str,
    help: &str,
    findings: &mut Findings,
) -> Result<&'n [(Key, Node)], Reported> {
    match &node.value {
        Value::Map(entries) => Ok(entries),
        _ => Err(findings.error(node.place, format!("{what} must be a map, found {}", node.kind()), help)),
    }
}

/// Returns the items of a list.
pub(crate) fn list<'n>(
    node: &'n Node,
    what: &str,
    help: &str,
    findings: &mut Findings,
) -> Result<&'n [Node], Reported> {
    match &node.value {
        Value::List(items) => Ok(items),
        _ => Err(findings.error(node.place, format!("{what} must be a list, found {}", node.kind()), help)),
    }
}

/// Returns a single value or the items of a list, which must not be empty.
pub(super) fn one_or_more<'n>(node: &'n Node, findings: &mut Findings) -> Result<&'n [Node], Reported> {
    match &node.value {
        Value::List(items) if items.is_empty() => {
            Err(findings.error(node.place, "the list is empty", "add a value or remove the key"))
        }
        Value::List(items) => Ok(items),
        _ => Ok(std::slice::from_ref(node)),
    }
}

/// Collects values after all of them were read, so that every mistake is reported.
pub(crate) fn all<T>(read: impl Iterator<Item = Result<T, Reported>>) -> Result<Vec<T>, Reported> {
    let read: Vec<_> = read.collect();
    read.into_iter().collect()
}
