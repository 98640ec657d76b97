//! Leases: tokens that a worker takes ahead of use, from buckets of GCRA or fixed windows in Redis. `lua/leases.lua` grants them.

use super::micros::Micros;

/// `lease:` of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseTerms {
    /// The most tokens of a lease.
    pub tokens: u32,
    /// Its length, in microseconds.
    pub span: u32,
}

/// The shortest and the longest lease, in microseconds. A shorter one is over before it saves a call. The longest is that of
/// `lua/leases.lua`.
pub const SHORTEST_LEASE: u64 = 1_000;
pub const LONGEST_LEASE: u64 = 10_000_000;

/// A lease saves calls only if it serves more requests than it takes calls: the one that takes it and the one that gives the
/// rest back. A worker that is asked for an id less often than this in the length of a lease takes none.
pub const LEAST_REQUESTS: u64 = 4;

/// The share of a burst that is leased at most, and that of what is left which one lease takes, as in `lua/leases.lua`.
pub const MOST_LEASED: u64 = 4;

/// The part of a charge that is about leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseAsk {
    /// A lease that is wanted if the charge is allowed.
    pub wish: Option<LeaseWish>,
    pub ended: Option<EndedLease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseWish {
    pub terms: LeaseTerms,
    /// The tokens that the worker expects to use in a lease of full length. A shorter one has fewer.
    pub demand: u64,
}

/// A lease that its worker no longer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedLease {
    pub granted: u64,
    /// The tokens that were not used.
    pub left: u64,
    /// [`LeaseGrant::until`].
    pub until: Micros,
}

/// A lease, as granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    pub tokens: u64,
    /// Its length from the decision on.
    pub span: Micros,
    /// Its end by the clock that decided.
    pub until: Micros,
}

impl LeaseGrant {
    /// Returns when it was granted, by the clock that decided.
    pub const fn at(&self) -> Micros {
        Micros(self.until.0.saturating_sub(self.span.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_was_granted_its_span_before_its_end() {
        assert_eq!(LeaseGrant { tokens: 5, span: Micros(300), until: Micros(1_000) }.at(), Micros(700));
    }
}
