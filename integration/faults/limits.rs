//! The limits of the load, and what each may admit at most.
//!
//! The twelve combinations of one or two hash slots, `on_store_error`, and leases or none are limits of the same load, so that a fault
//! happens to all of them at once. So are one limit of each other algorithm that has tokens.

use std::fmt::Write;
use std::sync::LazyLock;

use weir::engine::algorithms::charge::Bucket;
use weir::engine::algorithms::tag::tag_of;

use super::gateways::GATEWAYS;
use super::load::Answer;

/// The period of all limits, in microseconds.
const PERIOD: u64 = 1_000_000;

/// The value of `on_store_error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Deny,
    Allow,
    Local,
}

impl Policy {
    pub(super) const ALL: [Self; 3] = [Self::Deny, Self::Allow, Self::Local];

    const fn text(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::Local => "local",
        }
    }
}

/// Requests of one path, and the limits that they are charged to.
pub(super) struct Kind {
    pub(super) name: String,
    pub(super) policy: Policy,
    /// Workers may lease tokens. Only one connection to each gateway asks then, so that one worker has all the demand.
    pub(super) is_leased: bool,
    /// One of the twelve combinations.
    pub(super) is_combination: bool,
    /// The number of ids. The first is one that the fault happens to, the second is not, if the servers can do that.
    pub(super) ids: usize,
    /// By `x-id`, and maybe a second one by `x-shared`, which all ids share. In a cluster the two are in different hash slots.
    pub(super) limits: Vec<Limit>,
}

pub(super) struct Limit {
    pub(super) name: String,
    /// Its numbers in the rules file.
    numbers: String,
    pub(super) bound: Bound,
}

#[derive(Clone, Copy, Debug)]
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

pub(super) static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let combination = |number: usize| {
        let (policy, is_pair, is_leased) = (Policy::ALL[number % 3], number / 3 % 2 == 1, number >= 6);
        combination(policy, is_pair, is_leased)
    };
    (0..12).map(combination).chain(others()).collect()
});

/// A burst is small, so that a bucket that counts twice is seen; but a quarter of it must be worth a lease.
fn combination(policy: Policy, is_pair: bool, is_leased: bool) -> Kind {
    let name =
        format!("{}{}{}", policy.text(), if is_pair { "Two" } else { "One" }, if is_leased { "Leased" } else { "" });
    let lease = if is_leased { ", lease: { tokens: 4, for: 1s }" } else { "" };
    let limit = |name: String, burst: u64, per_second: u64| Limit {
        name,
        numbers: format!("burst: {burst}, count: {per_second}, period: 1s{lease}"),
        bound: Bound::Refill { burst, per_second },
    };
    let bursts = if is_leased { [20, 18] } else { [2, 3] };
    let mut limits = vec![limit(name.clone(), bursts[0], 1)];
    limits.extend(is_pair.then(|| limit(format!("{name}Shared"), bursts[1], 2)));
    Kind { name, policy, is_leased, is_combination: true, ids: if is_leased { 1 } else { 2 }, limits }
}

fn others() -> Vec<Kind> {
    let kind = |name: &str, numbers: &str, ids, bound| Kind {
        name: name.to_owned(),
        policy: Policy::Deny,
        is_leased: numbers.contains("tokens:"),
        is_combination: false,
        ids,
        limits: vec![Limit { name: name.to_owned(), numbers: numbers.to_owned(), bound }],
    };
    vec![
        kind("FixedWindow", "algorithm: fixed_window, aligned: clock, count: 5, period: 1s", 2, Bound::ClockWindow(5)),
        kind("SlidingLog", "algorithm: sliding_log, count: 5, period: 1s", 2, Bound::AnyWindow(5)),
        kind("SlidingWindow", "algorithm: sliding_window, count: 5, period: 1s", 2, Bound::ClockWindow(5)),
        kind(
            "Elevated",
            // When elevated numbers end, a bucket may have more left than without them, so they do not end here.
            "burst: 2, count: 2, period: 1s, \
             elevated: { burst: 6, count: 6, period: 1s, for: 1h, activations_per_month: 1000000 }",
            2,
            Bound::Refill { burst: 6, per_second: 6 },
        ),
        kind(
            "LeasedWindow",
            "algorithm: fixed_window, aligned: clock, count: 16, period: 1s, lease: { tokens: 4, for: 1s }",
            1,
            Bound::ClockWindow(16),
        ),
        // A busy machine may hold a gateway up for seconds, and a slot ends that is not renewed within its lease.
        kind("Concurrency", "algorithm: concurrency, capacity: 1, lease: 30s", 2, Bound::InFlight(1)),
    ]
}

/// A rules file with all limits.
pub(super) fn rules() -> String {
    let mut text = String::from("limits:\n");
    for Kind { name: path, policy, limits, .. } in KINDS.iter() {
        for (Limit { name, numbers, .. }, header) in limits.iter().zip(["x-id", "x-shared"]) {
            let policy = policy.text();
            let common = format!("match: {{ path: /{path} }}, by: {{ header: {header} }}, on_store_error: {policy}");
            writeln!(text, "  {name}: {{ {common}, {numbers} }}").unwrap();
        }
    }
    text
}

