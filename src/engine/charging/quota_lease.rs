//! Shares of limits for gateways that count requests by themselves, and the tokens that are taken for them in advance.
//!
//! A gateway gets a token bucket: full at first, and filled at an even rate. So it can let pass `max_tokens`, and what flows in.
//! Tokens for all of that are taken from the limit's bucket before the gateway gets them, those that flow in [`AHEAD`] of time. So all
//! gateways together never let pass more than the limit, however many others use it. A report says how much was used; what no longer fits into
//! the gateway's bucket is gone there, and comes back.
//!
//! A changed bucket is full or keeps its tokens, depending on Envoy's version. Both are counted for: an old bucket may be empty and the
//! new one full.

use crate::engine::algorithms::micros::Micros;

/// The time in which [`QuotaShare::tokens_per_fill`] flow in. Always the same, because Envoy 1.40 takes a bucket with another
/// interval of whole seconds for the same one. Long enough for slow rates in whole tokens.
pub const FILL: Micros = Micros(60_000_000);

/// Tokens are taken this long before they flow in: for two turns, in one of which there may be none, and a [`TRANSIT`].
const AHEAD: Micros = Micros(3_200_000);

/// The time between two calls of [`QuotaLease::due`] at most.
const TURN: Micros = Micros(1_100_000);

/// The time in which a gateway receives what is sent, and a report comes back.
const TRANSIT: Micros = Micros(1_000_000);

/// Demand is measured over this time at least.
const MEASURED: Micros = Micros(2_000_000);

/// Millionths of a token.
const TOKEN: i64 = 1_000_000;

/// Changes of less than an eighth wait: each costs tokens until the next report.
const HYSTERESIS: u64 = 8;

/// The token bucket of a gateway. One without tokens denies everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaShare {
    pub max_tokens: u32,
    /// Those of a [`FILL`].
    pub tokens_per_fill: u32,
}

/// The share of a gateway, and the tokens for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuotaLease {
    share: QuotaShare,
    /// The share that it may still have until a [`TRANSIT`] after `changed`.
    before: QuotaShare,
    changed: Micros,
    /// Until then, tokens have flowed in.
    at: Micros,
    /// The most that the gateway may have let pass since its last report or may let pass now, in millionths.
    held: i64,
    /// Tokens that were taken and have not flowed in; negative if some were let pass before they were taken.
    ahead: i64,
    /// Those of them that are saved for another share.
    saved: i64,
    reported: Micros,
    /// The requests since `measured`.
    requests: u64,
    measured: Micros,
    demand: Option<u64>,
}

impl QuotaLease {
    pub fn new(now: Micros) -> Self {
        Self { at: now, changed: now.before(TRANSIT), reported: now, measured: now, ..Self::default() }
    }

    pub const fn share(&self) -> QuotaShare {
        self.share
    }

    /// Returns the numbers by which the limit is divided.
    pub const fn need(&self) -> QuotaNeed {
        QuotaNeed { demand: self.demand, rate: self.share.tokens_per_fill }
    }

    /// The time of the last report.
    pub const fn reported(&self) -> Micros {
        self.reported
    }

    /// Returns the tokens to take now so that the share can go on.
    pub fn due(&mut self, now: Micros) -> u64 {
        self.advance(now);
        let before = self.before.tokens_per_fill.saturating_sub(self.share.tokens_per_fill);
        let left = self.changed.after(TRANSIT).since(now);
        let needed = flow(self.share.tokens_per_fill, AHEAD) + flow(before, left);
        tokens(needed.max(self.saved) - self.ahead)
    }

