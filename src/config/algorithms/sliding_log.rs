//! `algorithm: sliding_log`: each token comes back one period after it was taken.

use super::super::numbers::{Rate, Window, rates};
use super::{Algorithm, AlgorithmEntry, Mapping, Numbers, ReadResult, Settings};

pub(super) const ENTRY: AlgorithmEntry =
    AlgorithmEntry { words: &["sliding_log"], settings: || Box::new(SlidingLog), keys: &[], override_keys: &[] };

struct SlidingLog;

impl Settings for SlidingLog {
    fn algorithm(&self) -> Algorithm {
        Algorithm::SlidingLog
    }

    fn read(&self, _map: &Mapping<'_>) -> ReadResult<Box<dyn Settings>> {
        Ok(Box::new(Self))
    }

    fn numbers(&self, map: &Mapping<'_>) -> ReadResult<Vec<Numbers>> {
        rates(map, false, &window)
    }
}

fn window(rate: &Rate<'_>) -> Window {
    let period = rate.span()?;
    rate.without_burst("sliding_log")?;
    Ok(Numbers::sliding_log(rate.count, period))
}