/// The ids of a run. Their buckets are new, so that nothing of the run before counts.
pub(super) struct Ids {
    of: Vec<Vec<String>>,
    shared: Vec<String>,
}

impl Ids {
    /// `tags` are those of ids that a fault happens to, and of others.
    pub(super) fn new(run: usize, tags: &[Vec<u8>; 2]) -> Self {
        let id = |limit: &str, number: usize| {
            let tags = &tags[number % 2];
            let is_wanted = |id: &String| tags.contains(&tag_of(&Bucket::new(format!("{limit}:{id}"), 0)));
            (0..10_000)
                .map(|attempt| format!("{run}-{limit}-{number}-{attempt}"))
                .find(is_wanted)
                .expect("tags are even")
        };
        let of = KINDS.iter().map(|kind| (0..kind.ids).map(|number| id(&kind.name, number)).collect()).collect();
        Self { of, shared: KINDS.iter().map(|kind| id(&format!("{}Shared", kind.name), 1)).collect() }
    }

    /// The headers of a request.
    pub(super) fn headers(&self, kind: usize, id: usize) -> [(&'static str, &str); 2] {
        [("x-id", &self.of[kind][id]), ("x-shared", &self.shared[kind])]
    }
}

/// The requests that were admitted, and the bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) admitted: u64,
    pub(super) most: u64,
}

impl Share {
    pub(super) const fn is_exceeded(self) -> bool {
        self.admitted > self.most
    }

    pub(super) const fn percent(self) -> u64 {
        self.admitted * 100 / self.most
    }

    fn larger(self, other: Self) -> Self {
        if self.admitted * other.most > other.admitted * self.most { self } else { other }
    }
}

impl Bound {
    /// The bound of this many buckets, which all count for themselves.
    pub(super) fn of_buckets(self, count: u64) -> Self {
        match self {
            Self::Refill { burst, per_second } => Self::Refill { burst: burst * count, per_second: per_second * count },
            Self::ClockWindow(most) => Self::ClockWindow(most * count),
            Self::AnyWindow(most) => Self::AnyWindow(most * count),
            Self::InFlight(most) => Self::InFlight(most * count),
        }
    }

    /// The share of the window that came closest to the bound, by the requests that were certainly decided in it: between `sent` and
    /// `answered`. A window allows `more` than the limit.
    pub(super) fn worst(self, more: u64, admitted: &[Answer]) -> Share {
        let windows = admitted.iter().flat_map(|answer| match self {
            Self::Refill { .. } => self.spans(answer.sent, more, admitted),
            Self::ClockWindow(most) => vec![within(admitted, answer.sent - answer.sent % PERIOD, most + more)],
            Self::AnyWindow(most) => vec![within(admitted, answer.sent, most + more)],
            // The upstream knows.
            Self::InFlight(_) => Vec::new(),
        });
        windows.fold(Share { admitted: 0, most: self.burst() + more }, Share::larger)
    }

    /// The shares of the spans from an instant on.
    fn spans(self, start: u64, more: u64, admitted: &[Answer]) -> Vec<Share> {
        let mut ends: Vec<u64> =
            admitted.iter().filter(|answer| answer.sent >= start).map(|answer| answer.answered).collect();
        ends.sort_unstable();
        let share = |(admitted, end): (u64, u64)| Share { admitted, most: self.in_span(end - start) + more };
        (1..).zip(ends).map(share).collect()
    }

    /// The most that may be admitted in a span, in microseconds.
    pub(super) const fn in_span(self, span: u64) -> u64 {
        match self {
            Self::Refill { burst, per_second } => burst + span * per_second / PERIOD,
            Self::ClockWindow(most) | Self::AnyWindow(most) | Self::InFlight(most) => most * (span / PERIOD + 2),
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

/// The buckets that count for an id while the store is gone: the store's, and one in each gateway's memory with `local`.
pub(super) const fn buckets(policy: Policy) -> u64 {
    match policy {
        Policy::Deny | Policy::Allow => 1,
        Policy::Local => 1 + GATEWAYS as u64,
    }
}

/// The requests that were surely decided in the period from an instant on.
fn within(admitted: &[Answer], start: u64, most: u64) -> Share {
    let decided = admitted.iter().filter(|answer| answer.sent >= start && answer.answered < start + PERIOD).count();
    Share { admitted: decided as u64, most }
}

#[test]
fn an_excess_is_seen_by_each_bound() {
    let at = |sent: u64| Answer { sent, answered: sent + 10, ..Answer::default() };
    let two_seconds: Vec<Answer> = (0..8).map(|number| at(1_900_000 + number * 25_000)).collect();
    let worst = |bound: Bound, more| {
        let Share { admitted, most } = bound.worst(more, &two_seconds);
        (admitted, most)
    };
    assert_eq!(worst(Bound::ClockWindow(3), 0), (4, 3));
    assert_eq!(worst(Bound::AnyWindow(3), 1), (8, 4));
    assert_eq!(worst(Bound::Refill { burst: 3, per_second: 10 }, 0), (8, 4));
    assert!(!Bound::Refill { burst: 3, per_second: 10 }.worst(4, &two_seconds).is_exceeded());
    assert!(!Bound::Refill { burst: 2, per_second: 1 }.of_buckets(4).worst(0, &two_seconds).is_exceeded());
}