    /// Takes the answer to what was [`due`](Self::due), with the tokens `left`. Returns the share to have, and the tokens to take
    /// for it: see [`Self::granted`].
    pub fn answered(&mut self, due: Option<u64>, left: u64, fair: FairShare, now: Micros) -> Option<(QuotaShare, u64)> {
        self.saved = 0;
        match due {
            Some(due) => {
                self.ahead = self.ahead.saturating_add(millionths(due));
                let left = left.saturating_sub(fair.reserved);
                if self.is_changing(now) { None } else { self.change(fair.target, left) }
            }
            None if self.is_paid(left) => Some((self.share, left)),
            None => {
                let rate = u64::from(self.share.tokens_per_fill);
                Some(self.afford((rate - rate / 4).min(self.affordable(left)), left).unwrap_or_default())
            }
        }
    }

    /// Notes that tokens were taken for a share. The gateway gets it if it is another one.
    pub fn granted(&mut self, share: QuotaShare, tokens: u64, now: Micros) {
        self.ahead = self.ahead.saturating_add(millionths(tokens));
        if share != self.share {
            self.assign(share, now);
        }
    }

    /// Returns true if the share can go on until the next turn, with more tokens.
    fn is_paid(&self, more: u64) -> bool {
        let needed = flow(self.share.tokens_per_fill, TURN.after(TRANSIT));
        self.share.tokens_per_fill == 0 || self.ahead.saturating_add(millionths(more)) >= needed
    }

    /// Notes that the tokens for a share could not be taken.
    pub fn refused(&mut self, now: Micros) {
        if !self.is_paid(0) {
            self.assign(QuotaShare::default(), now);
        }
    }

    /// Returns true if a change would come before the last one has been received.
    fn is_changing(&self, now: Micros) -> bool {
        now.since(self.changed) < TRANSIT
    }

    /// Returns a share for a target, and the tokens to take for it, of `left` ones; `None` to leave it as it is.
    fn change(&mut self, target: u64, left: u64) -> Option<(QuotaShare, u64)> {
        let now = u64::from(self.share.tokens_per_fill);
        if target.abs_diff(now) <= now / HYSTERESIS {
            return None;
        }
        if target < now {
            return self.afford(target.min(self.affordable(left)), left);
        }
        let rate = target.min(self.affordable(left));
        if rate > now && (now == 0 || rate == target || rate >= now + now / 2) {
            return self.afford(rate, left);
        }
        // A bucket that is full takes in nothing, so what is left is saved for a change that is worth its tokens.
        let needed = self.cost(least_share(target.min(now + now / 2)));
        let tokens = needed.min(left - left / 4);
        self.saved = self.ahead.saturating_add(millionths(tokens));
        Some((self.share, tokens))
    }

    /// The rate for which a bucket can be had.
    fn affordable(&self, left: u64) -> u64 {
        let funds = left.saturating_add(whole(self.ahead));
        // What flows in ahead and a quarter of a second in the bucket; at least one token of each.
        if funds < 2 { 0 } else { ((funds - 2) * 17).max(1) }
    }

    /// Returns the largest bucket of this rate that can be had with what is `left`, of which some stays for others.
    fn afford(&self, rate: u64, left: u64) -> Option<(QuotaShare, u64)> {
        let least = least_share(rate);
        let cost = self.cost(least);
        if rate == 0 || cost > left {
            return None;
        }
        // Two seconds of requests at most.
        let most = (least.tokens_per_fill / 30).max(least.max_tokens);
        let more = u32::try_from((left - cost) / 3).unwrap_or(u32::MAX);
        let share = QuotaShare { max_tokens: least.max_tokens.saturating_add(more).min(most), ..least };
        Some((share, self.cost(share)))
    }

    /// Returns the tokens to take for another share.
    fn cost(&self, share: QuotaShare) -> u64 {
        let slower = self.share.tokens_per_fill.saturating_sub(share.tokens_per_fill);
        let needed = i64::from(share.max_tokens) * TOKEN + flow(share.tokens_per_fill, AHEAD) + flow(slower, TRANSIT);
        tokens(needed - self.ahead)
    }

