//! Charges: the changes to buckets that a request asks the store for.

use std::sync::Arc;

use super::decision::{Detail, Outcome};
use super::delay::Delay;
use super::describe::Span;
use super::lease::{LeaseAsk, LeaseTerms};
use super::micros::{EXACT, Micros};
use super::numbers::Numbers;
use super::queue::Work;
use super::reservation::Reservation;
use super::script::Run;
use super::tag::{Tag, tag_of};

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
    /// Denies as `Check` does, and otherwise tells the state of the bucket as it is.
    Look,
    /// Takes the cost as a limit in shadow does, and never denies.
    SpendOnly,
    /// Takes the cost, or everything that is left if that is less, and never denies. For costs that have already been incurred.
    SpendUpTo,
    /// Gives the cost back, up to a full bucket.
    Refund,
    /// Makes the bucket full.
    Reset,
}

impl Mode {
    /// Returns true if an enforced limit denies a charge in this mode that does not fit.
    pub const fn can_deny(self) -> bool {
        matches!(self, Self::Spend | Self::Check | Self::Look)
    }
}

/// The effect of a limit on the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    #[default]
    Enforced,
    /// The limit or the id is in shadow: it counts as if it were enforced, and denies nothing.
    Shadow,
    /// Other numbers of the limit, which count as if they stood in its place, and deny nothing. With their index among its candidates.
    Candidate(u8),
    /// Counts that its limit does not fit, for `ban`. It takes its cost only then, and denies nothing.
    Strike,
}

impl Role {
    /// The index of the candidate, for that of one.
    pub const fn candidate(self) -> Option<u8> {
        if let Self::Candidate(place) = self { Some(place) } else { None }
    }
}

/// The origin of a charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChargeOrigin {
    /// The index of the limit.
    pub limit: u32,
    /// The index in the limit's `rates`.
    pub window: u32,
    pub role: Role,
    /// The same for all charges that take together or not at all: the index of the limit, or a number of its own for each id that
    /// [`Mode::SpendOnly`] charges.
    pub group: u32,
    /// True if the memory that replaces a failed store decides it.
    pub is_local: bool,
}

/// A change to one bucket, with the numbers that hold for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    pub bucket: Bucket,
    pub origin: ChargeOrigin,
    pub numbers: Numbers,
    /// In tokens. 0 takes nothing. A cost above the burst can never pass.
    pub cost: u64,
    pub mode: Mode,
    /// The instant from which the numbers hold, if it is after the rules took effect: an override has expired, or the call brings
    /// its own numbers ([`NUMBERS_OF_THE_CALL`]). Otherwise 0.
    pub changed: Micros,
    /// The terms of leases for its bucket.
    pub lease: Option<LeaseTerms>,
    pub dated: Dated,
    pub input: Option<Box<Input>>,
}

/// The instant at which tokens are taken, by the clock of the store, as far as it matters to a charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dated {
    /// It does not matter. A refund gives back the youngest tokens.
    #[default]
    No,
    /// The spend may have to be given back, so its answer contains the instant if a refund needs it: [`Detail::Taken`].
    Reserved,
    /// A refund gives back what was taken at this instant, and nothing else.
    At(Micros),
}

/// [`Charge::changed`] of numbers that a call brings: what the bucket has used counts by them since the last write.
pub const NUMBERS_OF_THE_CALL: Micros = Micros(EXACT - 1);

/// The input that some algorithms need beside the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Elevated(Arc<Elevated>),
    Slot(Slot),
    Queue(Work),
    Script(Run),
    Lease(LeaseAsk),
    /// For `gcra` and `fixed_window`. Charges with it have no lease.
    Delay(Delay),
    /// For `gcra` and `fixed_window`. Charges with it have no lease.
    Reservation(Reservation),
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

impl ChargeOrigin {
    /// The first window of a limit.
    pub const fn new(limit: u32, is_enforced: bool) -> Self {
        let role = if is_enforced { Role::Enforced } else { Role::Shadow };
        Self { limit, window: 0, role, group: limit, is_local: false }
    }

    pub const fn is_enforced(&self) -> bool {
        matches!(self.role, Role::Enforced)
    }

    pub const fn is_candidate(&self) -> bool {
        self.role.candidate().is_some()
    }

    pub const fn is_strike(&self) -> bool {
        matches!(self.role, Role::Strike)
    }

    /// Returns true for a candidate and a strike, which say nothing about the request.
    pub const fn is_beside(&self) -> bool {
        self.is_candidate() || self.is_strike()
    }
}

