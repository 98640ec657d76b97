//! The sliding log: an entry for every token taken. The entries of the last period count.
//!
//! It is exact at every instant, and takes memory for each token, so its count is bounded. An entry that is exactly one
//! period old no longer counts. `lua/sliding_log.lua` does the same arithmetic.

use std::collections::VecDeque;

use super::algorithm::Algorithm;
use super::charge::Charge;
use super::decision::Attempt;
use super::micros::{EXACT, Micros};
use super::numbers::{Numbers, NumbersError, whole_micros};
use super::usage::{self, Usage};
use super::windows::Refill;

/// The largest count. In Redis an entry takes about 10 bytes. Finding one in the middle of this many takes 1.2 microseconds,
/// against 0.6 at an end.
const MOST_LOGGED: u64 = 10_000;

impl Numbers {
    /// Numbers that count up to `most` events in any `period` nanoseconds, exactly.
    pub fn events_within(most: u64, period: u64) -> Result<Self, NumbersError> {
        Self::sliding_log(most, period)
    }

    /// Numbers of a log that lets `count` tokens pass in any `period` nanoseconds.
    pub fn sliding_log(count: u64, period: u64) -> Result<Self, NumbersError> {
        if count == 0 {
            return Err(NumbersError::Count);
        }
        match whole_micros(period)? {
            EXACT.. => Err(NumbersError::TooLong),
            _ if count > MOST_LOGGED => Err(NumbersError::TooManyEntries(MOST_LOGGED)),
            micros => Ok(Self::with(count, count, period, Algorithm::SlidingLog, Refill::span(micros))),
        }
    }
}

/// The tokens taken, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Instants and tokens; no two at one instant.
    entries: VecDeque<(Micros, u64)>,
    /// The period at the last write, in microseconds.
    period: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEdit {
    /// Entries up to this instant no longer count; `None` if all count.
    ended: Option<Micros>,
    /// Tokens that a refund removes: the youngest but for those in `spared`.
    given_back: u64,
    /// The tokens that were taken after those of the refund.
    spared: u64,
    taken: Option<(Micros, u64)>,
    period: u64,
}

/// A log at the instant of a charge.
#[derive(Clone, Copy)]
struct LogUsage<'a> {
    log: Option<&'a Log>,
    /// Now, or the youngest entry if the clock has stepped back behind it. The log does not change in between.
    instant: Micros,
    /// Tokens that count, after `edit`.
    used: u64,
    edit: LogEdit,
}

impl<'a> LogUsage<'a> {
    fn find(log: Option<&'a Log>, period: u64, now: Micros) -> Self {
        let instant = log.and_then(Log::youngest).map_or(now, |youngest| youngest.max(now));
        let ended = instant.0.checked_sub(period).map(Micros);
        let edit = LogEdit { ended, given_back: 0, spared: 0, taken: None, period };
        let mut usage = Self { log, instant, used: 0, edit };
        usage.used = usage.live().map(|(_, tokens)| tokens).sum();
        usage
    }

    /// Returns the entries that count before the edit, the oldest first.
    fn live(&self) -> impl DoubleEndedIterator<Item = (Micros, u64)> {
        let entries = self.log.into_iter().flat_map(|log| log.entries.iter().copied());
        entries.filter(|(at, _)| self.edit.ended.is_none_or(|ended| *at > ended))
    }

    /// Returns the time until an entry of this instant no longer counts.
    fn until_end(&self, at: Micros) -> Micros {
        at.after(Micros(self.edit.period)).since(self.instant)
    }
}

