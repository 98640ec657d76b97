//! The expected answers, as naively as possible: every bucket keeps its history, each question replays all of it, and
//! waits are found by trial.
//!
//! An algorithm only says how many tokens fit after some time. Allowed, remaining, waits and all or nothing follow from
//! that in one way. The engine contributes the types of questions and answers, and the calendars' tables, which have
//! their own tests.

use std::collections::HashMap;
use std::sync::Arc;

use weir::engine::algorithms::algorithm::Algorithm;
use weir::engine::algorithms::charge::{Charge, Elevated, Mode, Slot};
use weir::engine::algorithms::decision::{Decision, Decisions, Detail, Elevation, Outcome};
use weir::engine::algorithms::micros::{EXACT, Micros};
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::algorithms::reservation::Reservation;

use super::elevated::{Activations, Raised};
use super::holds::Holds;
use super::pictures::{Log, Sliding, Slots};

/// Longer than any finite wait: the longest are below 2^53 microseconds.
const NEVER: u64 = 1 << 55;

#[derive(Default)]
pub(super) struct Reference {
    histories: HashMap<String, Vec<Event>>,
    holds: HashMap<String, Holds>,
    quotas: Quotas,
}

/// The activations of quotas, by hash tag and name.
type Quotas = HashMap<(u8, Arc<str>), Activations>;

/// The date, the numbers and their date, the elevated numbers, and the slot if there is one.
#[derive(Clone)]
pub(super) struct Question {
    pub(super) numbers: Numbers,
    pub(super) elevated: Option<Elevated>,
    /// The activations of its quota, with those that earlier charges of the request would use.
    pub(super) quota: Option<Activations>,
    pub(super) slot: Option<Slot>,
    /// The date of what is refunded, if known.
    pub(super) taken: Option<u64>,
    /// The tokens that reservations of others hold.
    pub(super) held: u64,
    pub(super) effective_from: u64,
    pub(super) now: u64,
}

struct Event {
    question: Question,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Nothing,
    Taken(u64),
    /// After the elevated numbers were switched on.
    Raised(u64),
    RaisedUpTo(u64),
    TakenUpTo(u64),
    /// At the end of a hold, which is written in any case.
    Settled(u64),
    /// Full, and known only for its holds.
    Full,
    GivenBack(u64),
    Denied(u64),
    Reset,
    /// Its date was ahead of the clock.
    Redated,
}

/// The time at which the same charge fits.
#[derive(Clone, Copy)]
pub(super) enum Again {
    AtOnce,
    WhenFits(u64),
    /// After a second, as nothing better is known.
    Perhaps,
    Never,
}

/// The result of a charge.
pub(super) struct Outlook {
    pub(super) outcome: Outcome,
    /// The state that the answer describes.
    pub(super) what: What,
    pub(super) is_written: bool,
    pub(super) again: Again,
}

/// An algorithm's state of a bucket, built event by event.
pub(super) trait Picture: Clone + Default + PartialEq {
    /// Moves time to this date under these numbers; time does not go back.
    fn look(&mut self, question: &Question);
    /// Resets a date too far ahead of the clock to now; returns whether it did.
    fn redate(&mut self, now: u64) -> bool;
    /// The instant at which it is looked at: not before its last change, whatever the clock says.
    fn now(&self) -> u64;
    /// The microseconds until the room may fall.
    fn turn(&self) -> Option<u64> {
        None
    }
    /// The whole tokens that fit after this many microseconds. It never falls with time, except at [`Self::turn`].
    fn room(&self, later: u64) -> u64;
    fn take(&mut self, tokens: u64);
    /// Returns whether the tokens can be taken after this many microseconds. Once true, it stays true until [`Self::turn`].
    fn fits(&self, tokens: u64, later: u64) -> bool {
        self.room(later) >= tokens
    }
    /// Switches the elevated numbers on and takes the tokens.
    fn raise(&mut self, _tokens: u64) {
        panic!("there are none");
    }
    /// Takes the tokens, or all that are left.
    fn take_up_to(&mut self, tokens: u64) {
        let taken = tokens.min(self.room(0));
        if taken > 0 {
            self.take(taken);
        }
    }
    /// Takes the tokens, or all that are left, and counts by the numbers at hand in any case.
    fn settle(&mut self, _tokens: u64) {
        panic!("there are no reservations");
    }
    /// A full bucket is dated, although no window of it has begun.
    fn fill(&mut self) {
        panic!("there are no reservations");
    }
    /// Refunds what it can: the youngest first, or those taken at a date first.
    fn give_back(&mut self, tokens: u64);
    /// Returns whether everything is refunded and nothing is left to know.
    fn is_clear(&self) -> bool;
    /// Returns whether after this many microseconds the bucket is full or its window has ended.
    fn is_reset(&self, later: u64) -> bool;
    /// Counts a denial, if the limit does.
    fn deny(&mut self, _tokens: u64) {}
    /// The activations of the charge's quota.
    fn quota(&self) -> Option<Activations> {
        None
    }
    /// The burst of the current numbers.
    fn limit(&self, charge: &Charge) -> u64 {
        charge.numbers.burst()
    }
    /// The state of the elevated numbers, if the limit has some.
    fn elevation(&self, _outlook: &Outlook) -> Option<Elevation> {
        None
    }
    /// The result of a charge.
    fn foresee(&self, charge: &Charge) -> Outlook {
        foresee(self, charge)
    }
}

