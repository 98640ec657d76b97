//! The settings of a map about limits: each is used, or told of.

use std::cell::RefCell;

use super::document::{Document, Origin};
use super::text::piece;
use crate::config::foreign::{Key, Node, Value, find};

/// The result for a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SettingState {
    #[default]
    Unread,
    Used,
    /// A comment explains it.
    Told,
}

pub(super) struct Settings<'n> {
    file: String,
    entries: &'n [(Key, Node)],
    used: RefCell<Vec<&'static str>>,
    /// Returns whether a key with this value is about limits.
    is_about: fn(&str, &str) -> bool,
}

impl<'n> Settings<'n> {
    /// The settings of a map; of another value, none.
    pub(super) fn of(file: &str, node: &'n Node) -> Self {
        let entries = if let Value::Map(entries) = &node.value { entries.as_slice() } else { &[] };
        Self { file: file.to_owned(), entries, used: RefCell::default(), is_about: |_, _| true }
    }

    /// Those of a map that has others, too.
    pub(super) fn about(file: &str, node: &'n Node, is_about: fn(&str, &str) -> bool) -> Self {
        Self { is_about, ..Self::of(file, node) }
    }

    /// The settings about limits that have a value.
    fn own(&self) -> impl Iterator<Item = &'n (Key, Node)> + use<'n> {
        let is_about = self.is_about;
        let has_value =
            move |(key, node): &&(Key, Node)| !node.is_null() && is_about(&key.text, scalar(node).unwrap_or_default());
        self.entries.iter().filter(has_value)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.own().map(|(key, _)| key.text.clone())
    }

    /// Takes back that a setting is used.
    pub(super) fn forget(&self, name: &str) {
        self.used.borrow_mut().retain(|used| *used != name);
    }

    /// A setting that has a value. It counts as used.
    pub(super) fn get(&self, name: &'static str) -> Option<&'n Node> {
        let (_, node) = find(self.entries, name).filter(|(_, node)| !node.is_null())?;
        self.used.borrow_mut().push(name);
        Some(node)
    }

    /// The text of a setting with a single value.
    pub(super) fn text(&self, name: &'static str) -> Option<&'n str> {
        self.get(name).and_then(scalar)
    }

    pub(super) fn number(&self, name: &'static str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    pub(super) fn truth(&self, name: &'static str) -> bool {
        self.text(name) == Some("true")
    }

    /// Counts all settings, and tells of those that were not used, with what is `near` them. Settings of a limit that is left out
    /// are not used either; the limit tells of them.
    pub(super) fn finish(self, is_written: bool, near: &[(&str, &str)], document: &mut Document) {
        let used = self.used.borrow();
        let (mut read, mut of_them) = (0, 0);
        for (key, node) in self.own() {
            read += 1;
            if used.contains(&key.text.as_str()) {
                of_them += usize::from(is_written);
                continue;
            }
            let near = near
                .iter()
                .find(|(name, _)| *name == key.text || key.text.rsplit('/').next() == Some(name))
                .map_or("it has no equivalent.", |(_, near)| *near);
            let first_line = scalar(node).and_then(|value| value.lines().next());
            let value = first_line.map(|value| format!(": {value}")).unwrap_or_default();
            document.unused(
                Origin::of(&self.file, key.place).note(format!("{}: {near}", piece(&format!("{}{value}", key.text)))),
            );
        }
        document.count_settings(read, of_them);
    }
}

/// The text of a single value.
pub(super) fn scalar(node: &Node) -> Option<&str> {
    if let Value::Scalar { text, .. } = &node.value { Some(text) } else { None }
}