    /// Notes that the gateway is sent a share. The tokens for it have been taken.
    pub fn assign(&mut self, share: QuotaShare, now: Micros) {
        self.advance(now);
        let before = if self.is_changing(now) { self.before } else { QuotaShare::default() };
        self.before = QuotaShare {
            max_tokens: self.share.max_tokens.saturating_add(before.max_tokens),
            tokens_per_fill: self.share.tokens_per_fill.max(before.tokens_per_fill),
        };
        (self.share, self.changed) = (share, now);
        self.held = self.held.saturating_add(i64::from(share.max_tokens) * TOKEN);
        self.ahead = self.ahead.saturating_sub(i64::from(share.max_tokens) * TOKEN);
    }

    /// Notes how many requests the gateway has let pass and denied since its last report.
    pub fn report(&mut self, passed: u64, denied: u64, now: Micros) {
        self.advance(now);
        self.measure(passed.saturating_add(denied), now);
        self.held = self.held.saturating_sub(millionths(passed));
        let before = if self.is_changing(now) { self.before } else { QuotaShare::default() };
        let rate = self.share.tokens_per_fill.max(before.tokens_per_fill);
        let most = (i64::from(self.share.max_tokens) + i64::from(before.max_tokens)) * TOKEN + flow(rate, TRANSIT);
        // Above it, its bucket has overflowed. Below 0, it has let requests pass without a share.
        let beyond = self.held - self.held.clamp(0, most);
        self.held -= beyond;
        self.ahead = self.ahead.saturating_add(beyond);
    }

    /// Measures the demand.
    fn measure(&mut self, requests: u64, now: Micros) {
        self.reported = now;
        self.requests = self.requests.saturating_add(requests);
        let span = now.since(self.measured);
        if span >= MEASURED {
            let rate = u128::from(self.requests) * u128::from(FILL.0) / u128::from(span.0);
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            // A pause of some seconds does not lose the whole share at once.
            self.demand = Some(rate.max(self.demand.unwrap_or(0) / 4));
            (self.requests, self.measured) = (0, now);
        }
    }

    /// Takes out the tokens that the share does not need.
    pub fn take_spare(&mut self, now: Micros) -> u64 {
        self.advance(now);
        let before = if self.is_changing(now) { self.before.tokens_per_fill } else { 0 };
        let needed = flow(self.share.tokens_per_fill.max(before), AHEAD).max(self.saved);
        let spare = whole(self.ahead - needed);
        self.ahead -= millionths(spare);
        spare
    }

    /// Returns what a gateway that is gone leaves. Since its last report it is taken to have let pass as many requests per second as
    /// before it.
    pub fn left(&mut self, now: Micros) -> u64 {
        self.advance(now);
        let demand = self.demand.map_or(u32::MAX, |demand| u32::try_from(demand).unwrap_or(u32::MAX));
        let passed = flow(demand, now.since(self.reported).after(TRANSIT)).min(self.held);
        whole(self.held - passed + self.ahead)
    }

    /// Returns the tokens that are missing for a gateway that goes on with its share until `end`, and cannot be told otherwise.
    pub fn missing(&mut self, now: Micros, end: Micros) -> u64 {
        self.advance(now);
        tokens(flow(self.share.tokens_per_fill, end.since(now)) - self.ahead)
    }

    /// Lets tokens flow in.
    fn advance(&mut self, now: Micros) {
        let received = self.changed.after(TRANSIT).clamp(self.at, self.at.max(now));
        let faster = self.share.tokens_per_fill.max(self.before.tokens_per_fill);
        let flowed = flow(faster, received.since(self.at)) + flow(self.share.tokens_per_fill, now.since(received));
        self.held = self.held.saturating_add(flowed);
        self.ahead = self.ahead.saturating_sub(flowed);
        self.at = self.at.max(now);
    }
}

/// The least bucket for a rate: a quarter of a second.
fn least_share(rate: u64) -> QuotaShare {
    let tokens_per_fill = u32::try_from(rate).unwrap_or(u32::MAX);
    QuotaShare { max_tokens: (tokens_per_fill / 240).max(1), tokens_per_fill }
}

