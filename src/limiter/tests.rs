//! The limiter as listeners use it, on the memory store.

use std::sync::Arc;
use std::time::Instant;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;
use crate::clock::Clock;
use crate::engine::algorithms::algorithm::Aligned;
use crate::engine::algorithms::charge::{Elevated, Mode};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::charging::plan::Plan;
use crate::engine::charging::terms::Intent;
use crate::engine::deciding::verdict::{LimitDecision, Verdict, VerdictKind};
use crate::engine::deciding::{Deciding, DecisionSubject};
use crate::engine::limit::allowance::{Allowance, ElevatedAllowance};
use crate::engine::limit::candidate::Candidate;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::matching::Match;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode, StoreErrorPolicy};
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::engine::request::{Request, sample};
use crate::message::headers::Headers;
use crate::store::StoreError;
use crate::store::memory::MemoryStore;
use crate::store::redis::{RedisOptions, RedisStore};
use crate::telemetry::metrics::Metrics;

/// A limit that allows `burst` and never refills.
fn limit(name: &str, burst: u64) -> Limit {
    let windows = [Numbers::fixed(burst).unwrap()].into();
    let by = vec![TypedPart::new(Part::Method, ValueType::Text)];
    Limit { by, allowance: Allowance::Windows(windows), ..Limit::new(name) }
}

fn limiter(limits: Vec<Limit>) -> Limiter {
    let rules = Rules::new(limits, Fingerprinter::new((1, 2)), Micros(0), Vec::new());
    let store = || MemoryStore::new(1_000);
    let shared = Shared::new(rules, Arc::new(Metrics::new().unwrap()), store());
    Limiter::new(Arc::new(shared), Store::Memory(Arc::new(store())))
}

fn request<'a>(method: &'a str, headers: &'a Headers) -> Request<'a> {
    Request { method, ..sample(headers) }
}

async fn decide(limiter: &Limiter, request: &Request<'_>) -> Verdict {
    let asked = DecisionRequest::new(DecisionSubject::Request(request), DecisionListener::Proxy, Instant::now());
    limiter.decide(asked).await.unwrap().verdict
}

async fn ask(limiter: &Limiter, method: &str) -> Verdict {
    decide(limiter, &request(method, &Headers::new())).await
}

/// Asks `times` times and counts: allowed, denied, unavailable.
async fn count(limiter: &Limiter, times: usize) -> [usize; 3] {
    let mut counts = [0; 3];
    for _ in 0..times {
        counts[ask(limiter, "GET").await.kind as usize] += 1;
    }
    counts
}

fn metric(limiter: &Limiter, line: &str) -> String {
    let text = String::from_utf8(limiter.shared.metrics.render().unwrap()).unwrap();
    text.lines().find_map(|found| found.strip_prefix(line)).unwrap_or("absent").trim().to_owned()
}

#[tokio::test]
async fn a_denied_request_costs_no_other_limit() {
    let limiter = limiter(vec![limit("Wide", 100), limit("Narrow", 3)]);
    assert_eq!(count(&limiter, 10).await, [3, 7, 0]);
    let left = ask(&limiter, "GET").await;
    assert_eq!(left.answers[0].decision.remaining, 97);
    assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Wide\",result=\"uncharged\"}"), "8");
    assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Narrow\",result=\"denied\"}"), "8");
}

/// envoyproxy/envoy#46390: an exhausted shadow limit must not keep the enforced one beside it from counting.
#[tokio::test]
async fn shadow_reports_and_hides_nothing() {
    let shadow = Limit { mode: LimitMode::Shadow, ..limit("Shadow", 2) };
    let limiter = limiter(vec![shadow, limit("Enforced", 5)]);
    assert_eq!(count(&limiter, 10).await, [5, 5, 0]);
    assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Shadow\",result=\"allowed\"}"), "2");
    assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Enforced\",result=\"allowed\"}"), "5");
    assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Shadow\",result=\"shadow_denied\"}"), "8");
}

