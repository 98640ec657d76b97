//! Candidates: numbers that are counted beside a limit's own, and never change an answer.

use serde_json::{Value, json};

use super::{TOKEN, ask_with, done, each_store};
use crate::support::eventually;
use crate::support::weir::Weir;
use crate::support::wire::{Message, Wire};

const PLAIN: &str = "L: { match: { path: /l }, by: { header: x-id }, burst: 5 }";

/// The same limit with a candidate.
fn with_candidate(candidate: &str) -> String {
    format!("limits: {{ {}, candidate: {candidate} }} }}", PLAIN.trim_end_matches(" }"))
}

/// An answer without what changes from one to the next.
fn stable(answer: &Message) -> (String, Vec<(String, String)>, String) {
    let headers = answer.headers.iter().filter(|(name, _)| name != "date").cloned().collect();
    (answer.start.clone(), headers, answer.text().to_owned())
}

fn count(weir: &Weir, result: &str) -> u64 {
    weir.metric(&format!("weir_decisions_total{{limit=\"L\",result=\"{result}\"}}"))
}

/// The requests that the candidate of this name would have allowed, and denied; the one of `candidate:` has an empty name.
fn beside(weir: &Weir, name: &str) -> (u64, u64) {
    let count = |result| {
        weir.metric(&format!("weir_candidate_decisions_total{{limit=\"L\",candidate=\"{name}\",result=\"{result}\"}}"))
    };
    (count("allowed"), count("denied"))
}

/// The tokens left in the windows of a bucket, under this key.
fn left(state: &Value, key: &str) -> Vec<u64> {
    let windows = state[key].as_array().map_or(&[][..], Vec::as_slice);
    windows.iter().map(|window| window["remaining"].as_u64().unwrap()).collect()
}

fn serve(rules: &str, store: &[&str]) -> Weir {
    let weir = Weir::serve(rules, &[&["--check", "127.0.0.1:0", "--admin-token", TOKEN], store].concat());
    weir.until_connected();
    weir
}

#[test]
fn clients_see_nothing_of_a_candidate() {
    each_store(|store, name| {
        let plain = serve(&format!("limits: {{ {PLAIN} }}"), store);
        for (id, candidate) in [("stricter", "{ burst: 2 }"), ("looser", "{ burst: 7 }")] {
            let weir = serve(&with_candidate(candidate), store);
            // In Redis, both processes would charge one bucket.
            let [alone, with] = ["alone", "with"].map(|suffix| format!("{id}-{suffix}"));
            for turn in 0..8 {
                let expected = stable(&plain.get("/l", &[("x-id", &alone)]));
                let found = stable(&weir.get("/l", &[("x-id", &with)]));
                // The echo upstream repeats the request, which has the id.
                let found = (found.0, found.1, found.2.replace(&with, &alone));
                let lengths = |headers: &mut Vec<(String, String)>| headers.retain(|(key, _)| key != "content-length");
                let (mut expected, mut found) = (expected, found);
                lengths(&mut expected.1);
                lengths(&mut found.1);
                assert_eq!(found, expected, "{name}, {id}, request {turn}");
            }
            let expected = if id == "stricter" { (2, 6) } else { (7, 1) };
            assert_eq!(beside(&weir, ""), expected, "{name}, {id}");
            assert_eq!((count(&weir, "allowed"), count(&weir, "denied")), (5, 3), "{name}, {id}");
        }
    });
}

