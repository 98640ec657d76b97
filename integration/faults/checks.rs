//! Checks of the answers to a load. They hold whatever has happened meanwhile.

use super::fault::Buckets;
use super::gateways::Counters;
use super::limits::{Bound, KINDS, Kind, Policy, Share, buckets};
use super::load::Answer;

/// For each policy, the share of the combination that came closest to its bound, over the whole load.
pub(super) type Shares = [Share; Policy::ALL.len()];

/// No limit has admitted more than its bound in any span of time, and those without leases at least their burst.
pub(super) fn check_limits((fault, lost): (&str, Buckets), answers: &[Answer], most_in_flight: u64) -> Shares {
    let mut shares = [Share { admitted: 0, most: 1 }; Policy::ALL.len()];
    for (place, kind) in KINDS.iter().enumerate() {
        let of_kind: Vec<Answer> = answers.iter().filter(|answer| answer.kind == place).copied().collect();
        for id in 0..kind.ids {
            let of_id: Vec<Answer> = of_kind.iter().filter(|answer| answer.id == id).copied().collect();
            let share = check_limit((fault, lost), (kind, 0), &of_id, most_in_flight);
            note(&mut shares, kind, share);
            // What got no answer in time may have been charged.
            let undecided = of_id.iter().filter(|answer| !answer.is_decided()).count() as u64;
            let burst = kind.limits[0].bound.burst();
            let is_enough = kind.is_leased || kind.limits.len() == 2 || share.admitted + undecided >= burst;
            assert!(is_enough, "{fault}: {} admitted {share:?}, {undecided} were undecided", kind.name);
        }
        if kind.limits.len() == 2 {
            note(&mut shares, kind, check_limit((fault, lost), (kind, 1), &of_kind, most_in_flight));
        }
    }
    // A busy machine sends too few requests for most limits.
    assert!(answers.iter().any(|answer| answer.status == 429), "{fault}: too few requests to be denied");
    shares
}

fn note(shares: &mut Shares, kind: &Kind, share: Share) {
    let known = &mut shares[kind.policy as usize];
    if kind.is_combination && share.percent() > known.percent() {
        *known = share;
    }
}

/// Checks one bucket of a kind's limit, by the requests that were charged to it. Returns its share of the whole load.
fn check_limit(
    (fault, lost): (&str, Buckets),
    (kind, limit): (&Kind, usize),
    answers: &[Answer],
    most_in_flight: u64,
) -> Share {
    let bound = kind.limits[limit].bound;
    let name = &kind.limits[limit].name;
    if let Bound::InFlight(capacity) = bound {
        let most = capacity + lost.more(bound);
        assert!(most_in_flight <= most, "{fault}: {name} had {most_in_flight} requests in flight");
    }
    let is_admitted = |answer: &&Answer| answer.status == 200 && answer.decided[limit];
    let admitted: Vec<Answer> = answers.iter().filter(is_admitted).copied().collect();
    let check = |count: u64, admitted: &[Answer]| {
        let worst = bound.of_buckets(count).worst(lost.more(bound), admitted);
        assert!(!worst.is_exceeded(), "{fault}: {name} with {count} buckets admitted {worst:?}: {admitted:?}");
    };
    let all = buckets(kind.policy);
    check(all, &admitted);
    if kind.policy == Policy::Local {
        let gateways: std::collections::BTreeSet<usize> = admitted.iter().map(|answer| answer.gateway).collect();
        for gateway in gateways {
            let of_gateway: Vec<Answer> = admitted.iter().filter(|answer| answer.gateway == gateway).copied().collect();
            // The store's bucket and the one in its own memory.
            check(2, &of_gateway);
        }
    }
    let first = answers.iter().map(|answer| answer.sent).min().unwrap_or(0);
    let last = answers.iter().map(|answer| answer.answered).max().unwrap_or(0);
    let most = bound.of_buckets(all).in_span(last - first) + lost.more(bound);
    Share { admitted: admitted.len() as u64, most }
}

/// The decisions by limit and result, and the errors of the store, are those that clients were answered with.
pub(super) fn check_counters(fault: &str, answers: &[Answer], before: &Counters, after: &Counters) {
    let grown = |counter: &str| {
        let value = |counters: &Counters| counters.get(counter).copied().unwrap_or(0);
        value(after) - value(before)
    };
    for (place, kind) in KINDS.iter().enumerate() {
        let of_kind: Vec<&Answer> = answers.iter().filter(|answer| answer.kind == place).collect();
        let count = |is: &dyn Fn(&Answer) -> bool| of_kind.iter().filter(|answer| is(answer)).count() as u64;
        for (number, limit) in kind.limits.iter().enumerate() {
            let name = &limit.name;
            let decided = |results: &[&str]| -> u64 {
                let counter = |result| format!("weir_decisions_total{{limit=\"{name}\",result=\"{result}\"}}");
                results.iter().map(|result| grown(&counter(result))).sum()
            };
            let passed = count(&|answer| answer.status == 200 && answer.decided[number]);
            let unasked = count(&|answer| answer.status == 200 && !answer.decided[number]);
            assert!(unasked == 0 || kind.policy == Policy::Allow, "{fault}: {unasked} passed {name} undecided");
            assert_eq!(decided(&["allowed"]), passed, "{fault}: {name}");
            // What Redis does not decide is denied by `deny` alone. Others reject requests only for overload.
            assert!(kind.policy == Policy::Deny || decided(&["error_denied"]) == 0, "{fault}: {name}");
            let others = [
                decided(&["error_allowed"]),
                decided(&["denied", "uncharged"]),
                decided(&["error_denied", "rejected"]),
            ];
            let told = [unasked, count(&|answer| answer.status == 429), count(&|answer| answer.status == 503)];
            if kind.limits.len() == 1 {
                assert_eq!(others, told, "{fault}: {name}");
            }
            // The one may deny, or be undecided, without the other.
            assert_eq!(others.iter().sum::<u64>(), told.iter().sum::<u64>(), "{fault}: {name}: {others:?}, {told:?}");
        }
        assert!(of_kind.iter().all(|answer| [200, 429, 503].contains(&answer.status)), "{fault}: {}", kind.name);
    }
    let errors = after.keys().filter(|counter| counter.starts_with("weir_store_errors_total{"));
    let errors: u64 = errors.map(|counter| grown(counter)).sum();
    let undecided = answers.iter().filter(|answer| !answer.is_decided()).count() as u64;
    // Where one limit of a pair denies, the other may be undecided. Memory decides as the store does.
    let is_untold = |answer: &&Answer| {
        let kind = &KINDS[answer.kind];
        answer.status == 429 && kind.limits.len() == 2 || answer.status != 503 && kind.policy == Policy::Local
    };
    let most = undecided + answers.iter().filter(is_untold).count() as u64;
    assert!((undecided..=most).contains(&errors), "{fault}: {errors} errors of the store, {undecided} undecided");
    assert_eq!(after.get("weir_panics_total"), Some(&0), "{fault}");
}
