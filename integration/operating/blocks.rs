//! Blocked ids, on every listener and every gateway.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::listeners::{ALL, HTTP, at_listener};
use super::{TOKEN, ask, done, each_store, serve, spend};
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;
use crate::support::wire::Message;
use crate::support::{becomes, eventually};

const HOUR: &str = r#"{"for": "1h", "reason": "scraping"}"#;

fn block(weir: &Weir, bucket: &str, body: &str) -> Value {
    done(weir, "PUT", &format!("/buckets/{bucket}/block"), body)
}

/// A denial by a block with less than an hour left.
#[track_caller]
fn check_denied(answer: &Message, limit: &str) {
    assert_eq!(answer.status(), 429, "{}", answer.text());
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
    let problem: Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(problem["detail"], format!("{limit} is blocked for this id; retry after {wait} s"));
    assert_eq!(problem["violated-policies"], json!([limit]));
    assert!(!answer.text().contains("scraping"), "{}", answer.text());
}

#[test]
fn a_block_denies_whatever_the_algorithm_until_it_is_ended() {
    each_store(|store, _| {
        let weir = serve(store);
        let headers = [("x-id", "7"), ("x-zone", "eu")];
        let buckets = [
            ("/even", "Even:7"),
            ("/windows", "Windows:7"),
            ("/log", "Log:7"),
            ("/sliding", "Sliding:7"),
            ("/at-once", "AtOnce:7"),
            ("/fixed", "Fixed"),
            ("/rates", "Rates:7:eu"),
        ];
        for (path, bucket) in buckets {
            let state = block(&weir, bucket, HOUR);
            let blocked = &state["blocked"];
            assert_eq!((&blocked["bucket"], &blocked["reason"]), (&json!(bucket), &json!("scraping")));
            assert_eq!(blocked["by"], "127.0.0.1");
            assert!(blocked["left_ms"].as_u64().is_some_and(|left| (3_500_000..=3_600_000).contains(&left)), "{state}");
            let limit = bucket.split(':').next().unwrap();
            // At once, on every worker.
            for _ in 0..6 {
                check_denied(&weir.get(path, &headers), limit);
            }
            let remaining = done(&weir, "GET", &format!("/buckets/{bucket}"), "")["windows"][0]["remaining"].clone();
            assert_eq!(remaining, 10, "a denial takes nothing");
            if bucket != "Fixed" {
                assert!(spend(&weir, path, &[("x-id", "8"), ("x-zone", "eu")]), "another id of {limit} passes");
            }
        }
        assert_eq!(weir.metric("weir_blocks"), 7);
        let listed = done(&weir, "GET", "/blocks", "");
        assert_eq!(listed["blocks"].as_array().unwrap().len(), 7, "{listed}");
        for (path, bucket) in buckets {
            assert_eq!(done(&weir, "DELETE", &format!("/buckets/{bucket}/block"), "")["blocked"], Value::Null);
            for _ in 0..6 {
                assert!(spend(&weir, path, &headers), "{bucket}");
            }
        }
        assert_eq!((weir.metric("weir_blocks"), done(&weir, "GET", "/blocks", "")), (0, json!({"blocks": []})));
        assert_eq!(weir.metric("weir_decisions_total{limit=\"Log\",result=\"denied\"}"), 6);
    });
}

