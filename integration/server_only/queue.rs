//! Queues of work, as clients, gateways, applications and workers see them.

use std::process::Command;

use serde_json::{Value, json};

use super::{asked, call, cases, reload, serve};
use crate::support::process::finish;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::{becomes, eventually};

const STREAM: &str = "weir:{0}:Jobs#queue";
const LIST: &str = "weir:{0}:Jobs#queue.list";

fn jobs(kind: &str, capacity: u64, rest: &str) -> String {
    format!(
        "limits:\n  Jobs: {{ match: {{ path: /jobs }}, by: global, algorithm: queue, kind: {kind}, capacity: {capacity}, \
         fields: {{ user: {{ header: x-user }}, note: {{ query: note }} }}{rest} }}\n"
    )
}

/// The number of waiting entries.
fn length(redis: &RedisServer, kind: &str) -> u64 {
    let (command, key) = if kind == "stream" { ("XLEN", STREAM) } else { ("LLEN", LIST) };
    redis.cli(&[command, key]).parse().unwrap()
}

/// The payload of the next entry, as a worker sees it.
fn read(redis: &RedisServer, kind: &str) -> String {
    if kind == "stream" {
        let entry = redis.cli(&["XRANGE", STREAM, "-", "+", "COUNT", "1"]);
        return entry.lines().skip_while(|line| *line != "note").nth(1).unwrap().to_owned();
    }
    let entry: Value = serde_json::from_str(&redis.cli(&["LINDEX", LIST, "0"])).unwrap();
    entry["fields"]["note"].as_str().unwrap().to_owned()
}

/// Takes an entry as a worker does.
fn acknowledge(redis: &RedisServer, kind: &str) {
    if kind == "stream" {
        let entry = redis.cli(&["XRANGE", STREAM, "-", "+", "COUNT", "1"]);
        redis.cli(&["XDEL", STREAM, entry.lines().next().unwrap()]);
    } else {
        redis.cli(&["LPOP", LIST]);
    }
}

fn remaining(state: &str) -> u64 {
    let number = state.split(';').find_map(|part| part.strip_prefix("r=")).unwrap();
    number.parse().unwrap()
}

/// Plays one step of a case.
#[track_caller]
fn step(weir: &Weir, redis: &RedisServer, kind: &str, step: &Value, case: &Value) {
    let expect = &step["expect"];
    match step["op"].as_str().unwrap() {
        "enqueue" => {
            let answer = weir.get(&format!("/jobs?note={}", step["payload"].as_str().unwrap()), &[]);
            let status = if expect["allowed"] == true { 202 } else { 429 };
            assert_eq!(answer.status(), status, "{kind} {case}: {step}");
            let left = remaining(answer.header("ratelimit").unwrap());
            assert_eq!(left, expect["remaining"].as_u64().unwrap(), "{kind} {case}: {step}");
            assert_eq!(answer.header("retry-after"), None, "the next worker's time is unknown");
        }
        "ack" => acknowledge(redis, kind),
        "read" => assert_eq!(read(redis, kind), expect["payload"].as_str().unwrap(), "{kind} {case}"),
        "set_limit" => reload(weir, &jobs(kind, step["limit"]["capacity"].as_u64().unwrap(), "")),
        other => panic!("{other}"),
    }
    if let Some(expected) = expect["queue_length"].as_u64() {
        assert_eq!(length(redis, kind), expected, "{kind} {case}: {step}");
    }
}

#[test]
fn every_case_of_a_leaky_queue_holds_for_both_kinds() {
    let redis = RedisServer::plain();
    let mut played = 0;
    for kind in ["stream", "list"] {
        for case in cases(include_str!("../cases/queue.jsonl")) {
            let capacity = case["limit"]["capacity"].as_u64().unwrap();
            if capacity == 0 {
                // The rules file is rejected with the advice to write `deny: true`.
                continue;
            }
            redis.cli(&["FLUSHALL"]);
            let weir = serve(&jobs(kind, capacity, ""), &[], &redis, &[]);
            for each in case["steps"].as_array().unwrap() {
                step(&weir, &redis, kind, each, &case["case"]);
            }
            played += 1;
        }
    }
    assert_eq!(played, 12);
}

