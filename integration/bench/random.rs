//! Pseudo-random numbers.

use crate::numbered::mix;

/// Pseudo-random numbers; splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let high = (u128::from(self.next()) * u128::from(bound)) >> 64;
        u64::try_from(high).unwrap()
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
}
