//! What a request asks of the store, and what it gets back: charges, decisions and the one that binds.

use std::cmp::Ordering;
use std::ops::Deref;

use smallvec::SmallVec;

use super::details::{Detail, Elevated, Terms};
use super::numbers::{EXACT, Micros, Numbers};
use super::refill::Kind;

/// The identity of a bucket, as both stores know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// `<short>:<id>`, percent-encoded and bounded in length: the end of the Redis key.
    pub key: String,
    /// A keyed 128-bit hash of `key`: the memory store goes by this instead of the text.
    pub fingerprint: u128,
}

/// What a charge does to its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Takes the cost if it is there, and denies the request otherwise.
    Spend,
    /// Answers as `Spend` would, and takes nothing.
    Check,
    /// Takes the cost if it is there, and never denies.
    SpendOnly,
    /// Takes the cost, or all that is left if that is less, and never denies: what has happened is counted as far as
    /// there is anything to count it against.
    SpendUpTo,
    /// Gives the cost back, up to a full bucket.
    Refund,
    /// Makes the bucket full.
    Reset,
}

impl Mode {
    /// Whether a charge of this mode can refuse the request.
    pub const fn can_deny(self) -> bool {
        matches!(self, Self::Spend | Self::Check)
    }
}

/// One bucket, the numbers that hold for it, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Whose bucket.
    pub bucket: Bucket,
    /// How much it holds and how fast it refills.
    pub numbers: Numbers,
    /// Tokens. 0 asks without taking. A cost above the burst can never pass.
    pub cost: u64,
    /// What to do with them.
    pub mode: Mode,
    /// The instant from which the numbers hold, if that is later than the rules': an override has ended, or the call brings
    /// its own ([`NUMBERS_OF_THE_CALL`]). Zero otherwise.
    pub changed: Micros,
    /// What its algorithm needs to know beside the numbers; `None` for those that need nothing.
    pub terms: Option<Box<Terms>>,
}

/// [`Charge::changed`] of numbers that a call brings: until now those held that the bucket was written under.
pub const NUMBERS_OF_THE_CALL: Micros = Micros(EXACT - 1);

impl Charge {
    /// A charge of an algorithm that needs to know nothing but numbers.
    pub const fn new(bucket: Bucket, numbers: Numbers, cost: u64, mode: Mode) -> Self {
        Self { bucket, numbers, cost, mode, changed: Micros(0), terms: None }
    }

    /// The elevated numbers of its limit, which are on or may switch on.
    pub fn elevated(&self) -> Option<&Elevated> {
        match self.terms.as_deref() {
            Some(Terms::Elevated(elevated)) => Some(elevated),
            _ => None,
        }
    }

    /// How long ago was taken what it gives back, if that is known.
    pub fn taken_ago(&self) -> Option<Micros> {
        match self.terms.as_deref() {
            Some(Terms::TakenAgo(ago)) if self.mode == Mode::Refund => Some(*ago),
            _ => None,
        }
    }

    /// The numbers that its decision came by, with what was said beside it.
    pub fn numbers_by(&self, detail: Option<&Detail>) -> &Numbers {
        let is_active = |_: &&Elevated| detail.and_then(Detail::elevation).is_some_and(|elevation| elevation.active);
        self.elevated().filter(is_active).map_or(&self.numbers, |elevated| &elevated.numbers)
    }

    /// Whether it counts in its bucket even if the request is denied (`count_denied`).
    pub fn counts_denied(&self) -> bool {
        let spends = matches!(self.mode, Mode::Spend | Mode::SpendOnly) && self.cost > 0;
        spends && self.numbers.refill().counts_denied()
    }

    /// Whether a meter is all there is to its bucket.
    #[inline]
    pub fn is_metered(&self) -> bool {
        self.terms.is_none() && self.numbers.refill().kind() == Kind::Level
    }
}

/// How a charge came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The cost was there; a refund gave something back.
    Allowed,
    /// The cost was not there.
    Denied,
    /// Nothing happened, and nothing is refused: a spend-only charge that did not fit, a refund of a full bucket.
    Unchanged,
}

/// The answer for one charge. Times are spans from now; `None` means never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How it came out.
    pub outcome: Outcome,
    /// The burst of the numbers that held.
    pub limit: u64,
    /// Whole tokens left.
    pub remaining: u64,
    /// Until the same charge would fit: zero if it would fit at once, `None` if the cost is above the burst or the
    /// bucket does not refill. In fixed windows one that begins then.
    pub retry_after: Option<Micros>,
    /// Until the bucket is full, or its window ends; `None` if it does not refill.
    pub reset_after: Option<Micros>,
}

/// The decisions of one request, one a charge, in their order. Most requests make one charge, which needs no
/// allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    decisions: SmallVec<[Decision; 1]>,
    /// What some algorithms say beside a decision, by the place of the charge, in ascending order.
    pub details: Vec<(usize, Detail)>,
}

