//! How much a limit denies with other numbers: a curve for each number that can be replaced.

use std::panic::resume_unwind;
use std::thread;

use super::record::{Axis, Bound, ByDay, Outcome, Record};
use crate::engine::algorithms::micros::Micros;

/// The most points of a curve. The numbers between them are as far apart as those of a logarithmic scale.
const MOST_POINTS: usize = 40;

/// The most charges that are decided again for the curves of one limit. With more charges, curves have fewer points.
const MOST_DECISIONS: u64 = 400_000_000;

/// The fewest points of a curve, whatever they cost.
const FEWEST_POINTS: usize = 12;

/// Days of a log that make a comparison by day of the week.
const WEEKS: Micros = Micros(14 * 86_400_000_000);

/// The curves of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curves {
    /// All requests and ids of the limit.
    pub requests: u64,
    pub ids: u64,
    pub burst: u64,
    pub count: u64,
    /// The log spans weeks, so days can be compared.
    pub spans_weeks: bool,
    /// The most that ids take in one period of the limit.
    pub peaks: Peaks,
    pub curves: Vec<Curve>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub most: u64,
}

/// What is denied as a function of one number, smallest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    pub axis: Axis,
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub number: u64,
    pub denied: u64,
    pub ids_denied: u64,
    pub by_day: ByDay,
}

impl Peaks {
    /// Of the smallest first.
    pub(super) fn of(sorted: &[u64]) -> Self {
        let quantile = |thousandths: usize| {
            let place = (sorted.len() * thousandths).div_ceil(1_000).saturating_sub(1);
            sorted.get(place).copied().unwrap_or_default()
        };
        let [p50, p90, p99, p999, most] = [500, 900, 990, 999, 1_000].map(quantile);
        Self { p50, p90, p99, p999, most }
    }

    /// With their names, smallest first.
    pub const fn named(&self) -> [(&'static str, u64); 5] {
        [("p50", self.p50), ("p90", self.p90), ("p99", self.p99), ("p99.9", self.p999), ("max", self.most)]
    }
}

impl Curves {
    /// Decides a complete record again with many numbers. `ids` is the number of ids, `spans` the length of the log.
    pub(super) fn of(record: &Record, ids: u64, spans: Micros, threads: usize) -> Self {
        let peaks = Peaks::of(&record.peaks());
        let axes = record.axes();
        let affordable = MOST_DECISIONS / record.requests().max(1) / axes.len() as u64;
        let most = usize::try_from(affordable).unwrap_or(usize::MAX).clamp(FEWEST_POINTS, MOST_POINTS);
        let (burst, count) = (record.numbers.burst(), record.numbers.count());
        let of_axis = |axis: Axis| {
            let present = if axis == Axis::Count { count } else { burst };
            let numbers = numbers(&peaks, present, most);
            let jobs: Vec<_> =
                numbers.into_iter().filter_map(|number| Some((number, record.with(axis, number)?))).collect();
            let share = jobs.len().div_ceil(threads.max(1)).max(1);
            let points = thread::scope(|scope| {
                let decide = |(number, numbers): &(u64, _)| {
                    let Outcome { denied, ids_denied, by_day } = record.decide(numbers, Bound::NONE)?;
                    Some(Point { number: *number, denied, ids_denied, by_day })
                };
                let parts =
                    jobs.chunks(share).map(|part| scope.spawn(move || part.iter().filter_map(decide).collect()));
                let parts: Vec<thread::ScopedJoinHandle<'_, Vec<Point>>> = parts.collect();
                parts.into_iter().flat_map(|part| part.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
            });
            Curve { axis, points }
        };
        let curves = axes.iter().copied().map(of_axis).collect();
        Self { requests: record.requests(), ids, burst, count, spans_weeks: spans >= WEEKS, peaks, curves }
    }
}

/// The numbers to decide with: those of the peaks, the present one, and others from 1 to a quarter more than all of these.
fn numbers(peaks: &Peaks, present: u64, most: usize) -> Vec<u64> {
    let mut numbers: Vec<u64> = peaks.named().map(|(_, peak)| peak).into_iter().chain([1, present]).collect();
    let highest = numbers.iter().copied().max().unwrap_or(1);
    let highest = highest.saturating_add(highest / 4).max(2);
    numbers.push(highest);
    numbers.retain(|number| *number > 0);
    numbers.sort_unstable();
    numbers.dedup();
    let steps = most.saturating_sub(numbers.len());
    numbers.extend((1..steps).map(|step| power(highest, step, steps)));
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// `highest` to the power of `step / steps`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "any number near it will do"
)]
fn power(highest: u64, step: usize, steps: usize) -> u64 {
    (highest as f64).powf(step as f64 / steps as f64).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_the_peaks_and_the_present_number() {
        let peaks = Peaks::of(&(1..=1_000).collect::<Vec<_>>());
        assert_eq!(peaks, Peaks { p50: 500, p90: 900, p99: 990, p999: 999, most: 1_000 });
        for most in [FEWEST_POINTS, MOST_POINTS] {
            let numbers = numbers(&peaks, 77, most);
            for number in [1, 77, 500, 900, 990, 999, 1_000, 1_250] {
                assert!(numbers.contains(&number), "{number} of {numbers:?}");
            }
            assert!(numbers.len() <= most && numbers.is_sorted(), "{numbers:?}");
        }
        assert_eq!(numbers(&Peaks::default(), 1, MOST_POINTS), [1, 2]);
        assert_eq!(Peaks::of(&[]), Peaks::default());
    }
}