impl Charge {
    /// A charge of the first limit.
    pub const fn new(bucket: Bucket, numbers: Numbers, cost: u64, mode: Mode) -> Self {
        let origin = ChargeOrigin::new(0, true);
        Self { bucket, origin, numbers, cost, mode, changed: Micros(0), lease: None, dated: Dated::No, input: None }
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

    /// Returns the instant at which the tokens of a refund were taken, if it gives back only those.
    pub fn taken(&self) -> Option<Micros> {
        match self.dated {
            Dated::At(taken) if self.mode == Mode::Refund => Some(taken),
            _ => None,
        }
    }

    /// Notes that its tokens may have to be given back.
    pub(crate) fn reserve(&mut self) {
        if self.numbers.algorithm().has_tokens() && !self.origin.is_strike() {
            self.dated = Dated::Reserved;
        }
    }

    /// Returns true if its tokens may have to be given back.
    pub fn is_reserved(&self) -> bool {
        self.dated == Dated::Reserved && self.cost > 0 && matches!(self.mode, Mode::Spend | Mode::SpendOnly)
    }

    /// Returns true if the answer contains the instant at which the tokens are taken.
    pub fn is_told(&self) -> bool {
        self.is_reserved() && self.numbers.is_dated()
    }

    /// Returns the refund of tokens that the charge took at an instant. `None` for the instant only if it does not matter.
    pub(crate) fn refund(&self, cost: u64, taken: Option<Micros>) -> Self {
        Self { cost, mode: Mode::Refund, dated: taken.map_or(Dated::No, Dated::At), ..self.clone() }
    }

    /// Returns the charge that takes it back, once the store has taken it; `None` for what cannot be taken back, such as scripts.
    pub(crate) fn undo(&self, detail: Option<&Detail>) -> Option<Self> {
        let mut undo = self.refund(self.cost, detail.and_then(Detail::taken));
        match undo.input.as_deref_mut() {
            Some(Input::Script(_)) => return None,
            Some(Input::Queue(work)) => {
                work.given_back = match detail {
                    Some(Detail::Entry(id)) => Some(id.clone()),
                    _ => return None,
                };
            }
            Some(Input::Lease(_)) => undo.input = None,
            Some(Input::Reservation(reservation)) => {
                let Reservation::Reserve(id, _) = *reservation else { return None };
                *reservation = Reservation::Commit(id);
                (undo.mode, undo.cost) = (Mode::SpendUpTo, 0);
            }
            Some(Input::Elevated(_) | Input::Slot(_) | Input::Delay(_)) | None => {}
        }
        Some(undo)
    }

    /// Returns the limit's delay, and how long the caller waits.
    #[inline]
    pub fn delay(&self) -> Option<&Delay> {
        match self.input.as_deref() {
            Some(Input::Delay(delay)) => Some(delay),
            _ => None,
        }
    }

    /// Returns its part about a reservation.
    #[inline]
    pub fn reservation(&self) -> Option<Reservation> {
        match self.input.as_deref() {
            Some(Input::Reservation(reservation)) => Some(*reservation),
            _ => None,
        }
    }

    /// Returns its part about leases. A check has none, because it changes nothing.
    pub fn lease_ask(&self) -> Option<&LeaseAsk> {
        match self.input.as_deref() {
            Some(Input::Lease(ask)) if !matches!(self.mode, Mode::Check | Mode::Look) => Some(ask),
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

    /// Returns true if it denies the request when it does not fit.
    pub const fn can_deny(&self) -> bool {
        self.origin.is_enforced() && self.mode.can_deny()
    }

    /// The outcome of a charge that does not fit.
    pub(crate) const fn short_outcome(&self) -> Outcome {
        if self.can_deny() { Outcome::Denied } else { Outcome::Short }
    }

    /// Asks whether the cost would fit, and takes nothing.
    pub(crate) fn look(&mut self) {
        if self.mode == Mode::SpendOnly && self.origin.is_enforced() {
            self.origin.role = Role::Shadow;
        }
        if matches!(self.mode, Mode::Spend | Mode::Check | Mode::SpendOnly) {
            self.mode = Mode::Look;
        }
    }

    /// Takes nothing, and asks whether the cost would fit. A refund, which always fits, and a charge of something other than tokens
    /// ask for the state of the bucket instead.
    pub(crate) fn take_nothing(&mut self) {
        let asks = self.mode.can_deny() || self.mode == Mode::SpendOnly;
        if asks && self.numbers.algorithm().has_tokens() {
            self.look();
        } else {
            (self.cost, self.mode) = (0, Mode::Check);
        }
    }

    /// Turns a charge of 0 tokens into a look for 1.
    pub(crate) fn look_for_one(&mut self) {
        let takes_nothing = self.cost == 0 && matches!(self.mode, Mode::Spend | Mode::Check | Mode::SpendOnly);
        if takes_nothing && self.numbers.algorithm().has_tokens() {
            self.cost = 1;
            self.look();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MODES: [Mode; 7] =
        [Mode::Spend, Mode::Check, Mode::Look, Mode::SpendOnly, Mode::SpendUpTo, Mode::Refund, Mode::Reset];

    fn charge(numbers: &Numbers, cost: u64, mode: Mode) -> Charge {
        Charge::new(Bucket::new("L:k", 1), numbers.clone(), cost, mode)
    }

    /// The modes in which something is true of a charge.
    fn modes_of(is: impl Fn(Mode) -> bool) -> Vec<Mode> {
        MODES.into_iter().filter(|mode| is(*mode)).collect()
    }

    #[test]
    fn the_mode_and_the_cost_say_what_a_charge_does() {
        let denied = Numbers::sliding_window(5, SECOND, true).unwrap();
        let gcra = Numbers::new(5, 5, SECOND).unwrap();
        let spends = [Mode::Spend, Mode::SpendOnly];
        assert_eq!(modes_of(|mode| charge(&denied, 1, mode).counts_denied()), spends);
        assert_eq!(modes_of(|mode| charge(&denied, 0, mode).counts_denied()), []);
        assert_eq!(modes_of(|mode| charge(&gcra, 1, mode).counts_denied()), []);
        let reserved = |cost, mode| {
            let mut charge = charge(&denied, cost, mode);
            let before = charge.is_reserved();
            charge.reserve();
            !before && charge.is_reserved()
        };
        assert_eq!(modes_of(|mode| reserved(1, mode)), spends);
        assert_eq!(modes_of(|mode| reserved(0, mode)), []);
        let taken = |mode| Charge { dated: Dated::At(Micros(7)), ..charge(&denied, 1, mode) }.taken();
        assert_eq!(modes_of(|mode| taken(mode) == Some(Micros(7))), [Mode::Refund]);
        assert_eq!(modes_of(|mode| taken(mode).is_none()).len(), MODES.len() - 1);
        let looked = |cost, mode| {
            let mut charge = charge(&gcra, cost, mode);
            charge.look_for_one();
            (charge.cost, charge.mode, charge.can_deny())
        };
        assert_eq!(MODES.map(|mode| looked(2, mode)), MODES.map(|mode| (2, mode, mode.can_deny())));
        let looks = modes_of(|mode| looked(0, mode).0 > 0);
        assert_eq!(looks, [Mode::Spend, Mode::Check, Mode::SpendOnly]);
        let look = |can_deny| (1, Mode::Look, can_deny);
        let found: Vec<_> = looks.into_iter().map(|mode| looked(0, mode)).collect();
        assert_eq!(found, [look(true), look(true), look(false)]);
        let mut slots = charge(&Numbers::concurrency(1, SECOND).unwrap(), 0, Mode::Spend);
        slots.look_for_one();
        assert_eq!((slots.cost, slots.mode), (0, Mode::Spend));
    }

    #[test]
    fn an_input_belongs_to_its_algorithm() {
        let gcra = Numbers::new(5, 5, SECOND).unwrap();
        let with = |mode, input| Charge { input: Some(Box::new(input)), ..charge(&gcra, 1, mode) };
        let ask = LeaseAsk::default();
        let asks = modes_of(|mode| with(mode, Input::Lease(ask)).lease_ask() == Some(&ask));
        assert_eq!(asks, modes_of(|mode| !matches!(mode, Mode::Check | Mode::Look)));
        let delay = Delay::new(Micros(5_000));
        let delayed = with(Mode::Spend, Input::Delay(delay));
        assert_eq!((delayed.delay(), delayed.lease_ask(), delayed.elevated()), (Some(&delay), None, None));
        let quota: Arc<str> = "orders".into();
        let elevated = Arc::new(Elevated {
            numbers: gcra.clone(),
            span: 1,
            activations_per_month: 1,
            quota: Some(Arc::clone(&quota)),
        });
        let elevated = with(Mode::Spend, Input::Elevated(elevated));
        assert_eq!(elevated.quota(), Some((tag_of(&elevated.bucket), &quota)));
        let log = charge(&Numbers::sliding_log(5, SECOND).unwrap(), 1, Mode::Spend);
        let levels = [&charge(&gcra, 1, Mode::Spend), &delayed, &elevated, &log].map(Charge::keeps_level);
        assert_eq!(levels, [true, true, false, false]);
    }
}
