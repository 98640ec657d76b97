//! Tests of the rate limit headers and the problem body on the same verdicts.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use http::header::HeaderName;

use super::headers::{Generations, add_headers};
use super::problem::{QUOTA_EXCEEDED, denial, retry_after, round};
use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::algorithms::charge::{Bucket, Charge, ChargeOrigin, Mode};
use crate::engine::algorithms::decision::{Decision, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::charging::plan::{DenialReason, LimitDenial, Plan};
use crate::engine::deciding::verdict::{Unanswered, Verdict};
use crate::engine::limit::deny_with::{DenialBody, DenyWith, Template, Visibility};
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::response_cost::{CostSource, ResponseCost};
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Cost, Limit};
use crate::message::headers::{self, Headers};
use crate::message::reply::problem;

const ALL: Generations = Generations { ietf_11: true, ietf_03: true, x_ratelimit: true };

/// Two limits, `Burst` with two windows and `Daily`.
fn rules() -> Rules {
    let limits = ["Burst", "Daily"].map(Limit::new).into();
    Rules::new(limits, Fingerprinter::new((1, 2)), Micros(0), Vec::new())
}

/// A verdict of one answer for each (limit, window, burst, seconds of the period, outcome, remaining, retry ms,
/// reset ms).
type Row = (u32, u32, u64, u64, Outcome, u64, Option<u64>, Option<u64>);

fn verdict(rows: &[Row]) -> Verdict {
    let mut plan = Plan::default();
    let mut decisions = Vec::new();
    for &(limit, window, burst, seconds, outcome, remaining, retry, reset) in rows {
        let numbers = match seconds {
            0 => Numbers::fixed(burst).unwrap(),
            seconds => Numbers::new(burst, burst.min(1_000), seconds * 1_000_000_000).unwrap(),
        };
        let bucket = Bucket::new(String::new(), u128::from(limit));
        let origin = ChargeOrigin { window, ..ChargeOrigin::new(limit, true) };
        plan.charges.push(Charge { origin, ..Charge::new(bucket, numbers, 1, Mode::Spend) });
        let (retry_after, reset_after) = (retry.map(Micros::from_millis), reset.map(Micros::from_millis));
        decisions.push(Decision { outcome, delay: 0, limit: burst, remaining, retry_after, reset_after });
    }
    Verdict::decided(&plan, &decisions.into_iter().collect())
}

/// A structured list, read by an independent parser: member by member the name and its parameters.
fn list(headers: &Headers, name: &str) -> Vec<(String, BTreeMap<String, i64>)> {
    let lines: Vec<_> = headers.all(name).map(|line| headers::text(line).unwrap()).collect();
    let parsed = sfv::Parser::new(&lines.join(", ")).parse::<sfv::List>().unwrap();
    let members = parsed.iter().map(|entry| {
        let sfv::ListEntry::Item(item) = entry else { panic!("an inner list") };
        let parameters =
            item.params.iter().map(|(key, value)| (key.as_str().to_owned(), i64::from(value.as_integer().unwrap())));
        (item.bare_item.as_string().unwrap().as_str().to_owned(), parameters.collect())
    });
    members.collect()
}

#[track_caller]
fn check(headers: &Headers, name: &str, expected: &[(&str, &[(&str, i64)])]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(member, parameters)| {
            ((*member).to_owned(), parameters.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect())
        })
        .collect();
    assert_eq!(list(headers, name), expected);
}

#[test]
fn an_allowed_response_lists_every_limit() {
    let verdict = verdict(&[
        (0, 0, 20, 1, Outcome::Allowed, 19, Some(0), Some(50)),
        (0, 1, 100, 60, Outcome::Allowed, 0, Some(600), Some(60_000)),
        (1, 0, 5, 0, Outcome::Allowed, 4, Some(0), None),
    ]);
    let mut headers = Headers::new();
    add_headers(&rules(), &verdict, ALL, &mut headers);
    check(
        &headers,
        "ratelimit-policy",
        &[("Burst", &[("q", 20), ("w", 1)]), ("Burst#2", &[("q", 100), ("w", 60)]), ("Daily", &[("q", 5)])],
    );
    check(
        &headers,
        "ratelimit",
        &[("Burst", &[("r", 19), ("t", 1)]), ("Burst#2", &[("r", 0), ("t", 1)]), ("Daily", &[("r", 4)])],
    );
    for (family, limit) in [("ratelimit", "100"), ("x-ratelimit", "100, 20;w=1, 100;w=60")] {
        let value = |part: &str| headers.text(&format!("{family}-{part}")).unwrap().to_owned();
        assert_eq!((value("limit"), value("remaining"), value("reset")), (limit.into(), "0".into(), "1".into()));
    }
}