impl Reference {
    /// Decides a request's charges. A wait is tried first as it is `claimed`, which saves most trials.
    pub(super) fn decide(
        &mut self,
        charges: &[Charge],
        effective_from: u64,
        now: u64,
        claimed: &[Decision],
    ) -> Decisions {
        for charge in charges {
            self.holds.entry(charge.bucket.key.clone()).or_default().redate(now);
        }
        // Elevated numbers know no holds.
        let holds = |holds: &HashMap<String, Holds>, charge: &Charge| {
            holds.get(&charge.bucket.key).filter(|_| charge.keeps_level()).cloned().unwrap_or_default()
        };
        let before = self.holds.clone();
        let question = |charge: &Charge, quotas: &Quotas| {
            let slot = charge.slot();
            let effective_from = effective_from.max(charge.changed.0);
            let taken = charge.taken().map(|taken| taken.0);
            Question {
                numbers: charge.numbers.clone(),
                elevated: charge.elevated().cloned(),
                quota: key_of(charge).map(|key| quotas.get(&key).copied().unwrap_or_default()),
                slot,
                taken,
                held: holds(&before, charge).held_beside(charge, now),
                effective_from,
                now,
            }
        };
        for charge in charges {
            let question = question(charge, &self.quotas);
            if let Done::Redated = self.of_kind(charge, &question, Task::Redate) {
                let history = self.histories.entry(charge.bucket.key.clone()).or_default();
                history.push(Event { question, what: What::Redated });
            }
        }
        let mut asked = self.quotas.clone();
        let (mut questions, mut outlooks) = (Vec::new(), Vec::new());
        for charge in charges {
            let question = question(charge, &asked);
            let (outlook, quota) = self.of_kind(charge, &question, Task::Foresee).outlook();
            let outlook = holds(&before, charge).settled(charge, now).unwrap_or(outlook);
            asked.extend(key_of(charge).zip(quota));
            questions.push(question);
            outlooks.push(outlook);
        }
        let mut counted = vec![false; charges.len()];
        let takes: Vec<bool> = charges.iter().map(|charge| takes(charge, charges, &outlooks)).collect();
        for (place, (outlook, charge)) in
            outlooks.iter_mut().zip(charges).enumerate().filter(|(place, _)| !takes[*place])
        {
            let counts = counts_denied(charge) && matches!(charge.mode, Mode::Spend | Mode::SpendOnly);
            outlook.is_written &= counts || outlook.outcome != Outcome::Allowed && charge.numbers.is_slots();
            questions[place].held = holds(&before, charge).held(now);
            if outlook.outcome == Outcome::Allowed {
                counted[place] = counts && charge.cost > 0;
                (outlook.outcome, outlook.again) = (Outcome::Unchanged, Again::AtOnce);
                outlook.what = if counts { outlook.what } else { What::Nothing };
            }
        }
        let mut decisions = Decisions::with_capacity(charges.len());
        let asked = charges.iter().zip(questions);
        for (place, (((charge, asked), outlook), claimed)) in asked.zip(&outlooks).zip(claimed).enumerate() {
            let task = Task::Answer(outlook, claimed, counted[place]);
            let (mut decision, detail, mut is_clear) = self.of_kind(charge, &asked, task).answer();
            if decision.is_short() && charge.cost <= charge.numbers.burst() {
                let first = holds(&before, charge).first(now).map(|end| Micros(end - now));
                decision.retry_after = decision.retry_after.into_iter().chain(first).min();
            }
            if outlook.is_written {
                let mut what = outlook.what;
                if matches!(charge.reservation(), Some(Reservation::Reserve(..))) {
                    what = What::Nothing;
                    let untouched = Outlook { what, ..*outlook };
                    (.., is_clear) = self.of_kind(charge, &asked, Task::Answer(&untouched, claimed, false)).answer();
                }
                // Those that only checked do not count.
                let (_, quota) = self.of_kind(charge, &question(charge, &self.quotas), Task::Foresee).outlook();
                self.quotas.extend(key_of(charge).zip(quota));
                let history = self.histories.entry(charge.bucket.key.clone()).or_default();
                let held = self.holds.entry(charge.bucket.key.clone()).or_default();
                held.write(charge, now);
                if is_clear {
                    history.clear();
                    what = What::Full;
                }
                if !is_clear || !held.is_empty() {
                    history.push(Event { question: asked, what });
                }
            }
            decisions.push(decision);
            decisions.details.extend(detail.map(|detail| (place, detail)));
        }
        decisions
    }

