//! Charges: the changes to buckets that a request asks the store for.

use std::sync::Arc;

use super::decision::{Decision, Detail, Outcome};
use super::delay::Delay;
use super::describe::Span;
use super::lease::{LeaseAsk, LeaseTerms};
use super::micros::{EXACT, Micros};
use super::numbers::Numbers;
use super::queue::Work;
use super::script::Run;
use super::tag::{Tag, tag_of};
use super::windows::Windows;

/// The identity of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// `<short>:<id>`, percent-encoded and bounded in length: the end of the Redis key.
    pub key: String,
    /// A keyed 128-bit hash of `key`. The memory store uses nothing else.
    pub fingerprint: u128,
    pub tag: Tag,
}

impl Bucket {
    /// A bucket whose hash tag is that of its id.
    pub fn new(key: impl Into<String>, fingerprint: u128) -> Self {
        Self { key: key.into(), fingerprint, tag: Tag::OfId }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Takes the cost if it fits, and denies the request otherwise.
    Spend,
    /// Answers as `Spend` would, but takes nothing.
    Check,
    /// Takes the cost if it fits, and never denies.
    SpendOnly,
    /// Takes the cost, or everything that is left if that is less, and never denies. For costs that have already been incurred.
    SpendUpTo,
    /// Gives the cost back, up to a full bucket.
    Refund,
    /// Makes the bucket full.
    Reset,
}

impl Mode {
    pub const fn can_deny(self) -> bool {
        matches!(self, Self::Spend | Self::Check)
    }

    /// The outcome of a charge that does not fit.
    pub(crate) const fn short_outcome(self) -> Outcome {
        if self.can_deny() { Outcome::Denied } else { Outcome::Unchanged }
    }
}

/// A change to one bucket, with the numbers that hold for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    pub bucket: Bucket,
    pub numbers: Numbers,
    /// In tokens. 0 takes nothing. A cost above the burst can never pass.
    pub cost: u64,
    pub mode: Mode,
    /// The instant from which the numbers hold, if it is after the rules took effect: an override has expired, or the call brings
    /// its own numbers ([`NUMBERS_OF_THE_CALL`]). Otherwise 0.
    pub changed: Micros,
    /// The terms of leases for its bucket.
    pub lease: Option<LeaseTerms>,
    pub input: Option<Box<Input>>,
}

/// [`Charge::changed`] of numbers that a call brings: until now, the numbers of the last write held.
pub const NUMBERS_OF_THE_CALL: Micros = Micros(EXACT - 1);

/// The input that some algorithms need beside the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Elevated(Arc<Elevated>),
    Slot(Slot),
    Queue(Work),
    Script(Run),
    /// The time since the tokens of a refund were taken, for a sliding log or window, or a fixed window.
    TakenAgo(Micros),
    Lease(LeaseAsk),
    /// For `gcra` and `fixed_window`. Charges with it have no lease.
    Delay(Delay),
}

/// The name of a request in flight. A spend with the same name renews its slot, and a refund frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u128);

/// `elevated:` of a limit or an override.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Elevated {
    pub numbers: Numbers,
    /// The length of an activation, in microseconds.
    pub span: u64,
    /// Months are in UTC.
    pub activations_per_month: u64,
    /// The name under which buckets of one hash tag share a count of activations, percent-encoded and bounded as in keys; `None` for
    /// the bucket's own count.
    pub quota: Option<Arc<str>>,
}

impl std::fmt::Display for Elevated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { numbers, span, activations_per_month, quota: _ } = self;
        write!(f, "{numbers}, for {}, {activations_per_month} times a month", Span(span.saturating_mul(1_000)))
    }
}

impl Charge {
    pub const fn new(bucket: Bucket, numbers: Numbers, cost: u64, mode: Mode) -> Self {
        Self { bucket, numbers, cost, mode, changed: Micros(0), lease: None, input: None }
    }

    pub fn elevated(&self) -> Option<&Elevated> {
        match self.input.as_deref() {
            Some(Input::Elevated(elevated)) => Some(elevated),
            _ => None,
        }
    }

