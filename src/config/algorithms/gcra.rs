//! `algorithm: gcra`, the default: tokens refill evenly. Keys: `lease`, `delay`.

use super::super::numbers::{Rate, Window, rates};
use super::super::{delay, lease};
use super::{Algorithm, AlgorithmEntry, Context, Limit, Mapping, Numbers, ReadResult, Settings};

/// A token bucket that refills evenly is the same algorithm.
pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    words: &["gcra", "token_bucket"],
    settings: || Box::new(Gcra),
    keys: &["lease", "delay"],
    override_keys: &[],
};

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

    fn read_limit(&mut self, map: &Mapping<'_>, _context: Context<'_>, limit: &mut Limit) {
        lease::read(map, limit);
        delay::read(map, limit);
    }

    fn read_override(&mut self, map: &Mapping<'_>, _limit: &mut Limit) -> ReadResult<()> {
        lease::check_override(map)?;
        delay::check_override(map)
    }

    fn check(&self, map: &Mapping<'_>, limit: &mut Limit) {
        lease::check(map, limit);
        delay::check(map, limit);
    }
}

pub(super) fn window(rate: &Rate<'_>) -> Window {
    Ok(Numbers::new(rate.burst, rate.count, rate.span()?))
}
