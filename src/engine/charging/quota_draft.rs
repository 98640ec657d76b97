//! The division of a limit among gateways by their needs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::quota_lease::{QuotaLease, QuotaShare};
use super::quota_pool::signed;
use crate::engine::algorithms::micros::Micros;

/// Shares fall by an eighth and rise by a sixteenth at least: each change costs tokens until the next report.
const LEAST_FALL: u64 = 8;
const LEAST_RISE: u64 = 16;

/// Reports in a [`FILL`](super::quota_lease::FILL). A fall must save its tokens until the next one.
const REPORTS: u64 = 12;

/// Tokens of a small limit that a gateway may get at once.
const FEW: u32 = 5;

/// Shares to be, and the tokens for all of them.
pub(super) struct Draft {
    leases: Vec<DraftLease>,
    sums: [i64; 2],
    /// The most of each sum.
    most: [i64; 2],
    horizon: Micros,
    /// Tokens that a gateway may have used already are charged again at the beginning of a window, so that few are better.
    has_windows: bool,
    now: Micros,
}

struct DraftLease {
    id: u64,
    before: QuotaLease,
    after: QuotaLease,
    target: u64,
}

impl DraftLease {
    const fn rate(&self) -> u64 {
        self.after.share().rate()
    }
}

impl Draft {
    /// `most` are the tokens that can be taken, and those that gateways may let pass.
    pub(super) fn new(
        leases: &BTreeMap<u64, QuotaLease>,
        most: [i64; 2],
        horizon: Micros,
        has_windows: bool,
        now: Micros,
    ) -> Self {
        let lease = |(id, lease): (&u64, &QuotaLease)| {
            let mut before = *lease;
            before.advance(now);
            DraftLease { id: *id, before, after: before, target: 0 }
        };
        let mut draft =
            Self { leases: leases.iter().map(lease).collect(), sums: [0; 2], most, horizon, has_windows, now };
        for place in 0..draft.leases.len() {
            draft.add(draft.costs(&draft.leases[place].before), 1);
        }
        draft
    }

    /// The tokens that must have been taken.
    pub(super) const fn needed(&self) -> i64 {
        self.sums[0]
    }

    /// The tokens that gateways may let pass.
    pub(super) const fn potential(&self) -> i64 {
        self.sums[1]
    }

    pub(super) fn fits(&self) -> bool {
        self.sums[0] <= self.most[0] && self.sums[1] <= self.most[1]
    }

    /// Returns the shares that are new.
    pub(super) fn changes(&self) -> Vec<(u64, QuotaShare)> {
        let is_new = |lease: &&DraftLease| lease.after.share() != lease.before.share();
        self.leases.iter().filter(is_new).map(|lease| (lease.id, lease.after.share())).collect()
    }

    /// Makes all shares smaller until they fit, or ends them.
    pub(super) fn cut(&mut self) {
        for eighths in [7, 6, 4, 2, 0] {
            for place in 0..self.leases.len() {
                let rate = self.leases[place].before.share().rate();
                self.set(
                    place,
                    QuotaShare {
                        max_tokens: u32::from(rate * eighths >= 8),
                        ..QuotaShare::of_rate(rate * eighths / 8)
                    },
                );
            }
            if self.fits() {
                return;
            }
        }
    }

    /// Divides the `capacity` by the demands, as far as there are tokens, of which `rate` comes back. Keeps some for the next turn of those that have a share.
    pub(super) fn divide(&mut self, capacity: u64, rate: u64, kept: i64) {
        self.set_targets(capacity, rate);
        let is_crowded = self.rates() > capacity;
        for place in 0..self.leases.len() {
            let DraftLease { target, .. } = self.leases[place];
            let rate = self.leases[place].rate();
            let is_much = is_crowded || target < rate - rate / LEAST_FALL;
            let share = QuotaShare::of_rate(target);
            let saves = rate.saturating_sub(target) >= REPORTS * u64::from(share.max_tokens);
            if target < rate && is_much && saves && self.can_change(place) {
                let _ = self.try_set(place, share)
                    || self.try_set(place, QuotaShare { max_tokens: share.max_tokens.min(1), ..share });
            }
        }
        self.most[0] -= kept;
        let mut room = capacity.saturating_sub(self.rates());
        let mut order: Vec<usize> = (0..self.leases.len()).filter(|place| self.is_short(*place)).collect();
        order.sort_by_key(|place| {
            let lease = &self.leases[*place];
            (lease.rate().saturating_mul(1_000) / lease.target, Reverse(lease.target))
        });
        for (done, place) in order.iter().copied().enumerate() {
            let before = self.leases[place].rate();
            self.raise(place, room, order.len() - done);
            room = room.saturating_sub(self.leases[place].rate().saturating_sub(before));
        }
    }

