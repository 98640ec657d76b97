//! GCRA and fixed windows in a limit that may have elevated numbers.

use weir::engine::algorithms::charge::{Charge, Elevated, Mode};
use weir::engine::algorithms::decision::{Elevation, Outcome};
use weir::engine::algorithms::micros::EXACT;
use weir::engine::algorithms::numbers::Numbers;

use super::pictures::Level;
use super::reference::{Again, Outlook, Picture, Question, What, foresee};

/// The start of the next UTC month, by another calendar than the engine's.
fn next_month(at: u64) -> u64 {
    const DAY: i64 = 86_400_000_000;
    let timestamp = jiff::Timestamp::from_microsecond(i64::try_from(at).unwrap() / DAY * DAY).unwrap();
    let today = timestamp.to_zoned(jiff::tz::TimeZone::UTC).date();
    let next = today.first_of_month().checked_add(jiff::Span::new().months(1)).unwrap();
    let next = next.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_microsecond();
    u64::try_from(next).unwrap().min(EXACT - 1)
}

/// A bucket under its current numbers, and its elevated state.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Raised {
    level: Level,
    /// The limit's own numbers, and its elevated ones if any.
    base: Option<Numbers>,
    elevated: Option<Elevated>,
    /// Their end, if they were switched on since the limit's own were in force.
    until: Option<u64>,
    own: Activations,
    /// Those of the charge's quota, which count instead.
    quota: Option<Activations>,
}

/// The activations in the month that ends then.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct Activations {
    count: u64,
    month_end: u64,
}

impl Raised {
    /// The activations left, if they may switch on after this time.
    fn activations_left(&self, elevated: &Elevated, later: u64) -> u64 {
        let Activations { count, month_end } = self.quota.unwrap_or(self.own);
        let is_renewed = self.level.instant() + later >= month_end;
        elevated.activations_per_month.saturating_sub(if is_renewed { 0 } else { count })
    }

    /// Returns whether they can switch on for a charge after this time: the usage leaves room for it.
    fn can_rise(&self, cost: u64, later: u64) -> bool {
        self.until.is_none()
            && self.elevated.as_ref().is_some_and(|elevated| {
                let used = self.level.tokens_used(later);
                self.activations_left(elevated, later) > 0
                    && used.checked_add(u128::from(cost)).is_some_and(|all| all <= u128::from(elevated.numbers.burst()))
            })
    }

    /// The bucket after this time if the elevated numbers end by then.
    fn ended(&self, later: u64) -> Option<Self> {
        let (until, base, elevated) = (self.until?, self.base.as_ref()?, self.elevated.as_ref()?);
        let now = self.level.instant() + later;
        if now < until {
            return None;
        }
        let at = |numbers: &Numbers, now| Question {
            numbers: numbers.clone(),
            elevated: None,
            quota: None,
            slot: None,
            taken: None,
            held: 0,
            effective_from: 0,
            now,
        };
        let mut ended = Self { until: None, ..self.clone() };
        ended.level.move_to(&at(&elevated.numbers, until), false);
        ended.level.cut(base);
        ended.level.move_to(&at(base, now), false);
        Some(ended)
    }

    fn rise(&mut self) {
        let elevated = self.elevated.clone().expect("only what can rise does");
        let instant = self.level.instant();
        self.level.exchange(&elevated.numbers);
        let counted = self.quota.as_mut().unwrap_or(&mut self.own);
        if counted.month_end <= instant {
            *counted = Activations { count: 0, month_end: next_month(instant) };
        }
        counted.count += 1;
        self.until = Some((instant + elevated.span).min(EXACT - 1));
    }
}