impl Usage for LogUsage<'_> {
    fn used(&self) -> u64 {
        self.used
    }

    fn take(self, levels: u64) -> Self {
        let edit = LogEdit { taken: Some((self.instant, levels)), ..self.edit };
        Self { used: self.used + levels, edit, ..self }
    }

    fn give_back(self, levels: u64, taken: Option<Micros>) -> Option<Self> {
        let tokens_of = |is_one: &dyn Fn(Micros) -> bool| -> u64 {
            self.live().filter(|(at, _)| is_one(*at)).map(|(_, tokens)| tokens).sum()
        };
        let (all, spared) = match taken {
            Some(taken) => (tokens_of(&|at| at == taken), tokens_of(&|at| at > taken)),
            None => (self.used, 0),
        };
        let given_back = levels.min(all);
        let edit = LogEdit { given_back, spared, ..self.edit };
        (given_back > 0).then(|| Self { used: self.used - given_back, edit, ..self })
    }

    /// Tokens that the edit takes come back last.
    fn until(&self, most: u64) -> Option<Micros> {
        let mut missing = self.used.saturating_sub(most);
        if missing == 0 {
            return Some(Micros(0));
        }
        for (at, tokens) in self.live() {
            if missing <= tokens {
                return Some(self.until_end(at));
            }
            missing -= tokens;
        }
        Some(Micros(self.edit.period))
    }

    fn reset_after(&self) -> Option<Micros> {
        if self.edit.taken.is_some() {
            return Some(Micros(self.edit.period));
        }
        let mut gone = if self.edit.spared > 0 { 0 } else { self.edit.given_back };
        for (at, tokens) in self.live().rev() {
            if gone < tokens {
                return Some(self.until_end(at));
            }
            gone -= tokens;
        }
        Some(Micros(0))
    }
}

pub(super) fn decide(log: Option<&Log>, charge: &Charge, now: Micros) -> Attempt<LogEdit> {
    let usage = LogUsage::find(log, charge.numbers.span(), now);
    let instant = usage.instant;
    let (decision, after) = usage::decide(usage, &charge.numbers, charge);
    Attempt::new(decision, after.map(|after| after.edit)).told(charge, instant)
}

impl Log {
    pub(super) fn apply(&mut self, edit: &LogEdit) {
        while self.entries.front().is_some_and(|(at, _)| edit.ended.is_some_and(|ended| *at <= ended)) {
            self.entries.pop_front();
        }
        if edit.given_back > 0 {
            let (mut rest, mut spared) = (edit.given_back, edit.spared);
            for (_, tokens) in self.entries.iter_mut().rev() {
                let stay = spared.min(*tokens);
                let gone = rest.min(*tokens - stay);
                (rest, spared, *tokens) = (rest - gone, spared - stay, *tokens - gone);
            }
            self.entries.retain(|(_, tokens)| *tokens > 0);
        }
        if let Some((at, taken)) = edit.taken {
            match self.entries.back_mut() {
                Some((last, tokens)) if *last == at => *tokens += taken,
                _ => self.entries.push_back((at, taken)),
            }
        }
        self.period = edit.period;
    }

    /// Gives entries of the future the date `now`, if the youngest is too far ahead.
    pub(super) fn redate(&mut self, now: Micros) {
        if !self.youngest().is_some_and(|youngest| youngest.is_ahead_of(now)) {
            return;
        }
        let past = self.entries.partition_point(|(at, _)| *at < now);
        let tokens = self.entries.drain(past..).map(|(_, tokens)| tokens).sum();
        self.entries.push_back((now, tokens));
    }