/// One of the gateways that share a limit. All numbers are per [`FILL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaNeed {
    /// The requests that it gets; `None` if it has not told it yet.
    pub demand: Option<u64>,
    /// The tokens that flow in.
    pub rate: u32,
}

/// The share that one of several gateways should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairShare {
    /// In tokens per [`FILL`].
    pub target: u64,
    /// The tokens for the next turn of the others.
    pub reserved: u64,
}

/// Divides the `capacity` of all gateways, in tokens per [`FILL`], by their demands.
pub fn fair_share(all: &[QuotaNeed], own: QuotaNeed, capacity: u64) -> FairShare {
    let gateways = all.len().max(1) as u64;
    let known = || all.iter().filter_map(|need| need.demand);
    let average = known().sum::<u64>().checked_div(known().count() as u64).unwrap_or(0).max(1);
    // Those without requests can begin.
    let least = (capacity / (20 * gateways)).max(1);
    let weight = |need: &QuotaNeed| u128::from(need.demand.unwrap_or(average).saturating_add(least));
    let share = u128::from(capacity) * weight(&own) / all.iter().map(weight).sum::<u128>().max(1);
    let share = u64::try_from(share).unwrap_or(u64::MAX);
    // More would lie idle until the next report.
    let target = share.min(own.demand.map_or(share, |demand| demand.saturating_mul(2).saturating_add(2 * least)));
    let rates: u64 = all.iter().map(|need| u64::from(need.rate)).sum();
    FairShare {
        target,
        reserved: tokens(flow(u32::try_from(rates).unwrap_or(u32::MAX).saturating_sub(own.rate), TURN)),
    }
}

/// The millionths of tokens that flow in, rounded up.
fn flow(tokens_per_fill: u32, span: Micros) -> i64 {
    let flowed = u128::from(tokens_per_fill) * u128::from(span.0) * u128::from(TOKEN.unsigned_abs());
    i64::try_from(flowed.div_ceil(u128::from(FILL.0))).unwrap_or(i64::MAX / 4)
}

fn millionths(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX).saturating_mul(TOKEN).min(i64::MAX / 4)
}

/// Whole tokens, rounded up.
fn tokens(millionths: i64) -> u64 {
    u64::try_from(millionths).unwrap_or(0).div_ceil(TOKEN.unsigned_abs())
}

