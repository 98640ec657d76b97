//! Buckets that operators read, refill, empty and set.

use serde_json::{Value, json};

use super::{TOKEN, ask, ask_with, done, each_store, serve, spend};
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;
use crate::support::{becomes, eventually};

/// The tokens left in each window.
fn remaining(state: &Value) -> Vec<u64> {
    state["windows"].as_array().unwrap().iter().map(|window| window["remaining"].as_u64().unwrap()).collect()
}

#[test]
fn every_algorithm_is_looked_at_and_changed() {
    each_store(|store, name| {
        let weir = serve(store);
        let headers = [("x-id", "7"), ("x-zone", "eu")];
        for (path, bucket, algorithm, most) in [
            ("/even", "Even:7", "gcra", &[10][..]),
            ("/windows", "Windows:7", "fixed_window", &[10]),
            ("/log", "Log:7", "sliding_log", &[10]),
            ("/sliding", "Sliding:7", "sliding_window", &[10]),
            ("/fixed", "Fixed", "gcra", &[10]),
            ("/rates", "Rates:7:eu", "gcra", &[10, 100]),
        ] {
            let at = format!("/buckets/{bucket}");
            let left = |used: u64| most.iter().map(|most| most - used).collect::<Vec<_>>();
            assert_eq!(remaining(&done(&weir, "GET", &at, "")), left(0), "{name} {bucket}");
            for _ in 0..4 {
                assert!(spend(&weir, path, &headers), "{name} {bucket}");
            }
            for _ in 0..2 {
                let state = done(&weir, "GET", &at, "");
                assert_eq!(remaining(&state), left(4), "{name} {bucket}: looking takes nothing");
                let window = &state["windows"][0];
                assert_eq!((&window["algorithm"], &window["limit"]), (&json!(algorithm), &json!(most[0])));
                assert_eq!((&window["used"], &window["retry_after_ms"]), (&json!(4), &json!(0)));
                assert_eq!(window["reset_after_ms"].is_null(), path == "/fixed", "{name} {state}");
            }
            assert_eq!(remaining(&done(&weir, "POST", &format!("{at}/refund"), r#"{"cost": 3}"#)), left(1));
            assert_eq!(remaining(&done(&weir, "POST", &format!("{at}/refund"), r#"{"cost": 99}"#)), left(0));
            let state = done(&weir, "PUT", &at, r#"{"remaining": 2}"#);
            assert_eq!(remaining(&state), vec![2; most.len()], "{name} {bucket}");
            assert_eq!(
                (spend(&weir, path, &headers), spend(&weir, path, &headers), spend(&weir, path, &headers)),
                (true, true, false)
            );
            let empty = done(&weir, "GET", &at, "");
            assert_eq!(remaining(&empty), vec![0; most.len()], "{name} {bucket}");
            let wait = &empty["windows"][0]["retry_after_ms"];
            if path == "/fixed" {
                assert!(wait.is_null(), "{name} {empty}: it never refills");
            } else {
                assert!(wait.as_u64().is_some_and(|wait| wait > 3_000_000), "{name} {empty}");
            }
            assert_eq!(remaining(&done(&weir, "POST", &format!("{at}/reset"), "")), left(0), "{name} {bucket}");
            assert!(spend(&weir, path, &headers), "{name} {bucket}");
            assert_eq!(remaining(&done(&weir, "PUT", &at, r#"{"remaining": 0}"#)), vec![0; most.len()]);
            let full = format!("{{\"remaining\": {}}}", most.iter().max().unwrap());
            assert_eq!(remaining(&done(&weir, "PUT", &at, &full)), left(0), "{name}: the smaller window is full");
        }
        assert_eq!(weir.metric("weir_admin_writes_total{op=\"set\",result=\"done\"}"), 18);
    });
}

#[test]
fn an_empty_bucket_in_shadow_or_of_a_candidate_says_when_a_token_is_back() {
    const RULES: &str = "limits:\n  Watched: { by: global, count: 2, period: 100h, mode: shadow }\n  \
                         Tried: { by: global, count: 9, period: 100h, candidate: { count: 2, period: 100h } }\n";
    each_store(|store, name| {
        let weir = Weir::serve(RULES, &[&["--check", "127.0.0.1:0", "--admin-token", TOKEN], store].concat());
        weir.until_connected();
        for _ in 0..3 {
            assert!(spend(&weir, "/", &[]), "{name}");
        }
        for (bucket, windows) in [("Watched", "windows"), ("Tried", "candidate")] {
            let state = done(&weir, "GET", &format!("/buckets/{bucket}"), "");
            let window = &state[windows][0];
            assert_eq!(window["remaining"], 0, "{name} {state}");
            let wait = window["retry_after_ms"].as_u64().unwrap();
            assert!(wait > 40 * 3_600_000, "{name} {state}");
        }
    });
}

#[test]
fn what_is_set_remains_of_the_numbers_that_hold() {
    let rules = "limits: { L: { match: { path: /l }, by: { header: x-id }, count: 20, period: 1h, \
                 elevated: { count: 200, period: 1h, for: 15m, activations_per_month: 5 } } }";
    each_store(|store, name| {
        let weir = Weir::serve(rules, &[&["--admin-token", TOKEN], store].concat());
        done(&weir, "GET", "/buckets/L:7", "");
        let set = |remaining: u64| remaining_of(&weir, &format!("{{\"remaining\": {remaining}}}"));
        assert_eq!((set(5), set(0), set(20), set(150)), (5, 0, 20, 20), "{name}: nothing is elevated");
        for request in 0..21 {
            assert!(spend(&weir, "/l", &[("x-id", "7")]), "{name} {request}");
        }
        assert_eq!((set(5), set(0), set(150), set(200)), (5, 0, 150, 200), "{name}: 200 an hour are");
        assert_eq!(ask(&weir, "PUT", "/buckets/L:7", r#"{"remaining": 201}"#).0, 400, "{name}");
        assert_eq!(set(1), 1);
        assert!(spend(&weir, "/l", &[("x-id", "7")]), "{name}");
        assert!(!spend(&weir, "/l", &[("x-id", "7")]), "{name}");
    });
}

/// Sets `L:7` and returns the tokens left.
#[track_caller]
fn remaining_of(weir: &Weir, body: &str) -> u64 {
    remaining(&done(weir, "PUT", "/buckets/L:7", body))[0]
}

#[test]
fn the_numbers_and_the_override_that_gave_them_are_told() {
    let weir = serve(&[]);
    let state = done(&weir, "GET", "/buckets/Even:partner", "");
    assert_eq!(
        (&state["bucket"], &state["mode"], &state["enforced"]),
        (&json!("Even:partner"), &json!("enforce"), &json!(true))
    );
    assert_eq!((&state["windows"][0]["allows"], &state["allows"]), (&json!("burst 50, 1 per 1h"), &json!("windows")));
    assert_eq!(state["given_by"], json!({"place": "limits.yaml:16", "comment": null}));
    assert_eq!(state["blocked"], Value::Null);
    for (bucket, allows) in [("Even:free", "unlimited"), ("Even:shut", "deny"), ("Rates:7", "windows")] {
        let state = done(&weir, "GET", &format!("/buckets/{bucket}"), "");
        assert_eq!((&state["allows"], &state["windows"]), (&json!(allows), &json!([])), "{bucket}");
    }
    let window = done(&weir, "GET", "/buckets/AtOnce:7", "")["windows"][0].clone();
    assert_eq!((&window["algorithm"], &window["remaining"]), (&json!("concurrency"), &json!(10)));
    let state = done(&weir, "GET", "/buckets/Watched:7", "");
    assert_eq!((&state["mode"], &state["enforced"]), (&json!("shadow"), &json!(false)));
    let head = ask_with(&weir, "GET", "/buckets/Even:a%2Fb%20c", &[], "");
    assert_eq!((head.status(), head.header("cache-control")), (200, Some("no-store")), "reading needs no token");
    assert!(head.text().contains(r#""bucket":"Even:a/b c""#), "{}", head.text());
}

/// The answer to these headers without a token.
fn rejected(weir: &Weir, headers: &[(&str, &str)]) -> (u16, Option<String>, String) {
    let answer = ask_with(weir, "POST", "/buckets/Even:7/reset", headers, "");
    (answer.status(), answer.header("www-authenticate").map(str::to_owned), answer.text().to_owned())
}

#[test]
fn changes_take_a_token() {
    let weir = serve(&[]);
    let challenge = || Some("Bearer realm=\"weir\"".to_owned());
    for headers in [
        &[][..],
        &[("authorization", "Bearer wrong")],
        &[("authorization", "Bearer s3cre")],
        &[("authorization", "Basic s3cret")],
        &[("authorization", "s3cret")],
    ] {
        let (status, asked_for, text) = rejected(&weir, headers);
        assert_eq!((status, asked_for), (401, challenge()), "{headers:?}: {text}");
    }
    assert_eq!(weir.metric("weir_admin_writes_total{op=\"reset\",result=\"unauthorized\"}"), 5);
    weir.until_logged("a change was rejected");
    let passed = format!("bearer {TOKEN}");
    assert_eq!(rejected(&weir, &[("authorization", &passed)]).0, 200);

    let open = Weir::serve(super::LIMITS, &[]);
    let (status, asked_for, text) = rejected(&open, &[("authorization", &passed)]);
    assert_eq!((status, asked_for), (403, None));
    assert!(text.contains("--admin-token-file FILE"), "{text}");
}

#[test]
fn who_has_changed_what_is_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    std::fs::write(&file, "# operators\nalice s3cret\nnameless-1\n").unwrap();
    let weir = Weir::serve(super::LIMITS, &["--admin-token-file", file.to_str().unwrap()]);
    let token = |token: &str| format!("Bearer {token}");
    for (given, path, body) in
        [("s3cret", "/buckets/Even:7/refund", r#"{"cost": 3}"#), ("nameless-1", "/buckets/Fixed/reset", "{}")]
    {
        let headers = [("authorization", &*token(given)), ("user-agent", "curl/8")];
        assert_eq!(ask_with(&weir, "POST", path, &headers, body).status(), 200, "{path}");
    }
    weir.until_logged(r#""message":"a bucket was changed: made full""#);
    let log = weir.log();
    let line =
        |part: &str| -> Value { serde_json::from_str(log.lines().find(|line| line.contains(part)).unwrap()).unwrap() };
    let fields = &line("3 given back")["fields"];
    assert_eq!(
        (&fields["by"], &fields["agent"], &fields["op"], &fields["bucket"]),
        (&json!("alice"), &json!("curl/8"), &json!("refund"), &json!("Even:7"))
    );
    assert_eq!(line("made full")["fields"]["by"], "127.0.0.1");
    assert!(!log.contains("s3cret"), "{log}");
}

#[test]
fn mistakes_say_what_would_be_right() {
    let weir = serve(&[]);
    let long = format!(r#"{{"remaining": 1, "x": "{}"}}"#, "x".repeat(20_000));
    let deep = format!("/buckets/Even:{}", "x".repeat(5_000));
    for (method, path, body, status, part) in [
        ("GET", "/buckets/Evne:7", "", 404, "there is no limit `Evne`; did you mean `Even`?"),
        ("POST", "/buckets/Nothing:7/reset", "", 404, "there is no limit `Nothing`"),
        ("GET", "/buckets/Even", "", 400, "it is missing; write `Name:id`"),
        ("GET", "/buckets/Fixed:7", "", 400, "by: global"),
        ("GET", "/buckets/Rates:x:eu", "", 400, "integer"),
        ("POST", "/buckets/Rates:7/reset", "", 400, "Rates:7 has 1 of 2 id components"),
        ("POST", "/buckets/Even:free/reset", "", 409, "Even:free has no bucket: it is unlimited"),
        ("PUT", "/buckets/AtOnce:7", r#"{"remaining": 1}"#, 409, "it can only be reset, one id at a time"),
        ("PUT", "/buckets/Even:shut", r#"{"remaining": 1}"#, 409, "deny: true"),
        (
            "PUT",
            "/buckets/Even:7",
            r#"{"remaining": 11}"#,
            400,
            "`remaining` must be at most 10, which is all that Even:7 holds",
        ),
        ("PUT", "/buckets/Even:7", "", 400, "`remaining` is missing; it must be a whole number of tokens"),
        ("PUT", "/buckets/Even:7", r#"{"remaining": 1, "remaining": 2}"#, 400, "duplicate key"),
        ("PUT", "/buckets/Even:7", "[]", 400, "expected an object, found a list"),
        ("PUT", "/buckets/Even:7", "{", 400, "invalid JSON"),
        ("PUT", "/buckets/Even:7", &long, 413, "longer than 16384 bytes"),
        ("POST", "/buckets/Even:7/refund", r#"{"cost": 0}"#, 400, "`cost` must be at least 1"),
        ("POST", "/buckets/Even:7/reset", r#"{"cost": 1}"#, 400, "unknown member `cost`; expected no members"),
        ("PUT", "/buckets/Even:7/block", r#"{"for": "1y"}"#, 400, "unknown unit `y`"),
        ("PUT", "/buckets/Even:7/block", r#"{"for": "400d"}"#, 400, "at most 366 days"),
        ("PUT", "/buckets/Off:7/block", r#"{"for": "1h"}"#, 409, "`mode: off`"),
        ("DELETE", "/buckets/Even:7/block", "", 404, "Even:7 is not blocked"),
        ("DELETE", "/buckets/Even:7", "", 405, "use GET, HEAD, PUT"),
        ("GET", "/buckets/Even:7/reset", "", 405, "use POST"),
        ("POST", "/buckets/Even:7/block", "", 405, "use PUT, DELETE"),
        ("POST", "/blocks", "", 405, "use GET"),
        ("PUT", "/buckets/Even:7/limit", "", 404, "written %2F"),
        ("GET", &deep, "", 414, "at most 4096 bytes"),
    ] {
        let (found, answer) = ask(&weir, method, path, body);
        let shown = &path[..path.len().min(60)];
        assert_eq!((found, &answer["status"]), (status, &json!(status)), "{method} {shown}: {answer}");
        let detail = answer["detail"].as_str().unwrap();
        assert!(detail.contains(part), "{method} {shown}: {detail}");
    }
    assert_eq!(weir.metric("weir_admin_writes_total{op=\"block\",result=\"mistaken\"}"), 3);
    let rejected = ask_with(&weir, "DELETE", "/buckets/Even:7", &[], "");
    assert_eq!(rejected.header("allow"), Some("GET, HEAD, PUT"));
}

#[test]
fn a_store_that_is_away_is_said_and_nothing_is_done() {
    let mut redis = RedisServer::plain();
    let weir = serve(&["--store", &redis.url()]);
    done(&weir, "GET", "/buckets/Even:7", "");
    redis.kill();
    for (method, path, body) in [
        ("GET", "/buckets/Even:7", ""),
        ("POST", "/buckets/Even:7/reset", ""),
        ("PUT", "/buckets/Even:7/block", r#"{"for": "1h"}"#),
    ] {
        eventually("the store is away", || match ask(&weir, method, path, body) {
            (503, answer) if answer["detail"] == "no connection to the store" => Ok(()),
            other => Err(other),
        });
    }
    assert_eq!(done(&weir, "GET", "/blocks", ""), json!({"blocks": []}));
    assert!(weir.metric("weir_admin_writes_total{op=\"block\",result=\"failed\"}") > 0);
    redis.restart();
    assert_eq!(remaining(&done(&weir, "PUT", "/buckets/Even:7", r#"{"remaining": 3}"#)), [3]);
}

#[test]
fn what_stands_in_for_the_store_goes_by_what_operators_say() {
    let mut redis = RedisServer::plain();
    let limits = "limits: { L: { by: { header: x-id }, burst: 3, on_store_error: local } }";
    let flags = ["--store", &redis.url(), "--workers", "1", "--admin-token", TOKEN];
    let weir = Weir::serve(limits, &flags);
    let connections = |count| becomes("the connections", count, || weir.metric("weir_store_connections"));
    let passed = |id: &str| (0..5).filter(|_| spend(&weir, "/", &[("x-id", id)])).count();
    connections(1);
    redis.kill();
    connections(0);
    assert_eq!([passed("reset"), passed("set"), passed("left")], [3, 3, 3]);
    redis.restart();
    connections(1);
    done(&weir, "PUT", "/buckets/L:set", r#"{"remaining": 2}"#);
    done(&weir, "POST", "/buckets/L:reset/reset", "");
    redis.kill();
    connections(0);
    assert_eq!(
        [passed("reset"), passed("set"), passed("left")],
        [3, 2, 0],
        "the store was back for less than a minute"
    );
}
