//! The share of a limit that a gateway has, which counts requests by itself.
//!
//! A gateway gets a token bucket: full at first, and filled at an even rate. It may let pass `max_tokens`, and what flows in. A report
//! says how much it has let pass; what does not fit into the gateway's bucket any more is gone there.
//!
//! A changed bucket is full or keeps its tokens, depending on Envoy's version. Both are counted for: an old bucket may be empty and the
//! new one full.

use crate::engine::algorithms::micros::Micros;

/// The time in which [`QuotaShare::tokens_per_fill`] flow in. Always the same, because Envoy 1.40 takes a bucket with another
/// interval of whole seconds for the same one. Long enough for slow rates in whole tokens.
pub const FILL: Micros = Micros(60_000_000);

/// The time in which a gateway receives what is sent, and a report comes back.
pub const TRANSIT: Micros = Micros(400_000);

/// Demand is measured over this time at least.
const MEASURED: Micros = Micros(2_000_000);

/// Millionths of a token.
const TOKEN: i64 = 1_000_000;

/// The token bucket of a gateway. One without tokens denies everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaShare {
    pub max_tokens: u32,
    /// Those of a [`FILL`].
    pub tokens_per_fill: u32,
}

impl QuotaShare {
    pub const NONE: Self = Self { max_tokens: 0, tokens_per_fill: 0 };

    /// Returns a bucket for this rate, with the requests of an eighth of a second.
    pub fn of_rate(tokens_per_fill: u64) -> Self {
        let tokens_per_fill = u32::try_from(tokens_per_fill).unwrap_or(u32::MAX);
        let max_tokens = if tokens_per_fill == 0 { 0 } else { (tokens_per_fill / 480).max(1) };
        Self { max_tokens, tokens_per_fill }
    }

    pub const fn rate(self) -> u64 {
        self.tokens_per_fill as u64
    }
}

/// The share of a gateway, and what it may have let pass.
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
    reported: Micros,
    /// The requests since `measured`, and those of them that the gateway has let pass.
    requests: u64,
    passed: u64,
    measured: Micros,
    demand: Option<u64>,
    /// The requests that the gateway has let pass in a [`FILL`].
    usage: Option<u64>,
}

impl QuotaLease {
    pub fn new(now: Micros) -> Self {
        Self { at: now, changed: now.before(TRANSIT), reported: now, measured: now, ..Self::default() }
    }

    pub const fn share(&self) -> QuotaShare {
        self.share
    }

    /// Returns the requests that the gateway gets in a [`FILL`]; `None` if it has not told it yet.
    pub const fn demand(&self) -> Option<u64> {
        self.demand
    }

    /// The time of the last report.
    pub const fn reported(&self) -> Micros {
        self.reported
    }

    /// Returns true if the gateway may not have received the last change yet.
    pub fn is_changing(&self, now: Micros) -> bool {
        now.since(self.changed) < TRANSIT
    }

    /// Returns the tokens that must have been taken from the limits: what the gateway may let pass until `horizon` from now, with
    /// what it has not reported.
    pub fn needed(&self, horizon: Micros) -> u64 {
        whole(self.held.saturating_add(self.inflow(self.at.after(horizon))))
    }

    /// Returns what the gateway may let pass from now on, until `horizon` from now.
    pub fn potential(&self, horizon: Micros) -> u64 {
        whole(self.held.min(self.largest()).saturating_add(self.inflow(self.at.after(horizon))))
    }

    /// Notes that the gateway is sent a share.
    pub fn assign(&mut self, share: QuotaShare, now: Micros) {
        self.advance(now);
        let before = self.before(now);
        self.before = QuotaShare {
            max_tokens: self.share.max_tokens.saturating_add(before.max_tokens),
            tokens_per_fill: self.share.tokens_per_fill.max(before.tokens_per_fill),
        };
        (self.share, self.changed) = (share, now);
        self.held = self.held.saturating_add(i64::from(share.max_tokens) * TOKEN);
    }

