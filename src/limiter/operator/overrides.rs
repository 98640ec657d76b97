//! Sets live overrides, and keeps this process's in step with those that gateways at one store share.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::blocks::{FIRST_INTERVAL, INTERVAL, KnownVersion};
use super::{Operator, OperatorError};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::live::{LiveOverride, MOST_LIVE_OVERRIDES, OverrideText, PlacedOverride};
use crate::limiter::KnownOverride;
use crate::message::unique_json;
use crate::store::StoreError;
use crate::telemetry::metrics::SharedNote;

/// A live override as an operator asks for it.
#[derive(Clone, Debug)]
pub struct NewOverride {
    /// A JSON object with the keys of an override in a file, except `comment`.
    pub numbers: String,
    /// The time from now on until it expires, if `numbers` has no `until`.
    pub span: Option<Micros>,
    pub comment: Option<String>,
    /// The operator.
    pub by: String,
}

/// The place that keeps live overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// In Redis, for all gateways.
    Redis,
    /// In a file, for this process and the next one.
    File,
    /// In this process's memory.
    Process,
}

impl Operator {
    /// Sets the live override of an id, or of all ids that begin with it. Replaces an earlier one. Returns it, and what is
    /// probably not intended about it.
    pub async fn set_override(
        &self,
        bucket: &str,
        new: NewOverride,
    ) -> Result<(KnownOverride, Vec<String>), OperatorError> {
        let now = self.clock.now();
        let placed = self.read_override(OverrideText { bucket, numbers: &new.numbers }, now)?;
        if let Some(reason) = placed.never_applies {
            return Err(OperatorError::Invalid(reason));
        }
        let (allowance, until) = (placed.given.allowance, placed.given.until);
        let until = until.or(new.span.map(|span| Micros(now.0.saturating_add(span.0))));
        let mut numbers: Value = serde_json::from_str(&new.numbers).unwrap_or_default();
        numbers.as_object_mut().map(|numbers| numbers.remove("until"));
        let NewOverride { comment, by, .. } = new;
        let given = LiveOverride { bucket: placed.bucket, numbers: numbers.to_string(), until, comment, by, at: now };
        let mut known = self.known_overrides.lock().await;
        self.catch_up_on_overrides(&mut known).await?;
        let mut list = self.other_overrides(&given.bucket, now);
        let is_added = match self.limiter.store.shared_overrides() {
            Some(shared) => shared.set(&given, known.version.unwrap_or(0), now).await?,
            None => list.len() < MOST_LIVE_OVERRIDES,
        };
        if !is_added {
            let reason = format!("there are {MOST_LIVE_OVERRIDES} live overrides, which is the maximum");
            return Err(OperatorError::Unsupported(reason));
        }
        list.push(given.clone());
        self.keep_overrides(&list).await?;
        // It holds here at once, even if the store cannot be asked again.
        self.limiter.shared.apply_overrides(list, now);
        let _ = self.catch_up_on_overrides(&mut known).await;
        drop(known);
        let set = self.find_override(&given.bucket).unwrap_or(KnownOverride { given, allowance: Ok(allowance) });
        Ok((set, placed.warnings))
    }

    /// Deletes the live override of exactly this id or beginning. Returns it.
    pub async fn delete_override(&self, bucket: &str) -> Result<KnownOverride, OperatorError> {
        let now = self.clock.now();
        let mut known = self.known_overrides.lock().await;
        self.catch_up_on_overrides(&mut known).await?;
        let found = self.live_override(bucket)?;
        let bucket = &found.given.bucket;
        if let Some(shared) = self.limiter.store.shared_overrides() {
            shared.delete(bucket, known.version.unwrap_or(0)).await?;
        }
        let list = self.other_overrides(bucket, now);
        self.keep_overrides(&list).await?;
        self.limiter.shared.apply_overrides(list, now);
        let _ = self.catch_up_on_overrides(&mut known).await;
        Ok(found)
    }

