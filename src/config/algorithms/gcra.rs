//! `algorithm: gcra`, the default: tokens refill evenly. It has no keys beyond burst, count and period.

use super::super::numbers::{Rate, Window};
use super::super::problem::Findings;
use super::{Entry, Settings};
use crate::engine::algorithms::numbers::Numbers;

/// A token bucket that refills evenly is the same algorithm.
pub(super) const ENTRY: Entry =
    Entry { words: &["gcra", "token_bucket"], settings: Settings::Gcra, keys: &[], override_keys: &[] };

pub(super) fn window(rate: &Rate<'_>, findings: &mut Findings) -> Window {
    Ok(Numbers::new(rate.burst, rate.count, rate.span(findings)?))
}
