//! Bans of ids that a limit denies too often, on every listener and every gateway.

use serde_json::{Value, json};

use super::listeners::{ALL, at_listener};
use super::{TOKEN, done, each_store};
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;
use crate::support::{becomes, eventually};

const LIMITS: &str = "\
limits:
  Login:
    match: { path: /login }
    by: { header: x-id }
    burst: 2
    count: 1
    period: 1h
    ban: { after: 3, within: 10m, for: 1h }
  Bad: { match: { path: /bad }, burst: 1, count: 1, period: 1s, ban: { after: 1, within: 1m, for: 2h, scope: all } }
  Watched: { match: { path: /watched }, by: { header: x-id }, burst: 1, mode: shadow, ban: { after: 1, within: 1m, for: 1h } }
exempt: [{ match: { path: /health } }]
";

fn serve(store: &[&str]) -> Weir {
    let flags = ["--check", "127.0.0.1:0", "--admin-token", TOKEN, "--trusted-proxies", "127.0.0.1/32"];
    let weir = Weir::serve(LIMITS, &[&flags[..], store].concat());
    weir.until_connected();
    weir
}

/// The status, and `Retry-After` in seconds.
fn get(weir: &Weir, path: &str, id: &str) -> (u16, Option<u64>) {
    let answer = weir.get(path, &[("x-id", id), ("x-forwarded-for", id)]);
    (answer.status(), answer.header("retry-after").map(|wait| wait.parse().unwrap()))
}

fn bans(weir: &Weir, limit: &str, result: &str) -> u64 {
    weir.metric(&format!("weir_bans_total{{limit=\"{limit}\",result=\"{result}\"}}"))
}

#[test]
fn the_last_strike_bans_until_an_operator_ends_it() {
    each_store(|store, _| {
        let weir = serve(store);
        let asked = [0; 5].map(|_| get(&weir, "/login", "a"));
        assert_eq!(asked.map(|(status, _)| status), [200, 200, 429, 429, 429]);
        let waits = asked.map(|(_, wait)| wait.unwrap_or_default());
        assert!(waits[3] <= 3_600 && (3_590..=3_600).contains(&waits[4]), "{waits:?}");
        let listed = done(&weir, "GET", "/blocks", "");
        let block = &listed["blocks"][0];
        assert_eq!(
            [&block["bucket"], &block["reason"], &block["by"]],
            ["Login:a", "3 denials within 10m", "limit Login"],
            "{listed}"
        );
        assert_eq!((bans(&weir, "Login", "banned"), weir.metric("weir_blocks")), (1, 1));
        // A full bucket does not end it, and denials during a ban are no strikes.
        let state = done(&weir, "POST", "/buckets/Login:a/reset", "");
        assert_eq!(state["windows"][0]["remaining"], 2, "{state}");
        for _ in 0..4 {
            let (status, wait) = get(&weir, "/login", "a");
            assert!(status == 429 && wait.is_some_and(|wait| wait > 3_500), "{status} {wait:?}");
        }
        assert_eq!(get(&weir, "/login", "b").0, 200, "another id passes");
        assert_eq!(done(&weir, "DELETE", "/buckets/Login:a/block", "")["blocked"], Value::Null);
        let statuses = [0; 5].map(|_| get(&weir, "/login", "a").0);
        assert_eq!(statuses, [200, 200, 429, 429, 429]);
        assert_eq!(bans(&weir, "Login", "banned"), 2, "it takes as many strikes as the first");
    });
}

#[test]
fn a_ban_from_everything_denies_what_the_limit_does_not_cover() {
    each_store(|store, _| {
        let weir = serve(store);
        assert_eq!([0; 2].map(|_| get(&weir, "/bad", "192.0.2.9").0), [200, 429]);
        let (status, wait) = get(&weir, "/", "192.0.2.9");
        assert!(status == 429 && wait.is_some_and(|wait| wait > 7_100), "{status} {wait:?}");
        assert_eq!(get(&weir, "/", "192.0.2.10").0, 200);
        let explained = |client: &str| {
            let request = json!({ "method": "GET", "url": "http://a.example/", "ip": client });
            done(&weir, "POST", "/explain", &request.to_string())["limits"][1].clone()
        };
        let bad = explained("192.0.2.9");
        assert!(bad["name"] == "Bad" && bad["blocked_for"].as_u64().is_some_and(|left| left > 7_100), "{bad}");
        assert_eq!(explained("192.0.2.10")["blocked_for"], Value::Null);
        assert_eq!(get(&weir, "/health", "192.0.2.9").0, 200, "what is exempt passes bans");
    });
}

#[test]
fn a_limit_in_shadow_tells_whom_it_would_ban() {
    each_store(|store, _| {
        let weir = serve(store);
        assert_eq!([0; 4].map(|_| get(&weir, "/watched", "a").0), [200; 4]);
        let told = ["would_ban", "banned", "dropped"].map(|result| bans(&weir, "Watched", result));
        assert_eq!((told, weir.metric("weir_blocks")), ([1, 0, 0], 0));
    });
}

#[tokio::test]
async fn every_listener_bans() {
    const EACH: &str = "\
limits:
  PerClient: { by: ip, burst: 1, ban: { after: 1, within: 1m, for: 1h } }
  PerUser: { match: { domain: api }, by: { descriptor: user }, burst: 1, ban: { after: 1, within: 1m, for: 1h } }
";
    for listener in ALL {
        let flags = ["--check", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--trusted-proxies", "127.0.0.1/32"];
        let weir = Weir::serve(EACH, &flags);
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(at_listener(&weir, listener).await.status);
        }
        assert_eq!(statuses, [200, 429, 429], "{listener}");
        assert_eq!(weir.metric("weir_blocks"), 1, "{listener}");
    }
}

#[test]
fn strikes_at_several_gateways_ban_once_and_outlive_a_store_that_restarts_empty() {
    let redis = RedisServer::plain();
    let url = redis.url();
    let gateways = [0, 1].map(|_| serve(&["--store", &url]));
    let mut turns = gateways.iter().cycle();
    let statuses = [0; 5].map(|_| get(turns.next().unwrap(), "/login", "a").0);
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    for weir in &gateways {
        becomes("both know of the ban", 1, || weir.metric("weir_blocks"));
    }
    for weir in gateways.iter().chain(&gateways) {
        assert!(get(weir, "/login", "a").1.is_some_and(|wait| wait > 3_500));
    }
    let made = gateways.each_ref().map(bans_if_any);
    assert_eq!(made.iter().sum::<u64>(), 1, "{made:?}");
    // Without its buckets the id could pass again.
    redis.cli(&["FLUSHALL"]);
    eventually("a gateway writes it back", || match redis.cli(&["EXISTS", "weir:{0}:!blocked"]) {
        kept if kept.trim() == "1" => Ok(()),
        other => Err(other),
    });
    for weir in &gateways {
        assert_eq!(get(weir, "/login", "a").0, 429);
    }
}

fn bans_if_any(weir: &Weir) -> u64 {
    let page = weir.admin("/metrics");
    let name = "weir_bans_total{limit=\"Login\",result=\"banned\"} ";
    page.text().lines().find_map(|line| line.strip_prefix(name)).map_or(0, |count| count.parse().unwrap())
}
