//! The ids that limits deny most.

use serde_json::{Value, json};

use super::{TOKEN, ask_with, each_store};
use crate::support::eventually;
use crate::support::weir::Weir;
use crate::support::wire::{Message, Wire};

const LIMITS: &str = "\
limits:
  Even: { match: { path: /even }, by: { header: x-id }, burst: 1 }
  Log: { match: { path: /log }, by: [{ header: x-id }, ip], algorithm: sliding_log, count: 1, period: 10h, mode: shadow }
  Tried: { match: { path: /tried }, by: { header: x-id }, burst: 99, candidate: { burst: 1 } }
  Global: { match: { path: /global }, by: global, burst: 1 }
";

fn serve(flags: &[&str]) -> Weir {
    let weir = Weir::serve(LIMITS, &[&["--workers", "2", "--admin-token", TOKEN], flags].concat());
    weir.until_connected();
    weir
}

fn top(weir: &Weir, query: &str) -> Message {
    ask_with(weir, "GET", &format!("/top{query}"), &[], "")
}

fn lists(weir: &Weir, query: &str) -> Value {
    let answer = top(weir, query);
    assert_eq!(answer.status(), 200, "{answer:?}");
    serde_json::from_str(answer.text()).unwrap()
}

/// The lists without the hashes, which differ from process to process.
fn without_hashes(mut lists: Value) -> Value {
    for kind in lists.as_object_mut().unwrap().values_mut() {
        for entry in kind.as_object_mut().unwrap().values_mut().flat_map(|ids| ids.as_array_mut().unwrap()) {
            assert!(entry.as_object_mut().unwrap().remove("hash").is_some());
        }
    }
    lists
}

/// Sends requests of these ids, so many of each, on connections of both workers.
fn send(weir: &Weir, path: &str, ids: &[(&str, usize)]) {
    for (id, times) in ids {
        for _ in 0..*times {
            weir.get(path, &[("x-id", id)]);
        }
    }
}

#[test]
fn the_ids_denied_most_come_first_for_each_kind_of_denial() {
    each_store(|store, name| {
        let weir = serve(&[&["--log-ids", "clear"], store].concat());
        send(&weir, "/even", &[("a", 3), ("b:1", 6), ("c", 1)]);
        send(&weir, "/log", &[("x:y", 2)]);
        send(&weir, "/tried", &[("a", 4), ("d", 2)]);
        send(&weir, "/global", &[("a", 4)]);
        let entry = |id: &str, denied: u64| json!({"id": id, "denied": denied, "error": 0});
        let lists = |weir: &Weir, query: &str| without_hashes(lists(weir, query));
        let expected = json!({
            "limits": {"Even": [entry("b:1", 5), entry("a", 2)]},
            "shadow": {"Log": [entry("x%3Ay:127.0.0.1", 1)]},
            "candidates": {"Tried": [entry("a", 3), entry("d", 1)]},
        });
        assert_eq!(lists(&weir, ""), expected, "{name}");
        let one = lists(&weir, "?limit=Even&n=1");
        assert_eq!(one, json!({"limits": {"Even": [entry("b:1", 5)]}, "shadow": {}, "candidates": {}}), "{name}");
        assert_eq!(lists(&weir, "?limit=Global")["limits"], json!({}), "{name}: it has one bucket for all");
    });
}

#[test]
fn ids_are_in_clear_beside_the_hash_of_the_log() {
    let weir = serve(&["--log-denials", "100/s"]);
    send(&weir, "/even", &[("secret-id", 2)]);
    send(&weir, "/tried", &[("secret-id", 2)]);
    weir.until_logged("request denied");
    let answer = top(&weir, "");
    let body: Value = serde_json::from_str(answer.text()).unwrap();
    let hash = body["limits"]["Even"][0]["hash"].as_str().unwrap();
    assert!(hash.len() == 16 && weir.log().contains(hash), "{hash} is not in {}", weir.log());
    assert!(!weir.log().contains("secret"), "{}", weir.log());
    for list in [&body["limits"]["Even"], &body["candidates"]["Tried"]] {
        assert!(list[0]["id"] == "secret-id" && list[0]["denied"] == 1, "{body}");
    }

    let silent = serve(&["--log-ids", "none"]);
    send(&silent, "/even", &[("secret-id", 2)]);
    let answer = top(&silent, "");
    assert!(answer.status() == 409 && answer.text().contains("--log-ids none"), "{answer:?}");
}

#[test]
fn mistakes_are_told_and_ids_need_a_token_over_the_network() {
    let weir = serve(&[]);
    for (query, status, part) in [
        ("?limit=Evn", 404, "there is no limit"),
        ("?n=1000", 400, "from 1 to 64"),
        ("?sort=id", 400, "there are `limit` and `n`"),
    ] {
        let answer = top(&weir, query);
        assert!(answer.status() == status && answer.text().contains(part), "{query}: {answer:?}");
    }
    assert_eq!(ask_with(&weir, "POST", "/top", &[], "").status(), 405);

    let open = Weir::serve(LIMITS, &["--admin-token", TOKEN, "--admin", "0.0.0.0:0"]);
    let port = open.listener("admin").port();
    let ask = |headers: &str| {
        let mut wire = Wire::connect(([127, 0, 0, 1], port).into());
        wire.send(format!("GET /top HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n"));
        wire.response().status()
    };
    assert_eq!((ask(""), ask("authorization: Bearer no\r\n")), (401, 401));
    assert_eq!(ask(&format!("authorization: Bearer {TOKEN}\r\n")), 200);
}

/// A reload keeps the counts of the limits that stay, and forgets the others.
#[test]
fn counts_outlive_a_reload() {
    let weir = serve(&["--log-ids", "clear"]);
    send(&weir, "/even", &[("a", 2)]);
    send(&weir, "/tried", &[("a", 2)]);
    std::fs::write(weir.limits_file(), "limits:\n  New: { deny: true }\n  Even: { by: { header: x-id }, burst: 1 }\n")
        .unwrap();
    weir.signal("HUP");
    let expected = json!({"limits": {"Even": [{"id": "a", "denied": 1, "error": 0}]}, "shadow": {}, "candidates": {}});
    eventually("the new rules are in force", || match without_hashes(lists(&weir, "")) {
        lists if lists == expected => Ok(()),
        lists => Err(lists),
    });
}
