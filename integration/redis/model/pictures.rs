//! The state of each algorithm in the model. A new algorithm needs one here and an arm in [`super::reference`].

use std::collections::BTreeMap;

use weir::engine::algorithms::charge::{Charge, Mode, NUMBERS_OF_THE_CALL, Slot};
use weir::engine::algorithms::decision::Outcome;
use weir::engine::algorithms::micros::{EXACT, Micros};
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::algorithms::windows::Windows;

use super::reference::{Again, Outlook, Picture, Question, What};

/// Dates further ahead of the clock than this are reset to now.
pub(super) const MOST_AHEAD: u64 = 1_000_000;

/// GCRA and fixed windows, which take over each other's usage.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Level {
    numbers: Option<Numbers>,
    /// The last date of the bucket, or the start of the window of that date.
    since: u64,
    instant: u64,
    /// In parts of a token. It may exceed the bucket.
    used: u128,
    /// The length of the last window of a calendar.
    length: u64,
    /// The date of what is refunded.
    taken: Option<u64>,
    /// When nothing is used any more, by the numbers of the last write.
    forgotten: Option<u64>,
    /// The tokens that reservations hold.
    held: u64,
}

/// Returns whether the rules changed to the numbers of a question after this date. Calls bring theirs in no order.
fn follows_a_change(question: &Question, since: u64) -> bool {
    since <= question.effective_from && question.effective_from < NUMBERS_OF_THE_CALL.0
}

/// When other numbers than those of the last write began to hold.
fn changed(question: &Question, since: u64) -> u64 {
    if follows_a_change(question, since) { question.effective_from.min(question.now.max(since)) } else { since }
}

/// The parts of a token, and the parts that come back per microsecond, in the smallest integers.
fn parts(numbers: &Numbers) -> (u128, u128) {
    if numbers.windows().is_some() || numbers.count() == 0 {
        return (1, 0);
    }
    let (period, count) = (u128::from(numbers.period()), 1_000 * u128::from(numbers.count()));
    let (mut divisor, mut rest) = (period, count);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (period / divisor, count / divisor)
}

/// The windows that start after `from` up to `until`, counted from `from` or by the clock.
fn windows_begun(windows: Windows<'_>, from: u64, until: u64) -> u128 {
    u128::from(match windows {
        Windows::First(period) => (until - from) / period,
        Windows::Clock(period) => until / period - from / period,
        Windows::Calendar(calendar) => calendar.number(Micros(until)) - calendar.number(Micros(from)),
    })
}

/// The start of the window around an instant; `anchor` starts one if windows are counted from a charge.
fn window_start(windows: Windows<'_>, anchor: u64, at: u64) -> u64 {
    match windows {
        Windows::First(period) => at - (at - anchor) % period,
        Windows::Clock(period) => at - at % period,
        Windows::Calendar(calendar) => calendar.start(calendar.number(Micros(at))).0,
    }
}

fn is_same(a: &Numbers, b: &Numbers) -> bool {
    match (a.windows(), b.windows()) {
        (None, None) => parts(a) == parts(b),
        (a_windows, b_windows) => a_windows == b_windows && a.count() == b.count(),
    }
}

/// The tokens in use after some windows have started. The first drops what the bucket cannot hold.
fn after_windows(numbers: &Numbers, used: u128, begun: u128) -> u128 {
    if begun == 0 {
        used
    } else {
        used.min(u128::from(numbers.burst())).saturating_sub(begun * u128::from(numbers.count()))
    }
}

impl Level {
    fn numbers(&self) -> &Numbers {
        self.numbers.as_ref().expect("a picture is looked at first")
    }

    /// Returns whether nothing has happened yet.
    pub(super) const fn is_unknown(&self) -> bool {
        self.numbers.is_none()
    }

    pub(super) const fn instant(&self) -> u64 {
        self.instant
    }

    /// The tokens in use after this time, rounded up.
    pub(super) fn tokens_used(&self, later: u64) -> u128 {
        self.used(later).div_ceil(parts(self.numbers()).0)
    }

    /// Changes the numbers; what is used stays used.
    pub(super) fn exchange(&mut self, numbers: &Numbers) {
        let (old, (token, _)) = (parts(self.numbers()).0, parts(numbers));
        self.used = (self.used * token).div_ceil(old).min(u128::from(numbers.burst()) * token);
        (self.numbers, self.forgotten) = (Some(numbers.clone()), None);
    }