#[tokio::test]
async fn limits_that_need_no_store_answer_by_themselves() {
    let unlimited = Limit { allowance: Allowance::Unlimited, ..limit("Free", 1) };
    let denying = Limit { allowance: Allowance::Deny, ..limit("Closed", 1) };
    let limiter = limiter(vec![unlimited, denying, limit("Counted", 5)]);
    let verdict = ask(&limiter, "GET").await;
    assert_eq!((verdict.kind, verdict.answers.len()), (VerdictKind::Denied, 1));
    assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Free\",result=\"unlimited\"}"), "1");
    assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Counted\",result=\"uncharged\"}"), "1");
}

#[tokio::test]
async fn what_has_happened_is_counted_beside_a_limit_that_denies_by_itself() {
    let closed = Limit { allowance: Allowance::Deny, ..limit("Closed", 1) };
    let limiter = limiter(vec![closed, limit("Counted", 5)]);
    let headers = Headers::new();
    for (mode, allowed, left) in [
        (Mode::Spend, false, None),
        (Mode::Check, false, None),
        (Mode::SpendOnly, true, Some(4)),
        (Mode::SpendUpTo, true, Some(3)),
        (Mode::Refund, true, Some(4)),
        (Mode::Reset, true, Some(5)),
    ] {
        let request = request("GET", &headers);
        let asked = DecisionRequest::new(DecisionSubject::Request(&request), DecisionListener::Check, Instant::now());
        let verdict = limiter
            .decide(DecisionRequest { intent: Intent { mode, cost: None, can_probe: true }, ..asked })
            .await
            .unwrap()
            .verdict;
        let counted = verdict.answers.iter().find(|answer| answer.limit == 1);
        let found = counted.map(|answer| answer.decision.remaining);
        assert_eq!((verdict.is_allowed(), found), (allowed, left), "{mode:?}");
    }
}

#[tokio::test]
async fn a_limit_that_counts_denied_requests_counts_those_that_another_denies_by_itself() {
    let numbers = Numbers::sliding_window(5, 3_600_000_000_000, true).unwrap();
    let counting = Limit { allowance: Allowance::Windows([numbers].into()), ..limit("Counting", 1) };
    let header = TypedPart::new(Part::Header(http::HeaderName::from_static("x-id")), ValueType::Text);
    let named = Limit { by: vec![header], missing: Fallback::Deny, ..limit("Named", 9) };
    let limiter = limiter(vec![named, counting]);
    for _ in 0..3 {
        assert!(!ask(&limiter, "GET").await.is_allowed());
    }
    let headers = Headers::from_iter([("x-id", "1")]);
    let verdict = decide(&limiter, &request("GET", &headers)).await;
    assert_eq!((verdict.is_allowed(), verdict.answers[1].decision.remaining), (true, 1));
    assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Counting\",result=\"uncharged\"}"), "3");
}

fn with_candidate(burst: u64, limit: Limit) -> Limit {
    let allowance = Allowance::Windows([Numbers::fixed(burst).unwrap()].into());
    Limit { candidates: vec![Candidate { name: None, allowance, enforce_for: 0 }], ..limit }
}

/// The decisions of the candidate of `L`: allowed, denied.
fn candidate(limiter: &Limiter) -> [String; 2] {
    ["allowed", "denied"].map(|result| {
        let series = format!("weir_candidate_decisions_total{{limit=\"L\",candidate=\"\",result=\"{result}\"}}");
        metric(limiter, &series)
    })
}

/// Counted by itself, each candidate would take the room of a new id.
#[tokio::test]
async fn a_candidate_follows_its_limit_to_the_bucket_that_new_ids_share() {
    let mut limiter = limiter(vec![with_candidate(1, Limit { max_new_keys: Some(2), ..limit("L", 9) })]);
    limiter.recent = Some(RecentKeys::new());
    for id in ["A", "B", "C", "D", "E"] {
        assert!(ask(&limiter, id).await.is_allowed());
    }
    assert_eq!(metric(&limiter, "weir_keys_limited_total{limit=\"L\"}"), "3");
    assert_eq!(candidate(&limiter), ["3", "2"], "C, D and E share a bucket of the candidate");
}