    /// Returns the quota that counts its activations: the hash tag within which buckets share it, and its name.
    pub fn quota(&self) -> Option<(u8, &Arc<str>)> {
        self.elevated()?.quota.as_ref().map(|name| (tag_of(&self.bucket), name))
    }

    pub fn slot(&self) -> Option<Slot> {
        match self.input.as_deref() {
            Some(Input::Slot(slot)) => Some(*slot),
            _ => None,
        }
    }

    /// Returns the time since the tokens of a refund were taken, if known.
    pub fn taken_ago(&self) -> Option<Micros> {
        match self.input.as_deref() {
            Some(Input::TakenAgo(ago)) if self.mode == Mode::Refund => Some(*ago),
            _ => None,
        }
    }

    /// Returns the limit's delay, and how long the caller waits.
    #[inline]
    pub fn delay(&self) -> Option<&Delay> {
        match self.input.as_deref() {
            Some(Input::Delay(delay)) => Some(delay),
            _ => None,
        }
    }

    /// Returns its part about leases. A check has none, because it changes nothing.
    pub fn lease_ask(&self) -> Option<&LeaseAsk> {
        match self.input.as_deref() {
            Some(Input::Lease(ask)) if self.mode != Mode::Check => Some(ask),
            _ => None,
        }
    }

    /// Returns the numbers that decided it: the elevated ones if the detail says that they are on.
    pub fn numbers_by(&self, detail: Option<&Detail>) -> &Numbers {
        let is_active = |_: &&Elevated| detail.and_then(Detail::elevation).is_some_and(|elevation| elevation.active);
        self.elevated().filter(is_active).map_or(&self.numbers, |elevated| &elevated.numbers)
    }

    /// Returns true if it counts in its bucket even if the request is denied (`count_denied`).
    pub fn counts_denied(&self) -> bool {
        let spends = matches!(self.mode, Mode::Spend | Mode::SpendOnly) && self.cost > 0;
        spends && self.numbers.counts_denied()
    }

    /// Returns true if the state of its bucket is a [`Level`](super::level::Level).
    #[inline]
    pub fn keeps_level(&self) -> bool {
        self.numbers.algorithm().keeps_level() && self.elevated().is_none()
    }

    /// Turns a charge into one that only checks. If it cannot deny, its cost becomes 0, and [`Self::correct_check`] determines
    /// whether the cost would have fitted.
    pub(crate) fn make_check(&mut self) {
        match self.mode {
            Mode::Spend => self.mode = Mode::Check,
            Mode::SpendOnly => self.cost = 0,
            Mode::Check | Mode::SpendUpTo | Mode::Refund | Mode::Reset => {}
        }
    }

    /// Turns a charge of 0 tokens into a check of 1. Returns true if it was one.
    pub(crate) fn check_for_one(&mut self) -> bool {
        let takes_nothing = self.cost == 0 && matches!(self.mode, Mode::Spend | Mode::Check | Mode::SpendOnly);
        let is_check = takes_nothing && self.numbers.algorithm().has_tokens();
        if is_check {
            self.cost = 1;
            self.make_check();
        }
        is_check
    }

    /// Corrects the decision on a charge that only checked for `wanted` tokens: nothing was taken.
    pub(crate) fn correct_check(&self, decision: &mut Decision, wanted: u64) {
        // In a denied request the decision is the state of the bucket, with this outcome.
        let stands = decision.outcome == Outcome::Unchanged && decision.retry_after == Some(Micros(0));
        if decision.outcome != Outcome::Allowed && !stands {
            return;
        }
        if !stands {
            // A check has subtracted its cost. A charge that cannot deny had none.
            decision.remaining += self.cost;
        }
        // The reset of a full bucket is now, unless its windows end at fixed times.
        let is_timed = matches!(self.numbers.windows(), Some(Windows::Clock(_) | Windows::Calendar(_)));
        if decision.remaining == self.numbers.burst() && !is_timed {
            decision.reset_after = Some(Micros(0));
        }
        if decision.remaining < wanted && !self.mode.can_deny() {
            decision.outcome = Outcome::Unchanged;
            decision.retry_after = decision.reset_after.filter(|_| wanted <= self.numbers.burst());
        }
    }
}
