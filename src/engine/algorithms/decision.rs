//! Decisions: the answers to charges, and their order by strictness.

use std::cmp::Ordering;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use super::charge::{Charge, Mode};
use super::lease::LeaseGrant;
use super::micros::Micros;
use super::queue::EntryId;
use super::script::ScriptOutput;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The cost fits, or a refund gave something back.
    Allowed,
    /// The cost does not fit, and the request is denied.
    Denied,
    /// The cost does not fit, but the charge cannot deny the request.
    Short,
    /// Nothing changed: another charge prevents this one, or a refund finds a full bucket.
    Unchanged,
}

/// The answer for one charge. Times are spans from now; `None` means never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub outcome: Outcome,
    /// The microseconds after which an allowed request may pass: 0 for now. The charge is booked for then. This fits beside the outcome.
    pub delay: u32,
    /// The burst of the numbers that held.
    pub limit: u64,
    /// Whole tokens left.
    pub remaining: u64,
    /// Until the same charge would fit: 0 if it would fit now, `None` if the cost is above the burst or the bucket does not
    /// refill.
    pub retry_after: Option<Micros>,
    /// Until the bucket is full, or its window ends; `None` if it does not refill.
    pub reset_after: Option<Micros>,
}

impl Decision {
    /// A permanent denial: the limit has `deny: true`, or the request lacks its id.
    pub const fn never() -> Self {
        Self { outcome: Outcome::Denied, delay: 0, limit: 0, remaining: 0, retry_after: None, reset_after: None }
    }

    /// The decision on a bucket whose state nobody knows, by its burst.
    pub const fn unknown(burst: u64) -> Self {
        let retry_after = Some(Micros(0));
        Self { outcome: Outcome::Unchanged, limit: burst, remaining: burst, retry_after, ..Self::never() }
    }

    /// A denial without numbers that ends after `retry_after`.
    pub const fn later(retry_after: Micros) -> Self {
        Self { retry_after: Some(retry_after), ..Self::never() }
    }

    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed)
    }

    pub const fn is_denied(&self) -> bool {
        matches!(self.outcome, Outcome::Denied)
    }

    /// Returns the time after which an allowed request may pass.
    pub fn delay(&self) -> Micros {
        Micros(self.delay.into())
    }

    /// Shortens the waits of a charge that has changed nothing: the bucket is full after `wait`, but for tokens that are `held`.
    pub(super) fn full_after(&mut self, wait: Micros, held: u64, charge: &Charge) {
        // It answers as the spend would, which writes its own numbers.
        if charge.mode == Mode::Check && charge.cost > 0 && self.outcome == Outcome::Allowed {
            return;
        }
        let no_later = |span: Option<Micros>| Some(span.map_or(wait, |span| span.min(wait)));
        if charge.cost <= charge.numbers.burst().saturating_sub(held) {
            self.retry_after = no_later(self.retry_after);
        }
        self.reset_after = no_later(self.reset_after);
    }

    /// Returns true if the cost did not fit, whether or not the charge can deny.
    pub const fn is_short(&self) -> bool {
        matches!(self.outcome, Outcome::Denied | Outcome::Short)
    }

    /// Orders decisions by strictness; the greatest binds.
    ///
    /// Denied beats allowed. Among denials the longest wait binds, and never is the longest. Among the others the one with the
    /// fewest tokens left binds, then the one with the longer wait (Boulder's `stricter`).
    pub fn strictness(&self, other: &Self) -> Ordering {
        // `None` is never, which is longer than any wait. `Option` would sort it first.
        let wait = |decision: &Self| decision.retry_after.map_or((true, Micros(0)), |wait| (false, wait));
        let fewest = other.remaining.cmp(&self.remaining);
        let longest = wait(self).cmp(&wait(other));
        self.is_denied()
            .cmp(&other.is_denied())
            .then_with(|| if self.is_denied() { longest.then(fewest) } else { fewest.then(longest) })
    }
}

/// The decision on a charge, and the edit of its bucket.
#[derive(Clone, Debug)]
pub struct Attempt<E> {
    pub decision: Decision,
    pub detail: Option<Detail>,
    pub edit: Option<E>,
    /// The edit is made even if the request is denied.
    pub counts_denied: bool,
    /// The instant at which it used an activation of the charge's quota. The use counts if the edit is made.
    pub from_quota: Option<Micros>,
}

