//! The beginnings of keys.

use std::sync::Arc;

use super::hash_slots::NAMES;

/// The beginnings of keys, `PREFIX:{TAG}:`.
///
/// Redis Cluster keeps keys with one hash tag in one hash slot, and the keys of a script's call must be in one. Text from clients
/// never makes a tag: `Bucket::key` is percent-encoded, braces included.
#[derive(Clone, Debug)]
pub(super) struct KeyStarts(Arc<[Arc<str>]>);

impl KeyStarts {
    /// For a single server: all keys have the tag 0.
    pub(super) fn single(prefix: &str) -> Self {
        Self(Arc::new([format!("{prefix}:{{0}}:").into()]))
    }

    /// For a cluster.
    pub(super) fn spread(prefix: &str) -> Self {
        Self(NAMES.iter().map(|name| format!("{prefix}:{{{name}}}:").into()).collect())
    }

    /// The beginning of keys with this tag.
    pub(super) fn of(&self, tag: u8) -> Arc<str> {
        Arc::clone(&self.0[usize::from(tag) % self.0.len()])
    }

    /// The rules of an ACL for the user: these keys, and the commands that every limit needs.
    pub(super) fn permissions(&self) -> String {
        let commands = "+evalsha +eval +get +set +del +pttl +pexpire +persist +time +ping";
        match &*self.0 {
            [only] => format!("~{only}* {commands}"),
            starts => {
                let prefix = starts[0].split('{').next().unwrap_or_default();
                format!("~{prefix}* {commands} +asking +cluster|slots +cluster|info")
            }
        }
    }
}