#[test]
fn operators_see_and_change_both_buckets() {
    each_store(|store, name| {
        let weir = serve(&with_candidate("{ burst: 2 }"), store);
        for _ in 0..3 {
            assert_eq!(weir.get("/l", &[("x-id", "7")]).status(), 200);
        }
        let state = done(&weir, "GET", "/buckets/L:7", "");
        assert_eq!((left(&state, "windows"), left(&state, "candidate")), (vec![2], vec![0]), "{name}");
        let state = done(&weir, "POST", "/buckets/L:7/refund", r#"{"cost": 1}"#);
        assert_eq!((left(&state, "windows"), left(&state, "candidate")), (vec![3], vec![1]), "{name}");
        let state = done(&weir, "POST", "/buckets/L:7/reset", "");
        assert_eq!((left(&state, "windows"), left(&state, "candidate")), (vec![5], vec![2]), "{name}");
        let state = done(&weir, "PUT", "/buckets/L:7", r#"{"remaining": 4}"#);
        assert_eq!((left(&state, "windows"), left(&state, "candidate")), (vec![4], vec![2]), "{name}");
    });
}

#[test]
fn a_reload_adds_changes_and_removes_a_candidate() {
    each_store(|store, name| {
        let weir = serve(&format!("limits: {{ {PLAIN} }}"), store);
        let spend = || weir.get("/l", &[("x-id", "7")]).header("ratelimit").map(str::to_owned);
        assert_eq!(spend().as_deref(), Some("\"L\";r=4"), "{name}");
        weir.reload(&with_candidate("{ burst: 1 }"));
        assert_eq!(spend().as_deref(), Some("\"L\";r=3"), "{name}");
        assert_eq!(beside(&weir, ""), (1, 0), "{name}: it was full");
        weir.reload(&with_candidate("{ burst: 2 }"));
        assert_eq!(spend().as_deref(), Some("\"L\";r=2"), "{name}");
        assert_eq!(spend().as_deref(), Some("\"L\";r=1"), "{name}");
        assert_eq!(beside(&weir, ""), (2, 1), "{name}");
        weir.reload(&format!("limits: {{ {PLAIN} }}"));
        assert_eq!(spend().as_deref(), Some("\"L\";r=0"), "{name}");
        assert!(!weir.admin("/metrics").text().contains("weir_candidate_decisions_total"), "{name}");
        assert_eq!(done(&weir, "GET", "/buckets/L:7", "")["candidate"], json!(null), "{name}");
    });
}

#[test]
fn a_candidate_is_enforced_for_a_share_of_ids() {
    let weir = serve(&with_candidate("{ burst: 1, enforce_for: 25% }"), &["--store", "memory"]);
    let ids: Vec<String> = (0..200).map(|id| id.to_string()).collect();
    // The second request of an id tells whose numbers it has.
    let denied = |weir: &Weir| -> Vec<&String> {
        let mut wire = weir.connect();
        let second = |id: &&String| {
            wire.get_with("/l", &[("x-id", id)]);
            wire.get_with("/l", &[("x-id", id)]).status() == 429
        };
        ids.iter().filter(second).collect()
    };
    let quarter = denied(&weir);
    assert!((30..=70).contains(&quarter.len()), "{}", quarter.len());
    assert_eq!(count(&weir, "denied"), quarter.len() as u64);
    assert_eq!(beside(&weir, "").1, 200 - quarter.len() as u64, "the others are only counted");
    let header = weir.get("/l", &[("x-id", quarter[0])]).header("ratelimit-policy").map(str::to_owned);
    assert_eq!(header.as_deref(), Some("\"L\";q=1"), "clients see the numbers that hold for them");
    for (share, enforced) in [("50%", 0), ("100%", 200), ("0%", 0)] {
        let again = serve(&with_candidate(&format!("{{ burst: 1, enforce_for: {share} }}")), &["--store", "memory"]);
        let denied = denied(&again);
        if share == "50%" {
            assert!(denied.len() > quarter.len() && quarter.iter().all(|id| denied.contains(id)), "{denied:?}");
        } else {
            assert_eq!(denied.len(), enforced, "{share}");
        }
    }
}

/// Each as if it stood alone beside its limit, and as if it were the limit.
#[test]
fn candidates_of_one_limit_are_decided_by_themselves() {
    const THREE: &str = "limits: { L: { match: { path: /l }, by: { header: x-id }, burst: 5, candidates: {
        low: { burst: 2 }, windows: { rates: [{ count: 3, period: 100h }, { count: 4, period: 200h }] }, high: { burst: 7 } } } }";
    each_store(|store, name| {
        let weir = serve(THREE, &[store, &["--access-log", "access.log", "--log-ids", "clear"]].concat());
        let statuses = [(); 8].map(|()| weir.get("/l", &[("x-id", "7")]).status());
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429], "{name}");
        let all = || ["low", "windows", "high"].map(|candidate| beside(&weir, candidate));
        assert_eq!(all(), [(2, 6), (3, 5), (7, 1)], "{name}");
        let state = done(&weir, "GET", "/buckets/L:7", "");
        assert_eq!((left(&state, "windows"), &state["candidate"]), (vec![0], &json!(null)), "{name}");
        let beside = |state: &Value| ["low", "windows", "high"].map(|candidate| left(&state["candidates"], candidate));
        assert_eq!(beside(&state), [vec![0], vec![0, 1], vec![0]], "{name}");
        let top = done(&weir, "GET", "/top?limit=L", "");
        let denied = ["L:low", "L:windows", "L:high"].map(|label| top["candidates"][label][0]["denied"].as_u64());
        assert_eq!(
            (denied, &top["limits"]["L"][0]["denied"]),
            ([Some(6), Some(5), Some(1)], &json!(3)),
            "{name}: {top}"
        );
        let state = done(&weir, "POST", "/buckets/L:7/reset", "");
        assert_eq!(beside(&state), [vec![2], vec![3, 4], vec![7]], "{name}");
        weir.reload(&THREE.replace("low: { burst: 2", "low: { burst: 2, enforce_for: 100%"));
        let statuses = [(); 4].map(|()| weir.get("/l", &[("x-id", "7")]).status());
        assert_eq!(statuses, [200, 200, 429, 429], "{name}");
        assert_eq!(all(), [(2, 6), (6, 6), (11, 1)], "{name}: the others are counted beside the one that is enforced");
        let log = || std::fs::read_to_string(weir.directory().join("access.log")).unwrap();
        eventually("the lines are written", || {
            let count = log().matches("\"candidate_denied\":[\"L:low\",\"L:windows\",\"L:high\"]").count();
            if count == 1 { Ok(()) } else { Err(log()) }
        });
    });
}