#[tokio::test]
async fn what_another_limit_denies_is_not_the_candidates_to_count() {
    let limiter = limiter(vec![with_candidate(2, limit("L", 1)), limit("Other", 3)]);
    for (allowed, counted) in [(true, ["1", "0"]), (false, ["2", "0"]), (false, ["2", "1"])] {
        assert_eq!(ask(&limiter, "GET").await.is_allowed(), allowed);
        assert_eq!(candidate(&limiter), counted);
    }
    let limiter = self::limiter(vec![with_candidate(9, limit("L", 5)), limit("Other", 1)]);
    for _ in 0..3 {
        ask(&limiter, "GET").await;
    }
    assert_eq!(candidate(&limiter), ["1", "0"]);
    // Whether it blocks the id or the limit denies it by itself, a candidate has no say.
    let closed = Limit { allowance: Allowance::Deny, ..limit("Closed", 1) };
    let limiter = self::limiter(vec![closed, with_candidate(1, limit("L", 5))]);
    ask(&limiter, "GET").await;
    assert_eq!(candidate(&limiter), ["0", "0"]);
}

/// What becomes of ten requests to a limit of 3 while the store is down.
fn without_store(policies: &[StoreErrorPolicy]) -> [usize; 3] {
    let limits =
        (0..).zip(policies).map(|(place, policy)| Limit { on_store_error: *policy, ..limit(&format!("L{place}"), 3) });
    let limiter = limiter(limits.collect());
    let mut counts = [0; 3];
    for _ in 0..10 {
        let view = limiter.view();
        let plan = Plan::of_request(view.rules(), &request("GET", &Headers::new()), None).unwrap();
        let mut deciding = Deciding::new(plan);
        limiter.decide_without_store(&view, (&mut deciding, None), Micros(0), StoreError::Down);
        counts[deciding.conclude(view.rules()).verdict.kind as usize] += 1;
    }
    assert_eq!(metric(&limiter, "weir_store_errors_total{kind=\"down\"}"), "10");
    counts
}

#[test]
fn each_limit_has_its_own_policy_when_the_store_is_down() {
    use StoreErrorPolicy::{Allow, Deny, Local};
    assert_eq!(without_store(&[Allow]), [10, 0, 0]);
    assert_eq!(without_store(&[Deny]), [0, 0, 10]);
    assert_eq!(without_store(&[Local]), [3, 7, 0]);
    assert_eq!(without_store(&[Allow, Local]), [3, 7, 0]);
    assert_eq!(without_store(&[Local, Deny]), [0, 0, 10]);
}

/// Nobody waits for the counts of denied requests, so those that find too many under way are lost.
#[tokio::test]
async fn reports_that_find_the_queue_full_are_counted() {
    let closed = Limit { allowance: Allowance::Deny, ..limit("Closed", 1) };
    let windows = [Numbers::sliding_window(5, 60_000_000_000, true).unwrap()].into();
    let counting = Limit { allowance: Allowance::Windows(windows), ..limit("Counting", 5) };
    let rules = Rules::new(vec![closed, counting], Fingerprinter::new((1, 2)), Micros(0), Vec::new());
    let shared = Shared::new(rules, Arc::new(Metrics::new().unwrap()), MemoryStore::new(1_000));
    let target = RedisOptions::new("redis://127.0.0.1:1", Clock::machine()).target().unwrap();
    let limiter = Limiter::new(Arc::new(shared), Store::Redis(RedisStore::connect(&target)));
    let dropped = |kind| metric(&limiter, &format!("weir_store_reports_dropped_total{{kind=\"{kind}\"}}"));
    // No call ends in between, because nothing here yields to the runtime.
    for (requests, expected) in [(1_024, "0"), (1, "1"), (4, "5")] {
        assert_eq!(count(&limiter, requests).await, [0, requests, 0]);
        assert_eq!(dropped("denied"), expected);
    }
    assert_eq!(dropped("settlement"), "0");
}

