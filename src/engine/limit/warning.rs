//! `warn_at`: a limit reports the ids that have used most of their allowance, or all of it.
//!
//! Once per id, window and share over all gateways at a store: the gateway that warns uses up a bucket for it, which refills when the
//! window does.

use std::fmt;

use crate::engine::algorithms::algorithm::{Algorithm, Aligned};
use crate::engine::algorithms::charge::{Bucket, Charge, ChargeOrigin, Mode};
use crate::engine::algorithms::decision::Decision;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;

/// The most shares of a limit.
pub const MOST_SHARES: usize = 8;

/// Follows the id in the keys of buckets that are used up by warnings. Ids are percent-encoded, and names have no `#`.
const WARNED: &str = "#warned";

/// For limits whose usage has no window: the requests in flight.
const HOUR: u64 = 3_600_000_000_000;

/// `warn_at:` of a limit, in percent of what a window holds: ascending, 1 to 100.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarnAt(Box<[u8]>);

impl WarnAt {
    /// The shares must be ascending.
    pub fn new(shares: Vec<u8>) -> Self {
        Self(shares.into())
    }

    pub fn shares(&self) -> &[u8] {
        &self.0
    }

    /// The shares that an id has used up by the decision on its charge. A request that did not fit has used all of them.
    #[inline]
    pub fn reached(&self, decision: &Decision) -> &[u8] {
        let used = u128::from(decision.limit.saturating_sub(decision.remaining)) * 100;
        let is_reached = |share: &u8| decision.is_short() || used >= u128::from(*share) * u128::from(decision.limit);
        let reached = if decision.limit == 0 { 0 } else { self.0.partition_point(is_reached) };
        self.0.get(..reached).unwrap_or_default()
    }
}

/// Completes a sentence that begins with "warns".
impl fmt::Display for WarnAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("at ")?;
        for (place, share) in self.0.iter().enumerate() {
            write!(f, "{}{share}%", if place > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// The charges by which a gateway claims the warnings of an id at these shares, one each. `bucket` is that of the window with these
/// numbers. `None` if the algorithm has no such usage.
pub fn claims(shares: &[u8], bucket: &Bucket, numbers: &Numbers) -> Option<Vec<Charge>> {
    let once = once(numbers)?;
    let claim = |(group, share): (u32, &u8)| {
        let mut bucket = bucket.clone();
        bucket.mark(&format!("{WARNED}{share}"));
        // Each is taken whether or not the others are.
        let origin = ChargeOrigin { group, ..ChargeOrigin::default() };
        Charge { origin, ..Charge::new(bucket, once.clone(), 1, Mode::SpendOnly) }
    };
    Some((0..).zip(shares).map(claim).collect())
}

/// Reads the decisions on [`claims`]: the gateway that asked is the first to warn of the highest share.
pub fn is_first(claimed: &[Decision]) -> bool {
    claimed.last().is_some_and(Decision::is_allowed)
}

/// One per window of a limit with these numbers.
fn once(numbers: &Numbers) -> Option<Numbers> {
    let within = |period: u64| Numbers::fixed_window(1, 1, period, Aligned::First);
    let once = match numbers.algorithm() {
        Algorithm::FixedWindow(_) => numbers.resized(1, 1),
        Algorithm::Gcra => match numbers.time_for(numbers.capacity()) {
            Some(Micros(micros)) => within(micros.saturating_mul(1_000)),
            None => Numbers::fixed(1),
        },
        Algorithm::Concurrency => within(HOUR),
        Algorithm::Queue | Algorithm::Script => return None,
        _ => within(numbers.span().saturating_mul(1_000)),
    };
    once.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::decision::Outcome;

    fn decision(limit: u64, remaining: u64, outcome: Outcome) -> Decision {
        Decision { outcome, limit, remaining, ..Decision::never() }
    }

    #[test]
    fn a_share_is_reached_by_the_token_that_uses_it_up() {
        let warn_at = WarnAt::new(vec![50, 80, 100]);
        let reached = |limit, remaining, outcome| warn_at.reached(&decision(limit, remaining, outcome)).to_vec();
        for (limit, remaining, expected) in [
            (10, 10, &[][..]),
            (10, 6, &[]),
            (10, 5, &[50]),
            (10, 3, &[50]),
            (10, 2, &[50, 80]),
            (10, 1, &[50, 80]),
            (10, 0, &[50, 80, 100]),
            (3, 2, &[]),
            (3, 1, &[50]),
            (1, 1, &[]),
            (u64::MAX, u64::MAX / 2, &[50]),
            (u64::MAX, u64::MAX / 2 + 1, &[]),
            (0, 0, &[]),
        ] {
            assert_eq!(reached(limit, remaining, Outcome::Allowed), expected, "{remaining} of {limit}");
        }
        assert_eq!(reached(10, 9, Outcome::Denied), [50, 80, 100]);
        assert_eq!(reached(10, 9, Outcome::Short), [50, 80, 100]);
        assert_eq!(reached(0, 0, Outcome::Denied), [0; 0], "nothing was asked of a bucket");
        assert_eq!(warn_at.to_string(), "at 50%, 80%, 100%");
    }

    #[test]
    fn a_warning_is_due_again_when_the_window_is_over() {
        let day = 86_400_000_000_000;
        let period = |numbers: Numbers| once(&numbers).map(|once| (once.burst(), once.period() / 1_000_000_000));
        assert_eq!(period(Numbers::new(100, 10, 60_000_000_000).unwrap()), Some((1, 600)));
        assert_eq!(period(Numbers::fixed_window(100, 100, day, Aligned::Clock).unwrap()), Some((1, 86_400)));
        assert_eq!(period(Numbers::sliding_log(9, day).unwrap()), Some((1, 86_400)));
        assert_eq!(period(Numbers::sliding_window(9, day, false).unwrap()), Some((1, 86_400)));
        assert_eq!(period(Numbers::fixed(9).unwrap()), Some((1, 0)));
        assert_eq!(period(Numbers::concurrency(9, day / 24).unwrap()), Some((1, 3_600)));
        assert_eq!(period(Numbers::queue(9, None).unwrap()), None);
    }
}