#[test]
fn an_accepted_request_is_answered_with_its_entry_and_goes_no_further() {
    let redis = RedisServer::plain();
    let upstream = Upstream::answering(|_| ok("done"));
    let weir = serve(&jobs("stream", 1, ""), &[], &redis, &["--upstream", &format!("http://{}", upstream.address)]);
    let answer = weir.get("/jobs?note=a%20b", &[("x-user", "alice")]);
    assert_eq!((answer.status(), answer.header("content-type")), (202, Some("application/json")));
    assert_eq!(answer.header("ratelimit-policy"), Some("\"Jobs\";q=1"));
    assert_eq!(answer.header("ratelimit"), Some("\"Jobs\";r=0"));
    let told: Value = serde_json::from_slice(&answer.body).unwrap();
    let entry = redis.cli(&["XRANGE", STREAM, "-", "+"]);
    assert_eq!(entry.lines().collect::<Vec<_>>(), [told["id"].as_str().unwrap(), "user", "alice", "note", "a b"]);
    let answer = weir.get("/jobs", &[]);
    assert_eq!(answer.status(), 429);
    assert!(answer.text().contains("Jobs allows 1 waiting"), "{}", answer.text());
    assert!(upstream.requests().is_empty());
    assert_eq!(weir.get("/other", &[]).text(), "done", "other requests pass");
}

#[test]
fn an_accepted_request_costs_nothing_that_only_an_upstream_could_tell() {
    let redis = RedisServer::plain();
    let limits = jobs("stream", 9, "")
        + "  Tokens: { by: global, count: 100, period: 1h, cost_from_response: { header: x-used }, reserve: 10 }\n";
    let weir = serve(&limits, &[], &redis, &[]);
    let left = || {
        call(&weir, &json!({ "limit": "Tokens", "op": "check", "cost": 0 })).1["limits"][0]["remaining"]
            .as_u64()
            .unwrap()
    };
    for _ in 0..3 {
        assert_eq!(weir.get("/jobs", &[]).status(), 202);
    }
    assert_eq!(asked(&weir, "/envoy/jobs", &[]).status(), 202);
    becomes("the reserves are given back", 100, left);
}