    /// Sets what each gateway should have of the `capacity`.
    fn set_targets(&mut self, capacity: u64, rate: u64) {
        let demands = || self.leases.iter().filter_map(|lease| lease.before.demand());
        let known = demands().count() as u128;
        let average = demands().map(u128::from).sum::<u128>().checked_div(known).unwrap_or(0).max(1);
        // Those without requests can begin.
        let least = (capacity / (20 * self.leases.len().max(1) as u64)).max(1);
        let weight = |lease: &DraftLease| lease.before.demand().map_or(average, u128::from) + u128::from(least);
        let all: u128 = self.leases.iter().map(weight).sum();
        for lease in &mut self.leases {
            let share = u128::from(capacity) * weight(lease) / all.max(1);
            let share = u64::try_from(share).unwrap_or(u64::MAX);
            let most = match lease.before.demand() {
                // More would lie idle until the next report.
                Some(demand) => demand.saturating_add(least).saturating_mul(2),
                // When one ends that has only begun, nobody knows how much of its share it has used.
                None => rate.max(capacity / 8).max(1),
            };
            lease.target = share.min(most).min(u32::MAX.into());
        }
    }

    /// Raises a share, of `waiting` ones that are short.
    fn raise(&mut self, place: usize, room: u64, waiting: usize) {
        let rate = self.leases[place].rate();
        let target = self.leases[place].target.min(rate.saturating_add(room));
        let waiting = i64::try_from(waiting).unwrap_or(i64::MAX);
        let portion = [0, 1].map(|sum| (self.most[sum] - self.sums[sum]) / waiting);
        for eighths in (1..=8).rev() {
            let raised = rate + (target - rate) * eighths / 8;
            if raised == 0 || rate > 0 && raised < rate + rate / LEAST_RISE {
                break;
            }
            let share = QuotaShare::of_rate(raised);
            let more = self.more(place, share);
            let rest = [0, 1].map(|sum| portion[sum] - more[sum]);
            if rest.iter().all(|rest| *rest >= 0) && self.try_set(place, share) {
                // Two seconds of requests at most, or a few.
                let most = if self.has_windows { 0 } else { share.tokens_per_fill / 30 };
                let most = most.max(share.max_tokens).max(FEW);
                let extra = u32::try_from(rest[0].min(rest[1]) / 3).unwrap_or(u32::MAX);
                let max_tokens = share.max_tokens.saturating_add(extra).min(most);
                let _ = self.try_set(place, QuotaShare { max_tokens, ..share });
                return;
            }
        }
        // A portion may be less than a token.
        if rate == 0 && target > 0 {
            let _ = self.try_set(place, QuotaShare { max_tokens: 1, ..QuotaShare::of_rate((target / 8).max(1)) });
        }
    }

    /// Returns true if a share should be larger, and may be.
    fn is_short(&self, place: usize) -> bool {
        let lease = &self.leases[place];
        let rate = lease.rate();
        lease.target > 0 && lease.target >= rate + rate / LEAST_RISE && lease.target > rate && self.can_change(place)
    }

    /// A change would come before the last one has been received.
    fn can_change(&self, place: usize) -> bool {
        let lease = &self.leases[place];
        !lease.before.is_changing(self.now) && lease.after.share() == lease.before.share()
    }

    fn rates(&self) -> u64 {
        self.leases.iter().map(DraftLease::rate).fold(0, u64::saturating_add)
    }

    /// Returns what another share needs more than the one of the draft.
    fn more(&self, place: usize, share: QuotaShare) -> [i64; 2] {
        let lease = &self.leases[place];
        let mut changed = lease.before;
        changed.assign(share, self.now);
        let (old, new) = (self.costs(&lease.after), self.costs(&changed));
        [new[0] - old[0], new[1] - old[1]]
    }

    /// Sets a share if there are tokens for it.
    fn try_set(&mut self, place: usize, share: QuotaShare) -> bool {
        let more = self.more(place, share);
        let fits = [0, 1].iter().all(|sum| more[*sum] <= 0 || self.sums[*sum] + more[*sum] <= self.most[*sum]);
        if fits {
            self.set(place, share);
        }
        fits
    }

    fn set(&mut self, place: usize, share: QuotaShare) {
        self.add(self.costs(&self.leases[place].after), -1);
        let lease = &mut self.leases[place];
        lease.after = lease.before;
        if share != lease.before.share() {
            lease.after.assign(share, self.now);
        }
        self.add(self.costs(&self.leases[place].after), 1);
    }

    fn costs(&self, lease: &QuotaLease) -> [i64; 2] {
        [signed(lease.needed(self.horizon)), signed(lease.potential(self.horizon))]
    }

    fn add(&mut self, costs: [i64; 2], sign: i64) {
        for (sum, cost) in self.sums.iter_mut().zip(costs) {
            *sum = sum.saturating_add(cost * sign);
        }
    }
}