    /// Changes the numbers; what is left stays, as far as they have room.
    pub(super) fn cut(&mut self, numbers: &Numbers) {
        let (old, (token, _)) = (parts(self.numbers()).0, parts(numbers));
        let left = (u128::from(self.numbers().burst()) * old).saturating_sub(self.used) * token / old;
        self.used = (u128::from(numbers.burst()) * token).saturating_sub(left);
        self.numbers = Some(numbers.clone());
    }

    /// When nothing is used any more.
    fn full_at(&self) -> Option<u64> {
        let numbers = self.numbers();
        let span = match numbers.windows() {
            None if self.used == 0 => 0,
            None => self.used.div_ceil(Some(parts(numbers).1).filter(|back| *back > 0)?),
            Some(windows) => {
                let length = match windows {
                    Windows::First(period) | Windows::Clock(period) => period,
                    Windows::Calendar(_) => self.length,
                };
                self.used.div_ceil(u128::from(numbers.count())) * u128::from(length)
            }
        };
        // Redis cannot count longer spans.
        Some(u64::try_from(span).ok().filter(|span| *span < EXACT)? + self.since)
    }

    /// The usage after this time.
    fn used(&self, later: u64) -> u128 {
        if self.forgotten.is_some_and(|at| at <= self.instant + later) {
            return 0;
        }
        let numbers = self.numbers();
        match numbers.windows() {
            None => self.used.saturating_sub(parts(numbers).1 * u128::from(later)),
            Some(windows) => {
                let begun = windows_begun(windows, self.since, self.instant + later);
                after_windows(numbers, self.used, begun)
            }
        }
    }

    /// The usage at `changed` in parts of the former numbers, and the start of the window then. Other numbers take all
    /// windows of a calendar for as long as the bucket's last one.
    fn left(&self, changed: u64) -> (u128, u64) {
        let numbers = self.numbers();
        let windows = match numbers.windows() {
            None => return (self.used.saturating_sub(parts(numbers).1 * u128::from(changed - self.since)), changed),
            Some(Windows::Calendar(_)) => Windows::First(self.length),
            Some(windows) => windows,
        };
        let back = windows_begun(windows, self.since, changed) * u128::from(numbers.count());
        (self.used.saturating_sub(back), window_start(windows, self.since, changed))
    }
}

impl Level {
    /// Moves time to this date under these numbers. `forgets` if a bucket that is full by the numbers of its last write is full by
    /// others, too.
    pub(super) fn move_to(&mut self, question: &Question, forgets: bool) {
        let is_other = self.numbers.as_ref().is_some_and(|old| !is_same(old, &question.numbers));
        let forgotten = if forgets && is_other && self.used > 0 && !follows_a_change(question, self.since) {
            self.full_at()
        } else {
            None
        };
        if forgotten.is_some_and(|at| at <= question.now) {
            *self = Self::default();
            return self.move_to(question, forgets);
        }
        let changed = changed(question, self.since);
        let Question { numbers, effective_from, now, taken, .. } = question;
        let (effective_from, now, taken, held) = (*effective_from, *now, *taken, question.held);
        let capacity = u128::from(numbers.burst()) * parts(numbers).0;
        let is_even = numbers.windows().is_none();
        // A writer after these numbers took effect may know newer ones.
        let most = if self.since <= effective_from { capacity } else { u128::MAX };
        // The usage at `from` and a start of a window.
        let (used, anchor, from) = match &self.numbers {
            None => (0, now, now),
            Some(old) if !is_even && is_same(old, numbers) => (self.used, self.since, self.since),
            Some(old) => {
                let (left, anchor) = self.left(changed);
                // The same tokens; a part of a part counts as one.
                let left = (left * parts(numbers).0).div_ceil(parts(old).0).min(u128::from(EXACT - 1));
                // With even refill, a lowered burst drops what has no room when it takes effect.
                (if is_even { left.min(most) } else { left }, anchor, changed)
            }
        };
        let instant = if self.numbers.is_some() { now.max(self.since) } else { now };
        *self = match numbers.windows() {
            None => {
                let back = parts(numbers).1 * u128::from(instant - from);
                let used = used.saturating_sub(back);
                Self {
                    numbers: Some(numbers.clone()),
                    since: instant,
                    instant,
                    used,
                    length: 0,
                    taken,
                    forgotten,
                    held,
                }
            }
            Some(windows) => {
                let first = window_start(windows, anchor, from);
                let used = after_windows(numbers, used, windows_begun(windows, first, instant));
                let is_unbegun = used == 0 && matches!(windows, Windows::First(_));
                let since = if is_unbegun { instant } else { window_start(windows, anchor, instant) };
                let length = match windows {
                    Windows::Calendar(calendar) => calendar.length(calendar.number(Micros(since))),
                    Windows::First(_) | Windows::Clock(_) => 0,
                };
                Self { numbers: Some(numbers.clone()), since, instant, used, length, taken, forgotten, held }
            }
        };
    }

