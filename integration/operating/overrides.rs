//! Live overrides: on every listener and every gateway, for a restart, and as a rules file has them.

use std::fs;

use serde_json::{Value, json};

use super::listeners::{ALL, at_listener};
use super::{LIMITS, TOKEN, ask, ask_with, done, each_store, serve, spend};
use crate::support::binary;
use crate::support::eventually;
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;

/// Buckets that no polling empties.
const BY_ADDRESS: &str = "\
limits:
  PerAddress: { by: ip, burst: 1000 }
  PerUser: { match: { domain: api, descriptor: { user: '*' } }, by: { descriptor: user }, burst: 1000 }
";

fn set(weir: &Weir, override_: &str, body: &str) -> Value {
    done(weir, "PUT", &format!("/overrides/{override_}"), body)
}

fn remaining(weir: &Weir, bucket: &str) -> Value {
    done(weir, "GET", &format!("/buckets/{bucket}"), "")["windows"][0]["remaining"].clone()
}

#[test]
fn an_override_replaces_the_numbers_and_buckets_keep_what_they_have_used() {
    each_store(|store, kind| {
        let weir = serve(store);
        let id = [("x-id", "7")];
        for (path, bucket) in
            [("/even", "Even:7"), ("/windows", "Windows:7"), ("/log", "Log:7"), ("/sliding", "Sliding:7")]
        {
            for _ in 0..4 {
                assert!(spend(&weir, path, &id));
            }
            let given = set(&weir, bucket, r#"{"count": 20, "period": "10h", "comment": "a launch"}"#);
            let told = [&given["override"], &given["source"], &given["by"], &given["comment"], &given["kept"]];
            let kept = if kind == "redis" { "redis" } else { "process" };
            assert_eq!(told, [bucket, "live", "127.0.0.1", "a launch", kept]);
            assert_eq!((&given["inert"], remaining(&weir, bucket)), (&Value::Null, json!(16)), "{bucket}");
            let bucket_given = done(&weir, "GET", &format!("/buckets/{bucket}"), "")["given_by"].clone();
            assert_eq!(bucket_given, json!({ "place": "live", "comment": "a launch" }));
            assert!(spend(&weir, path, &[("x-id", "8")]), "another id has its own numbers");
            done(&weir, "DELETE", &format!("/overrides/{bucket}"), "");
            assert_eq!(remaining(&weir, bucket), 6, "{bucket}");
            assert_eq!(ask(&weir, "GET", &format!("/overrides/{bucket}"), "").0, 404);
        }
        assert_eq!(weir.metric("weir_admin_writes_total{op=\"set_override\",result=\"done\"}"), 4);
        assert_eq!(weir.metric("weir_live_overrides"), 0);
    });
}

#[test]
fn a_live_override_precedes_those_of_the_files() {
    each_store(|store, _| {
        let weir = serve(store);
        let passes = |id: &str| spend(&weir, "/even", &[("x-id", id)]);
        set(&weir, "Even:free", r#"{"deny": true}"#);
        set(&weir, "Even:shut", r#"{"unlimited": true}"#);
        assert_eq!((passes("free"), passes("shut")), (false, true));
        let list = done(&weir, "GET", "/overrides?limit=Even", "");
        let sources: Vec<_> = list["overrides"].as_array().unwrap().iter().map(|given| &given["source"]).collect();
        assert_eq!(sources, ["live", "live", "file", "file", "file"]);
        let live = done(&weir, "GET", "/overrides?source=live", "");
        let names: Vec<_> = live["overrides"].as_array().unwrap().iter().map(|given| &given["override"]).collect();
        assert_eq!(names, ["Even:free", "Even:shut"]);
        let explain = |id: &str| {
            let body = json!({ "url": "/even", "headers": { "x-id": id } }).to_string();
            let all = done(&weir, "POST", "/explain", &body);
            all["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "Even").unwrap()["given_by"].clone()
        };
        assert_eq!(explain("free")["place"], "live");
        done(&weir, "DELETE", "/overrides/Even:free", "");
        done(&weir, "DELETE", "/overrides/Even:shut", "");
        assert_eq!((passes("free"), passes("shut"), explain("free")["place"] == "live"), (true, false, false));
        // The first components stand for all ids that begin so.
        set(&weir, "Rates:7", r#"{"deny": true}"#);
        let rates = |id: &str| spend(&weir, "/rates", &[("x-id", id), ("x-zone", "eu")]);
        assert_eq!((rates("7"), rates("8")), (false, true));
    });
}

#[test]
fn mistakes_say_what_and_where() {
    let weir = serve(&[]);
    let other_token = [("authorization", "Bearer wrong")];
    assert_eq!(ask_with(&weir, "PUT", "/overrides/Even:7", &other_token, "{}").status(), 401);
    assert_eq!(ask_with(&weir, "DELETE", "/overrides/Even:7", &[], "").status(), 401);
    for (bucket, body, status, expected) in [
        ("Evn:7", r#"{"count": 1, "period": "1s"}"#, 404, "did you mean `Even`?"),
        ("Even:7", r#"{"count": 0, "period": "1s"}"#, 400, "`count`: "),
        ("Even:7", r#"{"count": 1, "period": "1 second"}"#, 400, "`period`: "),
        ("Even:7", r#"{"cuont": 1, "period": "1s"}"#, 400, "did you mean `count`?"),
        ("Even:7", "{}", 400, "add `count` and `period`"),
        ("Even:7", r#"{"deny": true, "until": "tomorrow"}"#, 400, "`until`: "),
        ("Even:7", r#"{"deny": true, "until": "2020-01-01"}"#, 400, "has expired"),
        ("Even:7", r#"{"deny": true, "until": "2030-01-01", "for": "1h"}"#, 400, "not both"),
        ("Even:7", r#"{"deny": true, "for": "1"}"#, 400, "`for`: "),
        ("Even:7", r#"{"deny": true, "comment": 1}"#, 400, "`comment`: expected text"),
        ("Even:7", r#"{"deny": true, "deny": true}"#, 400, "deny"),
        ("Even:7", "[]", 400, "expected an object"),
        ("Even", r#"{"deny": true}"#, 400, "has no id"),
        ("Rates:x:eu", r#"{"deny": true}"#, 400, "is not a valid id for `Rates`"),
        ("Fixed:x", r#"{"deny": true}"#, 400, "is not a valid id for `Fixed`"),
    ] {
        let (found, answer) = ask(&weir, "PUT", &format!("/overrides/{bucket}"), body);
        let detail = answer["detail"].as_str().unwrap();
        assert!(found == status && detail.contains(expected), "{bucket} {body}: {found} {detail}");
    }
    assert_eq!(done(&weir, "GET", "/overrides?source=live", "")["overrides"], json!([]));
}

#[test]
fn one_gateway_sets_an_override_for_every_listener_of_all() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = RedisServer::plain();
    let url = redis.url();
    let store = ["--store", url.as_str()];
    let listeners = ["--check", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--trusted-proxies", "127.0.0.1"];
    let flags = [&listeners[..], &["--admin-token", TOKEN], &store[..]].concat();
    let (one, other) = (Weir::serve(BY_ADDRESS, &flags), Weir::serve(BY_ADDRESS, &flags));
    let answers = |weir: &Weir, status: u16| {
        for listener in ALL {
            eventually(listener, || match runtime.block_on(at_listener(weir, listener)).status {
                found if found == status => Ok(()),
                found => Err(found),
            });
        }
    };
    answers(&other, 200);
    set(&one, "PerAddress:192.0.2.7", r#"{"deny": true}"#);
    set(&one, "PerUser:bob", r#"{"deny": true}"#);
    answers(&one, 429);
    answers(&other, 429);
    let later = Weir::serve(BY_ADDRESS, &flags);
    answers(&later, 429);
    done(&later, "DELETE", "/overrides/PerAddress:192.0.2.7", "");
    done(&later, "DELETE", "/overrides/PerUser:bob", "");
    answers(&other, 200);
}

#[test]
fn a_file_keeps_overrides_for_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("overrides.json");
    let flags = ["--live-overrides", file.to_str().unwrap()];
    let first = serve(&flags);
    assert_eq!(set(&first, "Even:7", r#"{"deny": true}"#)["kept"], "file");
    set(&first, "Log:7", r#"{"count": 3, "period": "1h", "until": "2100-01-01", "comment": "a partner"}"#);
    drop(first);
    let second = serve(&flags);
    assert!(!spend(&second, "/even", &[("x-id", "7")]));
    let kept = done(&second, "GET", "/overrides/Log:7", "");
    assert_eq!((&kept["until"], &kept["comment"]), (&json!("2100-01-02T00:00:00Z"), &json!("a partner")));
    done(&second, "DELETE", "/overrides/Even:7", "");
    drop(second);
    // A limit that is gone keeps its override, which applies to nothing.
    let third = Weir::serve(&LIMITS.replace("  Log:", "  Lag:"), &[&["--admin-token", TOKEN], &flags[..]].concat());
    let kept = done(&third, "GET", "/overrides/Log:7", "");
    assert!(kept["inert"].as_str().unwrap().contains("unknown limit"), "{kept}");
    assert_eq!((third.metric("weir_live_overrides"), third.metric("weir_live_overrides_inert")), (0, 1));
    drop(third);
    fs::write(&file, "{\"overrides\": [{}]}").unwrap();
    let broken = binary::run(&["serve", "--upstream", "echo", "--live-overrides", file.to_str().unwrap(), "--dry-run"]);
    assert!(broken.err.contains("`/overrides/0` is not a live override"), "{}", broken.err);
}

#[test]
fn a_list_is_exported_for_the_rules_file() {
    let weir = serve(&[]);
    let admin = format!("http://{}", weir.admin);
    let run =
        |words: &[&str]| binary::run(&[&["override"], words, &["--admin", &admin, "--admin-token", TOKEN]].concat());
    let set = run(&["set", "Even:7", "count=40", "period=1h", "--until", "2100-01-01", "--comment", "a \"partner\""]);
    assert!(set.out.contains("burst 40, 40 per 1h") && set.err.contains("--live-overrides"), "{} {}", set.out, set.err);
    run(&["set", "Rates:7:eu", "unlimited"]);
    let list = run(&["list", "--format", "yaml"]).out;
    let (rules, overrides) = (weir.limits_file(), weir.directory().join("exported.yaml"));
    fs::write(&overrides, &list).unwrap();
    let checked = binary::run(&["check", rules.to_str().unwrap(), "--overrides", overrides.to_str().unwrap()]);
    assert!(!checked.err.contains("error") && list.lines().count() == 2, "{list}{}", checked.err);
    assert!(run(&["get", "Even:7"]).out.contains("(a \"partner\")"));
    assert!(run(&["delete", "Even:7"]).out.starts_with("deleted Even:7"));
    assert!(run(&["set", "Evn:7", "deny"]).err.contains("did you mean `Even`?"));
    assert!(run(&["set", "Even:7", "40"]).err.contains("count=40 period=1s"));
}
