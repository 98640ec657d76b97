//! What each algorithm knows of a bucket. One more needs a picture here and an arm in [`super::reference`].

use std::collections::BTreeMap;

use weir::engine::algorithms::charge::{Charge, Mode, Outcome};
use weir::engine::algorithms::details::Slot;
use weir::engine::algorithms::numbers::{EXACT, Micros, Numbers};
use weir::engine::algorithms::refill::{Kind, Windows};

use super::reference::{Again, Outlook, Picture, Question, What};

/// What is dated further ahead of the clock than this is dated now.
pub(super) const MOST_AHEAD: u64 = 1_000_000;

/// GCRA and fixed windows, which go on with what the other has left.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Level {
    numbers: Option<Numbers>,
    /// When the bucket was looked at last, or when the window of that instant began.
    since: u64,
    instant: u64,
    /// In parts of a token. It may be more than the bucket holds.
    used: u128,
}

/// The parts that a token has, and those that come back each microsecond, in the smallest integers.
fn parts(numbers: &Numbers) -> (u128, u128) {
    if numbers.refill().windows().is_some() || numbers.count() == 0 {
        return (1, 0);
    }
    let (period, count) = (u128::from(numbers.period()), 1_000 * u128::from(numbers.count()));
    let (mut divisor, mut rest) = (period, count);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (period / divisor, count / divisor)
}

/// How many windows begin after `from`, where one begins if they are counted from a charge, up to `until`.
fn windows_begun(windows: Windows, from: u64, until: u64) -> u128 {
    u128::from(match windows {
        Windows::First(period) => (until - from) / period,
        Windows::Clock(period) => until / period - from / period,
        Windows::Calendar(calendar) => calendar.number(Micros(until)) - calendar.number(Micros(from)),
    })
}

/// When the window began that holds an instant; one begins at `anchor` if they are counted from a charge.
fn window_start(windows: Windows, anchor: u64, at: u64) -> u64 {
    match windows {
        Windows::First(period) => at - (at - anchor) % period,
        Windows::Clock(period) => at - at % period,
        Windows::Calendar(calendar) => calendar.start(calendar.number(Micros(at))).0,
    }
}

fn is_same(a: &Numbers, b: &Numbers) -> bool {
    match (a.refill().windows(), b.refill().windows()) {
        (None, None) => parts(a) == parts(b),
        (a_windows, b_windows) => a_windows == b_windows && a.count() == b.count(),
    }
}

/// The tokens used once so many windows have begun. The first of them ends what the bucket cannot hold.
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

    /// Whether nothing has happened to it yet.
    pub(super) const fn is_unknown(&self) -> bool {
        self.numbers.is_none()
    }

    pub(super) const fn instant(&self) -> u64 {
        self.instant
    }

    /// The tokens used after so long, where a part of one counts as one.
    pub(super) fn tokens_used(&self, later: u64) -> u128 {
        self.used(later).div_ceil(parts(self.numbers()).0)
    }

    /// Other numbers from now on; what is used stays used.
    pub(super) fn exchange(&mut self, numbers: &Numbers) {
        let (old, (token, _)) = (parts(self.numbers()).0, parts(numbers));
        self.used = (self.used * token).div_ceil(old).min(u128::from(numbers.burst()) * token);
        self.numbers = Some(*numbers);
    }

    /// Other numbers from now on; what is left stays, as far as they have room for it.
    pub(super) fn cut(&mut self, numbers: &Numbers) {
        let (old, (token, _)) = (parts(self.numbers()).0, parts(numbers));
        let left = (u128::from(self.numbers().burst()) * old).saturating_sub(self.used) * token / old;
        self.used = (u128::from(numbers.burst()) * token).saturating_sub(left);
        self.numbers = Some(*numbers);
    }

    /// What is used after so long.
    fn used(&self, later: u64) -> u128 {
        let numbers = self.numbers();
        match numbers.refill().windows() {
            None => self.used.saturating_sub(parts(numbers).1 * u128::from(later)),
            Some(windows) => {
                let begun = windows_begun(windows, self.since, self.instant + later);
                after_windows(numbers, self.used, begun)
            }
        }
    }

    /// What is used at `changed`, in parts of the numbers until then, and when the window began that was under way. Who
    /// has other numbers takes all windows of a calendar to be as long as the one that the bucket was looked at in.
    fn left(&self, changed: u64) -> (u128, u64) {
        let numbers = self.numbers();
        let windows = match numbers.refill().windows() {
            None => return (self.used.saturating_sub(parts(numbers).1 * u128::from(changed - self.since)), changed),
            Some(Windows::Calendar(calendar)) => {
                Windows::First(calendar.length(calendar.number(Micros(self.since))).max(1))
            }
            Some(windows) => windows,
        };
        let back = windows_begun(windows, self.since, changed) * u128::from(numbers.count());
        (self.used.saturating_sub(back), window_start(windows, self.since, changed))
    }
}