impl<E> Attempt<E> {
    pub(crate) const fn new(decision: Decision, edit: Option<E>) -> Self {
        Self { decision, detail: None, edit, counts_denied: false, from_quota: None }
    }

    /// Adds the instant at which the charge took its tokens, if it asks for it.
    pub(crate) fn told(mut self, charge: &Charge, taken: Micros) -> Self {
        if charge.is_told() && self.decision.outcome == Outcome::Allowed && self.edit.is_some() {
            self.detail = Some(Detail::Taken(taken.after(self.decision.delay())));
        }
        self
    }

    pub(crate) fn map<F>(self, edit: impl FnOnce(E) -> F) -> Attempt<F> {
        let Self { decision, detail, edit: given, counts_denied, from_quota } = self;
        Attempt { decision, detail, edit: given.map(edit), counts_denied, from_quota }
    }
}

/// The answers of some algorithms beside a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    Elevated(Elevation),
    /// The entry that was added to a queue.
    Entry(EntryId),
    Script(ScriptOutput),
    /// Tokens that were leased beside the charge. The store keeps them.
    Leased(LeaseGrant),
    /// The instant at which the charge took its tokens, by the clock of the store. Those of a charge that is booked ahead begin to
    /// count then.
    Taken(Micros),
    /// A window that counts denied requests has counted this one, which it would have allowed, and would deny the same request for
    /// this long; or this denial has led to a ban of this length.
    Counted(Micros),
}

/// The state of a limit's elevated numbers after a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elevation {
    /// This charge switched them on.
    pub triggered: bool,
    /// They are on.
    pub active: bool,
    /// The activations left in this month; `None` unless this charge used one.
    pub activations_left: Option<u64>,
}

impl Detail {
    pub const fn elevation(&self) -> Option<Elevation> {
        match self {
            Self::Elevated(elevation) => Some(*elevation),
            Self::Entry(_) | Self::Script(_) | Self::Leased(_) | Self::Taken(_) | Self::Counted(_) => None,
        }
    }

    /// Returns the instant at which the charge took its tokens, if it is known.
    pub fn taken(&self) -> Option<Micros> {
        match self {
            Self::Taken(taken) => Some(*taken),
            // Tokens are leased at the instant of the charge.
            Self::Leased(grant) => Some(grant.at()),
            Self::Elevated(_) | Self::Entry(_) | Self::Script(_) | Self::Counted(_) => None,
        }
    }

    /// Takes back the effects of the charge because another charge of its request is denied. Returns false if nothing remains.
    pub(crate) fn undo(&mut self) -> bool {
        let Self::Elevated(Elevation { triggered, active, activations_left }) = self else { return false };
        *active &= !*triggered;
        (*triggered, *activations_left) = (false, None);
        true
    }
}

/// The decisions of one request, one per charge and in their order. Most requests have one charge, which needs no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    decisions: SmallVec<[Decision; 1]>,
    /// By the index of the charge, in ascending order.
    pub details: Vec<(usize, Detail)>,
}

impl Decisions {
    /// Joins the decisions of several batches.
    pub fn joined(decided: Vec<Self>) -> Self {
        let mut decided = decided.into_iter();
        let mut all = decided.next().unwrap_or_default();
        decided.for_each(|more| all.append(more));
        all
    }

    /// Keeps those decisions for which `kept` is true.
    pub fn retain(&mut self, kept: &[bool]) {
        let is_kept = |place: &usize| kept.get(*place).copied().unwrap_or(false);
        let moved = |place: usize| kept.iter().take(place).filter(|kept| **kept).count();
        self.details.retain(|(place, _)| is_kept(place));
        self.details.iter_mut().for_each(|(place, _)| *place = moved(*place));
        let mut places = 0..;
        self.decisions.retain(|_| places.next().is_some_and(|place| is_kept(&place)));
    }

    /// Replaces the decisions at these places.
    pub fn replace(&mut self, places: &[usize], decided: Self) {
        for (place, decision) in places.iter().zip(&decided.decisions) {
            if let Some(known) = self.decisions.get_mut(*place) {
                *known = *decision;
            }
        }
        let details = decided.details.into_iter();
        self.details.extend(details.filter_map(|(of, detail)| Some((*places.get(of)?, detail))));
        self.details.sort_by_key(|(place, _)| *place);
    }