/// An id has two buckets, and still as many ids as without a candidate have their own.
#[test]
fn the_bound_on_keys_is_one_on_ids() {
    let rules = with_candidate("{ burst: 1 }").replace("burst: 5", "burst: 1, max_keys: 2");
    let weir = serve(&rules, &["--store", "memory"]);
    let statuses = ["a", "b", "c", "d"].map(|id| weir.get("/l", &[("x-id", id)]).status());
    assert_eq!(statuses, [200, 200, 200, 429], "c and d share a bucket");
}

/// Ids that calls name count as those of requests.
#[test]
fn calls_by_name_and_checks_of_requests_count_as_well() {
    let rules =
        with_candidate("{ burst: 1 }").replacen("limits: {", "overrides: { \"L:own\": { burst: 9 } }\nlimits: {", 1);
    let weir = serve(&rules, &["--store", "memory"]);
    let call = |body: &str| {
        let mut wire = Wire::connect(weir.listener("check"));
        let length = body.len();
        wire.send(format!(
            "POST /json HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
        wire.response()
    };
    for (id, mode, expected) in
        [("a", "spend", (1, 0)), ("a", "spend", (1, 1)), ("a", "check", (1, 1)), ("own", "spend", (1, 1))]
    {
        let answer = call(&json!({"op": mode, "limit": "L", "id": id}).to_string());
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(beside(&weir, ""), expected, "{id} {mode}");
    }
    let page = ask_with(&weir, "GET", "/buckets/L:own", &[], "");
    assert!(page.text().contains("\"candidate\":null"), "{}", page.text());
}
