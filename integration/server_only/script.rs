//! Users' scripts, through the proxy and the other listeners.

use serde_json::{Value, json};

use super::{asked, call, cases, reload, serve};
use crate::support::eventually;
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;

const FIXED_WINDOW: &str = include_str!("../../lua/pluglimit_fixed_window.lua");
const TOKEN_BUCKET: &str = include_str!("../../lua/pluglimit_token_bucket.lua");

/// A limit of `/mine` by the script `my.lua`, and a limit of all paths that never refills.
fn mine(rest: &str) -> String {
    format!(
        "limits:\n  Mine: {{ match: {{ path: /mine }}, by: {{ header: x-user }}, algorithm: script, file: my.lua{rest} }}\n  \
         All: {{ by: global, burst: 100 }}\n"
    )
}

/// The same without the limit of all paths, for tests with many requests.
fn mine_alone(rest: &str) -> String {
    mine(rest).replace("  All: { by: global, burst: 100 }\n", "")
}

fn user(weir: &Weir) -> crate::support::wire::Message {
    weir.get("/mine", &[("x-user", "a")])
}

/// A value in Lua's notation.
fn lua(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("{{ {} }}", items.iter().map(lua).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

#[test]
fn every_case_of_plug_limits_contract_holds() {
    let redis = RedisServer::plain();
    let mut played = 0;
    for case in cases(include_str!("../cases/pluglimit.jsonl")) {
        let (limit, expect) = (&case["limit"], &case["steps"][0]["expect"]);
        let Some(returns) = limit.get("script_returns") else { continue };
        let headers = format!(", headers: {}", limit["headers"]);
        let weir = serve(&mine(&headers), &[("my.lua", &format!("return {}", lua(returns)))], &redis, &[]);
        let answer = user(&weir);
        let name = &case["case"];
        if expect["error"] == "bad_script_reply" {
            assert_eq!(answer.status(), 200, "{name}: as `on_store_error` says");
            assert_eq!(answer.all("h1"), [""; 0], "{name}");
            weir.until_logged("the verdict is neither allow, deny nor block, but maybe");
        } else {
            assert_eq!(answer.status(), if expect["allowed"] == true { 200 } else { 429 }, "{name}");
        }
        for (header, value) in expect["http_headers"].as_object().into_iter().flatten() {
            assert_eq!(answer.header(header), value.as_str(), "{name}: {header}");
        }
        let named = limit["headers"].as_array().unwrap().iter().filter_map(Value::as_str);
        for absent in
            named.filter(|named| expect["http_headers"].get(named).is_none() && expect["http_headers"].is_object())
        {
            assert_eq!(answer.header(absent), None, "{name}: {absent}");
        }
        if expect["warning"] == "extra_value" {
            weir.until_logged("it returned 4 values, but `headers` has 3 names");
            user(&weir);
            user(&weir);
            assert_eq!(weir.log().matches("ignoring a value of a script").count(), 1, "{}", weir.log());
        }
        played += 1;
    }
    assert_eq!(played, 9);
}

#[test]
fn a_script_is_told_its_key_and_its_arguments_and_overrides_change_them() {
    let redis = RedisServer::plain();
    let rules = mine(", args: [10, \"a b,=\"], headers: [x-key, x-args, x-more]")
        + "overrides: { \"Mine:b\": { args: [20] }, \"Mine:c\": { deny: true } }\n";
    let script = "return { 'allow', { KEYS[1] .. ' ' .. #KEYS, table.concat(ARGV, '|'), ARGV[3] or 'none' } }";
    let weir = serve(&rules, &[("my.lua", script)], &redis, &[]);
    for (user, key, arguments) in
        [("a{}", "weir:{0}:Mine:a%7B%7D#script 1", "10|a b,="), ("b", "weir:{0}:Mine:b#script 1", "20")]
    {
        let answer = weir.get("/mine", &[("x-user", user)]);
        assert_eq!((answer.header("x-key"), answer.header("x-args")), (Some(key), Some(arguments)));
        assert_eq!(answer.header("x-more"), Some("none"));
    }
    assert_eq!(weir.get("/mine", &[("x-user", "c")]).status(), 429);
}

#[test]
fn plug_limits_limiters_count_through_the_proxy_and_survive_a_flush() {
    let redis = RedisServer::plain();
    for (script, arguments, first) in
        [(FIXED_WINDOW, "[3, 60]", "3"), (TOKEN_BUCKET, "[3, 60, 3]", "3 3;w=60;burst=3;policy=token_bucket")]
    {
        redis.cli(&["FLUSHALL"]);
        let headers = "headers: [x-ratelimit-limit, x-ratelimit-reset, x-ratelimit-remaining, retry-after]";
        let rules = mine(&format!(", args: {arguments}, {headers}"));
        let weir = serve(&rules, &[("my.lua", script)], &redis, &[]);
        for (status, remaining) in [(200, "2"), (200, "1"), (200, "0"), (429, "0"), (429, "0")] {
            redis.cli(&["SCRIPT", "FLUSH"]);
            let answer = user(&weir);
            assert_eq!(answer.status(), status);
            assert_eq!(answer.header("x-ratelimit-limit"), Some(first));
            assert_eq!(
                (answer.header("x-ratelimit-reset"), answer.header("x-ratelimit-remaining")),
                (Some("60"), Some(remaining))
            );
            // The counting limit has its headers, and the script sets its own.
            assert_eq!(answer.header("ratelimit-policy"), Some("\"All\";q=100"));
            if script == TOKEN_BUCKET && remaining == "0" {
                assert_eq!(answer.header("retry-after"), Some("60"));
            }
        }
        assert_eq!(weir.metric("weir_store_errors_total{kind=\"error\"}"), 0);
        let all = weir.get("/", &[]);
        assert_eq!(all.header("ratelimit"), Some("\"All\";r=96"), "requests that the script denied were not charged");
    }
}

#[test]
fn a_script_runs_only_if_no_other_limit_denies() {
    let redis = RedisServer::plain();
    let rules = "limits:\n  Mine: { by: global, algorithm: script, file: my.lua, args: [100, 60] }\n  \
                 Two: { by: global, burst: 2 }\n";
    let weir = serve(rules, &[("my.lua", FIXED_WINDOW)], &redis, &[]);
    for status in [200, 200, 429, 429] {
        let answer = weir.get("/", &[]);
        assert_eq!(answer.status(), status);
        assert_eq!(answer.header("x-ratelimit-limit").is_some(), status == 200);
    }
    assert_eq!(redis.cli(&["GET", "weir:{0}:Mine#script"]), "2");
    // In shadow it counts, denies nothing and is invisible to clients.
    reload(&weir, "limits:\n  Mine: { by: global, algorithm: script, file: my.lua, args: [3, 60], mode: shadow }\n");
    for _ in 0..3 {
        let answer = weir.get("/", &[]);
        assert_eq!((answer.status(), answer.header("x-ratelimit-limit")), (200, None));
    }
    assert_eq!(redis.cli(&["GET", "weir:{0}:Mine#script"]), "3");
    assert_eq!(weir.metric("weir_decisions_total{limit=\"Mine\",result=\"shadow_denied\"}"), 2);
}

#[test]
fn of_two_scripts_the_first_has_counted_when_the_second_denies() {
    let redis = RedisServer::plain();
    let rules = "limits:\n  One: { by: global, algorithm: script, file: my.lua, args: [9, 60] }\n  \
                 Two: { by: global, algorithm: script, file: other.lua, args: [1, 60, 1] }\n";
    let weir = serve(rules, &[("my.lua", FIXED_WINDOW), ("other.lua", TOKEN_BUCKET)], &redis, &[]);
    assert_eq!((weir.get("/", &[]).status(), weir.get("/", &[]).status()), (200, 429));
    assert_eq!(redis.cli(&["GET", "weir:{0}:One#script"]), "2");
}

#[test]
fn what_goes_wrong_in_a_script_is_the_trouble_of_its_requests_alone() {
    let redis = RedisServer::plain();
    for (script, logged) in [
        ("error('no luck')", "no luck"),
        ("return redis.call('HGET', 'weir:{0}:x', 'y')", "user script: "),
        ("return redis.error_reply('ERR mine')", "user script: -ERR mine"),
        ("return nil + 1", "attempt to perform arithmetic"),
        ("total = 1 return { 'allow', {} }", "user script: "),
        ("return 'allow'", "the reply is no list but string"),
        ("return {}", "but nil"),
        ("return { 'ALLOW', {} }", "but ALLOW"),
        ("return { 'allow' }", "comes a list of at most 32 values"),
        ("return { 'allow', { {} } }", "value 1 is neither a text nor a pair"),
        ("return { 'allow', { 'a', { 'b', 'c', 'd' } } }", "value 2 is neither"),
        ("return { 'allow', { string.rep('x', 2000) } }", "of at most 1024 bytes"),
        ("this is no Lua", "Redis cannot compile this script"),
        ("end return 1", "Redis cannot compile this script"),
    ] {
        redis.cli(&["FLUSHALL"]);
        redis.cli(&["SET", "weir:{0}:x", "1"]);
        let weir = serve(&mine(", on_store_error: deny"), &[("my.lua", script)], &redis, &[]);
        let answer = user(&weir);
        assert_eq!(answer.status(), 503, "{script}");
        weir.until_logged(logged);
        let others = weir.get("/", &[]);
        assert_eq!((others.status(), others.header("ratelimit")), (200, Some("\"All\";r=99")), "{script}");
        reload(&weir, &mine(""));
        assert_eq!((user(&weir).status(), user(&weir).header("x-ratelimit-limit")), (200, None), "{script}");
    }
}

#[test]
fn a_script_that_cannot_write_is_an_error_and_no_allowance() {
    let mut redis = RedisServer::plain();
    let weir = serve(&mine(", args: [3, 60], on_store_error: deny"), &[("my.lua", FIXED_WINDOW)], &redis, &[]);
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(user(&weir).status(), 503);
    weir.until_logged("OOM");
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(user(&weir).header("x-ratelimit-remaining"), Some("2"));
    reload(&weir, &mine(", args: [3, 60]"));
    redis.kill();
    eventually("the store is known to be down", || match user(&weir) {
        answer if answer.status() == 200 && answer.header("x-ratelimit-limit").is_none() => Ok(()),
        answer => Err(answer),
    });
    weir.until_logged("no connection to the store");
}

#[test]
fn a_script_that_never_ends_is_waited_for_as_long_as_the_store() {
    let redis = RedisServer::plain();
    let rules =
        mine_alone(", on_store_error: deny") + "  Others: { match: { path: /others }, by: global, burst: 100 }\n";
    let weir = serve(&rules, &[("my.lua", "while true do end")], &redis, &["--store-timeout", "200ms"]);
    assert_eq!(user(&weir).status(), 503);
    weir.until_logged("no answer from the store within 200ms");
    assert_eq!(redis.cli(&["SCRIPT", "KILL"]), "OK");
    std::fs::write(weir.directory().join("my.lua"), "return { 'allow', { '7' } }").unwrap();
    // A request before the reload would start the endless script again.
    reload(&weir, &rules);
    eventually("the mended script runs", || match user(&weir) {
        answer if answer.header("x-ratelimit-limit") == Some("7") => Ok(()),
        answer => Err(answer),
    });
    assert_eq!(weir.get("/others", &[]).header("ratelimit"), Some("\"Others\";r=99"));
}

#[test]
fn a_changed_script_runs_from_the_next_request_on_and_a_missing_one_changes_nothing() {
    let redis = RedisServer::plain();
    let weir = serve(&mine_alone(""), &[("my.lua", "return { 'allow', { '1' } }")], &redis, &[]);
    assert_eq!(user(&weir).header("x-ratelimit-limit"), Some("1"));
    std::fs::write(weir.directory().join("my.lua"), "return { 'deny', { '2' } }").unwrap();
    // Without a signal: the file is watched.
    eventually("the new script runs", || match user(&weir) {
        answer if answer.status() == 429 && answer.header("x-ratelimit-limit") == Some("2") => Ok(()),
        answer => Err(answer),
    });
    std::fs::remove_file(weir.directory().join("my.lua")).unwrap();
    weir.signal("HUP");
    weir.until_logged("`my.lua` does not exist");
    assert_eq!(user(&weir).status(), 429);
}

#[test]
fn no_value_of_a_script_ends_a_header_or_frames_the_answer() {
    let redis = RedisServer::plain();
    let script =
        "return { 'deny', { 'a\\r\\nset-cookie: b=c', { 'content-length', '0' }, { 'x y', '1' }, { 'X-Ok', 3.9 } } }";
    let weir = serve(&mine(""), &[("my.lua", script)], &redis, &[]);
    let answer = user(&weir);
    assert_eq!((answer.status(), answer.header("set-cookie")), (429, None));
    assert_eq!((answer.header("x-ratelimit-limit"), answer.header("x-ok")), (Some("a  set-cookie: b=c"), Some("3")));
    assert!(answer.text().contains("\"violated-policies\":[\"Mine\"]"), "{}", answer.text());
    weir.until_logged("it cannot set the header");
}

#[test]
fn applications_and_logs_hear_all_of_it() {
    let redis = RedisServer::plain();
    let script = "return { 'allow', { '1', { 'x-b', '2' } }, 'because', 7, { a = 1 }, true }";
    let weir = serve(&mine(""), &[("my.lua", script)], &redis, &["--access-log", "access.log"]);
    let (status, told) = call(&weir, &json!({ "limit": "Mine", "id": "a" }));
    let limit = &told["limits"][0];
    let said = json!({ "values": ["1", ["x-b", "2"]], "extras": ["because", "7", "{\"a\":1}", "true"] });
    assert_eq!(
        (status, &limit["script"], &limit["limit"], &limit["remaining"]),
        (200, &said, &Value::Null, &Value::Null)
    );
    user(&weir);
    eventually("the log has it", || {
        let log = std::fs::read_to_string(weir.directory().join("access.log")).unwrap_or_default();
        let has = log.contains("\"said\":[\"because\",\"7\",\"{\\\"a\\\":1}\",\"true\"]");
        if has { Ok(()) } else { Err(log) }
    });
    for op in ["check", "refund", "reset"] {
        for (what, pointer) in [
            (json!({ "limit": "Mine", "id": "a" }), "#/limit"),
            (
                json!({ "request": { "url": "http://a/mine", "ip": "192.0.2.1", "headers": { "x-user": "a" } } }),
                "#/request",
            ),
        ] {
            let mut what = what;
            what["op"] = op.into();
            let (status, told) = call(&weir, &what);
            assert_eq!((status, &told["errors"][0]["pointer"]), (400, &json!(pointer)), "{told}");
            assert!(
                told["detail"].as_str().unwrap().contains("Mine is a script limit: it can be charged, but not checked"),
                "{told}"
            );
        }
    }
    let gateway = asked(&weir, "/envoy/mine", &[("x-user", "a")]);
    assert_eq!((gateway.status(), gateway.header("x-b")), (200, Some("2")));
}