impl Picture for Level {
    fn look(&mut self, &Question { numbers, effective_from, now, .. }: &Question) {
        let capacity = u128::from(numbers.burst()) * parts(&numbers).0;
        let is_even = numbers.refill().windows().is_none();
        // Who has written it after these numbers took effect may know of others that are newer.
        let most = if self.since <= effective_from { capacity } else { u128::MAX };
        // What was used at `from`, and where a window began.
        let (used, anchor, from) = match &self.numbers {
            None => (0, now, now),
            // Where tokens come back one by one, those that a lowered burst has no room for come back first.
            Some(old) if is_same(old, &numbers) => (self.used, self.since, self.since),
            Some(old) => {
                let changed = effective_from.max(self.since).min(now.max(self.since));
                let (left, anchor) = self.left(changed);
                // The same tokens; a part of a part counts as one.
                let left = (left * parts(&numbers).0).div_ceil(parts(old).0).min(u128::from(EXACT - 1));
                (if is_even { left.min(most) } else { left }, anchor, changed)
            }
        };
        let instant = if self.numbers.is_some() { now.max(self.since) } else { now };
        *self = match numbers.refill().windows() {
            None => {
                let back = parts(&numbers).1 * u128::from(instant - from);
                let used = used.saturating_sub(back).min(most);
                Self { numbers: Some(numbers), since: instant, instant, used }
            }
            Some(windows) => {
                let first = window_start(windows, anchor, from);
                let used = after_windows(&numbers, used, windows_begun(windows, first, instant));
                let is_unbegun = used == 0 && matches!(windows, Windows::First(_));
                let since = if is_unbegun { instant } else { window_start(windows, anchor, instant) };
                Self { numbers: Some(numbers), since, instant, used }
            }
        };
    }

    fn redate(&mut self, now: u64) -> bool {
        let is_ahead = self.since > now + MOST_AHEAD;
        if is_ahead {
            (self.since, self.instant) = (now, now);
        }
        is_ahead
    }

    fn is_vague(&self, numbers: &Numbers) -> bool {
        self.numbers.is_some_and(|old| old.is_calendar() && !is_same(&old, numbers))
    }

    fn room(&self, later: u64) -> u64 {
        let token = parts(self.numbers()).0;
        let room = (u128::from(self.numbers().burst()) * token).saturating_sub(self.used(later));
        u64::try_from(room / token).unwrap()
    }

    fn take(&mut self, tokens: u64) {
        self.used += u128::from(tokens) * parts(self.numbers()).0;
    }

    /// All that is left may be parts of a token.
    fn take_up_to(&mut self, tokens: u64) {
        let token = parts(self.numbers()).0;
        let capacity = u128::from(self.numbers().burst()) * token;
        self.used = self.used.max(capacity.min(self.used + u128::from(tokens) * token));
    }

    fn give_back(&mut self, tokens: u64) {
        self.used = self.used.saturating_sub(u128::from(tokens) * parts(self.numbers()).0);
    }

