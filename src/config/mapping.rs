//! Reads maps and lists.

use super::node::{Key, Node, Value};
use super::problem::{Place, ReadResult, ReportedError, quoted};
use super::words;

/// A key of the file format that this version does not support. Ignoring it would enforce something else.
const UNSUPPORTED: &str = "when";

/// A map with known keys.
#[derive(Clone, Copy)]
pub(crate) struct Mapping<'n> {
    pub(crate) node: &'n Node,
    entries: &'n [(Key, Node)],
    what: &'n str,
    /// True if a key has a mistake, so that one that is absent may only be misspelt.
    pub(super) has_wrong_key: bool,
}

impl<'n> Mapping<'n> {
    /// Reads a map that may have the `known` keys; `what` names it in errors.
    pub(crate) fn of(node: &'n Node, what: &'n str, known: &[&str]) -> ReadResult<Self> {
        let mut mapping = Self::sparse(node, what, known)?;
        for (key, value) in mapping.entries {
            if known.contains(&key.text.as_str()) && value.is_null() {
                key.error(format!("{} has no value", quoted(&key.text)), "add one or remove the key");
                mapping.has_wrong_key = true;
            }
        }
        Ok(mapping)
    }

    /// Reads a map in another limiter's file, where keys may be without a value.
    pub(crate) fn sparse(node: &'n Node, what: &'n str, known: &[&str]) -> ReadResult<Self> {
        let known_keys = || known.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        let Value::Map(entries) = &node.value else {
            return Err(node.unexpected(what, "a map", format!("its keys are {}", known_keys())));
        };
        let mut has_wrong_key = false;
        for (key, _) in entries.iter().filter(|(key, _)| !known.contains(&key.text.as_str())) {
            report_unknown(key, what, known);
            has_wrong_key = true;
        }
        Ok(Self { node, entries, what, has_wrong_key })
    }

    /// Returns the keys that have a value.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'n Key> {
        self.entries.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key)
    }

    /// Returns the entry of a key. One without a value counts as absent: it has been reported.
    pub(crate) fn get(&self, name: &str) -> Option<&'n (Key, Node)> {
        find(self.entries, name)
    }

    /// Returns the entries of these keys.
    pub(super) fn all(&self, names: &[&str]) -> Vec<&'n (Key, Node)> {
        names.iter().filter_map(|name| self.get(name)).collect()
    }

    /// Returns the entry of the first of these keys.
    pub(super) fn first(&self, names: &[&str]) -> Option<&'n (Key, Node)> {
        names.iter().find_map(|name| self.get(name))
    }

    /// Returns the only entry of a condition, which has one of these keys.
    pub(super) fn only(&self, names: &[&str]) -> ReadResult<&'n (Key, Node)> {
        match self.all(names)[..] {
            [entry] => Ok(entry),
            ref given => {
                let message = format!("a condition needs exactly one test, found {}", given.len());
                Err(self.lacks(message, format!("use one of {}", names.join(", "))))
            }
        }
    }

    /// Returns the value of a key that the map needs.
    pub(crate) fn need(&self, name: &str, help: &str) -> ReadResult<&'n Node> {
        let value = self.get(name).map(|(_, value)| value);
        value.ok_or_else(|| self.lacks(format!("{} needs `{name}`", self.what), help))
    }

    /// Reports that the map lacks something, unless a key with a mistake may be what is missing.
    pub(super) fn lacks(&self, message: impl AsRef<str>, help: impl AsRef<str>) -> ReportedError {
        self.lacks_at(self.node.place, message, help)
    }

    /// Does the same at another place.
    pub(super) fn lacks_at(&self, place: Place, message: impl AsRef<str>, help: impl AsRef<str>) -> ReportedError {
        if self.has_wrong_key { ReportedError } else { self.node.findings.error(place, message, help) }
    }

    /// Reads the value of a key, if it is present.
    pub(crate) fn read<T>(&self, name: &str, read: impl FnOnce(&'n Node) -> ReadResult<T>) -> ReadResult<Option<T>> {
        self.get(name).map(|(_, node)| read(node)).transpose()
    }

    /// Reads the value of a key into `target`, which does not change if the key is absent or wrong.
    pub(super) fn set<T>(&self, name: &str, target: &mut T, read: impl FnOnce(&'n Node) -> ReadResult<T>) {
        if let Ok(Some(value)) = self.read(name, read) {
            *target = value;
        }
    }

    /// Returns a key's value, or the map if it is absent.
    pub(super) fn value(&self, name: &str) -> &'n Node {
        self.get(name).map_or(self.node, |(_, node)| node)
    }

    /// Reports the first of these keys that is present: the algorithm does not support it.
    pub(super) fn reject(&self, names: &[&str], algorithm: &str, help: &str) -> ReadResult<()> {
        let Some((key, _)) = self.first(names) else { return Ok(()) };
        Err(key.error(format!("`{}` does not apply to `algorithm: {algorithm}`", key.text), help))
    }
}

fn report_unknown(key: &Key, what: &str, known: &[&str]) {
    let shown = quoted(&key.text);
    if key.text == UNSUPPORTED {
        let message = format!("{shown} is not supported by this version of Weir");
        key.error(message, "remove it; it would not be enforced");
    } else if key.findings.is_full() {
        key.error("", "");
    } else {
        key.error(format!("unknown key {shown} in {what}"), words::help(&key.text, known));
    }
}

/// Returns the entry of a key that has a value.
pub(crate) fn find<'n>(entries: &'n [(Key, Node)], name: &str) -> Option<&'n (Key, Node)> {
    entries.iter().find(|(key, value)| key.text == name && !value.is_null())
}

/// Collects values after all of them were read, so that every mistake is reported.
pub(crate) fn all<T>(read: impl Iterator<Item = ReadResult<T>>) -> ReadResult<Vec<T>> {
    let read: Vec<_> = read.collect();
    read.into_iter().collect()
}

impl Node {
    fn unexpected(&self, what: &str, expected: &str, help: impl AsRef<str>) -> ReportedError {
        self.error(format!("{what} must be {expected}, found {}", self.kind()), help)
    }

    pub(crate) fn map(&self, what: &str, help: &str) -> ReadResult<&[(Key, Node)]> {
        if let Value::Map(entries) = &self.value { Ok(entries) } else { Err(self.unexpected(what, "a map", help)) }
    }

    pub(crate) fn list(&self, what: &str, help: &str) -> ReadResult<&[Node]> {
        if let Value::List(items) = &self.value { Ok(items) } else { Err(self.unexpected(what, "a list", help)) }
    }

    /// Checks how many items a map or a list has; `items` is the word for them.
    pub(super) fn check_count(&self, what: &str, count: usize, items: &str, most: usize) -> ReadResult<()> {
        if (1..=most).contains(&count) {
            return Ok(());
        }
        Err(self.error(format!("{what} has {count} {items}"), format!("use 1 to {most}")))
    }

    /// Returns a single value or the items of a list, which must not be empty.
    pub(super) fn one_or_more(&self) -> ReadResult<&[Self]> {
        match &self.value {
            Value::List(items) if items.is_empty() => {
                Err(self.error("the list is empty", "add a value or remove the key"))
            }
            Value::List(items) => Ok(items),
            _ => Ok(std::slice::from_ref(self)),
        }
    }

    /// Reads a single value, or each item of a list.
    pub(super) fn each<T>(&self, read: impl FnMut(&Self) -> ReadResult<T>) -> ReadResult<Vec<T>> {
        all(self.one_or_more()?.iter().map(read))
    }
}
