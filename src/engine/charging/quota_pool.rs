//! The tokens of a limit that is shared by gateways, which count requests by themselves.
//!
//! Tokens are taken from the limits' bucket before gateways get them: for what is in the gateways' buckets, and for what flows in before a
//! change would reach them. What gateways may let pass and what is left in the limits' bucket is together never more than the `burst` of
//! the limits, as if it were in one bucket. So all gateways together never let pass more than the limit, however many others use it.

use std::collections::BTreeMap;

use super::quota_draft::Draft;
use super::quota_lease::{FILL, QuotaLease, QuotaShare, TRANSIT};
use crate::engine::algorithms::micros::Micros;

/// The bounds of the time between two turns. With shorter turns, gateways can have more of a small `burst`.
pub const SHORTEST_TURN: Micros = Micros(100_000);
pub const LONGEST_TURN: Micros = Micros(500_000);

/// Turns in the time in which an empty bucket is filled.
const TURNS_PER_BURST: u64 = 8;

/// The time in which gateways may use up what a limit has saved. Their reports come every 5 s.
const BURST_FILLS: u64 = 6;

/// Gateways whose bucket is used up yield some of their shares to those of other processes after this time.
const YIELD: Micros = Micros(10_000_000);

/// The state of a bucket's limits, in hits; where they differ, that of the strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaState {
    pub is_taken: bool,
    /// The hits that are left.
    pub left: u64,
    /// The hits that are missing from a full bucket.
    pub used: u64,
    /// The hits of a full bucket.
    pub burst: u64,
    /// The hits that come back in a [`FILL`].
    pub rate: u64,
    /// The time until tokens that were taken before cannot come back any more; `None` if they always can.
    pub window: Option<Micros>,
    /// False if hits only come back at the end of the window.
    pub refills: bool,
}

impl QuotaState {
    /// Returns the time between two turns.
    fn turn(&self) -> Micros {
        let refilled = u128::from(self.burst) * u128::from(FILL.0) / u128::from(self.rate.max(1));
        let turn = u64::try_from(refilled / u128::from(TURNS_PER_BURST)).unwrap_or(u64::MAX);
        Micros(turn).clamp(SHORTEST_TURN, LONGEST_TURN)
    }

    /// Returns the hits that come back in a time.
    fn refill(&self, span: Micros) -> u64 {
        if !self.refills {
            return 0;
        }
        u64::try_from(u128::from(self.rate) * u128::from(span.0) / u128::from(FILL.0)).unwrap_or(u64::MAX)
    }

    /// Returns the tokens for all gateways in a [`FILL`], beside those that they may let pass already. What comes back within two
    /// seconds goes on with their shares.
    const fn capacity(&self, potential: u64) -> u64 {
        let saved = self.left.saturating_add(potential).saturating_sub(self.rate / 30);
        self.rate.saturating_add(saved.saturating_mul(BURST_FILLS))
    }
}

/// A charge of the limits' bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaCharge {
    Take(u64),
    GiveBack(u64),
}

impl QuotaCharge {
    /// Returns the charge that takes so many tokens; `None` for 0.
    fn of(tokens: i64) -> Option<Self> {
        match tokens {
            0 => None,
            1.. => Some(Self::Take(tokens.unsigned_abs())),
            _ => Some(Self::GiveBack(tokens.unsigned_abs())),
        }
    }
}

/// The gateways that share a bucket, and the tokens that were taken for them.
#[derive(Debug, Default)]
pub struct QuotaPool {
    leases: BTreeMap<u64, QuotaLease>,
    /// The tokens that were taken from the limits and that no gateway has reported as used; negative if gateways have let more pass than
    /// was taken.
    paid: i64,
    /// The most tokens that the limits' buckets are charged for and that no gateway has reported as used.
    unused: i64,
    window_end: Option<Micros>,
    refills: bool,
    /// The hits that were missing from a full bucket after the last turn, and its time.
    used: (i64, Micros),
    turn: Micros,
    burst: u64,
    yielded: Micros,
    plan: Option<Plan>,
    changes: u64,
}

