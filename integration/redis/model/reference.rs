//! What the answers must be, told as naively as can be: every bucket keeps the history of what was taken from it, each
//! question goes through all of it again, and a wait is found by trying.
//!
//! An algorithm says no more than how many tokens fit after some time; allowed, remaining, the waits and all or nothing
//! follow from that for all of them alike. Of the engine it takes the types that questions and answers are made of, and
//! the tables of the calendars, which have tests of their own.

use std::collections::HashMap;

use weir::engine::algorithms::charge::{Charge, Decision, Decisions, Mode, Outcome};
use weir::engine::algorithms::details::{Detail, Elevated, Elevation, Slot, Terms};
use weir::engine::algorithms::numbers::{Micros, Numbers};
use weir::engine::algorithms::refill::Kind;

use super::elevated::Raised;
use super::pictures::{Log, Sliding, Slots};

/// Longer than any wait that comes to an end: the longest are below 2^53 microseconds.
const NEVER: u64 = 1 << 55;

/// The buckets.
#[derive(Default)]
pub(super) struct Reference {
    histories: HashMap<String, Vec<Event>>,
    /// Whether a bucket of a calendar was dated now by a charge that knows nothing of the calendar. In Redis it keeps the
    /// length of the window that it was in, in memory it has that of another one.
    pub(super) is_vague: bool,
}

/// When, under which numbers since when, with which elevated ones beside them, and for which slot if it is about one.
#[derive(Clone, Copy)]
pub(super) struct Question {
    pub(super) numbers: Numbers,
    pub(super) elevated: Option<Elevated>,
    pub(super) slot: Option<Slot>,
    /// When what is given back was taken, if that is known.
    pub(super) taken: Option<u64>,
    pub(super) effective_from: u64,
    pub(super) now: u64,
}

/// What has happened to a bucket.
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
    GivenBack(u64),
    Refused(u64),
    Reset,
    /// It was found to be dated ahead of the clock.
    Redated,
}

/// When the same charge would fit.
#[derive(Clone, Copy)]
pub(super) enum Again {
    AtOnce,
    WhenFits(u64),
    /// After a second, for want of anything better to say.
    Perhaps,
    Never,
}

/// What becomes of a charge.
pub(super) struct Outlook {
    pub(super) outcome: Outcome,
    /// What the answer takes into account.
    pub(super) what: What,
    /// Whether that is kept.
    pub(super) is_written: bool,
    pub(super) again: Again,
}

/// What an algorithm knows of a bucket: its history, told event by event.
pub(super) trait Picture: Clone + Default + PartialEq {
    /// It is so late under these numbers, and time stands still if it was later.
    fn look(&mut self, question: &Question);
    /// Whether it is dated so far ahead of the clock that it is dated now; then it is.
    fn redate(&mut self, now: u64) -> bool;
    /// Whether only charges under these numbers know all of it.
    fn is_vague(&self, _numbers: &Numbers) -> bool {
        false
    }
    /// The whole tokens that fit in so many microseconds from then on. It never falls as time goes by.
    fn room(&self, later: u64) -> u64;
    fn take(&mut self, tokens: u64);
    /// Whether as many can be taken in so many microseconds from then on. Once they can, they always can.
    fn fits(&self, tokens: u64, later: u64) -> bool {
        self.room(later) >= tokens
    }
    /// Switches the elevated numbers on, and takes as many.
    fn raise(&mut self, _tokens: u64) {
        panic!("there are none");
    }
    /// Takes as many, or all that is left.
    fn take_up_to(&mut self, tokens: u64) {
        let taken = tokens.min(self.room(0));
        if taken > 0 {
            self.take(taken);
        }
    }
    /// Gives back as many as there are to give: of the youngest first, or of those first that were taken at an instant.
    fn give_back(&mut self, tokens: u64);
    /// Whether all is given back, and nothing is left to be known.
    fn is_clear(&self) -> bool;
    /// Whether in so many microseconds the bucket is full, or its window has ended.
    fn is_reset(&self, later: u64) -> bool;
    /// Counts what was refused, if its limit does.
    fn refuse(&mut self, _tokens: u64) {}
    /// The burst of the numbers that hold.
    fn limit(&self, charge: &Charge) -> u64 {
        charge.numbers.burst()
    }
    /// How it stands with the elevated numbers, if the limit has some.
    fn elevation(&self, _outlook: &Outlook) -> Option<Elevation> {
        None
    }
    /// What becomes of a charge.
    fn foresee(&self, charge: &Charge) -> Outlook {
        foresee(self, charge)
    }
}

