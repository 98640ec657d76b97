//! Resets of all ids of a limit, by the admin API and `weir bucket reset --all`.

use serde_json::{Value, json};

use super::{LIMITS, TOKEN, ask, ask_with, done, each_store, serve, spend};
use crate::support::becomes;
use crate::support::binary;
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;

/// The tokens left in each window.
fn remaining(weir: &Weir, bucket: &str) -> Vec<Value> {
    let state = done(weir, "GET", &format!("/buckets/{bucket}"), "");
    state["windows"].as_array().unwrap().iter().map(|window| window["remaining"].clone()).collect()
}

#[test]
fn every_id_of_the_limit_is_full_and_no_other_limit() {
    each_store(|store, name| {
        let weir = serve(store);
        for (path, limit, full) in [
            ("/even", "Even", vec![10]),
            ("/windows", "Windows", vec![10]),
            ("/log", "Log", vec![10]),
            ("/sliding", "Sliding", vec![10]),
            ("/rates", "Rates", vec![10, 100]),
        ] {
            let bucket = |id: &str| format!("{limit}:{id}{}", if limit == "Rates" { ":eu" } else { "" });
            let exhaust = |id: &str| {
                let passed = (0..12).filter(|_| spend(&weir, path, &[("x-id", id), ("x-zone", "eu")])).count();
                assert_eq!(passed, 10, "{name} {limit} {id}");
            };
            assert!(spend(&weir, "/wide", &[("x-id", "7")]));
            // Twice: the second reset must not bring back the buckets from before the first.
            for _ in 0..2 {
                exhaust("7");
                exhaust("8");
                let reset = done(&weir, "POST", &format!("/limits/{limit}/reset"), "");
                assert_eq!((&reset["reset"]["limit"], reset["reset"]["at"].is_string()), (&json!(limit), true));
                for id in ["7", "8"] {
                    assert_eq!(remaining(&weir, &bucket(id)), full, "{name} {limit} {id}");
                }
            }
            exhaust("7");
        }
        assert_eq!(remaining(&weir, "Wide:7"), [1_000_000 - 5], "{name}");
        // New rules keep it.
        let before = weir.metric("weir_config_reloads_total{result=\"success\"}");
        std::fs::write(weir.limits_file(), format!("{LIMITS}\n")).unwrap();
        weir.signal("HUP");
        becomes("the rules are new", before + 1, || weir.metric("weir_config_reloads_total{result=\"success\"}"));
        assert_eq!(remaining(&weir, "Even:7"), [0], "{name}");
        assert_eq!(remaining(&weir, "Even:8"), [10], "{name}");
        assert!(spend(&weir, "/even", &[("x-id", "8")]));
        // Blocks and overrides stay those of their ids.
        done(&weir, "PUT", "/buckets/Even:8/block", r#"{"for": "1h"}"#);
        assert!(!spend(&weir, "/even", &[("x-id", "8")]));
        assert_eq!(remaining(&weir, "Even:partner"), [50], "{name}");
        assert_eq!(weir.metric("weir_admin_writes_total{op=\"reset_all\",result=\"done\"}"), 10);
        weir.until_logged("all buckets of a limit were made full");
    });
}

#[test]
fn what_cannot_be_reset_says_why() {
    let weir = serve(&[]);
    let said = |path: &str, body: &str| {
        let (status, answer) = ask(&weir, "POST", path, body);
        (status, answer["detail"].as_str().unwrap_or_default().to_owned())
    };
    for (path, body, status, part) in [
        ("/limits/Evn/reset", "", 404, "there is no limit `Evn`; did you mean `Even`?"),
        ("/limits/Even:7/reset", "", 404, "there is no limit `Even:7`"),
        (
            "/limits/AtOnce/reset",
            "",
            409,
            "AtOnce counts requests in flight, which end by themselves: it can only be reset, one id at a time",
        ),
        ("/limits/Even/reset", r#"{"cost": 1}"#, 400, "cost"),
    ] {
        let (found, detail) = said(path, body);
        assert!(found == status && detail.contains(part), "{path}: {found} {detail}");
    }
    assert_eq!(ask_with(&weir, "POST", "/limits/Even/reset", &[], "").status(), 401);
    let admin = format!("http://{}", weir.admin);
    let reset =
        |name: &str| binary::run(&["bucket", "reset", name, "--all", "--admin", &admin, "--admin-token", TOKEN]);
    assert_eq!(reset("Even").out, "all buckets of Even are full\n");
    let wrong = reset("Even:7");
    assert!(wrong.code == Some(1) && wrong.err.contains("there is no limit `Even:7`"), "{wrong:?}");
}

#[test]
fn leases_of_other_gateways_follow() {
    let redis = RedisServer::plain();
    let limits = "limits:\n  Leased: { match: { path: /leased }, by: { header: x-id }, burst: 1000, count: 1, period: 1h, \
                  lease: { for: 100ms, tokens: 50 } }\n";
    let url = redis.url();
    let gateway = || {
        let weir = Weir::serve(limits, &["--admin-token", TOKEN, "--store", &url]);
        weir.until_connected();
        weir
    };
    let (first, second) = (gateway(), gateway());
    while spend(&first, "/leased", &[("x-id", "7")]) {}
    assert!(!spend(&second, "/leased", &[("x-id", "7")]));
    done(&first, "POST", "/limits/Leased/reset", "");
    becomes("the other gateway follows", 1_000, || remaining(&second, "Leased:7")[0].as_u64().unwrap());
    assert!(spend(&second, "/leased", &[("x-id", "7")]));
}