    /// Notes how many requests the gateway has let pass and denied since its last report.
    pub fn report(&mut self, passed: u64, denied: u64, now: Micros) {
        self.advance(now);
        self.measure(passed, denied, now);
        let rate = self.share.tokens_per_fill.max(self.before(now).tokens_per_fill);
        // Above it, its bucket has overflowed. Below 0, it has let requests pass without a share.
        let most = self.largest().saturating_add(flow(rate, TRANSIT));
        self.held = self.held.saturating_sub(millionths(passed)).clamp(0, most);
    }

    /// Measures the demand and the usage.
    fn measure(&mut self, passed: u64, denied: u64, now: Micros) {
        self.reported = now;
        self.requests = self.requests.saturating_add(passed).saturating_add(denied);
        self.passed = self.passed.saturating_add(passed);
        let span = now.since(self.measured);
        if span >= MEASURED {
            let per_fill = |requests: u64| {
                let rate = u128::from(requests) * u128::from(FILL.0) / u128::from(span.0);
                u64::try_from(rate).unwrap_or(u64::MAX)
            };
            // A pause of some seconds does not lose the whole share at once.
            self.demand = Some(per_fill(self.requests).max(self.demand.unwrap_or(0) / 4));
            self.usage = Some(per_fill(self.passed));
            (self.requests, self.passed, self.measured) = (0, 0, now);
        }
    }

    /// Returns what a gateway that is gone has let pass since its last report: as many requests per second as before it. One that
    /// has only begun is taken to have let pass as many in each second as it has reported.
    pub fn unreported(&mut self, now: Micros) -> u64 {
        self.advance(now);
        let usage = self.usage.unwrap_or_else(|| self.passed.saturating_add(1).saturating_mul(FILL.0 / 1_000_000));
        let usage = u32::try_from(usage).unwrap_or(u32::MAX);
        whole(flow(usage, now.since(self.reported).after(TRANSIT)).min(self.held))
    }

    /// Returns what a gateway may let pass that goes on with its share until `end`, and cannot be told otherwise.
    pub fn until(&mut self, now: Micros, end: Micros) -> u64 {
        self.advance(now);
        tokens(self.held.saturating_add(self.inflow(end)))
    }

    /// Lets tokens flow in.
    pub fn advance(&mut self, now: Micros) {
        self.held = self.held.saturating_add(self.inflow(now));
        self.at = self.at.max(now);
    }

    /// The tokens that flow in until `end`.
    fn inflow(&self, end: Micros) -> i64 {
        let received = self.changed.after(TRANSIT).clamp(self.at, self.at.max(end));
        let faster = self.share.tokens_per_fill.max(self.before.tokens_per_fill);
        flow(faster, received.since(self.at)).saturating_add(flow(self.share.tokens_per_fill, end.since(received)))
    }

    /// The share that the gateway may still have.
    fn before(&self, now: Micros) -> QuotaShare {
        if self.is_changing(now) { self.before } else { QuotaShare::NONE }
    }

    /// The most that its bucket holds, in millionths.
    fn largest(&self) -> i64 {
        (i64::from(self.share.max_tokens) + i64::from(self.before(self.at).max_tokens)) * TOKEN
    }
}

/// The millionths of tokens that flow in, rounded up.
pub fn flow(tokens_per_fill: u32, span: Micros) -> i64 {
    let flowed = u128::from(tokens_per_fill) * u128::from(span.0) * u128::from(TOKEN.unsigned_abs());
    i64::try_from(flowed.div_ceil(u128::from(FILL.0))).unwrap_or(i64::MAX / 4)
}

pub fn millionths(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX).saturating_mul(TOKEN).min(i64::MAX / 4)
}

/// Whole tokens, rounded up.
fn tokens(millionths: i64) -> u64 {
    u64::try_from(millionths).unwrap_or(0).div_ceil(TOKEN.unsigned_abs())
}

/// Whole tokens, rounded down.
pub fn whole(millionths: i64) -> u64 {
    u64::try_from(millionths).unwrap_or(0) / TOKEN.unsigned_abs()
}