    /// The live override of exactly this id or beginning.
    pub fn live_override(&self, bucket: &str) -> Result<KnownOverride, OperatorError> {
        if let Some(found) = self.find_override(bucket) {
            return Ok(found);
        }
        // Written in another form than the canonical one.
        let text = OverrideText { bucket, numbers: r#"{"unlimited":true}"# };
        let bucket = self.read_override(text, self.clock.now())?.bucket;
        let nothing = || OperatorError::Unknown(format!("{bucket} has no live override"));
        self.find_override(&bucket).ok_or_else(nothing)
    }

    /// The live overrides that have not expired, in the order of their names.
    pub fn live_overrides(&self) -> Vec<KnownOverride> {
        let now = self.clock.now();
        let mut list = self.limiter.shared.overrides();
        list.retain(|known| known.given.is_in_force(now));
        list.sort_by(|a, b| a.given.bucket.cmp(&b.given.bucket));
        list
    }

    pub fn overrides_are_kept(&self) -> Kept {
        if self.limiter.store.is_remote() {
            Kept::Redis
        } else if self.limiter.shared.overrides_file().is_some() {
            Kept::File
        } else {
            Kept::Process
        }
    }

    fn find_override(&self, bucket: &str) -> Option<KnownOverride> {
        let now = self.clock.now();
        let mut list = self.limiter.shared.overrides().into_iter();
        list.find(|known| known.given.bucket == bucket && known.given.is_in_force(now))
    }

    fn read_override(&self, text: OverrideText<'_>, now: Micros) -> Result<PlacedOverride, OperatorError> {
        self.limiter.shared.read_override(text, now).map_err(|reason| {
            let name = text.bucket.split_once(':').map_or(text.bucket, |(name, _)| name);
            let is_known = self.limiter.view().rules().limits().iter().any(|limit| limit.name == name);
            if is_known { OperatorError::Invalid(reason) } else { OperatorError::Unknown(reason) }
        })
    }

    /// The live overrides in force, without that of this bucket.
    fn other_overrides(&self, bucket: &str, now: Micros) -> Vec<LiveOverride> {
        let list = self.limiter.shared.overrides().into_iter().map(|known| known.given);
        list.filter(|given| given.bucket != bucket && given.is_in_force(now)).collect()
    }

    /// Learns other gateways' live overrides and drops those that have expired. Returns how long to wait until the next call.
    pub(super) async fn keep_up_with_overrides(&self) -> Duration {
        let mut known = self.known_overrides.lock().await;
        let read = self.catch_up_on_overrides(&mut known).await;
        self.drop_expired();
        match read {
            Ok(()) => {
                known.is_logged = false;
                let now = i64::try_from(self.clock.now().0 / 1_000_000).unwrap_or(i64::MAX);
                self.limiter.shared.metrics.listeners.live_overrides_synced.set(now);
            }
            // The connection's own task logs that it is lost.
            Err(StoreError::Down) if known.version.is_none() => return FIRST_INTERVAL,
            Err(StoreError::Down) => {}
            Err(error) => {
                if !std::mem::replace(&mut known.is_logged, true) {
                    tracing::warn!(
                        "cannot read the live overrides from the store: {error}; the known ones stay in force"
                    );
                }
            }
        }
        INTERVAL
    }

    fn drop_expired(&self) {
        let now = self.clock.now();
        let all: Vec<_> = self.limiter.shared.overrides().into_iter().map(|known| known.given).collect();
        let last_end = all.iter().filter(|given| !given.is_in_force(now)).filter_map(|given| given.until).max();
        if let Some(last_end) = last_end {
            let list = all.into_iter().filter(|given| given.is_in_force(now)).collect();
            self.limiter.shared.apply_overrides(list, last_end);
        }
    }

    /// Applies the store's live overrides, if gateways share them and their version has changed. A store with an older version
    /// has lost them, for example by a restart without persistence; then they are written back.
    async fn catch_up_on_overrides(&self, known: &mut KnownVersion) -> Result<(), StoreError> {
        let Some(shared) = self.limiter.store.shared_overrides() else { return Ok(()) };
        let Some(mut stored) = shared.read(known.version, &self.clock).await? else { return Ok(()) };
        let now = self.clock.now();
        if let Some(version) = known.version.filter(|known| *known > stored.version) {
            let ours = self.other_overrides("", now);
            if !ours.is_empty() {
                if shared.restore(version, &ours, now).await? {
                    tracing::warn!(overrides = ours.len(), "the store lost its live overrides; they were written back");
                    return Ok(());
                }
                // Another gateway was faster.
                stored = shared.read(None, &self.clock).await?.unwrap_or(stored);
            }
        }
        self.tell_unread(SharedNote::Override, &stored.unread);
        let (version, mut list) = (stored.version, stored.list);
        list.retain(|given| given.is_in_force(now));
        list.sort_by(|a, b| a.bucket.cmp(&b.bucket));
        let mut ours = self.other_overrides("", now);
        ours.sort_by(|a, b| a.bucket.cmp(&b.bucket));
        if ours != list {
            self.limiter.shared.apply_overrides(list, now);
        }
        known.version = Some(version);
        Ok(())
    }

    /// Writes live overrides to the file that keeps them, if there is one.
    async fn keep_overrides(&self, list: &[LiveOverride]) -> Result<(), OperatorError> {
        let Some(path) = self.limiter.shared.overrides_file() else { return Ok(()) };
        let text = json!({ "overrides": list.iter().map(LiveOverride::note).collect::<Vec<_>>() }).to_string() + "\n";
        let name = path.display().to_string();
        let written = tokio::task::spawn_blocking(move || write_whole(&path, &text)).await;
        let written = written.unwrap_or_else(|error| Err(io::Error::other(error)));
        written.map_err(|error| OperatorError::File(format!("cannot write the live overrides to {name}: {error}")))
    }
}

/// Replaces a file as a whole: after a crash it is the old one or the new one.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder)?.sync_all()
}

/// Reads the file that keeps live overrides; none if it does not exist yet. The error names the file and what is wrong.
pub fn kept_overrides(path: &Path) -> Result<Vec<LiveOverride>, String> {
    let wrong = |reason: String| format!("{}: {reason}", path.display());
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let file = unique_json::parse(&text).map_err(|error| wrong(format!("invalid JSON: {error}")))?;
    let Some(list) = file["overrides"].as_array() else {
        return Err(wrong("expected what `weir override` has written, an object with `overrides`".to_owned()));
    };
    if list.len() > MOST_LIVE_OVERRIDES {
        return Err(wrong(format!("it has {} overrides; there may be {MOST_LIVE_OVERRIDES}", list.len())));
    }
    let read = |(place, note)| {
        let invalid = || wrong(format!("`/overrides/{place}` is not a live override"));
        LiveOverride::from_note(note).ok_or_else(invalid)
    };
    list.iter().enumerate().map(read).collect()
}