#[test]
fn an_unlimited_id_is_blocked_and_one_of_a_limit_in_shadow_is_reported() {
    let weir = serve(&[]);
    block(&weir, "Even:free", HOUR);
    check_denied(&weir.get("/even", &[("x-id", "free")]), "Even");
    let explained = |id: &str| {
        let body = json!({ "host": "a", "path": "/even", "headers": [["x-id", id]] }).to_string();
        let told = done(&weir, "POST", "/explain", &body);
        told["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "Even").unwrap().clone()
    };
    let (blocked, other) = (explained("free"), explained("7"));
    assert!(blocked["blocked_for"].as_u64().is_some_and(|left| (3_500..=3_600).contains(&left)), "{blocked}");
    assert_eq!((&blocked["fits"], &blocked["because"]), (&json!(false), &json!("the id is blocked")));
    assert_eq!((&other["fits"], &other["blocked_for"]), (&json!(true), &Value::Null));
    assert_eq!(block(&weir, "Watched:7", HOUR)["enforced"], false);
    assert!(spend(&weir, "/watched", &[("x-id", "7")]));
    assert_eq!(weir.metric("weir_decisions_total{limit=\"Watched\",result=\"shadow_denied\"}"), 1);
}

#[test]
fn the_first_components_block_all_ids_that_begin_so() {
    each_store(|store, _| {
        let weir = serve(store);
        assert_eq!(block(&weir, "Rates:7", HOUR)["blocked"]["bucket"], "Rates:7");
        for zone in ["eu", "us", "a:b"] {
            check_denied(&weir.get("/rates", &[("x-id", "7"), ("x-zone", zone)]), "Rates");
        }
        assert!(spend(&weir, "/rates", &[("x-id", "77"), ("x-zone", "eu")]));
        assert_eq!(done(&weir, "GET", "/buckets/Rates:7:eu", "")["blocked"]["bucket"], "Rates:7");
        let (status, answer) = ask(&weir, "DELETE", "/buckets/Rates:7:eu/block", "");
        assert_eq!(
            (status, answer["detail"].as_str()),
            (404, Some("Rates:7:eu is not blocked; the block of Rates:7 covers it"))
        );
        done(&weir, "DELETE", "/buckets/Rates:7/block", "");
        assert!(spend(&weir, "/rates", &[("x-id", "7"), ("x-zone", "eu")]));
    });
}

const BY_ADDRESS: &str = "\
limits:
  PerAddress: { by: ip, burst: 1000 }
  Beside: { by: method, burst: 1000 }
  Counting: { by: global, algorithm: sliding_window, count: 100, period: 10h, count_denied: true }
  PerUser: { match: { domain: api, descriptor: { user: '*' } }, by: { descriptor: user }, burst: 1000 }
  BesideUser: { match: { domain: api, descriptor: { user: '*' } }, by: { descriptor: user }, burst: 1000 }
  CountingUsers:
    match: { domain: api, descriptor: { user: '*' } }
    by: global
    algorithm: sliding_window
    count: 100
    period: 10h
    count_denied: true
";

#[test]
fn every_listener_denies_who_is_blocked_and_counts_it_beside_the_block() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    each_store(|store, _| {
        let flags = [
            &["--check", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--trusted-proxies", "127.0.0.1"],
            &["--workers", "1", "--admin-token", TOKEN][..],
            store,
        ];
        let weir = Weir::serve(BY_ADDRESS, &flags.concat());
        becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
        let left = |limit: &str| {
            let state = done(&weir, "GET", &format!("/buckets/{limit}"), "");
            state["windows"][0]["remaining"].as_u64().unwrap()
        };
        let uncharged =
            |limit: &str| weir.metric(&format!("weir_decisions_total{{limit=\"{limit}\",result=\"uncharged\"}}"));
        for listener in ALL {
            let told = runtime.block_on(at_listener(&weir, listener));
            assert_eq!((told.status, told.header("retry-after")), (200, None), "{listener}");
        }
        assert_eq!(["Beside:GET", "Counting", "BesideUser:bob", "CountingUsers"].map(left), [994, 94, 999, 99]);
        block(&weir, "PerAddress:192.0.2.7", HOUR);
        block(&weir, "PerUser:bob", HOUR);
        for (asked, listener) in (1..).zip(ALL) {
            let told = runtime.block_on(at_listener(&weir, listener));
            let wait = told.header("retry-after").and_then(|wait| wait.parse::<u64>().ok());
            assert!(
                told.status == 429 && wait.is_some_and(|wait| (3_500..=3_600).contains(&wait)),
                "{listener}: {told:?}"
            );
            let (requests, descriptors) = if HTTP.contains(&listener) { (asked, 0) } else { (6, 1) };
            becomes(listener, 94 - requests, || left("Counting"));
            becomes(listener, 99 - descriptors, || left("CountingUsers"));
            for (limit, expected) in [
                ("Beside", requests),
                ("Counting", requests),
                ("BesideUser", descriptors),
                ("CountingUsers", descriptors),
            ] {
                assert_eq!(uncharged(limit), expected, "{limit} at {listener}");
            }
        }
        assert_eq!(["Beside:GET", "BesideUser:bob"].map(left), [994, 999]);
    });
}

#[test]
fn the_script_of_blocks_is_used_by_hand() {
    let redis = RedisServer::plain();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("lua/blocks.lua");
    let call = |arguments: &[&str]| {
        let keys = ["--eval", script.to_str().unwrap(), "weir:{0}:!blocked", "weir:{0}:!blocked-notes", ","];
        redis.cli(&[&keys[..], arguments].concat())
    };
    let read = |version: &str| call(&["read", version]).lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!((read("1"), call(&["unblock", "L:a"])), (vec!["0".to_owned(), "0".to_owned()], "0".to_owned()));
    assert_eq!(redis.cli(&["DBSIZE"]), "0", "unblocking an id that is not blocked writes nothing");
    assert_eq!(call(&["block", "2", "60000000", "L:a", "why"]), "1");
    let first = read("0");
    assert_eq!((first.len(), first[2].as_str(), first[4].as_str()), (5, "L:a", "why"));
    assert!((59_000_000..=60_000_000).contains(&first[3].parse::<u64>().unwrap()), "{first:?}");
    assert_eq!(read(&first[0]), [first[0].as_str()], "that version is known");
    assert_eq!(call(&["block", "2", "300000", "L:b", ""]), "1");
    assert_eq!(call(&["block", "2", "60000000", "L:c", ""]), "0", "there may be two");
    assert_eq!(call(&["block", "2", "60000000", "L:a", "again"]), "1", "one that is there is no other");
    eventually("the second one has ended", || match call(&["block", "2", "50000000", "L:c", ""]).as_str() {
        "1" => Ok(()),
        other => Err(other.to_owned()),
    });
    let now = read("0");
    assert_eq!(call(&["restore", &now[0], "60000000", "L:d", ""]), "0", "what it has is as new");
    assert!(now[0].parse::<u64>().unwrap() > first[0].parse().unwrap(), "every change is another version");
    assert_eq!([&now[2], &now[4], &now[5]], ["L:c", "", "L:a"]);
    let left: i64 = redis.cli(&["PTTL", "weir:{0}:!blocked-notes"]).parse().unwrap();
    assert!((110_000..=120_000).contains(&left), "{left}");
    let next = (now[0].parse::<u64>().unwrap() + 3_600_000_000).to_string();
    assert_eq!((call(&["unblock", "L:a"]), call(&["unblock", "L:c", &next])), ("1".into(), "1".into()));
    let empty = read("0");
    assert!(empty[0].parse::<u64>().unwrap() > next.parse().unwrap(), "later than what its caller knows");
    assert_eq!((&empty[1..], redis.cli(&["DBSIZE"])), (&["1".to_owned()][..], "1".to_owned()), "the version alone");
    assert_eq!(call(&["restore", &next, "60000000", "L:d", ""]), "0", "it is older");
    redis.cli(&["FLUSHALL"]);
    assert_eq!(call(&["restore", &next, "60000000", "L:d", "why", "70000000", "L:e", ""]), "1");
    let restored = read("0");
    assert_eq!(
        (&restored[0], &restored[1], &restored[2], &restored[4]),
        (&next, &"3".into(), &"L:d".into(), &"why".into())
    );
    assert!(call(&["restore", "1", "2"]).contains("usage"), "a call that lacks something");
    assert!(call(&["block", "2"]).contains("usage"), "a call that lacks something");
    assert!(call(&["forget", "x"]).contains("usage"));
}