/// Shares that wait for their charge.
#[derive(Debug)]
struct Plan {
    shares: Vec<(u64, QuotaShare)>,
    /// The tokens to take for them, and to take at all.
    taken: i64,
    charged: i64,
    /// Shares that become smaller, whether or not they are paid for.
    is_forced: bool,
}

impl QuotaPool {
    pub fn join(&mut self, id: u64, now: Micros) {
        self.leases.insert(id, QuotaLease::new(now));
    }

    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    pub fn lease(&self, id: u64) -> Option<&QuotaLease> {
        self.leases.get(&id)
    }

    /// Notes what a gateway has let pass and denied.
    pub fn report(&mut self, id: u64, passed: u64, denied: u64, now: Micros) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.report(passed, denied, now);
            self.spend(passed);
        }
    }

    /// Removes a gateway. One that goes on with its share until an `end` cannot be told otherwise. Returns the last charge of the pool
    /// if there is no other gateway.
    pub fn leave(&mut self, id: u64, end: Option<Micros>, now: Micros) -> Option<QuotaCharge> {
        let mut lease = self.leases.remove(&id)?;
        self.spend(match end {
            Some(end) => lease.until(now, end),
            None => lease.unreported(now),
        });
        if !self.leases.is_empty() {
            return None;
        }
        QuotaCharge::of(std::mem::take(&mut self.paid).min(self.unused).saturating_neg())
    }

    /// A debt is bounded, so that one mistaken report does not stop all gateways.
    fn spend(&mut self, passed: u64) {
        let least = signed(self.burst).saturating_neg().min(self.paid);
        self.paid = self.paid.saturating_sub(signed(passed)).max(least);
        self.unused = self.unused.saturating_sub(signed(passed)).max(0);
    }

    /// Returns the tokens to take now so that all shares can go on.
    pub fn due(&mut self, now: Micros) -> u64 {
        u64::try_from(self.needed(now).saturating_sub(self.paid)).unwrap_or(0)
    }

    /// The tokens that must have been taken.
    fn needed(&mut self, now: Micros) -> i64 {
        let horizon = self.horizon(now);
        self.leases.values_mut().for_each(|lease| lease.advance(now));
        self.leases.values().map(|lease| signed(lease.needed(horizon))).fold(0, i64::saturating_add)
    }

    /// A share that cannot be paid for ends two turns later at the latest. The next window pays for what flows in then.
    fn horizon(&self, now: Micros) -> Micros {
        let horizon = TRANSIT.after(self.turn).after(self.turn);
        self.window_end.filter(|_| !self.refills).map_or(horizon, |end| end.since(now).min(horizon))
    }

    /// The number of shares that were changed.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the time until the next turn.
    pub fn next_turn(&self, now: Micros) -> Micros {
        self.window_end.filter(|end| *end > now).map_or(self.turn, |end| end.since(now).min(self.turn))
    }

    /// Ends all shares: the limits need none, or deny everything. What was taken remains for the next shares.
    pub fn clear(&mut self, now: Micros) {
        for lease in self.leases.values_mut().filter(|lease| lease.share() != QuotaShare::NONE) {
            lease.assign(QuotaShare::NONE, now);
            self.changes += 1;
        }
    }

    /// Takes the answer to what was [`due`](Self::due), and plans shares. Returns the charge for them, after which they are
    /// [confirmed](Self::confirm). A turn takes `least_turn` at least. With other processes at the store, shares yield to those that
    /// nobody here knows.
    pub fn plan(
        &mut self,
        due: u64,
        state: QuotaState,
        others: bool,
        least_turn: Micros,
        now: Micros,
    ) -> Option<QuotaCharge> {
        self.note_window(state.window, now);
        self.refills = state.refills;
        if state.is_taken {
            self.paid = self.paid.saturating_add(signed(due));
            self.unused = self.unused.saturating_add(signed(due));
            self.used.0 = self.used.0.saturating_add(signed(due));
        }
        (self.turn, self.burst) = (state.turn().max(least_turn), state.burst);
        let refill = state.refill(self.turn);
        let left = signed(state.left);
        self.drop_stale(&state, now);
        let most_potential = state.burst.saturating_sub(refill).max(state.burst.min(1));
        let most = [self.paid.saturating_add(left), signed(most_potential)];
        let mut draft = Draft::new(&self.leases, most, self.horizon(now), state.window.is_some(), now);
        let is_forced = !draft.fits();
        if is_forced {
            draft.cut();
        } else {
            let mut capacity = state.capacity(draft.potential().unsigned_abs());
            if others && state.left < state.rate / 60 && now.since(self.yielded) >= YIELD {
                self.yielded = now;
                capacity -= capacity / 4;
            }
            draft.divide(capacity, state.rate, signed(refill));
        }
        let taken = draft.needed().saturating_sub(self.paid).min(left);
        // What the gateways may let pass is missing from a full bucket.
        let missing = draft.potential().saturating_add(signed(refill)).saturating_sub(signed(state.used));
        let charged = taken.saturating_add(missing.saturating_sub(taken).clamp(0, left - taken));
        self.used = (signed(state.used).saturating_add(charged), now);
        self.plan = Some(Plan { shares: draft.changes(), taken, charged, is_forced });
        let charge = QuotaCharge::of(charged);
        if charge.is_none() {
            self.confirm(true, now);
        }
        charge
    }

    /// Drops tokens that no gateway has, and that would be gone, too, if each request were charged: the bucket would have been full.
    fn drop_stale(&mut self, state: &QuotaState, now: Micros) {
        let (used, at) = self.used;
        let filled = used.saturating_sub(signed(state.refill(now.since(at))));
        self.unused = self.unused.min(filled).min(signed(state.used)).max(0);
        self.paid = self.paid.min(self.needed(now).max(self.unused));
    }

    /// Notes when what was taken before is not charged any more.
    fn note_window(&mut self, window: Option<Micros>, now: Micros) {
        if self.window_end.is_some_and(|end| end <= now) {
            (self.unused, self.window_end) = (0, None);
        }
        let end = window.map(|span| now.after(span));
        self.window_end = end.map(|end| self.window_end.map_or(end, |known| known.min(end)));
    }

    /// Notes whether the charge of the plan was made.
    pub fn confirm(&mut self, is_charged: bool, now: Micros) {
        let Some(plan) = self.plan.take() else { return };
        if is_charged {
            self.paid = self.paid.saturating_add(plan.taken);
            self.unused = self.unused.saturating_add(plan.charged).max(0);
        }
        if is_charged || plan.is_forced {
            for (id, share) in plan.shares {
                if let Some(lease) = self.leases.get_mut(&id) {
                    lease.assign(share, now);
                    self.changes += 1;
                }
            }
        }
    }
}