impl Decisions {
    /// No decisions yet, and room for some.
    pub fn with_capacity(charges: usize) -> Self {
        Self { decisions: SmallVec::with_capacity(charges), details: Vec::new() }
    }

    /// Adds the decision of the next charge.
    pub fn push(&mut self, decision: Decision) {
        self.decisions.push(decision);
    }

    /// Corrects the limit of a decision: other numbers held than those of the charge.
    pub fn set_limit(&mut self, place: usize, limit: u64) {
        if let Some(decision) = self.decisions.get_mut(place) {
            decision.limit = limit;
        }
    }

    /// What is said of a charge beside its decision.
    pub fn detail(&self, place: usize) -> Option<&Detail> {
        self.details.iter().find(|(of, _)| *of == place).map(|(_, detail)| detail)
    }

    /// The same decisions, each as `correct` makes it of its place and of what it was.
    #[must_use]
    pub fn corrected(mut self, correct: impl Fn(usize, Decision) -> Decision) -> Self {
        for (place, decision) in self.decisions.iter_mut().enumerate() {
            *decision = correct(place, *decision);
        }
        self
    }

    /// The decisions, to be corrected.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [Decision] {
        &mut self.decisions
    }
}

impl Deref for Decisions {
    type Target = [Decision];

    fn deref(&self) -> &[Decision] {
        &self.decisions
    }
}

impl FromIterator<Decision> for Decisions {
    fn from_iter<I: IntoIterator<Item = Decision>>(decisions: I) -> Self {
        Self { decisions: decisions.into_iter().collect(), details: Vec::new() }
    }
}

impl<'d> IntoIterator for &'d Decisions {
    type Item = &'d Decision;
    type IntoIter = std::slice::Iter<'d, Decision>;

    fn into_iter(self) -> Self::IntoIter {
        self.decisions.iter()
    }
}

impl IntoIterator for Decisions {
    type Item = Decision;
    type IntoIter = smallvec::IntoIter<[Decision; 1]>;

    fn into_iter(self) -> Self::IntoIter {
        self.decisions.into_iter()
    }
}

impl Decision {
    /// A refusal that no waiting mends: a limit with `deny: true`, or one whose id the request lacks.
    pub const fn never() -> Self {
        Self { outcome: Outcome::Denied, limit: 0, remaining: 0, retry_after: None, reset_after: None }
    }

    /// A refusal of a limit by itself that is over after this long.
    pub const fn later(retry_after: Micros) -> Self {
        Self { retry_after: Some(retry_after), ..Self::never() }
    }

    /// Whether this decision refuses the request.
    pub const fn is_denied(&self) -> bool {
        matches!(self.outcome, Outcome::Denied)
    }

    /// Orders decisions by strictness; the greatest binds.
    ///
    /// Denied beats allowed. Among denials the longest wait binds, never being the longest; among the others the one
    /// with the least left, then the one with the longer wait (Boulder's `stricter`).
    pub fn strictness(&self, other: &Self) -> Ordering {
        // `None` is never, which is longer than any wait; `Option` would sort it first.
        let wait = |decision: &Self| decision.retry_after.map_or((true, Micros(0)), |wait| (false, wait));
        let fewest = other.remaining.cmp(&self.remaining);
        let longest = wait(self).cmp(&wait(other));
        self.is_denied()
            .cmp(&other.is_denied())
            .then_with(|| if self.is_denied() { longest.then(fewest) } else { fewest.then(longest) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(outcome: Outcome, remaining: u64, retry_after: Option<u64>) -> Decision {
        Decision { outcome, limit: 10, remaining, retry_after: retry_after.map(Micros), reset_after: Some(Micros(1)) }
    }

    #[track_caller]
    fn stricter(a: Decision, b: Decision) {
        assert_eq!((a.strictness(&b), b.strictness(&a)), (Ordering::Greater, Ordering::Less));
    }

    #[test]
    fn denied_beats_allowed() {
        stricter(decision(Outcome::Denied, 9, Some(1)), decision(Outcome::Allowed, 0, Some(99)));
    }

    #[test]
    fn the_longest_wait_binds_and_never_is_the_longest() {
        stricter(decision(Outcome::Denied, 0, Some(2)), decision(Outcome::Denied, 0, Some(1)));
        stricter(decision(Outcome::Denied, 5, None), decision(Outcome::Denied, 0, Some(u64::MAX)));
    }

    #[test]
    fn among_allowances_the_least_left_binds() {
        stricter(decision(Outcome::Allowed, 3, Some(0)), decision(Outcome::Allowed, 4, Some(7)));
        stricter(decision(Outcome::Allowed, 0, Some(7)), decision(Outcome::Allowed, 0, Some(1)));
    }
}
