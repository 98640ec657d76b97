//! One limit of each algorithm that has tokens, and what it may admit at most.

use std::fmt::Write;

use super::load::Answer;

/// The period of all limits, in microseconds.
const PERIOD: u64 = 1_000_000;

/// A limit for the path of its name, by the header `x-id`.
pub(super) struct Limit {
    pub(super) name: &'static str,
    /// Its numbers in the rules file.
    numbers: &'static str,
    pub(super) ids: usize,
    pub(super) bound: Bound,
    /// A second limit of the same requests, which all ids share. In a cluster, the two are on different nodes.
    pub(super) shared: Option<Shared>,
}

pub(super) struct Shared {
    pub(super) name: &'static str,
    numbers: &'static str,
    pub(super) bound: Bound,
}

#[derive(Clone, Copy)]
pub(super) enum Bound {
    /// A burst, and this many tokens more per second.
    Refill { burst: u64, per_second: u64 },
    /// In each second of the clock.
    ClockWindow(u64),
    /// In any second.
    AnyWindow(u64),
    /// At any instant.
    InFlight(u64),
}

pub(super) const LIMITS: [Limit; 9] = [
    Limit {
        name: "Gcra",
        numbers: "burst: 5, count: 5, period: 1s",
        ids: 3,
        bound: Bound::Refill { burst: 5, per_second: 5 },
        shared: None,
    },
    Limit {
        name: "FixedWindow",
        numbers: "algorithm: fixed_window, aligned: clock, count: 5, period: 1s",
        ids: 3,
        bound: Bound::ClockWindow(5),
        shared: None,
    },
    Limit {
        name: "SlidingLog",
        numbers: "algorithm: sliding_log, count: 5, period: 1s",
        ids: 3,
        bound: Bound::AnyWindow(5),
        shared: None,
    },
    Limit {
        name: "SlidingWindow",
        numbers: "algorithm: sliding_window, count: 5, period: 1s",
        ids: 3,
        bound: Bound::ClockWindow(5),
        shared: None,
    },
    Limit {
        name: "Elevated",
        // When elevated numbers end, a bucket may have more left than without them, so they do not end here.
        numbers: "burst: 2, count: 2, period: 1s, \
                  elevated: { burst: 6, count: 6, period: 1s, for: 1h, activations_per_month: 1000000 }",
        ids: 3,
        bound: Bound::Refill { burst: 6, per_second: 6 },
        shared: None,
    },
    Limit {
        name: "Pair",
        numbers: "burst: 5, count: 5, period: 1s",
        ids: 3,
        bound: Bound::Refill { burst: 5, per_second: 5 },
        shared: Some(Shared {
            name: "PairShared",
            numbers: "burst: 9, count: 9, period: 1s",
            bound: Bound::Refill { burst: 9, per_second: 9 },
        }),
    },
    Limit {
        name: "LeasedGcra",
        numbers: "burst: 9, count: 9, period: 1s, lease: { tokens: 3, for: 1s }",
        ids: 1,
        bound: Bound::Refill { burst: 9, per_second: 9 },
        shared: None,
    },
    Limit {
        name: "LeasedWindow",
        numbers: "algorithm: fixed_window, aligned: clock, count: 9, period: 1s, lease: { tokens: 3, for: 1s }",
        ids: 1,
        bound: Bound::ClockWindow(9),
        shared: None,
    },
    Limit {
        name: "Concurrency",
        numbers: "algorithm: concurrency, capacity: 1, lease: 1s",
        ids: 2,
        bound: Bound::InFlight(1),
        shared: None,
    },
];

/// A rules file with all limits. Whatever passes was decided by the store.
pub(super) fn rules() -> String {
    let mut text = String::from("limits:\n");
    for Limit { name: path, numbers, shared, .. } in &LIMITS {
        let mut write = |name: &str, header: &str, numbers: &str| {
            let common = format!("match: {{ path: /{path} }}, by: {{ header: {header} }}, on_store_error: deny");
            writeln!(text, "  {name}: {{ {common}, {numbers} }}").unwrap();
        };
        write(path, "x-id", numbers);
        if let Some(shared) = shared {
            write(shared.name, "x-shared", shared.numbers);
        }
    }
    text
}

impl Bound {
    /// Returns the tokens that were certainly admitted beyond the limit, in the worst window. The decision on a request was made
    /// between its `sent` and its `answered`.
    pub(super) fn excess(self, admitted: &[Answer]) -> u64 {
        let spans = || admitted.iter().map(|answer| answer.sent);
        match self {
            Self::Refill { burst, per_second } => spans()
                .map(|start| {
                    let mut ends: Vec<u64> =
                        admitted.iter().filter(|answer| answer.sent >= start).map(|answer| answer.answered).collect();
                    ends.sort_unstable();
                    let over = (1..).zip(ends).map(|(count, end): (u64, u64)| {
                        count.saturating_sub(burst + (end - start) * per_second / PERIOD)
                    });
                    over.max().unwrap_or(0)
                })
                .max()
                .unwrap_or(0),
            Self::ClockWindow(count) => {
                spans().map(|at| within(admitted, at - at % PERIOD).saturating_sub(count)).max().unwrap_or(0)
            }
            Self::AnyWindow(count) => {
                spans().map(|start| within(admitted, start).saturating_sub(count)).max().unwrap_or(0)
            }
            // The upstream knows.
            Self::InFlight(_) => 0,
        }
    }

    /// The tokens that come back in a second; 0 for windows, whose count starts again with the bucket.
    pub(super) const fn refill_per_second(self) -> u64 {
        match self {
            Self::Refill { per_second, .. } => per_second,
            Self::ClockWindow(_) | Self::AnyWindow(_) | Self::InFlight(_) => 0,
        }
    }

    /// The tokens that a bucket admits when it starts full again.
    pub(super) const fn burst(self) -> u64 {
        match self {
            Self::Refill { burst, .. } => burst,
            Self::ClockWindow(count) | Self::AnyWindow(count) | Self::InFlight(count) => count,
        }
    }
}

/// The requests that were surely decided in the period from an instant on.
fn within(admitted: &[Answer], start: u64) -> u64 {
    admitted.iter().filter(|answer| answer.sent >= start && answer.answered < start + PERIOD).count() as u64
}

#[test]
fn an_excess_is_seen_by_each_bound() {
    let at = |sent: u64| Answer { gateway: 0, limit: 0, id: 0, status: 200, sent, answered: sent + 10 };
    let two_seconds: Vec<Answer> = (0..8).map(|number| at(1_900_000 + number * 25_000)).collect();
    assert_eq!(Bound::ClockWindow(3).excess(&two_seconds), 1);
    assert_eq!(Bound::AnyWindow(3).excess(&two_seconds), 5);
    assert_eq!(Bound::Refill { burst: 3, per_second: 10 }.excess(&two_seconds), 4);
    assert_eq!(Bound::Refill { burst: 7, per_second: 10 }.excess(&two_seconds), 0);
}