    /// All tokens that are not held.
    fn capacity(&self) -> u128 {
        let numbers = self.numbers();
        u128::from(numbers.burst().saturating_sub(self.held)) * parts(numbers).0
    }

    /// Sets what is used. From here on it counts by the numbers at hand.
    fn set(&mut self, used: u128) {
        if self.used != used {
            (self.used, self.forgotten) = (used, None);
        }
    }
}

impl Picture for Level {
    fn look(&mut self, question: &Question) {
        self.move_to(question, true);
    }

    fn now(&self) -> u64 {
        self.instant
    }

    fn redate(&mut self, now: u64) -> bool {
        let is_ahead = self.since > now + MOST_AHEAD;
        if is_ahead {
            (self.since, self.instant) = (now, now);
        }
        is_ahead
    }

    fn room(&self, later: u64) -> u64 {
        let token = parts(self.numbers()).0;
        let room = self.capacity().saturating_sub(self.used(later));
        u64::try_from(room / token).unwrap()
    }

    fn take(&mut self, tokens: u64) {
        self.set(self.used + u128::from(tokens) * parts(self.numbers()).0);
    }

    /// All that remains may be parts of a token.
    fn take_up_to(&mut self, tokens: u64) {
        let token = parts(self.numbers()).0;
        self.set(self.used.max(self.capacity().min(self.used + u128::from(tokens) * token)));
    }

    fn settle(&mut self, tokens: u64) {
        self.take_up_to(tokens);
        self.forgotten = None;
    }

    fn fill(&mut self) {
        self.since = self.instant;
    }

    fn give_back(&mut self, tokens: u64) {
        // A reset.
        self.forgotten = self.forgotten.filter(|_| tokens < u64::MAX);
        if self.numbers().windows().is_some() && self.taken.is_some_and(|taken| taken < self.since) {
            return;
        }
        self.set(self.used.saturating_sub(u128::from(tokens) * parts(self.numbers()).0));
    }

    fn is_clear(&self) -> bool {
        self.used == 0
    }

    fn is_reset(&self, later: u64) -> bool {
        match self.numbers().windows() {
            _ if self.forgotten.is_some_and(|at| at <= self.instant + later) => true,
            None => self.used(later) == 0,
            Some(Windows::First(_)) if self.used == 0 => true,
            Some(windows) => windows_begun(windows, self.since, self.instant + later) > 0,
        }
    }
}

#[derive(Clone, Default, PartialEq)]
pub(super) struct Log {
    count: u64,
    period: u64,
    instant: u64,
    /// Dates with tokens.
    taken: Vec<(u64, u64)>,
    /// The date of what is refunded.
    back: Option<u64>,
}

impl Picture for Log {
    fn look(&mut self, question: &Question) {
        let period = question.numbers.span();
        (self.count, self.period, self.back) = (question.numbers.burst(), period, question.taken);
        self.instant = self.taken.iter().map(|(at, _)| *at).fold(question.now, u64::max);
        let instant = self.instant;
        self.taken.retain(|(at, _)| at + period > instant);
    }

    fn now(&self) -> u64 {
        self.instant
    }

    fn redate(&mut self, now: u64) -> bool {
        let is_ahead = self.taken.iter().any(|(at, _)| *at > now + MOST_AHEAD);
        if is_ahead {
            self.taken.iter_mut().for_each(|(at, _)| *at = now.min(*at));
        }
        is_ahead
    }

    fn room(&self, later: u64) -> u64 {
        let counts = |at: u64| at + self.period > self.instant + later;
        self.count.saturating_sub(self.taken.iter().filter(|(at, _)| counts(*at)).map(|(_, tokens)| tokens).sum())
    }

    fn take(&mut self, tokens: u64) {
        self.taken.push((self.instant, tokens));
    }

    fn give_back(&mut self, tokens: u64) {
        for _ in 0..tokens {
            // Of that date if it is given, and otherwise the youngest.
            let found = match self.back {
                Some(back) => self.taken.iter().position(|(at, _)| *at == back),
                None => self.taken.len().checked_sub(1),
            };
            let Some(place) = found else { return };
            self.taken[place].1 -= 1;
            self.taken.retain(|(_, tokens)| *tokens > 0);
        }
    }

    fn is_clear(&self) -> bool {
        self.taken.is_empty()
    }

    fn is_reset(&self, later: u64) -> bool {
        self.room(later) == self.count
    }
}