/// Whole tokens, rounded down.
fn whole(millionths: i64) -> u64 {
    u64::try_from(millionths).unwrap_or(0) / TOKEN.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000;
    const STEP: u64 = 50_000;

    /// A limit's bucket, in millionths of tokens.
    struct Store {
        burst: i64,
        rate: u32,
        level: i64,
        /// Tokens that gateways have left for each other.
        pool: u64,
        age: u64,
    }

    impl Store {
        fn pass(&mut self, span: u64) {
            self.level = (self.level + flow(self.rate, Micros(span))).min(self.burst);
            self.age += span;
            if self.age > 2 * SECOND {
                self.level = (self.level + millionths(std::mem::take(&mut self.pool))).min(self.burst);
            }
        }

        fn take(&mut self, tokens: u64) -> Option<u64> {
            let pooled = self.pool.min(tokens);
            let left = self.level - millionths(tokens - pooled);
            if left < 0 {
                return None;
            }
            (self.level, self.pool) = (left, self.pool - pooled);
            Some(tokens)
        }

        fn give_back(&mut self, tokens: u64) {
            if tokens > 0 {
                (self.pool, self.age) = (self.pool + tokens, 0);
            }
        }

        fn left(&self) -> u64 {
            whole(self.level) + self.pool
        }
    }

    /// The load of an Envoy in the test, and its life.
    #[derive(Clone, Debug)]
    struct Plan {
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

    fn plans() -> impl Strategy<Value = Vec<Plan>> {
        let load = || prop_oneof![Just(0_u64), 1_u64..20, 100_u64..5_000];
        let plan = (load(), load(), 0_u64..60, 0_u64..20, 20_u64..200, 0_u64..900_000, 0_u64..1_000_000, any::<bool>());
        let plan = plan.prop_map(|(first, then, turns_at, joins, leaves, transit, phase, refills)| Plan {
            loads: [first, then],
            turns_at: turns_at * SECOND,
            joins: joins * SECOND,
            leaves: leaves * SECOND,
            transit,
            phase,
            refills,
        });
        prop::collection::vec(plan, 1..8)
    }

    /// An Envoy with its bucket, and its lease.
    struct Gateway {
        plan: Plan,
        lease: QuotaLease,
        share: QuotaShare,
        tokens: i64,
        /// Fractions of requests that wait, in millionths.
        waiting: u64,
        passed: u64,
        denied: u64,
        sent: Vec<(u64, QuotaShare)>,
        reports: Vec<(u64, u64, u64)>,
    }

    impl Gateway {
        fn new(plan: Plan, now: u64) -> Self {
            let lease = QuotaLease::new(Micros(now));
            let (share, sent, reports) = (QuotaShare::default(), Vec::new(), Vec::new());
            Self { plan, lease, share, tokens: 0, waiting: 0, passed: 0, denied: 0, sent, reports }
        }

        /// Receives, and lets requests pass. Returns how many.
        fn run(&mut self, now: u64) -> u64 {
            while let Some((_, share)) = self.sent.first().copied().filter(|(at, _)| *at <= now) {
                self.sent.remove(0);
                let most = i64::from(share.max_tokens) * TOKEN;
                let was_empty = self.share.max_tokens == 0;
                self.tokens = if self.plan.refills || was_empty { most } else { self.tokens.min(most) };
                self.share = share;
            }
            let most = i64::from(self.share.max_tokens) * TOKEN;
            self.tokens = (self.tokens + flow(self.share.tokens_per_fill, Micros(STEP))).min(most);
            let load = self.plan.loads[usize::from(now >= self.plan.turns_at)];
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
        fn report(&mut self, now: u64) {
            if (now + self.plan.phase / STEP * STEP).is_multiple_of(5 * SECOND) {
                self.reports.push((
                    now + self.plan.transit,
                    std::mem::take(&mut self.passed),
                    std::mem::take(&mut self.denied),
                ));
            }
            while let Some((_, passed, denied)) = self.reports.first().copied().filter(|(at, ..)| *at <= now) {
                self.reports.remove(0);
                self.lease.report(passed, denied, Micros(now));
            }
        }

        /// Has its turn, as the service gives it.
        fn turn(&mut self, store: &mut Store, needs: &[QuotaNeed], now: u64) {
            let at = Micros(now);
            let before = self.lease.share();
            let due = self.lease.due(at);
            let taken = store.take(due);
            let capacity = u64::from(store.rate) + 6 * store.left().saturating_sub(u64::from(store.rate) / 30);
            let fair = fair_share(needs, self.lease.need(), capacity);
            if let Some((share, cost)) = self.lease.answered(taken, store.left(), fair, at) {
                if store.take(cost).is_some() {
                    self.lease.granted(share, cost, at);
                } else {
                    self.lease.refused(at);
                }
            }
            store.give_back(self.lease.take_spare(at));
            if self.lease.share() != before {
                self.sent.push((now + self.plan.transit, self.lease.share()));
            }
        }
    }

    /// Runs gateways for some time. Checks at each step that they have not let pass more than the limit, and returns what each
    /// has let pass in the last 10 s.
    fn run(plans: &[Plan], burst: u64, rate: u32, others: u64, seconds: u64) -> Result<Vec<u64>, TestCaseError> {
        let mut store = Store { burst: millionths(burst), rate, level: millionths(burst), pool: 0, age: 0 };
        let (mut granted, mut passed) = (millionths(burst), 0_i64);
        let mut gateways: Vec<Option<Gateway>> = plans.iter().map(|_| None).collect();
        let mut last = vec![0; plans.len()];
        for now in (1..=seconds * SECOND / STEP).map(|step| step * STEP) {
            store.pass(STEP);
            granted += flow(rate, Micros(STEP));
            // Other users of the limit.
            let taken = store.take(others * u64::from(now % SECOND == 0)).unwrap_or(0);
            passed += millionths(taken);
            for (place, plan) in plans.iter().enumerate() {
                if now == plan.joins + STEP {
                    gateways[place] = Some(Gateway::new(plan.clone(), now));
                }
                if now == plan.leaves
                    && let Some(mut gone) = gateways[place].take()
                {
                    // It let pass as much since its last report as before it, and the test knows it.
                    let unreported = gone.passed + gone.reports.iter().map(|(_, passed, _)| passed).sum::<u64>();
                    let left = gone.lease.left(Micros(now));
                    let most = whole(gone.lease.held.max(0)) + whole(gone.lease.ahead.max(0)) + 1;
                    prop_assert!(left <= most, "{left} of {most}");
                    store.give_back(left.min(most.saturating_sub(unreported)));
                }
            }
            for place in 0..gateways.len() {
                let needs: Vec<_> = gateways.iter().flatten().map(|gateway| gateway.lease.need()).collect();
                let Some(gateway) = &mut gateways[place] else { continue };
                if now % SECOND == gateway.plan.phase / STEP * STEP {
                    gateway.turn(&mut store, &needs, now);
                }
                let now_passed = gateway.run(now);
                passed += millionths(now_passed);
                if now > (seconds - 10) * SECOND {
                    last[place] += now_passed;
                }
                gateway.report(now);
            }
            let charged = granted - store.level;
            prop_assert!(passed <= charged, "{passed} of {charged} after {now}");
        }
        Ok(last)
    }

    proptest! {
        /// For all loads, joins, leaves and delays of messages.
        #[test]
        fn all_shares_together_are_never_more_than_the_limit(
            plans in plans(),
            burst in 1_u64..2_000,
            rate in 0_u32..60_000,
            others in 0_u64..50,
        ) {
            run(&plans, burst, rate, others, 90)?;
        }
    }

    fn steady(load: u64) -> Plan {
        let seconds = |seconds: u64| seconds * SECOND;
        Plan {
            loads: [load; 2],
            turns_at: 0,
            joins: 0,
            leaves: seconds(500),
            transit: 100_000,
            phase: load % 7 * 100_000,
            refills: true,
        }
    }

    #[test]
    fn shares_follow_the_load() {
        // 100 a second, as a burst, too.
        let passed = |plans: &[Plan], seconds| run(plans, 100, 6_000, 0, seconds).unwrap();
        let all = passed(&[steady(500)], 30);
        assert!(all[0] > 900, "{all:?}");
        let both = passed(&[steady(900), steady(100)], 30);
        assert!(both[0] > 4 * both[1] && both[0] + both[1] > 850, "{both:?}");
        // The load moves, and the shares have moved 10 s later.
        let moving = |loads| Plan { loads, turns_at: 30 * SECOND, ..steady(1) };
        let moved = passed(&[moving([900, 20]), moving([20, 900])], 50);
        assert!(moved[1] > 4 * moved[0] && moved[0] + moved[1] > 900, "{moved:?}");
        // One that is alone again gets all of it.
        let gone = Plan { leaves: 20 * SECOND, ..steady(500) };
        let alone = passed(&[steady(500), gone], 45);
        assert!(alone[0] > 850, "{alone:?}");
        // Nobody is denied below the limit.
        let low = passed(&[steady(20), steady(30)], 40);
        assert!(low[0] > 195 && low[1] > 295, "{low:?}");
    }
}