    /// Selects the algorithm.
    fn of_kind(&self, charge: &Charge, question: &Question, task: Task<'_>) -> Done {
        let history = self.histories.get(&charge.bucket.key).map_or(&[][..], Vec::as_slice);
        match charge.numbers.algorithm() {
            Algorithm::Gcra | Algorithm::FixedWindow(_) => task.go::<Raised>(history, charge, question),
            Algorithm::SlidingLog => task.go::<Log>(history, charge, question),
            Algorithm::SlidingWindow { .. } => task.go::<Sliding>(history, charge, question),
            Algorithm::Concurrency => task.go::<Slots>(history, charge, question),
            kind => panic!("the reference does not know {kind:?}"),
        }
    }
}

/// The question to a state.
enum Task<'a> {
    /// Resets its date if it is in the future.
    Redate,
    /// The result of the charge alone.
    Foresee,
    /// The answer, once that is known; another answer's waits are tried first. Whether the charge counts although its request is
    /// denied.
    Answer(&'a Outlook, &'a Decision, bool),
}

enum Done {
    Redated,
    InTime,
    /// And the activations of the quota, if it used one.
    Outlook(Outlook, Option<Activations>),
    Answer(Decision, Option<Detail>, bool),
}

impl Done {
    fn outlook(self) -> (Outlook, Option<Activations>) {
        if let Self::Outlook(outlook, quota) = self { (outlook, quota) } else { panic!("no outlook") }
    }

    fn answer(self) -> (Decision, Option<Detail>, bool) {
        let Self::Answer(decision, detail, is_clear) = self else { panic!("no answer") };
        (decision, detail, is_clear)
    }
}

impl Task<'_> {
    fn go<P: Picture>(self, history: &[Event], charge: &Charge, question: &Question) -> Done {
        let mut picture = P::default();
        for event in history {
            if event.what == What::Redated {
                picture.redate(event.question.now);
                continue;
            }
            picture.look(&event.question);
            apply(&mut picture, event.what);
        }
        if let Self::Redate = self {
            return if picture.redate(question.now) { Done::Redated } else { Done::InTime };
        }
        picture.look(question);
        match self {
            Self::Redate => Done::InTime,
            Self::Foresee => {
                let outlook = picture.foresee(charge);
                apply(&mut picture, outlook.what);
                let is_raised = matches!(outlook.what, What::Raised(_) | What::RaisedUpTo(_));
                Done::Outlook(outlook, picture.quota().filter(|_| is_raised))
            }
            Self::Answer(outlook, claimed, is_counted) => {
                apply(&mut picture, outlook.what);
                let tells = charge.is_told() && outlook.outcome == Outcome::Allowed && outlook.is_written;
                let taken = tells.then(|| Detail::Taken(Micros(picture.now())));
                let wait = || least(None, picture.turn(), |later| picture.fits(charge.cost, later));
                let counted = is_counted.then(wait).flatten().filter(|wait| *wait > Micros(0)).map(Detail::Counted);
                let detail = taken.or(counted).or_else(|| picture.elevation(outlook).map(Detail::Elevated));
                Done::Answer(answer(&picture, charge, outlook, claimed), detail, picture.is_clear())
            }
        }
    }
}

fn key_of(charge: &Charge) -> Option<(u8, Arc<str>)> {
    charge.quota().map(|(tag, name)| (tag, Arc::clone(name)))
}

/// The rule of taking: a charge takes its cost if its limit fits and no other enforced limit fails to, and a strike if its limit fails.
fn takes(charge: &Charge, charges: &[Charge], outlooks: &[Outlook]) -> bool {
    if charge.origin.is_strike() {
        return charges.iter().zip(outlooks).any(|(other, outlook)| {
            let is_own = other.origin.group == charge.origin.group && !other.origin.is_beside();
            is_own && matches!(outlook.outcome, Outcome::Denied | Outcome::Short)
        });
    }
    let candidate = |charge: &Charge| charge.origin.role.candidate();
    charges.iter().zip(outlooks).all(|(other, outlook)| {
        let same = other.origin.group == charge.origin.group;
        let can_be_short = matches!(charge.mode, Mode::Spend | Mode::Check | Mode::Look | Mode::SpendOnly);
        match outlook.outcome {
            Outcome::Denied => candidate(charge).is_some() && can_be_short && same,
            Outcome::Short if other.origin.is_strike() => true,
            Outcome::Short => charge.can_deny() || !can_be_short || !same || candidate(charge) != candidate(other),
            Outcome::Allowed | Outcome::Unchanged => true,
        }
    })
}

