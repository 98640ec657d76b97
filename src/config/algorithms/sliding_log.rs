//! `algorithm: sliding_log`: each token comes back one period after it was taken.

use super::super::numbers::{Rate, Window};
use super::super::problem::Findings;
use super::{Entry, Settings};
use crate::engine::algorithms::numbers::Numbers;

pub(super) const ENTRY: Entry =
    Entry { words: &["sliding_log"], settings: Settings::SlidingLog, keys: &[], override_keys: &[] };

pub(super) fn window(rate: &Rate<'_>, findings: &mut Findings) -> Window {
    let period = rate.span(findings)?;
    rate.without_burst("sliding_log", findings)?;
    Ok(Numbers::sliding_log(rate.count, period))
}