#[derive(Clone, Default, PartialEq)]
pub(super) struct Sliding {
    count: u64,
    /// The most that a window counts.
    most: u64,
    period: u64,
    tick: u64,
    instant: u64,
    /// The tokens taken in each window, by its number since the epoch.
    taken: BTreeMap<i64, u64>,
    /// The date of what is refunded.
    back: Option<u64>,
    /// When nothing is used any more, by the period of the last write.
    forgotten: Option<u64>,
}

/// The number of the window around an instant.
fn number(at: u64, period: u64) -> i64 {
    i64::try_from(at / period).unwrap()
}

impl Sliding {
    /// The usage after this time in fractions of a token, `ticks` of which make one.
    fn used(&self, later: u64) -> u128 {
        let at = self.instant + later;
        if self.forgotten.is_some_and(|forgotten| forgotten <= at) {
            return 0;
        }
        let window = number(at, self.period);
        let [this, before] =
            [window, window - 1].map(|window| u128::from(self.taken.get(&window).copied().unwrap_or(0)));
        this * self.ticks() + before * (self.ticks() - u128::from(at % self.period / self.tick))
    }

    fn ticks(&self) -> u128 {
        u128::from(self.period.div_ceil(self.tick))
    }

    /// The least whole number of microseconds for which twice the count times all ticks is below 2^53.
    fn least_tick(count: u64, period: u64) -> u64 {
        let fits = |tick: u64| 2 * u128::from(count) * u128::from(period.div_ceil(tick)) < 1 << 53;
        // Less cannot be enough, and this is rarely more than a few too little.
        let least = (2 * u128::from(count) * u128::from(period)) >> 53;
        let mut tick = u64::try_from(least).unwrap().max(1);
        while !fits(tick) {
            tick += 1;
        }
        tick
    }
}

impl Picture for Sliding {
    fn look(&mut self, question: &Question) {
        let (period, count) = (question.numbers.span(), question.numbers.burst());
        let instant = self.instant.max(question.now);
        // A writer after these numbers took effect may know newer ones.
        let is_later = self.instant > question.effective_from;
        self.forgotten = None;
        if !self.taken.is_empty() && self.period != period && !follows_a_change(question, self.instant) {
            // The tokens of a window count until the end of the next one.
            let last = self.taken.keys().max().map_or(0, |window| u64::try_from(window + 2).unwrap() * self.period);
            self.forgotten = Some(last);
            if last <= question.now {
                (self.taken, self.forgotten) = (BTreeMap::new(), None);
            }
        }
        if !self.taken.is_empty() && self.period != period {
            // The usage at the change, rounded up to a token, was all taken then.
            let changed = changed(question, self.instant);
            let used = self.used(changed - self.instant).div_ceil(self.ticks());
            self.taken = BTreeMap::from([(number(changed, period), u64::try_from(used).unwrap())]);
        }
        self.most = if question.numbers.counts_denied() { 2 * count } else { count };
        (self.count, self.period, self.tick, self.instant) = (count, period, Self::least_tick(count, period), instant);
        self.taken.retain(|window, tokens| window + 1 >= number(instant, period) && *tokens > 0);
        self.back = question.taken;
        let held = if is_later { (EXACT - 1) / period.div_ceil(self.tick) } else { self.most };
        self.taken.values_mut().for_each(|tokens| *tokens = held.min(*tokens));
    }

    fn now(&self) -> u64 {
        self.instant
    }

    fn redate(&mut self, now: u64) -> bool {
        let is_ahead = self.instant > now + MOST_AHEAD;
        if is_ahead {
            // The tokens of this window and the one before, now in the windows around now.
            let back = number(self.instant, self.period) - number(now, self.period);
            self.taken = self.taken.iter().map(|(window, tokens)| (window - back, *tokens)).collect();
            self.instant = now;
        }
        is_ahead
    }

    fn room(&self, later: u64) -> u64 {
        let room = (u128::from(self.count) * self.ticks()).saturating_sub(self.used(later)) / self.ticks();
        u64::try_from(room).unwrap()
    }

    fn take(&mut self, tokens: u64) {
        self.forgotten = self.forgotten.filter(|_| tokens == 0);
        *self.taken.entry(number(self.instant, self.period)).or_default() += tokens;
    }