    fn is_clear(&self) -> bool {
        self.used == 0
    }

    fn is_reset(&self, later: u64) -> bool {
        match self.numbers().refill().windows() {
            None => self.used(later) == 0,
            Some(Windows::First(_)) if self.used == 0 => true,
            Some(windows) => windows_begun(windows, self.since, self.instant + later) > 0,
        }
    }
}

/// The sliding log.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Log {
    count: u64,
    period: u64,
    instant: u64,
    /// When, and how many.
    taken: Vec<(u64, u64)>,
    /// When what is given back was taken.
    back: Option<u64>,
}

impl Picture for Log {
    fn look(&mut self, question: &Question) {
        let Kind::Log(period) = question.numbers.refill().kind() else { panic!("no log") };
        (self.count, self.period, self.back) = (question.numbers.burst(), period, question.taken);
        self.instant = self.taken.iter().map(|(at, _)| *at).fold(question.now, u64::max);
        let instant = self.instant;
        self.taken.retain(|(at, _)| at + period > instant);
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
            // The oldest of those that are not older, or else the youngest.
            let found = self.back.and_then(|back| self.taken.iter().position(|(at, _)| *at >= back));
            let Some(place) = found.or(self.taken.len().checked_sub(1)) else { return };
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

/// The sliding window.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Sliding {
    count: u64,
    /// What a window counts at most.
    most: u64,
    period: u64,
    tick: u64,
    instant: u64,
    /// What was taken in each window, by its number since the epoch.
    taken: BTreeMap<i64, u64>,
    /// When what is given back was taken.
    back: Option<u64>,
}

/// The number of the window that holds an instant.
fn number(at: u64, period: u64) -> i64 {
    i64::try_from(at / period).unwrap()
}

impl Sliding {
    /// What counts after so long, in fractions of a token of which `ticks` make one.
    fn used(&self, later: u64) -> u128 {
        let at = self.instant + later;
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
        // Less cannot be enough, and this is hardly ever more than a few too little.
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
        let (Kind::SlidingWindow(period), count) = (question.numbers.refill().kind(), question.numbers.burst()) else {
            panic!("no sliding window")
        };
        let instant = self.instant.max(question.now);
        // Who has written it after these numbers took effect may know of others that are newer.
        let is_later = self.instant > question.effective_from;
        if !self.taken.is_empty() && self.period != period {
            // What counted when the numbers changed, rounded up to a token, was all taken then.
            let changed = question.effective_from.max(self.instant).min(instant);
            let used = self.used(changed - self.instant).div_ceil(self.ticks());
            self.taken = BTreeMap::from([(number(changed, period), u64::try_from(used).unwrap())]);
        }
        self.most = if question.numbers.refill().counts_denied() { 2 * count } else { count };
        (self.count, self.period, self.tick, self.instant) = (count, period, Self::least_tick(count, period), instant);
        self.taken.retain(|window, tokens| window + 1 >= number(instant, period) && *tokens > 0);
        self.back = question.taken;
        let held = if is_later { (EXACT - 1) / period.div_ceil(self.tick) } else { self.most };
        self.taken.values_mut().for_each(|tokens| *tokens = held.min(*tokens));
    }