#[test]
fn a_policy_names_its_unit_unless_that_is_requests() {
    let slots = Limit { algorithm: Algorithm::Concurrency, ..Limit::new("Slots") };
    let sent = Limit { cost: Cost::Bytes { reserve: 1 }, ..Limit::new("Sent") };
    let received = Some(Arc::new(ResponseCost { source: Some(CostSource::Bytes), when: None }));
    let received = Limit { response_cost: received, ..Limit::new("Received") };
    let limits = vec![slots, sent, received, Limit::new("Requests")];
    let rules = Rules::new(limits, Fingerprinter::new((1, 2)), Micros(0), Vec::new());
    let rows = [(0, 0), (1, 60), (2, 60), (3, 60)]
        .map(|(limit, seconds)| (limit, 0, 5, seconds, Outcome::Allowed, 4, Some(0), Some(50)));
    let mut headers = Headers::new();
    add_headers(&rules, &verdict(&rows), Generations::default(), &mut headers);
    let expected = "\"Slots\";q=5;qu=\"concurrent-requests\", \"Sent\";q=5;qu=\"content-bytes\";w=60, \
                    \"Received\";q=5;qu=\"content-bytes\";w=60, \"Requests\";q=5;w=60";
    assert_eq!(headers.text("ratelimit-policy"), Some(expected));
}

#[test]
fn a_denial_names_the_limit_and_when_to_retry() {
    let verdict = verdict(&[
        (0, 0, 20, 1, Outcome::Denied, 0, Some(1), Some(1_000)),
        (1, 0, 1_000, 86_400, Outcome::Unchanged, 700, Some(0), Some(40_000)),
    ]);
    let response = denial(&rules(), &verdict, ALL, false);
    assert_eq!(response.status, 429);
    assert_eq!(response.headers.text("retry-after"), Some("1"));
    assert_eq!(response.headers.text("content-type"), Some("application/problem+json"));
    // `Retry-After` must not end before any `t` does, so the limit that has something left is not listed.
    check(&response.headers, "ratelimit", &[("Burst", &[("r", 0), ("t", 1)])]);
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(body["type"], QUOTA_EXCEEDED.0);
    assert_eq!(body["status"], 429);
    assert_eq!(body["violated-policies"], serde_json::json!(["Burst"]));
    assert_eq!(body["detail"], "Burst allows burst 20, 20 per 1s; retry after 1 s");
}

#[test]
fn a_block_says_how_long_it_lasts_and_not_why() {
    let denied = |reason| Verdict::of(&[LimitDenial { limit: 1, enforced: true, reason }], Vec::new());
    let blocked = denied(DenialReason::Blocked(Micros::from_millis(3_599_001)));
    let response = denial(&rules(), &blocked, ALL, false);
    assert_eq!((response.status.as_u16(), response.headers.text("retry-after")), (429, Some("3600")));
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(body["detail"], "Daily is blocked for this id; retry after 3600 s");
    assert_eq!(body["violated-policies"], serde_json::json!(["Daily"]));
    assert!(!response.headers.contains("ratelimit") && !response.headers.contains("x-ratelimit-limit"));
    let never = denial(&rules(), &denied(DenialReason::Deny), ALL, false);
    assert!(never.body.contains("Daily denies this request\"") && !never.headers.contains("retry-after"));
}

#[test]
fn waiting_is_rounded_up_and_never_is_not_announced() {
    let wait = |retry| retry_after(&verdict(&[(0, 0, 20, 1, Outcome::Denied, 0, retry, Some(1))]));
    assert_eq!((wait(Some(1_400)), wait(Some(2_000)), wait(Some(0)), wait(None)), (Some(2), Some(2), Some(1), None));
}

#[test]
fn a_rounded_verdict_gets_the_same_reply() {
    let check = |rows: &[Row]| {
        let (given, mut rounded) = (verdict(rows), verdict(rows));
        round(&mut rounded);
        assert_ne!(given, rounded);
        for is_grpc in [false, true] {
            let [given, rounded] = [&given, &rounded].map(|verdict| denial(&rules(), verdict, ALL, is_grpc));
            assert_eq!(given.body, rounded.body);
            assert!(given.headers.iter().eq(rounded.headers.iter()), "{:?} {:?}", given.headers, rounded.headers);
        }
    };
    for millis in [0, 1, 999, 1_000, 1_001, 86_400_500] {
        check(&[
            (0, 0, 20, 1, Outcome::Denied, 0, Some(millis), Some(2 * millis)),
            (0, 1, 20, 1, Outcome::Denied, 3, None, None),
            (1, 0, 1_000, 86_400, Outcome::Unchanged, 700, Some(0), Some(40_000)),
        ]);
    }
}

