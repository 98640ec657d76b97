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

#[allow(dead_code)]
pub(super) struct Settings<'n> {
    file: String,
    entries: &'n [(Key, Node)],
    used: RefCell<Vec<&'static str>>,
}

#[allow(dead_code)]
impl<'n> Settings<'n> {
    /// The settings of a map; of another value, none.
    pub(super) fn of(file: &str, node: &'n Node) -> Self {
        let entries = if let Value::Map(entries) = &node.value { entries.as_slice() } else { &[] };
        Self { file: file.to_owned(), entries, used: RefCell::default() }
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
        let used = self.used.into_inner();
        let (mut read, mut of_them) = (0, 0);
        for (key, node) in self.entries.iter().filter(|(_, node)| !node.is_null()) {
            read += 1;
            if used.contains(&key.text.as_str()) {
                of_them += usize::from(is_written);
                continue;
            }
            let near =
                near.iter().find(|(name, _)| *name == key.text).map_or("it has no equivalent.", |(_, near)| *near);
            let value = scalar(node).map(|value| format!(": {value}")).unwrap_or_default();
            document.unused(
                Origin::of(&self.file, key.place).note(format!("{}: {near}", piece(&format!("{}{value}", key.text)))),
            );
        }
        document.count_settings(read, of_them);
    }
}

/// The text of a single value.
#[allow(dead_code)]
pub(super) fn scalar(node: &Node) -> Option<&str> {
    if let Value::Scalar { text, .. } = &node.value { Some(text) } else { None }
}
