//! `algorithm: gcra`, the default: tokens refill evenly. It has no keys beyond burst, count and period.

use super::super::numbers::{Rate, Window, rates};
use super::{Algorithm, Entry, Mapping, Numbers, ReadResult, Settings};

/// A token bucket that refills evenly is the same algorithm.
pub(super) const ENTRY: Entry =
    Entry { words: &["gcra", "token_bucket"], settings: || Box::new(Gcra), keys: &[], override_keys: &[] };

struct Gcra;

impl Settings for Gcra {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Gcra
    }

    fn read(&self, _map: &Mapping<'_>) -> ReadResult<Box<dyn Settings>> {
        Ok(Box::new(Self))
    }

    fn numbers(&self, map: &Mapping<'_>) -> ReadResult<Vec<Numbers>> {
        rates(map, true, &window)
    }
}

pub(super) fn window(rate: &Rate<'_>) -> Window {
    Ok(Numbers::new(rate.burst, rate.count, rate.span()?))
}
