//! Sets live overrides.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::noticeboard::{MOST_NOTICES, Notice};
use super::{Operator, OperatorError};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::live::{LiveOverride, OverrideText, PlacedOverride};
use crate::engine::telling::bucket_info::limit_of;
use crate::limiter::{KnownOverride, Shared};
use crate::message::unique_json;
use crate::store::Note;
use crate::telemetry::metrics::SharedNote;

impl Notice for LiveOverride {
    const KIND: SharedNote = SharedNote::Override;
    const NOTES: &'static str = "overrides";
    const PLURAL: &'static str = "live overrides";

    fn key(&self) -> &str {
        &self.bucket
    }

    /// The operator's, whatever the store's clock.
    fn until(&self) -> Micros {
        self.until.unwrap_or(Note::NEVER)
    }

    /// Times are microseconds since the epoch.
    fn text(&self) -> Value {
        let numbers: Value = serde_json::from_str(&self.numbers).unwrap_or_default();
        json!({
            "override": self.bucket,
            "numbers": numbers,
            "until": self.until.map(|until| until.0),
            "comment": self.comment,
            "by": self.by,
            "at": self.at.0,
        })
    }

    fn read(_key: &str, _until: Micros, text: &Value) -> Option<Self> {
        let member = |name: &str| text[name].as_str().map(str::to_owned);
        let until = match &text["until"] {
            Value::Null => None,
            until => Some(Micros(until.as_u64()?)),
        };
        Some(Self {
            bucket: member("override")?,
            numbers: Value::from(text["numbers"].as_object()?.clone()).to_string(),
            until,
            comment: member("comment"),
            by: member("by").unwrap_or_default(),
            at: Micros(text["at"].as_u64().unwrap_or(0)),
        })
    }

    fn posted(shared: &Shared) -> Vec<Self> {
        shared.live.lock().list.iter().map(|known| known.given.clone()).collect()
    }

    fn apply(shared: &Shared, list: Vec<Self>, since: Micros) {
        shared.apply_overrides(list, since);
    }

    fn file(shared: &Shared) -> Option<PathBuf> {
        shared.live.lock().file.clone()
    }

    fn synced(shared: &Shared, now: Micros) {
        let seconds = i64::try_from(now.0 / 1_000_000).unwrap_or(i64::MAX);
        shared.metrics.listeners.live_overrides_synced.set(seconds);
    }
}

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
        let until = until.or(new.span.map(|span| now.after(span)));
        let mut numbers: Value = serde_json::from_str(&new.numbers).unwrap_or_default();
        numbers.as_object_mut().map(|numbers| numbers.remove("until"));
        let NewOverride { comment, by, .. } = new;
        let given = LiveOverride { bucket: placed.bucket, numbers: numbers.to_string(), until, comment, by, at: now };
        self.board.open().await?.post(std::slice::from_ref(&given)).await?;
        let set = self.find_override(&given.bucket).unwrap_or(KnownOverride { given, allowance: Ok(allowance) });
        Ok((set, placed.warnings))
    }

    /// Deletes the live override of exactly this id or beginning. Returns it.
    pub async fn delete_override(&self, bucket: &str) -> Result<KnownOverride, OperatorError> {
        let board = self.board.open::<LiveOverride>().await?;
        let found = self.live_override(bucket)?;
        board.remove(&found.given.bucket).await?;
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
        let mut list = self.limiter.shared.live.lock().list.clone();
        list.retain(|known| known.given.is_in_force(now));
        list.sort_by(|a, b| a.given.bucket.cmp(&b.given.bucket));
        list
    }

    /// The place that keeps live overrides: `redis`, for all gateways; a `file`, for the next start; or the `process` alone.
    pub fn overrides_are_kept(&self) -> &'static str {
        let is_filed = LiveOverride::file(&self.limiter.shared).is_some();
        if self.limiter.store.is_remote() {
            "redis"
        } else if is_filed {
            "file"
        } else {
            "process"
        }
    }

    fn find_override(&self, bucket: &str) -> Option<KnownOverride> {
        let now = self.clock.now();
        let live = self.limiter.shared.live.lock();
        live.list.iter().find(|known| known.given.bucket == bucket && known.given.is_in_force(now)).cloned()
    }

    fn read_override(&self, text: OverrideText<'_>, now: Micros) -> Result<PlacedOverride, OperatorError> {
        let read = self.limiter.shared.live.lock().read(&[text], now).pop();
        read.unwrap_or_else(|| Err("it is not an override".to_owned())).map_err(|reason| {
            let is_known = self.limiter.view().rules().find(limit_of(text.bucket)).is_ok();
            if is_known { OperatorError::Invalid(reason) } else { OperatorError::Unknown(reason) }
        })
    }
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
    if list.len() > MOST_NOTICES {
        return Err(wrong(format!("it has {} overrides; there may be {MOST_NOTICES}", list.len())));
    }
    let read = |(place, note)| {
        let invalid = || wrong(format!("`/overrides/{place}` is not a live override"));
        LiveOverride::read("", Note::NEVER, note).ok_or_else(invalid)
    };
    list.iter().enumerate().map(read).collect()
}