#[test]
fn a_forwarded_request_tells_the_upstream_its_entry_and_no_client_can() {
    let redis = RedisServer::plain();
    let upstream = Upstream::answering(|_| ok("done"));
    let flags = ["--upstream", &format!("http://{}", upstream.address), "--trusted-proxies", "127.0.0.1"];
    let weir = serve(&jobs("list", 5, ", then: forward"), &[], &redis, &flags);
    let forged = [("x-queue-entry", "1-1"), ("connection", "x-queue-entry")];
    assert_eq!(weir.get("/jobs?note=n", &forged).text(), "done");
    assert_eq!(weir.get("/jobs", &forged[..1]).text(), "done");
    assert_eq!(weir.get("/other", &forged[..1]).text(), "done");
    let seen: Vec<Vec<String>> = upstream
        .requests()
        .iter()
        .map(|request| request.all("x-queue-entry").into_iter().map(str::to_owned).collect())
        .collect();
    let ids: Vec<String> = (0..2)
        .map(|place| {
            let entry: Value = serde_json::from_str(&redis.cli(&["LINDEX", LIST, &place.to_string()])).unwrap();
            entry["id"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(seen, [vec![ids[0].clone()], vec![ids[1].clone()], vec![]]);
}

#[test]
fn no_value_of_a_client_becomes_anything_else() {
    const VALUE: &str = "a b,user=eve 1 spend {x} \"q\" \\ % %41 =";
    let redis = RedisServer::plain();
    for kind in ["stream", "list"] {
        let weir = serve(&jobs(kind, 5, ""), &[], &redis, &[]);
        let target = "/jobs?note=x%0D%0A%00%C3%BC%2C%25";
        assert_eq!(weir.get(target, &[("x-user", VALUE)]).status(), 202);
        let (user, note) = if kind == "stream" {
            let script =
                "local e = redis.call('XRANGE', KEYS[1], '-', '+')[1][2] return cjson.encode({ e[2], e[4], #e })";
            let entry: Value = serde_json::from_str(&redis.cli(&["EVAL", script, "1", STREAM])).unwrap();
            assert_eq!(entry[2], 4, "{entry}");
            (entry[0].clone(), entry[1].clone())
        } else {
            let entry: Value = serde_json::from_str(&redis.cli(&["LPOP", LIST])).unwrap();
            (entry["fields"]["user"].clone(), entry["fields"]["note"].clone())
        };
        assert_eq!((user, note), (json!(VALUE), json!("x\r\n\0ü,%")), "{kind}");
    }
    let weir = serve(&jobs("stream", 5, ""), &[], &redis, &[]);
    let before = length(&redis, "stream");
    let answer = weir.get("/jobs", &[("x-user", &"a".repeat(9_000))]);
    assert_eq!(answer.status(), 400);
    assert!(answer.text().contains("the queue entry of Jobs must be at most 8192 bytes"), "{}", answer.text());
    assert_eq!(length(&redis, "stream"), before);
}

#[test]
fn a_request_is_queued_only_if_no_other_limit_denies_it_and_costs_nothing_if_the_queue_is_full() {
    let redis = RedisServer::plain();
    let rules = jobs("stream", 2, "") + "  Users: { by: { header: x-user }, burst: 3 }\n";
    let weir = serve(&rules, &[], &redis, &[]);
    for (user, status, waiting) in [("a", 202, 1), ("a", 202, 2), ("a", 429, 2), ("a", 429, 2)] {
        assert_eq!(weir.get("/jobs", &[("x-user", user)]).status(), status);
        assert_eq!(length(&redis, "stream"), waiting);
    }
    acknowledge(&redis, "stream");
    assert_eq!(weir.get("/jobs", &[("x-user", "a")]).status(), 202, "denied requests were not charged to Users");
    acknowledge(&redis, "stream");
    redis.cli(&["CONFIG", "RESETSTAT"]);
    let answer = weir.get("/jobs", &[("x-user", "a")]);
    assert_eq!((answer.status(), answer.header("ratelimit")), (429, Some("\"Users\";r=0")));
    assert_eq!((length(&redis, "stream"), redis.calls("xadd"), redis.calls("set")), (1, 0, 0));
}

#[test]
fn applications_add_and_give_back_entries_by_name() {
    let redis = RedisServer::plain();
    let weir = serve(&jobs("stream", 2, ", max_age: 10m"), &[], &redis, &[]);
    let spend = json!({ "limit": "Jobs", "fields": { "user": "alice", "note": "n" }, "cost": 7 });
    let (status, told) = call(&weir, &spend);
    let limit = &told["limits"][0];
    assert_eq!((status, &limit["remaining"], &limit["cost"]), (200, &json!(1), &json!(1)), "{told}");
    let entry = limit["entry"].as_str().unwrap().to_owned();
    assert!(redis.cli(&["XRANGE", STREAM, "-", "+"]).ends_with("user\nalice\nnote\nn"));
    let (_, told) = call(&weir, &json!({ "op": "check", "limit": "Jobs" }));
    assert_eq!((&told["limits"][0]["remaining"], told["limits"][0].get("entry")), (&json!(0), None), "{told}");
    let refund = json!({ "op": "refund", "limit": "Jobs", "entry": entry });
    for outcome in ["allowed", "unchanged"] {
        let (status, told) = call(&weir, &refund);
        assert_eq!((status, &told["limits"][0]["outcome"]), (200, &json!(outcome)), "{told}");
        assert_eq!(length(&redis, "stream"), 0);
    }
    let (_, told) = call(&weir, &json!({ "op": "refund", "limit": "Jobs" }));
    assert_eq!(told["limits"][0]["outcome"], "unchanged", "{told}");
    for (wrong, pointer, part) in [
        (json!({ "op": "reset", "limit": "Jobs" }), "#/limit", "only its workers remove entries"),
        (json!({ "limit": "Jobs", "fields": { "who": "x" } }), "#/fields", "unknown field `who`"),
        (json!({ "limit": "Jobs", "fields": ["x"] }), "#/fields", "expected an object"),
        (json!({ "op": "refund", "limit": "Jobs", "entry": "1" }), "#/entry", "1795305600000-0"),
        (json!({ "limit": "Jobs", "burst": 1, "count": 1, "period": "1s" }), "#/count", "per_call"),
    ] {
        let (status, told) = call(&weir, &wrong);
        let error = &told["errors"][0];
        assert_eq!((status, &error["pointer"]), (400, &json!(pointer)), "{wrong}: {told}");
        assert!(error["detail"].as_str().unwrap().contains(part), "{told}");
    }
    // A full queue's denial says when the oldest entry goes stale.
    let (_, told) = call(&weir, &json!({ "request": { "url": "http://a/jobs", "headers": { "x-user": "bob" } } }));
    assert!(told["limits"][0]["entry"].is_string(), "{told}");
    call(&weir, &spend);
    let (status, told) = call(&weir, &spend);
    let wait = told["retry_after_ms"].as_u64().unwrap();
    assert!(status == 429 && (540_000..=600_000).contains(&wait), "{told}");
}

#[test]
fn each_gateway_is_told_what_it_can_pass_on() {
    let redis = RedisServer::plain();
    let weir = serve(&jobs("stream", 9, ""), &[], &redis, &[]);
    let original = [
        ("x-original-method", "GET"),
        ("x-original-uri", "/jobs"),
        ("x-original-host", "a.example"),
        ("x-real-ip", "192.0.2.1"),
    ];
    let nginx = asked(&weir, "/nginx", &original);
    assert_eq!((nginx.status(), nginx.header("x-ratelimit-status")), (403, Some("202")));
    let envoy = asked(&weir, "/envoy/jobs", &[]);
    assert_eq!(envoy.status(), 202);
    assert!(envoy.text().starts_with("{\"id\":\""), "{}", envoy.text());
    assert_eq!(length(&redis, "stream"), 2);
    let forwarded = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/jobs"),
        ("x-forwarded-host", "a.example"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-for", "192.0.2.1"),
    ];
    for path in ["/forward", "/haproxy"] {
        let answer = asked(&weir, path, &forwarded);
        assert_eq!(answer.status(), 400, "{path}");
        assert!(answer.text().contains("use `then: forward`"), "{}", answer.text());
    }
    assert_eq!(length(&redis, "stream"), 2, "nothing was added for a gateway that would let it pass");
    reload(&weir, &jobs("stream", 9, ", then: forward"));
    for (path, headers) in [("/forward", &forwarded[..]), ("/nginx", &original[..])] {
        let answer = asked(&weir, path, headers);
        assert_eq!(answer.status(), 200, "{path}");
        let id = answer.header("x-queue-entry").unwrap().to_owned();
        assert!(redis.cli(&["XRANGE", STREAM, &id, &id]).starts_with(&id), "{path}");
    }
}

#[test]
fn a_queue_that_cannot_be_written_is_a_store_error() {
    let redis = RedisServer::plain();
    let rules = jobs("stream", 9, "");
    let weir = serve(&rules, &[], &redis, &["--access-log", "-"]);
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let answer = weir.get("/jobs", &[]);
    assert_eq!((answer.status(), length(&redis, "stream")), (503, 0), "an accepted request must be in the queue");
    weir.until_logged("OOM");
    reload(&weir, &jobs("stream", 9, ", on_store_error: allow"));
    assert_eq!(weir.get("/jobs", &[]).status(), 200);
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(weir.get("/jobs", &[]).status(), 202);
    redis.cli(&["DEL", STREAM]);
    redis.cli(&["SET", STREAM, "mine"]);
    // The log has one line per second.
    eventually("the log says so", || {
        assert_eq!(weir.get("/jobs", &[]).status(), 200);
        if weir.log().contains("WRONGTYPE") { Ok(()) } else { Err(weir.log()) }
    });
    assert_eq!(redis.cli(&["GET", STREAM]), "mine");
}

#[test]
fn a_queue_in_shadow_takes_nothing_and_a_lost_script_is_sent_again() {
    let redis = RedisServer::plain();
    let weir = serve(&jobs("stream", 9, ""), &[], &redis, &["--shadow"]);
    assert_eq!((weir.get("/jobs", &[]).status(), length(&redis, "stream")), (200, 0));
    let weir = serve(&jobs("stream", 9, ""), &[], &redis, &[]);
    for waiting in 1..=3 {
        redis.cli(&["SCRIPT", "FLUSH"]);
        assert_eq!((weir.get("/jobs", &[]).status(), length(&redis, "stream")), (202, waiting));
    }
}

/// Runs a block of the page on queues with this Redis, and a timeout for its loops.
fn run_block(redis: &RedisServer, language: &str, first: &str) -> String {
    let page = include_str!("../../docs/queues.md");
    let start = format!("```{language}\n{first}");
    let from = page.find(&start).unwrap_or_else(|| panic!("no block that begins with {start:?}"));
    let block = &page[from + language.len() + 4..];
    let block = &block[..block.find("```").unwrap()];
    let port = redis.address().rsplit_once(':').unwrap().1.to_owned();
    let script = format!("redis-cli() {{ command redis-cli -p {port} \"$@\"; }}\n{block}");
    finish(Command::new("timeout").args(["3", "bash", "-c", &script])).text()
}

#[test]
fn the_workers_on_the_page_work() {
    const README: &str = "limits:\n  Reports: { match: { path: /reports }, by: global, algorithm: queue, kind: KIND, \
                          capacity: 10, fields: { user: { header: x-user }, path: path } }\n";
    let redis = RedisServer::plain();
    for (kind, first, key, count) in [
        ("stream", "# A worker of a stream", "weir:{0}:Reports#queue", "XLEN"),
        ("list", "# A worker of a list", "weir:{0}:Reports#queue.list", "LLEN"),
    ] {
        let weir = serve(&README.replace("KIND", kind), &[], &redis, &[]);
        for user in ["alice", "bob"] {
            assert_eq!(weir.get("/reports", &[("x-user", user)]).status(), 202);
        }
        assert_eq!(redis.cli(&[count, key]), "2");
        let said = run_block(&redis, "sh", first);
        assert!(said.contains("alice") && said.contains("bob") && said.contains("/reports"), "{kind}: {said}");
        assert_eq!(redis.cli(&[count, key]), "0", "{kind}: {said}");
    }
}

#[test]
fn a_server_that_asks_for_acl_rules_needs_no_more_than_keys_and_scripting() {
    let lines = vec!["user weir on >secret ~weir:{0}:* +@all -@dangerous -@admin".into()];
    let redis = RedisServer::start(&RedisConfig { lines, ..RedisConfig::default() });
    let url = redis.url().replace("redis://", "redis://weir:secret@");
    let weir = Weir::serve(&jobs("stream", 1, ", max_age: 1m"), &["--store", &url, "--workers", "1"]);
    crate::support::becomes("the worker is connected", 1, || weir.metric("weir_store_connections"));
    assert_eq!((weir.get("/jobs", &[]).status(), weir.get("/jobs", &[]).status()), (202, 429));
}