#[test]
fn grpc_gets_trailers_only() {
    let verdict = verdict(&[(0, 0, 20, 1, Outcome::Denied, 0, Some(1_400), Some(1_000))]);
    let response = denial(&rules(), &verdict, Generations::default(), true);
    assert_eq!((response.status.as_u16(), response.body.as_str()), (200, ""));
    assert_eq!(response.headers.text("grpc-status"), Some("8"));
    assert_eq!(response.headers.text("content-type"), Some("application/grpc"));
}

/// The rules, of which the limit at `place` is changed.
fn rules_with(place: usize, change: impl FnOnce(&mut Limit)) -> Rules {
    let mut limits = ["Burst", "Daily"].map(Limit::new);
    change(&mut limits[place]);
    Rules::new(limits.into(), Fingerprinter::new((1, 2)), Micros(0), Vec::new())
}

#[test]
fn a_limit_says_what_a_denied_client_gets() {
    let template = |text| Template::parse(text).unwrap();
    let body =
        Some(DenialBody { content_type: "text/plain".to_owned(), text: template("{limit}: wait {retry_after} s") });
    let headers = vec![
        (HeaderName::from_static("x-why"), template("{limit}")),
        (HeaderName::from_static("retry-after"), template("60")),
    ];
    let with = DenyWith { status: Some(StatusCode::SERVICE_UNAVAILABLE), headers, body };
    let rules = rules_with(0, |limit| limit.deny_with = Some(with.into()));
    let by_burst = verdict(&[(0, 0, 20, 1, Outcome::Denied, 0, Some(1_400), Some(1_000))]);
    let response = denial(&rules, &by_burst, ALL, false);
    assert_eq!((response.status.as_u16(), &response.body[..]), (503, "Burst: wait 2 s"));
    for (name, value) in [("content-type", "text/plain"), ("x-why", "Burst"), ("cache-control", "no-store")] {
        assert_eq!(response.headers.text(name), Some(value));
    }
    assert_eq!(response.headers.all("retry-after").collect::<Vec<_>>(), [b"60"]);
    check(&response.headers, "ratelimit", &[("Burst", &[("r", 0), ("t", 2)])]);
    let grpc = denial(&rules, &by_burst, ALL, true);
    assert_eq!((grpc.status.as_u16(), grpc.headers.text("grpc-status")), (200, Some("8")));
    assert_eq!(
        (grpc.headers.text("x-why"), grpc.headers.text("content-type")),
        (Some("Burst"), Some("application/grpc"))
    );

    // Another limit binds, or the store is away.
    let by_daily = verdict(&[(1, 0, 5, 60, Outcome::Denied, 0, Some(9_000), Some(9_000))]);
    assert_eq!(denial(&rules, &by_daily, ALL, false).status, 429);
    let unanswered = verdict(&[]).unanswered(vec![Unanswered { limit: 0, denies: true }]);
    let unavailable = denial(&rules, &unanswered, ALL, false);
    assert!(!unavailable.headers.contains("x-why") && unavailable.body.contains("cannot be counted"));
}

#[test]
fn a_status_alone_keeps_the_problem_document() {
    let with = DenyWith { status: Some(StatusCode::FORBIDDEN), ..DenyWith::default() };
    let rules = rules_with(0, |limit| limit.deny_with = Some(with.into()));
    let response = denial(&rules, &verdict(&[(0, 0, 20, 1, Outcome::Denied, 0, None, None)]), ALL, false);
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!((response.status.as_u16(), &body["status"]), (403, &serde_json::json!(403)));
}

#[test]
fn clients_are_not_told_of_a_hidden_limit() {
    let rules = rules_with(0, |limit| limit.visibility = Visibility::Hidden);
    let hidden: Row = (0, 0, 20, 1, Outcome::Denied, 0, Some(9_000), Some(9_000));
    let shown: Row = (1, 0, 1_000, 86_400, Outcome::Denied, 0, Some(2_000), Some(40_000));

    let allowed = verdict(&[
        (0, 0, 20, 1, Outcome::Allowed, 3, Some(0), Some(1_000)),
        (1, 0, 1_000, 86_400, Outcome::Allowed, 700, Some(0), Some(40_000)),
    ]);
    let mut headers = Headers::new();
    add_headers(&rules, &allowed, ALL, &mut headers);
    check(&headers, "ratelimit-policy", &[("Daily", &[("q", 1_000), ("w", 86_400)])]);
    check(&headers, "ratelimit", &[("Daily", &[("r", 700), ("t", 40)])]);
    assert_eq!(headers.text("x-ratelimit-limit"), Some("1000, 1000;w=86400"));

    let alone = denial(&rules, &verdict(&[hidden]), ALL, false);
    let names: Vec<_> = alone.headers.iter().filter_map(|(name, _)| headers::text(name)).collect();
    assert_eq!((alone.status.as_u16(), names), (429, vec!["content-type", "cache-control"]));
    assert!(!alone.body.contains("Burst") && alone.body.contains("\"Too many requests\""), "{}", alone.body);
    let grpc = denial(&rules, &verdict(&[hidden]), ALL, true);
    assert_eq!(
        (grpc.headers.text("grpc-message"), grpc.headers.text("retry-after")),
        (Some("Too many requests"), None)
    );

    let both = denial(&rules, &verdict(&[hidden, shown]), ALL, false);
    check(&both.headers, "ratelimit", &[("Daily", &[("r", 0), ("t", 2)])]);
    let body: serde_json::Value = serde_json::from_str(&both.body).unwrap();
    assert_eq!(body["violated-policies"], serde_json::json!(["Daily"]));
    assert!(body["detail"].as_str().unwrap().starts_with("Daily allows"));
}

