//! `algorithm: sliding_window`: tokens come back while the next window passes. `count_denied` also counts denied requests.

use super::super::mapping::Mapping;
use super::super::numbers::{Rate, Window};
use super::super::problem::{Findings, Reported};
use super::super::scalars::truth;
use super::{Entry, Settings};
use crate::engine::algorithms::numbers::Numbers;

pub(super) const ENTRY: Entry = Entry {
    words: &["sliding_window"],
    settings: Settings::SlidingWindow { count_denied: false },
    keys: &["count_denied"],
    override_keys: &[],
};

pub(super) fn read(map: &Mapping<'_>, inherited: bool, findings: &mut Findings) -> Result<Settings, Reported> {
    let count_denied = map.read("count_denied", findings, truth)?.unwrap_or(inherited);
    Ok(Settings::SlidingWindow { count_denied })
}

pub(super) fn window(rate: &Rate<'_>, count_denied: bool, findings: &mut Findings) -> Window {
    let period = rate.span(findings)?;
    rate.without_burst("sliding_window", findings)?;
    Ok(Numbers::sliding_window(rate.count, period, count_denied))
}