    /// Adds the decisions of another batch.
    pub fn append(&mut self, more: Self) {
        let before = self.len();
        self.decisions.extend(more.decisions);
        self.details.extend(more.details.into_iter().map(|(place, detail)| (before + place, detail)));
    }

    pub fn with_capacity(charges: usize) -> Self {
        Self { decisions: SmallVec::with_capacity(charges), details: Vec::new() }
    }

    pub fn push(&mut self, decision: Decision) {
        self.decisions.push(decision);
    }

    pub fn detail(&self, index: usize) -> Option<&Detail> {
        self.details.iter().find(|(of, _)| *of == index).map(|(_, detail)| detail)
    }

    /// Returns the instant at which a charge took its tokens, if the store has reported it.
    pub fn taken(&self, index: usize) -> Option<Micros> {
        self.details.iter().filter(|(of, _)| *of == index).find_map(|(_, detail)| detail.taken())
    }
}

impl Deref for Decisions {
    type Target = [Decision];

    fn deref(&self) -> &[Decision] {
        &self.decisions
    }
}

impl DerefMut for Decisions {
    fn deref_mut(&mut self) -> &mut [Decision] {
        &mut self.decisions
    }
}

impl FromIterator<Decision> for Decisions {
    fn from_iter<I: IntoIterator<Item = Decision>>(decisions: I) -> Self {
        Self { decisions: decisions.into_iter().collect(), details: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(outcome: Outcome, remaining: u64, retry_after: Option<u64>) -> Decision {
        Decision {
            outcome,
            delay: 0,
            limit: 10,
            remaining,
            retry_after: retry_after.map(Micros),
            reset_after: Some(Micros(1)),
        }
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

    #[test]
    fn a_charge_is_short_if_it_did_not_fit_whether_or_not_it_denies() {
        for (outcome, wait, is_short) in [
            (Outcome::Allowed, Some(0), false),
            (Outcome::Allowed, Some(5), false),
            (Outcome::Denied, Some(0), true),
            (Outcome::Denied, None, true),
            (Outcome::Short, Some(5), true),
            (Outcome::Short, None, true),
            (Outcome::Unchanged, Some(0), false),
        ] {
            assert_eq!(decision(outcome, 3, wait).is_short(), is_short, "{outcome:?} {wait:?}");
        }
        assert_eq!(Decision { delay: 7, ..Decision::never() }.delay(), Micros(7));
    }

    #[test]
    fn details_belong_to_their_charge() {
        let grant = LeaseGrant { tokens: 1, span: Micros(10), until: Micros(30) };
        let elevation = Elevation { triggered: true, active: true, activations_left: Some(1) };
        let mut decisions = Decisions::with_capacity(3);
        for _ in 0..3 {
            decisions.push(Decision::never());
        }
        decisions.details = vec![
            (0, Detail::Taken(Micros(10))),
            (1, Detail::Elevated(elevation)),
            (2, Detail::Counted(Micros(1))),
            (2, Detail::Leased(grant)),
        ];
        assert_eq!((decisions.len(), decisions.iter_mut().count()), (3, 3));
        assert_eq!([0, 1, 2, 3].map(|index| decisions.taken(index)), [Some(Micros(10)), None, Some(Micros(20)), None]);
        assert_eq!(decisions.detail(1), Some(&Detail::Elevated(elevation)));
        assert_eq!(decisions.detail(3), None);
    }

    #[test]
    fn what_another_charge_denies_switches_nothing_on() {
        let undone = |triggered, active, activations_left| {
            let mut detail = Detail::Elevated(Elevation { triggered, active, activations_left });
            let remains = detail.undo();
            (remains, detail.elevation())
        };
        let off = Elevation { triggered: false, active: false, activations_left: None };
        assert_eq!(undone(true, true, Some(1)), (true, Some(off)));
        assert_eq!(undone(false, true, None), (true, Some(Elevation { active: true, ..off })));
        assert_eq!(undone(false, false, None), (true, Some(off)));
        assert!(!Detail::Taken(Micros(1)).undo());
    }
}