impl Picture for Raised {
    fn look(&mut self, question: &Question) {
        self.base = Some(question.numbers.clone());
        self.elevated.clone_from(&question.elevated);
        self.quota = question.quota;
        // A limit without elevated numbers forgets what it does not know.
        let (Some(elevated), false) = (&question.elevated, self.level.is_unknown()) else {
            let (level, elevated) = (std::mem::take(&mut self.level), question.elevated.clone());
            *self = Self { level, base: self.base.take(), elevated, quota: question.quota, ..Self::default() };
            return self.level.look(question);
        };
        let instant = question.now.max(self.level.instant());
        for counted in [&mut self.own].into_iter().chain(self.quota.as_mut()) {
            if instant >= counted.month_end {
                *counted = Activations::default();
            }
        }
        match self.until {
            Some(until) if instant < until => {
                self.level.move_to(&Question { numbers: elevated.numbers.clone(), ..question.clone() }, false);
            }
            Some(until) => {
                self.until = None;
                self.level
                    .move_to(&Question { numbers: elevated.numbers.clone(), now: until, ..question.clone() }, false);
                self.level.cut(&question.numbers);
                self.level.move_to(question, false);
            }
            None => self.level.move_to(question, self.own.count == 0),
        }
    }

    fn redate(&mut self, now: u64) -> bool {
        let ahead = self.level.instant().saturating_sub(now);
        let is_ahead = self.level.redate(now);
        if is_ahead {
            self.until = self.until.map(|until| until - ahead);
        }
        is_ahead
    }

    fn room(&self, later: u64) -> u64 {
        self.ended(later).map_or_else(|| self.level.room(later), |ended| ended.level.room(0))
    }

    fn fits(&self, tokens: u64, later: u64) -> bool {
        match self.ended(later) {
            Some(ended) => ended.fits(tokens, 0),
            None => self.level.room(later) >= tokens || self.can_rise(tokens, later),
        }
    }

    fn now(&self) -> u64 {
        self.level.instant()
    }

    fn turn(&self) -> Option<u64> {
        Some(self.until? - self.level.instant())
    }

    fn take(&mut self, tokens: u64) {
        self.level.take(tokens);
    }

    fn take_up_to(&mut self, tokens: u64) {
        self.level.take_up_to(tokens);
    }

    fn settle(&mut self, tokens: u64) {
        self.level.settle(tokens);
    }

    fn fill(&mut self) {
        self.level.fill();
    }

    fn give_back(&mut self, tokens: u64) {
        self.level.give_back(tokens);
    }

    fn raise(&mut self, tokens: u64) {
        self.rise();
        self.take(tokens);
    }

    fn is_clear(&self) -> bool {
        self.level.is_clear() && self.until.is_none() && self.own.count == 0
    }

    fn is_reset(&self, later: u64) -> bool {
        self.level.is_reset(later)
    }

    fn quota(&self) -> Option<Activations> {
        self.quota
    }

    fn limit(&self, charge: &Charge) -> u64 {
        match (self.until, &self.elevated) {
            (Some(_), Some(elevated)) => elevated.numbers.burst(),
            _ => charge.numbers.burst(),
        }
    }

    fn foresee(&self, charge: &Charge) -> Outlook {
        let plain = foresee(self, charge);
        if charge.mode == Mode::SpendUpTo && charge.cost > 0 && self.room(0) == 0 && self.can_rise(1, 0) {
            let what = What::RaisedUpTo(charge.cost);
            return Outlook { outcome: Outcome::Allowed, what, is_written: true, again: Again::AtOnce };
        }
        if plain.outcome == Outcome::Allowed || matches!(charge.mode, Mode::SpendUpTo | Mode::Refund | Mode::Reset) {
            return plain;
        }
        if self.can_rise(charge.cost, 0) && charge.mode == Mode::Look {
            let what = What::Raised(0);
            return Outlook { outcome: Outcome::Allowed, what, is_written: false, again: Again::AtOnce };
        }
        if self.can_rise(charge.cost, 0) {
            let (what, is_written) = (What::Raised(charge.cost), charge.mode != Mode::Check);
            return Outlook { outcome: Outcome::Allowed, what, is_written, again: Again::WhenFits(charge.cost) };
        }
        // A cost above the burst may be below the elevated one.
        Outlook { again: Again::WhenFits(charge.cost), ..plain }
    }

    fn elevation(&self, outlook: &Outlook) -> Option<Elevation> {
        let elevated = self.elevated.as_ref()?;
        let triggered = matches!(outlook.what, What::Raised(_) | What::RaisedUpTo(_));
        let activations_left = triggered.then(|| self.activations_left(elevated, 0));
        Some(Elevation { triggered, active: self.until.is_some(), activations_left })
    }
}