    /// Returns the instant from which no entry counts.
    pub(super) fn ends(&self) -> Micros {
        self.youngest().map_or(Micros(0), |youngest| youngest.after(Micros(self.period)))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Merges the two oldest entries at the younger one's instant. This takes less memory and allows nothing that would have
    /// been denied before.
    pub(super) fn merge_oldest(&mut self) {
        if self.entries.len() > 1
            && let Some((_, tokens)) = self.entries.pop_front()
            && let Some((_, more)) = self.entries.front_mut()
        {
            *more += tokens;
        }
    }

    pub(super) fn youngest(&self) -> Option<Micros> {
        self.entries.back().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::charge::{Bucket, Dated, Mode};
    use super::super::decision::{Detail, Outcome};
    use super::super::micros::MOST_AHEAD;
    use super::*;

    /// Charges a log of 3 per 10 s at milliseconds, and compares the outcome, the rest and both waits in milliseconds, -1
    /// for a wait that never ends.
    #[track_caller]
    fn check(steps: &[(u64, Mode, u64)], expected: &[(Outcome, u64, i64, i64)]) {
        let numbers = Numbers::sliding_log(3, 10_000_000_000).unwrap();
        let mut log: Option<Log> = None;
        for ((at, mode, cost), expected) in steps.iter().zip(expected) {
            let bucket = Bucket::new("L:k", 1);
            let charge = Charge::new(bucket, numbers.clone(), *cost, *mode);
            let Attempt { decision, edit, .. } = decide(log.as_ref(), &charge, Micros::from_millis(1_000_000 + at));
            let [retry, reset] = [decision.retry_after, decision.reset_after]
                .map(|span| span.map_or(-1, |span| i64::try_from(span.0 / 1_000).unwrap()));
            assert_eq!((decision.outcome, decision.remaining, retry, reset), *expected, "at {at}");
            if let Some(edit) = edit {
                log.get_or_insert_default().apply(&edit);
            }
        }
    }

    use Mode::{Check, Refund, Reset, Spend, SpendOnly, SpendUpTo};
    use Outcome::{Allowed, Denied, Short, Unchanged};

    #[test]
    fn tokens_come_back_one_by_one_as_they_age() {
        check(
            &[(0, Spend, 1), (1_000, Spend, 2), (9_999, Spend, 1), (10_000, Spend, 1), (10_500, Spend, 2)],
            &[
                (Allowed, 2, 0, 10_000),
                (Allowed, 0, 10_000, 10_000),
                (Denied, 0, 1, 1_001),
                (Allowed, 0, 1_000, 10_000),
                (Denied, 0, 500, 9_500),
            ],
        );
    }

    #[test]
    fn what_cannot_fit_takes_nothing() {
        check(
            &[(0, Spend, 4), (0, Check, 3), (0, Spend, 2), (5, SpendOnly, 2), (5, SpendUpTo, 9), (6, SpendUpTo, 1)],
            &[
                (Denied, 3, -1, 0),
                (Allowed, 0, 10_000, 10_000),
                (Allowed, 1, 10_000, 10_000),
                (Short, 1, 9_995, 9_995),
                (Allowed, 0, 0, 10_000),
                (Unchanged, 0, 0, 9_999),
            ],
        );
    }

    #[test]
    fn the_youngest_are_given_back_first() {
        check(
            &[(0, Spend, 1), (10, Spend, 2), (20, Refund, 1), (20, Refund, 1), (20, Refund, 9), (20, Refund, 1)],
            &[
                (Allowed, 2, 0, 10_000),
                (Allowed, 0, 10_000, 10_000),
                (Allowed, 1, 0, 9_990),
                (Allowed, 2, 0, 9_980),
                (Allowed, 3, 0, 0),
                (Unchanged, 3, 0, 0),
            ],
        );
        check(
            &[(0, Spend, 3), (1, Reset, 0), (1, Spend, 3)],
            &[(Allowed, 0, 10_000, 10_000), (Allowed, 3, 0, 0), (Allowed, 0, 10_000, 10_000)],
        );
    }

    /// 50 were reserved at 0, 40 spent at 50 s and a refund of what was taken at an instant came at 55 s, of 100 in a minute.
    #[track_caller]
    fn check_given_back(tokens: u64, taken: u64, expected: &[(u64, u64)]) {
        let numbers = Numbers::sliding_log(100, 60_000_000_000).unwrap();
        let bucket = Bucket::new("L:k", 1);
        let mut log = Log::default();
        let second = |at: u64| Micros((1_000 + at) * 1_000_000);
        let mut apply = |at: u64, mode, cost, dated| {
            let charge = Charge { dated, ..Charge::new(bucket.clone(), numbers.clone(), cost, mode) };
            let Attempt { decision, edit, detail, .. } = decide(Some(&log), &charge, second(at));
            if let Some(edit) = edit {
                log.apply(&edit);
            }
            (decision, detail)
        };
        for (at, cost) in [(0, 50), (50, 40)] {
            assert_eq!(apply(at, Spend, cost, Dated::Reserved).1, Some(Detail::Taken(second(at))));
        }
        let (given, detail) = apply(55, Refund, tokens, Dated::At(second(taken)));
        assert_eq!(detail, None);
        let entries: Vec<(u64, u64)> = log.entries.iter().map(|(at, left)| (at.0 / 1_000_000 - 1_000, *left)).collect();
        assert_eq!(entries, expected, "{tokens} of {taken} s");
        let youngest = expected.last().map_or(0, |(at, _)| at + 60 - 55);
        let left: u64 = expected.iter().map(|(_, tokens)| tokens).sum();
        assert_eq!((given.remaining, given.reset_after), (100 - left, Some(Micros(youngest * 1_000_000))));
    }

    #[test]
    fn a_refund_gives_back_what_was_taken_at_its_instant_and_nothing_else() {
        check_given_back(50, 0, &[(50, 40)]);
        check_given_back(20, 0, &[(0, 30), (50, 40)]);
        check_given_back(60, 0, &[(50, 40)]);
        check_given_back(40, 50, &[(0, 50)]);
        check_given_back(10, 50, &[(0, 50), (50, 30)]);
        check_given_back(60, 50, &[(0, 50)]);
        for other in [1, 49, 51, 55, 60] {
            check_given_back(20, other, &[(0, 50), (50, 40)]);
        }
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing() {
        check(
            &[(50_000, Spend, 2), (30_000, Spend, 1), (30_000, Spend, 1), (59_999, Spend, 1), (60_000, Spend, 3)],
            &[
                (Allowed, 1, 10_000, 10_000),
                (Allowed, 0, 10_000, 10_000),
                (Denied, 0, 10_000, 10_000),
                (Denied, 0, 1, 1),
                (Allowed, 0, 10_000, 10_000),
            ],
        );
    }

    #[test]
    fn after_a_long_step_back_all_tokens_of_the_future_are_of_now() {
        const NOW: u64 = 10_000_000;
        let redated = |youngest: u64| {
            let mut log = Log::default();
            for (tokens, at) in (1..).zip([NOW - 2, NOW - 1, NOW, NOW + 1, youngest]) {
                let taken = Some((Micros(at), tokens));
                log.apply(&LogEdit { ended: None, given_back: 0, spared: 0, taken, period: 10 });
            }
            log.redate(Micros(NOW));
            log.entries.into_iter().map(|(at, tokens)| (at.0, tokens)).collect::<Vec<_>>()
        };
        let near = NOW + MOST_AHEAD.0;
        assert_eq!(redated(near), [(NOW - 2, 1), (NOW - 1, 2), (NOW, 3), (NOW + 1, 4), (near, 5)]);
        assert_eq!(redated(near + 1), [(NOW - 2, 1), (NOW - 1, 2), (NOW, 12)]);
    }

    #[test]
    fn merged_entries_let_nothing_more_pass() {
        let mut log = Log::default();
        for at in 0..5 {
            log.apply(&LogEdit { ended: None, given_back: 0, spared: 0, taken: Some((Micros(at), 1)), period: 10 });
        }
        log.merge_oldest();
        assert_eq!(log.entries, [(Micros(1), 2), (Micros(2), 1), (Micros(3), 1), (Micros(4), 1)]);
        assert_eq!(log.ends(), Micros(14));
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let second = 1_000_000_000;
        assert_eq!(Numbers::sliding_log(MOST_LOGGED, second).map(|numbers| numbers.burst()), Ok(MOST_LOGGED));
        for count in [MOST_LOGGED + 1, MOST_LOGGED * 2] {
            assert_eq!(Numbers::sliding_log(count, second), Err(NumbersError::TooManyEntries(MOST_LOGGED)));
        }
        assert_eq!(Numbers::sliding_log(0, second), Err(NumbersError::Count));
        assert_eq!(Numbers::sliding_log(1, EXACT * 1_000), Err(NumbersError::TooLong));
        assert!(Numbers::sliding_log(1, (EXACT - 1) * 1_000).is_ok());
    }
}
