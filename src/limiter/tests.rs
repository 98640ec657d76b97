//! The limiter as listeners use it, on the memory store.

use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::engine::algorithms::charge::Mode;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::answer::verdict::{Standing, Verdict};
use crate::engine::rules::allowance::Allowance;
use crate::engine::rules::candidate::Candidate;
use crate::engine::rules::component::{Component, ComponentSource};
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::engine::rules::identity::Fallback;
use crate::engine::rules::limit::{Limit, LimitMode, StoreErrorPolicy};
use crate::engine::rules::request::{Request, sample};
use crate::engine::rules::rule_set::Rules;
use crate::engine::rules::value_type::ValueType;
use crate::message::headers::Headers;
use crate::store::StoreError;
use crate::store::memory::MemoryStore;
use crate::telemetry::metrics::Metrics;

/// A limit that allows `burst` and never refills.
fn limit(name: &str, burst: u64) -> Limit {
    let windows = [Numbers::fixed(burst).unwrap()].into();
    let by = vec![Component::new(ComponentSource::Method, ValueType::Text)];
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
    let ask = Ask::new(AskSubject::Request(request), DecisionListener::Proxy, Instant::now());
    limiter.decide(ask).await.unwrap().verdict
}

async fn ask(limiter: &Limiter, method: &str) -> Verdict {
    decide(limiter, &request(method, &Headers::new())).await
}

/// Asks `times` times and counts: allowed, denied, unavailable.
async fn count(limiter: &Limiter, times: usize) -> [usize; 3] {
    let mut counts = [0; 3];
    for _ in 0..times {
        counts[ask(limiter, "GET").await.standing as usize] += 1;
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
    assert_eq!((verdict.standing, verdict.answers.len()), (Standing::Denied, 1));
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
        let ask = Ask::new(AskSubject::Request(&request), DecisionListener::Check, Instant::now());
        let verdict = limiter.decide(Ask { mode, can_probe: true, ..ask }).await.unwrap().verdict;
        let counted = verdict.answers.iter().find(|answer| answer.limit == 1);
        let found = counted.map(|answer| answer.decision.remaining);
        assert_eq!((verdict.is_allowed(), found), (allowed, left), "{mode:?}");
    }
}

#[tokio::test]
async fn a_limit_that_counts_denied_requests_counts_those_that_another_denies_by_itself() {
    let numbers = Numbers::sliding_window(5, 3_600_000_000_000, true).unwrap();
    let counting = Limit { allowance: Allowance::Windows([numbers].into()), ..limit("Counting", 1) };
    let header = Component::new(ComponentSource::Header(http::HeaderName::from_static("x-id")), ValueType::Text);
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
    Limit { candidate: Some(Box::new(Candidate { allowance, enforce_for: 0 })), ..limit }
}

/// The decisions of the candidate of `L`: allowed, denied.
fn candidate(limiter: &Limiter) -> [String; 2] {
    ["candidate_allowed", "candidate_denied"]
        .map(|result| metric(limiter, &format!("weir_decisions_total{{limit=\"L\",result=\"{result}\"}}")))
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
        let mut plan = view.rules().charges(&request("GET", &Headers::new()), None).unwrap();
        let (decisions, failure) = limiter.without_store(&view, &mut plan, Micros(0), &StoreError::Down, None);
        counts[failure.apply(Verdict::decided(&plan, &decisions)).standing as usize] += 1;
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

#[tokio::test]
async fn new_rules_hold_from_the_next_request_on() {
    let limiter = limiter(vec![limit("L", 3)]);
    assert_eq!(count(&limiter, 5).await, [3, 2, 0]);
    let rules = Rules::new(vec![limit("L", 5)], Fingerprinter::new((1, 2)), Micros(0), Vec::new());
    limiter.shared.replace(rules);
    // Three were used and stay used.
    assert_eq!(count(&limiter, 5).await, [2, 3, 0]);
}