fn counts_denied(charge: &Charge) -> bool {
    charge.numbers.counts_denied()
}

fn apply(picture: &mut impl Picture, what: What) {
    match what {
        What::Nothing | What::Redated => {}
        What::Taken(tokens) => picture.take(tokens),
        What::Raised(tokens) => picture.raise(tokens),
        What::RaisedUpTo(tokens) => {
            picture.raise(0);
            picture.take_up_to(tokens);
        }
        What::TakenUpTo(tokens) => picture.take_up_to(tokens),
        What::Settled(tokens) => picture.settle(tokens),
        What::Full => picture.fill(),
        What::GivenBack(tokens) => picture.give_back(tokens),
        What::Denied(tokens) => picture.deny(tokens),
        What::Reset => picture.give_back(u64::MAX),
    }
}

pub(super) fn foresee(picture: &impl Picture, charge: &Charge) -> Outlook {
    let (cost, room) = (charge.cost, picture.room(0));
    let unchanged = |outcome| Outlook { outcome, what: What::Nothing, is_written: false, again: Again::AtOnce };
    let written = |what, again| Outlook { outcome: Outcome::Allowed, what, is_written: true, again };
    match charge.mode {
        Mode::Reset => written(What::Reset, Again::AtOnce),
        _ if cost == 0 => unchanged(if charge.mode == Mode::Refund { Outcome::Unchanged } else { Outcome::Allowed }),
        Mode::Refund | Mode::SpendUpTo => {
            let what = if charge.mode == Mode::Refund { What::GivenBack(cost) } else { What::TakenUpTo(cost) };
            let mut after = picture.clone();
            apply(&mut after, what);
            if after == *picture { unchanged(Outcome::Unchanged) } else { written(what, Again::AtOnce) }
        }
        Mode::Look if cost <= room => unchanged(Outcome::Allowed),
        mode if cost <= room => {
            let is_written = mode != Mode::Check;
            Outlook { is_written, ..written(What::Taken(cost), Again::WhenFits(cost)) }
        }
        mode => {
            let outcome = if charge.can_deny() { Outcome::Denied } else { Outcome::Short };
            let mut after = picture.clone();
            after.deny(cost);
            // A window that counts no more denials is left as it is.
            let is_written = matches!(mode, Mode::Spend | Mode::SpendOnly) && after != *picture;
            let what = if is_written { What::Denied(cost) } else { What::Nothing };
            let again = if cost > charge.numbers.burst() { Again::Never } else { Again::WhenFits(cost) };
            Outlook { outcome, what, is_written, again }
        }
    }
}

fn answer(after: &impl Picture, charge: &Charge, outlook: &Outlook, claimed: &Decision) -> Decision {
    Decision {
        delay: 0,
        outcome: outlook.outcome,
        limit: after.limit(charge),
        remaining: after.room(0),
        retry_after: match outlook.again {
            Again::AtOnce => Some(Micros(0)),
            Again::Never => None,
            Again::Perhaps => Some(Micros(1_000_000)),
            Again::WhenFits(cost) => least(claimed.retry_after, after.turn(), |later| after.fits(cost, later)),
        },
        reset_after: least(claimed.reset_after, after.turn(), |later| after.is_reset(later)),
    }
}

/// The least time at which a condition holds that is monotonic before `turn` and from then on; `None` if it never does.
/// Waits that Redis cannot count are told as the longest that it can.
fn least(claimed: Option<Micros>, turn: Option<u64>, holds: impl Fn(u64) -> bool) -> Option<Micros> {
    let spans = [(0, turn.unwrap_or(0)), (turn.unwrap_or(0), NEVER)];
    let found = spans.into_iter().find_map(|(start, end)| least_within(claimed, start, end, &holds));
    found.map(|found| found.min(Micros(EXACT - 1)))
}

fn least_within(claimed: Option<Micros>, start: u64, end: u64, holds: impl Fn(u64) -> bool) -> Option<Micros> {
    if let Some(Micros(span)) = claimed.filter(|span| (start..end).contains(&span.0))
        && holds(span)
        && (span == start || !holds(span - 1))
    {
        return claimed;
    }
    if start < end && !holds(end - 1) {
        return None;
    }
    let (mut less, mut enough) = (start, end);
    while less < enough {
        let middle = less.midpoint(enough);
        if holds(middle) {
            enough = middle;
        } else {
            less = middle + 1;
        }
    }
    (enough < end).then_some(Micros(enough))
}