/// A limit of each algorithm, one with two windows, one in shadow, and one with a candidate, with the stand-in for its store.
fn mixed_limit(name: &&str) -> Limit {
    const SECOND: u64 = 1_000_000_000;
    let even = |burst| Numbers::new(burst, burst, 5 * SECOND).unwrap();
    let windows = match *name {
        "Rates" => vec![even(4), Numbers::new(6, 6, 60 * SECOND).unwrap()],
        "Windows" => vec![Numbers::fixed_window(5, 5, 7 * SECOND, Aligned::Clock).unwrap()],
        "Log" => vec![Numbers::sliding_log(6, 9 * SECOND).unwrap()],
        "Denied" => vec![Numbers::sliding_window(5, 8 * SECOND, true).unwrap()],
        "Shadow" => vec![even(2)],
        _ => vec![even(8)],
    };
    let allowance = Allowance::Windows(windows.into());
    let limit = Limit { allowance, on_store_error: StoreErrorPolicy::Local, ..limit(name, 1) };
    match *name {
        "Raised" => {
            let elevated = Elevated { numbers: even(9), span: 4_000_000, activations_per_month: 2, quota: None };
            let with = ElevatedAllowance { base: [even(3)].into(), elevated: elevated.into() };
            Limit { allowance: Allowance::Elevated(with.into()), ..limit }
        }
        "Shadow" => Limit { mode: LimitMode::Shadow, ..limit },
        "Candidate" => with_candidate(2, limit),
        "Denied" => Limit { by: Vec::new(), ..limit },
        _ => limit,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A whole decision, from the request to the verdict, once the store does not answer.
    #[test]
    fn the_memory_that_replaces_a_store_decides_as_a_store_in_memory(
        names in subsequence(vec!["Rates", "Windows", "Log", "Denied", "Raised", "Candidate", "Shadow"], 1..=7).prop_shuffle(),
        asks in vec((0..3_usize, 0..4_000_000_u64, 0..4_u64, 0..6_usize), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let limits = || names.iter().map(mixed_limit).collect();
            let in_memory = limiter(limits());
            let rules = Rules::new(limits(), Fingerprinter::new((1, 2)), Micros(0), Vec::new());
            let shared = Shared::new(rules, Arc::new(Metrics::new().unwrap()), MemoryStore::new(1_000));
            // Nothing listens there.
            let target = RedisOptions::new("redis://127.0.0.1:1", Clock::machine()).target().unwrap();
            let replaced = Limiter::new(Arc::new(shared), Store::Redis(RedisStore::connect(&target)));
            let mut now = Micros(1_760_000_000_000_000);
            for (method, later, cost, mode) in asks {
                now = now.after(Micros(later));
                let headers = Headers::new();
                let request = Request { now, ..request(["GET", "PUT", "POST"][method], &headers) };
                let asked = DecisionRequest::new(DecisionSubject::Request(&request), DecisionListener::Proxy, Instant::now());
                let modes = [Mode::Spend, Mode::Spend, Mode::Spend, Mode::Check, Mode::SpendOnly, Mode::Refund];
                let mode = modes[mode];
                let asked = DecisionRequest { intent: Intent { mode, cost: Some(cost), can_probe: false }, ..asked };
                let [expected, verdict] = [&in_memory, &replaced].map(|limiter| limiter.decide(asked));
                let (expected, verdict) = (expected.await.unwrap().verdict, verdict.await.unwrap().verdict);
                prop_assert_eq!(verdict, expected);
            }
            prop_assert_eq!(replaced.shared.local.usage(), in_memory.store.as_memory().unwrap().usage());
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn new_rules_hold_from_the_next_request_on() {
    let limiter = limiter(vec![limit("L", 3)]);
    assert_eq!(count(&limiter, 5).await, [3, 2, 0]);
    let rules = Rules::new(vec![limit("L", 5)], Fingerprinter::new((1, 2)), Micros(0), Vec::new());
    limiter.shared.replace(rules, None);
    // Three were used and stay used.
    assert_eq!(count(&limiter, 5).await, [2, 3, 0]);
}

#[tokio::test]
async fn limits_that_nothing_can_decide_allow_and_are_counted() {
    // Two limits with one bucket, which no store decides together.
    let local = |name: &str| Limit { on_store_error: StoreErrorPolicy::Local, ..limit(name, 1) };
    let limiter = limiter(vec![local("Same"), local("Same"), limit("Plain", 1)]);
    let verdict = ask(&limiter, "GET").await;
    assert_eq!((verdict.kind, verdict.answers.len(), verdict.unanswered.len()), (VerdictKind::Allowed, 0, 3));
    assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Plain\",result=\"error_allowed\"}"), "1");
    assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Same\",result=\"error_allowed\"}"), "2");
}