    fn redate(&mut self, now: u64) -> bool {
        let is_ahead = self.instant > now + MOST_AHEAD;
        if is_ahead {
            // What this window and the one before have taken, now in the windows around now.
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
        *self.taken.entry(number(self.instant, self.period)).or_default() += tokens;
    }

    fn give_back(&mut self, tokens: u64) {
        let window = number(self.instant, self.period);
        let mut order = [window, window - 1];
        match self.back.map_or(0, |back| window - number(back.min(self.instant), self.period)) {
            0 => {}
            1 => order.reverse(),
            // Nothing of it counts any more.
            _ => return,
        }
        let mut rest = tokens;
        for window in order {
            let Some(taken) = self.taken.get_mut(&window) else { continue };
            let back = rest.min(*taken);
            (*taken, rest) = (*taken - back, rest - back);
        }
        self.taken.retain(|_, taken| *taken > 0);
    }

    fn is_clear(&self) -> bool {
        self.taken.is_empty()
    }

    fn is_reset(&self, later: u64) -> bool {
        self.used(later) == 0
    }

    fn refuse(&mut self, tokens: u64) {
        if self.most == self.count {
            return;
        }
        let taken = self.taken.entry(number(self.instant, self.period)).or_default();
        *taken = taken.saturating_add(tokens).min(self.most.max(*taken));
    }
}

/// Requests in flight.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Slots {
    capacity: u64,
    lease: u64,
    instant: u64,
    /// The one that is asked for.
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
        let Kind::Slots(lease) = question.numbers.refill().kind() else { panic!("no slots") };
        (self.capacity, self.lease, self.slot) = (question.numbers.burst(), lease, question.slot);
        // Time may step back: a lease has the end that it was given.
        self.instant = question.now;
        self.held.retain(|(_, end)| *end > question.now);
    }

    /// A lease ends by itself; see [`Self::refuse`].
    fn redate(&mut self, _now: u64) -> bool {
        false
    }

    /// None of them ends later than if it were taken now.
    fn refuse(&mut self, _tokens: u64) {
        let latest = (self.instant + self.lease).min(EXACT - 1);
        self.held.iter_mut().filter(|(_, end)| *end > latest + MOST_AHEAD).for_each(|(_, end)| *end = latest);
    }

    fn room(&self, _later: u64) -> u64 {
        self.capacity.saturating_sub(self.held.len() as u64)
    }

    /// One slot, however many tokens.
    fn take(&mut self, _tokens: u64) {
        if self.is_held() {
            self.held.retain(|(slot, _)| *slot != self.slot);
        }
        self.held.push((self.slot, (self.instant + self.lease).min(EXACT - 1)));
    }

    /// The slot that is asked for, or as many as can be if all are to be free.
    fn give_back(&mut self, tokens: u64) {
        let is_reset = tokens == u64::MAX;
        self.held.retain(|(slot, _)| !is_reset && *slot != self.slot);
    }

    fn is_clear(&self) -> bool {
        self.held.is_empty()
    }

    /// Nobody knows when the others come free.
    fn is_reset(&self, _later: u64) -> bool {
        self.held.is_empty()
    }

    fn foresee(&self, charge: &Charge) -> Outlook {
        let nothing = |outcome, again| Outlook { outcome, what: What::Nothing, is_written: false, again };
        let written = |what| Outlook { outcome: Outcome::Allowed, what, is_written: true, again: Again::AtOnce };
        let refused = if charge.mode.can_deny() { Outcome::Denied } else { Outcome::Unchanged };
        let held = self.held.len() as u64;
        let after = if self.is_held() { held } else { held + 1 };
        match charge.mode {
            Mode::Reset => written(What::Reset),
            Mode::Refund if self.is_held() && charge.cost > 0 => written(What::GivenBack(1)),
            Mode::Refund => nothing(Outcome::Unchanged, Again::AtOnce),
            _ if charge.cost == 0 => nothing(Outcome::Allowed, Again::AtOnce),
            mode => {
                // Who takes what there is never has to come back, and otherwise whoever asks next may find none.
                let again =
                    if mode == Mode::SpendUpTo || after < self.capacity { Again::AtOnce } else { Again::Perhaps };
                if after > self.capacity && !self.is_held() {
                    let mut later = self.clone();
                    later.refuse(1);
                    let is_written = later != *self;
                    let what = if is_written { What::Refused(1) } else { What::Nothing };
                    return Outlook { outcome: refused, what, is_written, again };
                }
                let is_written = mode != Mode::Check && self.slot.is_some();
                Outlook { is_written, again, ..written(What::Taken(1)) }
            }
        }
    }
}