#[test]
fn a_client_waits_for_a_hidden_limit_that_denies_for_longer() {
    let rules = rules_with(0, |limit| limit.visibility = Visibility::Hidden);
    for (hidden, expected) in [(Some(9_000), Some("9")), (Some(1_000), Some("2")), (None, None)] {
        let rows: [Row; 2] = [
            (0, 0, 20, 1, Outcome::Denied, 0, hidden, hidden),
            (1, 0, 1_000, 86_400, Outcome::Denied, 0, Some(2_000), Some(40_000)),
        ];
        let http = denial(&rules, &verdict(&rows), ALL, false);
        let grpc = denial(&rules, &verdict(&rows), ALL, true);
        for response in [&http, &grpc] {
            assert_eq!(response.headers.text("retry-after"), expected, "{hidden:?}");
        }
        let body: serde_json::Value = serde_json::from_str(&http.body).unwrap();
        for detail in [body["detail"].as_str(), grpc.headers.text("grpc-message")].map(Option::unwrap) {
            assert!(detail.starts_with("Daily allows") && !detail.contains("Burst"), "{detail}");
            let wait = detail.split_once("; retry after ").map(|(_, wait)| wait.trim_end_matches(" s"));
            assert_eq!(wait, expected);
        }
    }
}

#[test]
fn a_limit_that_fails_closed_is_503() {
    let verdict = verdict(&[]).unanswered(vec![Unanswered { limit: 1, denies: true }]);
    let response = denial(&rules(), &verdict, ALL, false);
    assert_eq!((response.status.as_u16(), response.headers.text("retry-after")), (503, Some("1")));
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(body["violated-policies"], serde_json::json!(["Daily"]));
    assert!(!response.headers.contains("ratelimit"));
}

#[test]
fn our_headers_join_the_upstreams() {
    let verdict = verdict(&[(0, 0, 20, 1, Outcome::Allowed, 19, Some(0), Some(50))]);
    let mut headers = Headers::from_iter([
        ("RateLimit-Policy", "\"burst\";q=7;w=9"),
        ("RateLimit", "\"burst\";r=3;t=9"),
        ("X-RateLimit-Limit", "7"),
        ("X-RateLimit-Remaining", "3"),
        ("RateLimit-Remaining", "99"),
    ]);
    add_headers(&rules(), &verdict, ALL, &mut headers);
    check(&headers, "ratelimit-policy", &[("burst", &[("q", 7), ("w", 9)]), ("weir.Burst", &[("q", 20), ("w", 1)])]);
    check(&headers, "ratelimit", &[("burst", &[("r", 3), ("t", 9)]), ("weir.Burst", &[("r", 19), ("t", 1)])]);
    for (name, value) in [("x-ratelimit-limit", "7"), ("x-ratelimit-remaining", "3"), ("ratelimit-remaining", "19")] {
        assert_eq!(headers.all(name).collect::<Vec<_>>(), [value.as_bytes()]);
    }
}

#[test]
fn numbers_beyond_structured_headers_are_cut() {
    let most = (1 << 53) - 1;
    let verdict = verdict(&[(0, 0, most, 0, Outcome::Allowed, most - 1, Some(0), None)]);
    let mut headers = Headers::new();
    add_headers(&rules(), &verdict, ALL, &mut headers);
    check(&headers, "ratelimit", &[("Burst", &[("r", 999_999_999_999_999)])]);
}

#[test]
fn generations_are_named() {
    assert_eq!(Generations::parse(["ietf-11"]), Ok(Generations::default()));
    assert_eq!(Generations::parse(["ietf-11", "ietf-03", "x-ratelimit"]), Ok(ALL));
    assert!(Generations::parse(["none"]).is_ok_and(|found| !found.ietf_11));
    assert!(Generations::parse(["none", "ietf-11"]).is_err() && Generations::parse(["draft-9"]).is_err());
}

#[test]
fn details_are_escaped() {
    let response = problem(StatusCode::BAD_REQUEST, "a \"b\" \\ \n c");
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(body["detail"], "a \"b\" \\ \n c");
}