/// What a request for a limit with `delay` does: it comes, and it may leave while it waits.
#[derive(Clone, Debug)]
enum Visit {
    /// After some microseconds.
    Comes(u64),
    /// The one at this place among those that wait, after some microseconds.
    Leaves(u64, usize),
}

fn visits() -> impl Strategy<Value = Vec<Visit>> {
    let span = || prop_oneof![3 => Just(0u64), 2 => 0..400_000u64, 1 => 0..2_000_000u64];
    let visit = prop_oneof![
        3 => span().prop_map(Visit::Comes),
        2 => (span(), any::<usize>()).prop_map(|(span, place)| Visit::Leaves(span, place)),
    ];
    vec(visit, 1..60)
}

/// The instants at which requests pass.
async fn passes(numbers: Numbers, delay: Micros, visits: &[Visit]) -> Vec<u64> {
    let windows = [numbers].into();
    let limiter =
        limiter(vec![Limit { allowance: Allowance::Windows(windows), delay: Some(delay), ..limit("Queue", 1) }]);
    let headers = Headers::new();
    let (mut now, mut passed, mut waiting) = (1_000_000_000_000_000u64, Vec::new(), Vec::new());
    for visit in visits {
        let (Visit::Comes(span) | Visit::Leaves(span, _)) = visit;
        now += span;
        waiting.retain(|(at, _): &(u64, LimiterVerdict)| {
            let has_passed = *at <= now;
            passed.extend(has_passed.then_some(*at));
            !has_passed
        });
        match visit {
            Visit::Leaves(_, place) if !waiting.is_empty() => drop(waiting.remove(place % waiting.len())),
            Visit::Leaves(..) => {}
            Visit::Comes(_) => {
                let request = Request { now: Micros(now), ..request("GET", &headers) };
                let asked =
                    DecisionRequest::new(DecisionSubject::Request(&request), DecisionListener::Proxy, Instant::now());
                let decided =
                    limiter.decide(DecisionRequest { patience: Patience::Held(delay), ..asked }).await.unwrap();
                if decided.must_wait() {
                    waiting.push((now + decided.verdict.delay().0, decided));
                } else {
                    passed.extend(decided.verdict.is_allowed().then_some(now));
                }
            }
        }
    }
    passed.extend(waiting.iter().map(|(at, _)| *at));
    passed.sort_unstable();
    passed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn clients_that_leave_while_they_wait_let_no_more_pass(
        (burst, count) in (1..5u64, 1..5u64),
        is_window in any::<bool>(),
        delay in 100_000..4_000_000u64,
        visits in visits(),
    ) {
        let second = 1_000_000_000;
        let numbers = if is_window {
            Numbers::fixed_window(count, count, second, Aligned::Clock).unwrap()
        } else {
            Numbers::new(burst, count, second).unwrap()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let passed = runtime.block_on(tokio::task::LocalSet::new().run_until(passes(numbers, Micros(delay), &visits)));
        for (first, from) in passed.iter().enumerate() {
            for (more, at) in (1..).zip(&passed[first..]) {
                let most = if is_window {
                    count * (at / 1_000_000 - from / 1_000_000 + 1)
                } else {
                    // A wait is rounded up to a microsecond.
                    burst + (at - from + 1) * count / 1_000_000
                };
                prop_assert!(more <= most, "{more} within {} us, {most} may: {passed:?}", at - from);
            }
        }
    }
}

/// Windows of one algorithm, by its number: `(burst, count, seconds)` each.
fn windows_of(algorithm: u8, windows: &[(u64, u64, u64)]) -> Allowance {
    let window = |(burst, count, seconds): &(u64, u64, u64)| {
        let (count, period) = (*count, *seconds * 1_000_000_000);
        let numbers = match algorithm {
            0 => Numbers::new(*burst, count, period),
            1 => Numbers::fixed_window(*burst, count, period, Aligned::First),
            2 => Numbers::sliding_log(count, period),
            _ => Numbers::sliding_window(count, period, algorithm > 3),
        };
        numbers.unwrap()
    };
    Allowance::Windows(windows.iter().map(window).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Beside a limit that denies some requests by itself.
    #[test]
    fn numbers_in_shadow_and_of_a_candidate_are_short_when_they_would_deny_enforced(
        algorithm in 0..5u8,
        windows in vec((1..6u64, 1..6u64, 1..5u64), 1..=3),
        own in vec((1..6u64, 1..6u64, 1..5u64), 1..=2),
        asks in vec((0..2_000_000u64, 1..4u64, 0..6u8), 1..60),
    ) {
        let closed = || {
            let conditions = Match { methods: vec!["PUT".to_owned()], ..Default::default() };
            Limit { conditions, allowance: Allowance::Deny, ..Limit::new("Closed") }
        };
        let numbers = || windows_of(algorithm, &windows);
        let limit = |allowance| Limit { by: Vec::new(), allowance, ..Limit::new("L") };
        let enforced = limiter(vec![limit(numbers()), closed()]);
        let shadow = limiter(vec![Limit { mode: LimitMode::Shadow, ..limit(numbers()) }, closed()]);
        // The first one's decisions are its own.
        let named = |name: &str, allowance| Candidate { name: Some(name.into()), allowance, enforce_for: 0 };
        let candidates = vec![named("other", windows_of(algorithm, &own)), named("equal", numbers())];
        let candidate = limiter(vec![Limit { candidates, ..limit(windows_of(algorithm, &own)) }, closed()]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut now, headers) = (Micros(1_760_000_000_000_000), Headers::new());
            for (later, cost, kind) in asks {
                now = now.after(Micros(later));
                let request = Request { now, ..request(if kind == 0 { "PUT" } else { "GET" }, &headers) };
                let asked = DecisionRequest::new(DecisionSubject::Request(&request), DecisionListener::Proxy, Instant::now());
                let asked = DecisionRequest { intent: Intent { cost: Some(cost), ..Intent::SPEND }, ..asked };
                let [enforced, shadow, candidate] =
                    [enforced.decide(asked).await, shadow.decide(asked).await, candidate.decide(asked).await];
                let short = |answers: &[LimitDecision]| {
                    let own = answers.iter().filter(|answer| answer.limit == 0);
                    own.map(|answer| (answer.window, answer.is_short(), answer.decision.remaining)).collect::<Vec<_>>()
                };
                let expected = short(&enforced.unwrap().verdict.answers);
                let shadow = shadow.unwrap().verdict;
                prop_assert_eq!(&short(&shadow.answers), &expected);
                prop_assert_eq!(shadow.is_allowed(), kind > 0);
                let decided = candidate.unwrap().verdict;
                let equal = decided.candidate_decisions().find(|decision| decision.candidate == 1);
                prop_assert_eq!(&short(equal.map_or(&[], |decision| decision.windows)), &expected);
            }
            Ok(())
        })?;
    }
}
