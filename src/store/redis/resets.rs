//! The resets of limits that all gateways at a server share.

use super::RedisStore;
use super::notes::{Note, SharedNotes, StoredNotes};
use super::overrides::NEVER;
use crate::clock::Clock;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::resets::{LimitReset, MOST_RESETS};
use crate::store::StoreError;

/// The resets on a server, in the manner of [`super::SharedOverrides`].
#[derive(Clone, Copy)]
pub struct SharedResets<'a>(SharedNotes<'a>);

impl RedisStore {
    pub fn resets(&self) -> SharedResets<'_> {
        SharedResets(SharedNotes { store: self, keys: ["!resets", "!resets-notes"] })
    }
}

impl SharedResets<'_> {
    /// Adds a reset in place of the limit's last one. The new version is greater than `known`. Returns false if [`MOST_RESETS`]
    /// other limits were reset.
    pub async fn put(self, reset: &LimitReset, known: u64, now: Micros) -> Result<bool, StoreError> {
        self.0.put(&note(reset), MOST_RESETS, known, now).await
    }

    /// Writes all resets back. Returns false if the server has this version or a later one.
    pub async fn restore(self, version: u64, list: &[LimitReset], now: Micros) -> Result<bool, StoreError> {
        self.0.restore(version, &list.iter().map(note).collect::<Vec<_>>(), now).await
    }

    /// Reads the version and all resets; `None` if the version is still `known`.
    pub async fn read(self, known: Option<u64>, clock: &Clock) -> Result<Option<StoredNotes<LimitReset>>, StoreError> {
        let read = self.0.read(known, clock).await?;
        let reset = |note: &Note| LimitReset::from_note(note.key.clone(), &serde_json::from_slice(&note.text).ok()?);
        Ok(read.map(|notes| StoredNotes::of(notes, MOST_RESETS, reset)))
    }
}

fn note(reset: &LimitReset) -> Note {
    Note { key: reset.short.clone(), until: NEVER, text: reset.note().to_string().into_bytes() }
}
