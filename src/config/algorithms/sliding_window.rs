//! `algorithm: sliding_window`: tokens come back while the next window passes. `count_denied` also counts denied requests.

use super::super::numbers::rates;
use super::{Algorithm, AlgorithmEntry, Mapping, Node, Numbers, ReadResult, Settings};

pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    words: &["sliding_window"],
    settings: || Box::new(SlidingWindow { count_denied: false }),
    keys: &["count_denied"],
    override_keys: &[],
};

struct SlidingWindow {
    count_denied: bool,
}

impl Settings for SlidingWindow {
    fn algorithm(&self) -> Algorithm {
        Algorithm::SlidingWindow { count_denied: self.count_denied }
    }

    fn read(&self, map: &Mapping<'_>) -> ReadResult<Box<dyn Settings>> {
        Ok(Box::new(Self { count_denied: map.read("count_denied", Node::truth)?.unwrap_or(self.count_denied) }))
    }

    fn numbers(&self, map: &Mapping<'_>) -> ReadResult<Vec<Numbers>> {
        rates(map, false, &|rate| {
            let period = rate.span()?;
            rate.without_burst("sliding_window")?;
            Ok(Numbers::sliding_window(rate.count, period, self.count_denied))
        })
    }
}