pub(super) fn signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::quota_lease::{flow, millionths, whole};
    use super::*;

    const SECOND: u64 = 1_000_000;
    const STEP: u64 = 50_000;

    /// A limit's bucket, in millionths of tokens.
    struct Store {
        burst: u64,
        rate: u32,
        /// The period of windows; 0 for a bucket that fills evenly.
        period: u64,
        level: i64,
        /// The level of a bucket that is charged for each request as it passes.
        reference: i64,
        /// All that the limit has given.
        granted: i64,
    }

    impl Store {
        fn new(burst: u64, rate: u32, period: u64) -> Self {
            let rate = (burst * FILL.0).checked_div(period).map_or(rate, |rate| u32::try_from(rate).unwrap());
            let level = millionths(burst);
            Self { burst, rate, period, level, reference: level, granted: level }
        }

        fn pass(&mut self, now: u64) {
            let inflow = match now.checked_rem(self.period) {
                None => flow(self.rate, Micros(STEP)),
                Some(0) => millionths(self.burst),
                Some(_) => 0,
            };
            self.granted += inflow;
            for level in [&mut self.level, &mut self.reference] {
                *level = (*level + inflow).min(millionths(self.burst));
            }
        }

        fn take(&mut self, tokens: u64) -> bool {
            let fits = self.level >= millionths(tokens);
            if fits {
                self.level -= millionths(tokens);
            }
            fits
        }

        fn state(&self, is_taken: bool, now: u64) -> QuotaState {
            let left = whole(self.level);
            let window = (self.period > 0).then(|| Micros(self.period - now % self.period));
            QuotaState {
                is_taken,
                left,
                used: self.burst - left,
                burst: self.burst,
                rate: self.rate.into(),
                window,
                refills: self.period == 0,
            }
        }
    }

    /// The load of an Envoy in the test, and its life.
    #[derive(Clone, Debug)]
    struct Load {
        /// Requests per second, at first and later.
        loads: [u64; 2],
        turns_at: u64,
        joins: u64,
        leaves: u64,
        /// The time of a message, either way.
        transit: u64,
        phase: u64,
        /// True if a changed bucket is full.
        refills: bool,
    }

    fn loads() -> impl Strategy<Value = Vec<Load>> {
        let load = || prop_oneof![Just(0_u64), 1_u64..20, 100_u64..5_000];
        let plan = (load(), load(), 0_u64..60, 0_u64..20, 20_u64..100, 0_u64..6, 0_u64..100, any::<bool>());
        let plan = plan.prop_map(|(first, then, turns_at, joins, leaves, transit, phase, refills)| Load {
            loads: [first, then],
            turns_at: turns_at * SECOND,
            joins: joins * SECOND,
            leaves: leaves * SECOND,
            transit: transit * STEP,
            phase: phase * STEP,
            refills,
        });
        prop::collection::vec(plan, 1..8)
    }

    /// An Envoy with its bucket.
    struct Gateway {
        id: u64,
        load: Load,
        share: QuotaShare,
        tokens: i64,
        /// Fractions of requests that wait, in millionths.
        waiting: u64,
        passed: u64,
        denied: u64,
        told: QuotaShare,
        sent: Vec<(u64, QuotaShare)>,
        reports: Vec<(u64, u64, u64)>,
    }

    impl Gateway {
        fn new(id: usize, load: Load) -> Self {
            Self {
                id: id as u64,
                load,
                share: QuotaShare::NONE,
                tokens: 0,
                waiting: 0,
                passed: 0,
                denied: 0,
                told: QuotaShare::NONE,
                sent: Vec::new(),
                reports: Vec::new(),
            }
        }

        /// Lets requests pass for a step.
        fn run(&mut self, now: u64) -> u64 {
            let most = millionths(self.share.max_tokens.into());
            self.tokens = (self.tokens + flow(self.share.tokens_per_fill, Micros(STEP))).min(most);
            while let Some((_, share)) = self.sent.first().copied().filter(|(at, _)| *at <= now) {
                self.sent.remove(0);
                let most = millionths(share.max_tokens.into());
                self.tokens = if self.load.refills { most } else { self.tokens.min(most) };
                // One that has had none is full.
                if self.share == QuotaShare::NONE {
                    self.tokens = most;
                }
                self.share = share;
            }
            let load = self.load.loads[usize::from(now >= self.load.turns_at)];
            self.waiting += load * STEP;
            let requests = self.waiting / SECOND;
            self.waiting %= SECOND;
            let passed = requests.min(whole(self.tokens));
            self.tokens -= millionths(passed);
            self.passed += passed;
            self.denied += requests - passed;
            passed
        }

        /// Sends a report every 5 s, and takes in those that have arrived.
        fn report(&mut self, pool: &mut QuotaPool, now: u64) {
            if (now + self.load.phase).is_multiple_of(5 * SECOND) {
                let (passed, denied) = (std::mem::take(&mut self.passed), std::mem::take(&mut self.denied));
                self.reports.push((now + self.load.transit, passed, denied));
            }
            while let Some((_, passed, denied)) = self.reports.first().copied().filter(|(at, ..)| *at <= now) {
                self.reports.remove(0);
                pool.report(self.id, passed, denied, Micros(now));
            }
        }

        fn look(&mut self, pool: &QuotaPool, now: u64) {
            let share = pool.lease(self.id).unwrap().share();
            if share != self.told {
                self.told = share;
                self.sent.push((now + self.load.transit, share));
            }
        }
    }

    fn turn(pool: &mut QuotaPool, store: &mut Store, now: u64) {
        let due = pool.due(Micros(now));
        let is_taken = store.take(due);
        let charge = pool.plan(due, store.state(is_taken, now), false, Micros(0), Micros(now));
        let is_charged = match charge {
            Some(QuotaCharge::Take(tokens)) => store.take(tokens),
            Some(QuotaCharge::GiveBack(tokens)) => {
                store.level = (store.level + millionths(tokens)).min(millionths(store.burst));
                true
            }
            None => return,
        };
        assert!(is_charged, "{charge:?}");
        pool.confirm(is_charged, Micros(now));
    }

    /// Others who use the limit, in requests a step: at times, and numbers that it has later.
    #[derive(Clone, Debug)]
    struct Others {
        requests: u64,
        from: u64,
        until: u64,
        /// The time of a change, and the new burst and rate.
        change: Option<(u64, u64, u32)>,
    }

    const NOBODY: Others = Others { requests: 0, from: 0, until: 0, change: None };

    /// Runs gateways for some time. Checks at each step that they have not let pass more than the limit, and returns what each
    /// has let pass `since` a second.
    fn run(
        loads: &[Load],
        mut store: Store,
        others: &Others,
        [since, seconds]: [u64; 2],
    ) -> Result<Vec<u64>, TestCaseError> {
        let mut pool = QuotaPool::default();
        let mut next_turn = 0;
        let mut gateways: Vec<Option<Gateway>> = loads.iter().map(|_| None).collect();
        let (mut last, mut passed) = (vec![0; loads.len()], 0);
        for now in (1..=seconds * SECOND / STEP).map(|step| step * STEP) {
            store.pass(now);
            if let Some((_, burst, rate)) = others.change.filter(|(at, ..)| *at == now) {
                store = Store { level: store.level.min(millionths(burst)), ..Store::new(burst, rate, store.period) };
            }
            // Until then, shares of the old numbers are in force.
            let is_new = others.change.is_some_and(|(at, ..)| (at..at + 3 * SECOND / 2).contains(&now));
            if is_new {
                store.reference = millionths(store.burst);
            }
            for (place, load) in loads.iter().enumerate() {
                if now == load.joins + STEP {
                    pool.join(place as u64, Micros(now));
                    gateways[place] = Some(Gateway::new(place, load.clone()));
                    next_turn = 0;
                }
                if now == load.leaves
                    && let Some(gone) = gateways[place].take()
                {
                    // The test knows what it has let pass.
                    pool.report(
                        gone.id,
                        gone.passed + gone.reports.iter().map(|(_, passed, _)| passed).sum::<u64>(),
                        0,
                        Micros(now),
                    );
                    pool.leave(gone.id, None, Micros(now));
                }
            }
            if now >= next_turn && !pool.is_empty() {
                turn(&mut pool, &mut store, now);
                next_turn = now + pool.next_turn(Micros(now)).0;
            }
            if (others.from..others.until).contains(&now) {
                for _ in 0..others.requests {
                    if store.take(1) {
                        store.reference -= millionths(1);
                        passed += millionths(1);
                    }
                }
            }
            for gateway in gateways.iter_mut().flatten() {
                gateway.look(&pool, now);
                let now_passed = gateway.run(now);
                store.reference -= millionths(now_passed);
                passed += millionths(now_passed);
                if now > since * SECOND {
                    last[usize::try_from(gateway.id).unwrap()] += now_passed;
                }
                gateway.report(&mut pool, now);
            }
            prop_assert!(others.change.is_some() || passed <= store.granted, "{passed} of {} at {now}", store.granted);
            // Each gateway may have a part of a token. What overflows during a message and its answer is taken for held.
            let burst = u32::try_from(store.burst / 10).unwrap() * 60;
            let parts = millionths(loads.len() as u64 + 1) + flow(store.rate + burst, TRANSIT.after(TRANSIT));
            prop_assert!(store.reference > -parts || is_new, "{} at {now}", store.reference);
        }
        Ok(last)
    }

    proptest! {
        /// Whatever the loads, joins, leaves and delays of messages, beside other users, and when the numbers change.
        #[test]
        fn all_together_never_let_pass_more_than_the_limit(
            loads in loads(),
            burst in prop_oneof![1_u64..20, 1_u64..2_000],
            rate in prop_oneof![0_u32..60, 0_u32..60_000],
            window in prop_oneof![3 => Just(0_u64), 1 => 1_u64..20],
            others in (prop_oneof![Just(0_u64), 1_u64..200], 0_u64..60, 0_u64..30),
            change in prop::option::of((5_u64..50, prop_oneof![1_u64..20, 1_u64..2_000], 0_u32..60_000)),
        ) {
            let (requests, from, span) = others;
            let change = change.map(|(at, burst, rate)| (at * SECOND, burst, rate));
            let others = Others { requests, from: from * SECOND, until: (from + span) * SECOND, change };
            run(&loads, Store::new(burst, rate, window * SECOND), &others, [0, 90])?;
        }
    }

    fn steady(load: u64) -> Load {
        let seconds = |seconds: u64| seconds * SECOND;
        Load {
            loads: [load; 2],
            turns_at: 0,
            joins: 0,
            leaves: seconds(500),
            transit: 2 * STEP,
            phase: load % 7 * 2 * STEP,
            refills: true,
        }
    }

    fn passed(burst: u64, rate: u32, loads: &[Load], seconds: u64) -> Vec<u64> {
        run(loads, Store::new(burst, rate, 0), &NOBODY, [seconds - 10, seconds]).unwrap()
    }

    #[test]
    fn shares_follow_the_load() {
        // 100 a second, as a burst, too.
        let passed = |loads: &[Load], seconds| passed(100, 6_000, loads, seconds);
        let all = passed(&[steady(500)], 30);
        assert!(all[0] > 900, "{all:?}");
        let both = passed(&[steady(900), steady(100)], 30);
        assert!(both[0] > 4 * both[1] && both[0] + both[1] > 850, "{both:?}");
        // The load moves, and the shares have moved 10 s later.
        let moving = |loads| Load { loads, turns_at: 30 * SECOND, ..steady(1) };
        let moved = passed(&[moving([900, 20]), moving([20, 900])], 50);
        assert!(moved[1] > 4 * moved[0] && moved[0] + moved[1] > 900, "{moved:?}");
        // One that is alone again gets all of it.
        let gone = Load { leaves: 20 * SECOND, ..steady(500) };
        let alone = passed(&[steady(500), gone], 45);
        assert!(alone[0] > 850, "{alone:?}");
        // Nobody is denied below the limit.
        let low = passed(&[steady(20), steady(30)], 40);
        assert!(low[0] > 195 && low[1] > 295, "{low:?}");
    }

    #[test]
    fn equal_gateways_have_equal_shares() {
        for (gateways, least) in [(2, 400), (3, 250), (8, 90), (20, 20)] {
            let loads: Vec<Load> =
                (0..gateways).map(|joins| Load { joins: joins * SECOND, ..steady(500 + joins) }).collect();
            let all = passed(100, 6_000, &loads, 60);
            assert!(all.iter().all(|passed| *passed > least) && all.iter().sum::<u64>() > 750, "{gateways}: {all:?}");
        }
    }

    #[test]
    fn windows_are_given_out() {
        for (burst, period, least) in [(100, SECOND, 900), (500, 5 * SECOND, 1_400)] {
            let late = Load { phase: 2 * SECOND, ..steady(500) };
            for loads in [vec![steady(500)], vec![late], vec![steady(300), steady(200), steady(100)]] {
                let all = run(&loads, Store::new(burst, 0, period), &NOBODY, [20, 40]).unwrap();
                assert!(all.iter().sum::<u64>() > least, "{burst}: {all:?}");
            }
        }
    }

    #[test]
    fn small_limits_are_given_out_whole() {
        for burst in [1, 3, 10] {
            let load = Load { loads: [2; 2], ..steady(2) };
            for gateways in [1, 2] {
                let loads = vec![load.clone(); gateways];
                let all: u64 = run(&loads, Store::new(burst, 0, 0), &NOBODY, [0, 25]).unwrap().iter().sum();
                assert!(all == burst || gateways > 1 && all + 2 > burst, "{all} of {burst} for {gateways}");
            }
        }
    }
}