impl Reference {
    /// Decides the charges of a request. A wait is tried first as it is `claimed`: that saves most of the tries.
    pub(super) fn decide(
        &mut self,
        charges: &[Charge],
        effective_from: u64,
        now: u64,
        claimed: &[Decision],
    ) -> Decisions {
        let question = |charge: &Charge| {
            let slot = if let Some(Terms::Slot(slot)) = charge.terms.as_deref() { Some(*slot) } else { None };
            let effective_from = effective_from.max(charge.changed.0);
            let taken = charge.taken_ago().map(|ago| now.saturating_sub(ago.0));
            Question { numbers: charge.numbers, elevated: charge.elevated().copied(), slot, taken, effective_from, now }
        };
        for charge in charges {
            let question = question(charge);
            if let Done::Redated(is_vague) = self.of_kind(charge, &question, Task::Redate) {
                self.is_vague |= is_vague;
                let history = self.histories.entry(charge.bucket.key.clone()).or_default();
                history.push(Event { question, what: What::Redated });
            }
        }
        let mut outlooks: Vec<Outlook> =
            charges.iter().map(|charge| self.of_kind(charge, &question(charge), Task::Foresee).outlook()).collect();
        if outlooks.iter().any(|outlook| outlook.outcome == Outcome::Denied) {
            for (outlook, charge) in outlooks.iter_mut().zip(charges) {
                let counts = counts_denied(charge) && matches!(charge.mode, Mode::Spend | Mode::SpendOnly);
                outlook.is_written &= counts || outlook.outcome != Outcome::Allowed && charge.numbers.is_slots();
                if outlook.outcome == Outcome::Allowed {
                    (outlook.outcome, outlook.again) = (Outcome::Unchanged, Again::AtOnce);
                    outlook.what = if counts { outlook.what } else { What::Nothing };
                }
            }
        }
        let mut decisions = Decisions::with_capacity(charges.len());
        for (place, ((charge, outlook), claimed)) in charges.iter().zip(&outlooks).zip(claimed).enumerate() {
            let question = question(charge);
            let (decision, elevation, is_clear) =
                self.of_kind(charge, &question, Task::Answer(outlook, claimed)).answer();
            if outlook.is_written {
                let history = self.histories.entry(charge.bucket.key.clone()).or_default();
                history.push(Event { question, what: outlook.what });
                if is_clear {
                    history.clear();
                }
            }
            decisions.push(decision);
            decisions.details.extend(elevation.map(|elevation| (place, Detail::Elevated(elevation))));
        }
        decisions
    }

    /// Where the algorithms are told apart.
    fn of_kind(&self, charge: &Charge, question: &Question, task: Task<'_>) -> Done {
        let history = self.histories.get(&charge.bucket.key).map_or(&[][..], Vec::as_slice);
        match charge.numbers.refill().kind() {
            Kind::Level => task.go::<Raised>(history, charge, question),
            Kind::Log(_) => task.go::<Log>(history, charge, question),
            Kind::SlidingWindow(_) => task.go::<Sliding>(history, charge, question),
            Kind::Slots(_) => task.go::<Slots>(history, charge, question),
            kind => panic!("the reference does not know {kind:?}"),
        }
    }
}

/// What is asked of a picture.
enum Task<'a> {
    /// Whether it is to be dated now.
    Redate,
    /// What becomes of the charge by itself.
    Foresee,
    /// The answer, when that is settled; the waits are tried as they are in another one first.
    Answer(&'a Outlook, &'a Decision),
}

enum Done {
    Redated(bool),
    InTime,
    Outlook(Outlook),
    Answer(Decision, Option<Elevation>, bool),
}

impl Done {
    fn outlook(self) -> Outlook {
        if let Self::Outlook(outlook) = self { outlook } else { panic!("no outlook") }
    }

    fn answer(self) -> (Decision, Option<Elevation>, bool) {
        let Self::Answer(decision, elevation, is_clear) = self else { panic!("no answer") };
        (decision, elevation, is_clear)
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
            let is_vague = picture.is_vague(&question.numbers);
            return if picture.redate(question.now) { Done::Redated(is_vague) } else { Done::InTime };
        }
        picture.look(question);
        match self {
            Self::Redate => Done::InTime,
            Self::Foresee => Done::Outlook(picture.foresee(charge)),
            Self::Answer(outlook, claimed) => {
                apply(&mut picture, outlook.what);
                let elevation = picture.elevation(outlook);
                Done::Answer(answer(&picture, charge, outlook, claimed), elevation, picture.is_clear())
            }
        }
    }
}

fn counts_denied(charge: &Charge) -> bool {
    charge.numbers.refill().counts_denied()
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
        What::GivenBack(tokens) => picture.give_back(tokens),
        What::Refused(tokens) => picture.refuse(tokens),
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
        mode if cost <= room => {
            let is_written = mode != Mode::Check;
            Outlook { is_written, ..written(What::Taken(cost), Again::WhenFits(cost)) }
        }
        mode => {
            let outcome = if mode == Mode::SpendOnly { Outcome::Unchanged } else { Outcome::Denied };
            let mut after = picture.clone();
            after.refuse(cost);
            // A window that counts no more of what it refuses is left alone.
            let is_written = mode != Mode::Check && after != *picture;
            let what = if is_written { What::Refused(cost) } else { What::Nothing };
            let again = if cost > charge.numbers.burst() { Again::Never } else { Again::WhenFits(cost) };
            Outlook { outcome, what, is_written, again }
        }
    }
}

fn answer(after: &impl Picture, charge: &Charge, outlook: &Outlook, claimed: &Decision) -> Decision {
    Decision {
        outcome: outlook.outcome,
        limit: after.limit(charge),
        remaining: after.room(0),
        retry_after: match outlook.again {
            Again::AtOnce => Some(Micros(0)),
            Again::Never => None,
            Again::Perhaps => Some(Micros(1_000_000)),
            Again::WhenFits(cost) => least(claimed.retry_after, |later| after.fits(cost, later)),
        },
        reset_after: least(claimed.reset_after, |later| after.is_reset(later)),
    }
}

/// The least span of which something holds that goes on to hold; `None` if it never does.
fn least(claimed: Option<Micros>, holds: impl Fn(u64) -> bool) -> Option<Micros> {
    if let Some(Micros(span)) = claimed.filter(|span| span.0 < NEVER)
        && holds(span)
        && span.checked_sub(1).is_none_or(|less| !holds(less))
    {
        return claimed;
    }
    let (mut less, mut enough) = (0, NEVER);
    while less < enough {
        let middle = less.midpoint(enough);
        if holds(middle) {
            enough = middle;
        } else {
            less = middle + 1;
        }
    }
    (enough < NEVER).then_some(Micros(enough))
}
