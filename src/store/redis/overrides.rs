//! The live overrides that all gateways at a server share.

use super::RedisStore;
use super::notes::{Note, SharedNotes, StoredNotes};
use crate::clock::Clock;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::live::{LiveOverride, MOST_LIVE_OVERRIDES};
use crate::store::StoreError;

/// The end of a note that never expires: the year 2255. The script's arithmetic is exact up to there.
pub(super) const NEVER: Micros = Micros(9_000_000_000_000_000);

/// The live overrides on a server, in the manner of [`super::SharedBlocks`]. Their `until` is the operator's, whatever the
/// server's clock.
#[derive(Clone, Copy)]
pub struct SharedOverrides<'a>(SharedNotes<'a>);

impl RedisStore {
    pub fn overrides(&self) -> SharedOverrides<'_> {
        SharedOverrides(SharedNotes { store: self, keys: ["!overrides", "!overrides-notes"] })
    }
}

impl SharedOverrides<'_> {
    /// Adds an override, or replaces that of the same id. The new version is greater than `known`. Returns false if
    /// [`MOST_LIVE_OVERRIDES`] others exist.
    pub async fn set(self, given: &LiveOverride, known: u64, now: Micros) -> Result<bool, StoreError> {
        self.0.put(&note(given), MOST_LIVE_OVERRIDES, known, now).await
    }

    /// Removes the override of this id. The new version is greater than `known`. Returns false if it does not exist.
    pub async fn delete(self, bucket: &str, known: u64) -> Result<bool, StoreError> {
        self.0.remove(bucket, known).await
    }

    /// Writes all overrides back. Returns false if the server has this version or a later one.
    pub async fn restore(self, version: u64, list: &[LiveOverride], now: Micros) -> Result<bool, StoreError> {
        self.0.restore(version, &list.iter().map(note).collect::<Vec<_>>(), now).await
    }

    /// Reads the version and all overrides in the order of their ends; `None` if the version is still `known`.
    pub async fn read(
        self,
        known: Option<u64>,
        clock: &Clock,
    ) -> Result<Option<StoredNotes<LiveOverride>>, StoreError> {
        let read = self.0.read(known, clock).await?;
        let given =
            |note: &Note| serde_json::from_slice(&note.text).ok().and_then(|note| LiveOverride::from_note(&note));
        Ok(read.map(|notes| StoredNotes::of(notes, MOST_LIVE_OVERRIDES, given)))
    }
}

fn note(given: &LiveOverride) -> Note {
    let until = given.until.map_or(NEVER, |until| until.min(NEVER));
    Note { key: given.bucket.clone(), until, text: given.note().to_string().into_bytes() }
}
