//! Live overrides: overrides that operators set while gateways run. They precede those of the files.

use std::sync::Arc;

use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::overrides::{Override, OverrideLookup, Overrides};
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode};

/// A live override as its operator gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOverride {
    /// `Name:id`, the id in canonical text.
    pub bucket: String,
    /// A JSON object with the keys of an override in a file, except `until` and `comment`.
    pub numbers: String,
    /// `None` if it never expires.
    pub until: Option<Micros>,
    pub comment: Option<String>,
    /// The operator.
    pub by: String,
    /// The time at which it was set.
    pub at: Micros,
}

/// A live override as it applies under rules.
#[derive(Clone, Debug)]
pub struct PlacedOverride {
    /// `Name:id`, the id in canonical text.
    pub bucket: String,
    /// The index of the limit.
    pub limit: usize,
    /// The number of parts of the id.
    pub parts: usize,
    pub fingerprint: u128,
    pub given: Override,
    /// Why it cannot apply to any request, if so.
    pub never_applies: Option<String>,
    /// Problems that are probably not intended.
    pub warnings: Vec<String>,
}

/// The text of a live override.
#[derive(Clone, Copy, Debug)]
pub struct OverrideText<'a> {
    /// `Name:id` as it was written.
    pub bucket: &'a str,
    /// A JSON object with the keys of an override in a file, except `comment`.
    pub numbers: &'a str,
}

/// Reads live overrides by the limits of the files. Each result is that of the text at the same index; an error says what is wrong
/// and where.
pub type OverrideReader = Arc<dyn Fn(&[OverrideText<'_>], Micros) -> Vec<Result<PlacedOverride, String>> + Send + Sync>;

impl LiveOverride {
    pub fn text(&self) -> OverrideText<'_> {
        OverrideText { bucket: &self.bucket, numbers: &self.numbers }
    }

    pub fn is_in_force(&self, now: Micros) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

impl PlacedOverride {
    /// Returns it with the end and the comment of a live override.
    #[must_use]
    pub fn of(mut self, live: &LiveOverride) -> Self {
        self.given.until = live.until;
        self.given.origin.comment = live.comment.as_deref().map(Into::into);
        self
    }
}

impl Rules {
    /// Returns the same rules with these live overrides and no others. `effective_from` is when the numbers change.
    #[must_use]
    pub fn with_live(&self, placed: impl IntoIterator<Item = PlacedOverride>, effective_from: Micros) -> Self {
        let mut live: Vec<Overrides> = Vec::new();
        for PlacedOverride { limit, parts, fingerprint, given, .. } in placed {
            if live.is_empty() {
                live.resize_with(self.limits.len(), Overrides::default);
            }
            // The caller has sorted out two names of one id.
            let (Ok(()) | Err(_)) = live.get_mut(limit).map_or(Ok(()), |all| all.add_id(parts, fingerprint, given));
        }
        let mut index = Arc::clone(&self.index);
        for (place, (limit, live)) in (0..).zip(self.limits.iter().zip(&live)) {
            let is_filed = limit.allowance != Allowance::Disabled || !limit.overrides.is_empty();
            if limit.mode != LimitMode::Off && !is_filed && !live.is_empty() {
                Arc::make_mut(&mut index).insert(place, limit);
            }
        }
        Self { index, live: live.into(), effective_from, ..self.clone() }
    }

    /// The live overrides of the limit at this index.
    pub(crate) fn live(&self, place: u32) -> Option<&Overrides> {
        self.live.get(place as usize).filter(|live| !live.is_empty())
    }

    /// Returns whether the limit at this index has an override, live or of a file.
    pub(crate) fn has_overrides(&self, place: u32, limit: &Limit) -> bool {
        !limit.overrides.is_empty() || self.live(place).is_some()
    }

    /// Returns the override in force, and since when it holds, as [`Overrides::find`]. Live ones precede those of files, even more
    /// specific ones.
    #[inline]
    pub(crate) fn find_override<'r>(
        &'r self,
        place: u32,
        limit: &'r Limit,
        subject: &OverrideLookup<'_>,
    ) -> (Option<&'r Override>, Micros) {
        let mut since = Micros(0);
        if let Some(live) = self.live(place) {
            let (given, changed) = live.find(subject);
            if let Some((_, given)) = given {
                return (Some(given), changed);
            }
            since = changed;
        }
        let (given, changed) = limit.overrides.find(subject);
        (given.map(|(_, given)| given), changed.max(since))
    }
}