    fn give_back(&mut self, tokens: u64) {
        // A reset.
        self.forgotten = self.forgotten.filter(|_| tokens < u64::MAX);
        let window = number(self.instant, self.period);
        let order = match self.back {
            Some(back) => vec![number(back.min(self.instant), self.period)],
            None => vec![window, window - 1],
        };
        let mut rest = tokens;
        for window in order {
            let Some(taken) = self.taken.get_mut(&window) else { continue };
            let back = rest.min(*taken);
            (*taken, rest) = (*taken - back, rest - back);
            self.forgotten = self.forgotten.filter(|_| back == 0);
        }
        self.taken.retain(|_, taken| *taken > 0);
    }

    fn is_clear(&self) -> bool {
        self.taken.is_empty()
    }

    fn is_reset(&self, later: u64) -> bool {
        self.used(later) == 0
    }

    fn deny(&mut self, tokens: u64) {
        if self.most == self.count {
            return;
        }
        let taken = self.taken.entry(number(self.instant, self.period)).or_default();
        let before = *taken;
        *taken = taken.saturating_add(tokens).min(self.most.max(*taken));
        self.forgotten = self.forgotten.filter(|_| before == *taken);
    }
}

#[derive(Clone, Default, PartialEq)]
pub(super) struct Slots {
    capacity: u64,
    lease: u64,
    instant: u64,
    /// The requested slot.
    slot: Option<Slot>,
    /// Each with the end of its lease.
    held: Vec<(Option<Slot>, u64)>,
}

impl Slots {
    fn is_held(&self) -> bool {
        self.slot.is_some() && self.held.iter().any(|(slot, _)| *slot == self.slot)
    }
}

impl Picture for Slots {
    fn look(&mut self, question: &Question) {
        let lease = question.numbers.span();
        (self.capacity, self.lease, self.slot) = (question.numbers.burst(), lease, question.slot);
        // Time may step back: a lease keeps its end.
        self.instant = question.now;
        self.held.retain(|(_, end)| *end > question.now);
    }

    fn now(&self) -> u64 {
        self.instant
    }

    /// A lease ends by itself; see [`Self::deny`].
    fn redate(&mut self, _now: u64) -> bool {
        false
    }

    /// No lease ends later than one taken now.
    fn deny(&mut self, _tokens: u64) {
        let latest = (self.instant + self.lease).min(EXACT - 1);
        self.held.iter_mut().filter(|(_, end)| *end > latest + MOST_AHEAD).for_each(|(_, end)| *end = latest);
    }

    fn room(&self, _later: u64) -> u64 {
        self.capacity.saturating_sub(self.held.len() as u64)
    }

    /// One slot, for any number of tokens.
    fn take(&mut self, _tokens: u64) {
        if self.is_held() {
            self.held.retain(|(slot, _)| *slot != self.slot);
        }
        self.held.push((self.slot, (self.instant + self.lease).min(EXACT - 1)));
    }

    /// The requested slot, or as many as possible if all are to be free.
    fn give_back(&mut self, tokens: u64) {
        let is_reset = tokens == u64::MAX;
        self.held.retain(|(slot, _)| !is_reset && *slot != self.slot);
    }

    fn is_clear(&self) -> bool {
        self.held.is_empty()
    }

    /// It is unknown when the others are free.
    fn is_reset(&self, _later: u64) -> bool {
        self.held.is_empty()
    }

    fn foresee(&self, charge: &Charge) -> Outlook {
        let nothing = |outcome, again| Outlook { outcome, what: What::Nothing, is_written: false, again };
        let written = |what| Outlook { outcome: Outcome::Allowed, what, is_written: true, again: Again::AtOnce };
        let denied = match charge.mode {
            Mode::SpendUpTo => Outcome::Unchanged,
            _ if charge.can_deny() => Outcome::Denied,
            _ => Outcome::Short,
        };
        let held = self.held.len() as u64;
        let after = if self.is_held() { held } else { held + 1 };
        match charge.mode {
            Mode::Reset => written(What::Reset),
            Mode::Refund if self.is_held() && charge.cost > 0 => written(What::GivenBack(1)),
            Mode::Refund => nothing(Outcome::Unchanged, Again::AtOnce),
            _ if charge.cost == 0 => nothing(Outcome::Allowed, Again::AtOnce),
            mode => {
                // A holder of a slot need not return; others may find none.
                let again =
                    if mode == Mode::SpendUpTo || after < self.capacity { Again::AtOnce } else { Again::Perhaps };
                if after > self.capacity && !self.is_held() {
                    let mut later = self.clone();
                    later.deny(1);
                    let is_written = later != *self;
                    let what = if is_written { What::Denied(1) } else { What::Nothing };
                    return Outlook { outcome: denied, what, is_written, again };
                }
                let is_written = mode != Mode::Check && self.slot.is_some();
                Outlook { is_written, again, ..written(What::Taken(1)) }
            }
        }
    }
}
