//! The Redis user of the page on Redis can do what its page says, on one server and in a cluster.

use std::fs;

use weir::store::redis::TAG_NAMES;

use super::TOKEN;
use crate::support::binary;
use crate::support::cluster::RedisCluster;
use crate::support::eventually;
use crate::support::process::Finished;
use crate::support::programs::repository;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::weir::Weir;

const LIMITS: &str = "\
limits:
  Ids: { by: { header: x-id }, count: 1000, period: 1h, lease: { tokens: 20, for: 1s } }
  Fixed: { match: { path: /fixed }, by: global, burst: 1000 }
";

/// The words after `ACL` of the page's only command that makes the user.
fn words_of_page() -> Vec<String> {
    let page = fs::read_to_string(repository().join("docs/redis.md")).unwrap();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("ACL SETUSER weir on ")).collect();
    let [line] = *lines else { panic!("{lines:?}") };
    line.split(' ').map(str::to_owned).collect()
}

fn serve(store: &str) -> Weir {
    let weir = Weir::serve(LIMITS, &["--workers", "1", "--admin-token", TOKEN, "--store", store]);
    weir.until_connected();
    weir
}

fn run(weir: &Weir, words: &[&str]) -> Finished {
    let admin = format!("http://{}", weir.admin);
    binary::run(&[words, &["--admin", &admin, "--admin-token", TOKEN]].concat())
}

/// Runs every operator's command, each of which must succeed.
#[track_caller]
fn operate(weir: &Weir) {
    eventually("the operator's connection is there", || match run(weir, &["bucket", "blocks"]) {
        Finished { code: Some(0), .. } => Ok(()),
        other => Err(other),
    });
    for id in ["7", "8", "9", "10"] {
        let bucket = format!("Ids:{id}");
        // More than an id needs for a lease.
        for _ in 0..20 {
            assert_eq!(weir.get("/", &[("x-id", id)]).status(), 200);
        }
        for words in [
            &["bucket", "get", &bucket][..],
            &["bucket", "set", &bucket, "--remaining", "2"],
            &["bucket", "refund", &bucket, "--cost", "1"],
            &["bucket", "reset", &bucket],
            &["bucket", "block", &bucket, "--for", "90m", "--reason", "scraping"],
            &["bucket", "blocks"],
            &["bucket", "unblock", &bucket],
            &["bucket", "reset", "Ids", "--all"],
            &["override", "set", &bucket, "count=40", "period=1h", "--for", "1h"],
            &["override", "get", &bucket],
            &["override", "list"],
            &["override", "delete", &bucket],
        ] {
            let Finished { code, out, err } = run(weir, words);
            assert_eq!((code, err.as_str()), (Some(0), ""), "{words:?}: {out}");
        }
    }
    let log = weir.log();
    for words in ["NOPERM", "ACL", "run this command", "give the user"] {
        assert!(!log.contains(words), "{log}");
    }
}

fn set_user(server: &RedisServer, words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(server.cli(&words), "OK");
}

#[test]
fn the_user_of_the_page_can_do_what_every_operators_command_does() {
    let server = RedisServer::plain();
    set_user(&server, &words_of_page());
    let url = format!("redis://weir:secret@{}", server.address());
    let weir = serve(&url);
    operate(&weir);
    // It gets notifications.
    assert!(server.cli(&["CLIENT", "LIST"]).contains(" user=weir "));
    assert_ne!(server.info("clients", "tracking_clients").as_deref(), Some("0"));
    let checked =
        binary::run(&["check", "--store", &url, "--store-timeout", "1m", weir.limits_file().to_str().unwrap()]);
    assert_eq!(checked.code, Some(0), "{}", checked.text());
    for purpose in ["every limit", "`weir bucket block` needs", "idle gateways poll"] {
        assert!(!checked.text().contains(purpose), "{}", checked.text());
    }

    server.cli(&["ACL", "SETUSER", "weir", "-zadd"]);
    let refused = run(&weir, &["override", "set", "Ids:7", "count=40", "period=1h"]);
    assert_eq!(refused.code, Some(3), "{}", refused.text());
    let right = "the user may not call what blocks, live overrides and resets need: `ACL SETUSER weir +zscore";
    assert!(refused.err.contains(right), "{}", refused.err);
}

#[test]
fn the_user_of_the_page_with_the_rights_for_a_cluster_can_as_well() {
    let cluster = RedisCluster::start_with(&RedisConfig::default(), 2, 0);
    let mut words = words_of_page();
    for more in ["~weir:*", "+asking", "+cluster|slots", "+cluster|info"] {
        words.push(more.to_owned());
    }
    for node in &cluster.nodes {
        set_user(node, &words);
    }
    let weir = serve(&cluster.url().replace("://", "://weir:secret@"));
    operate(&weir);
    // The slot of the notes moves.
    let slot = cluster.hash_slot(&format!("weir:{{{}}}:!blocked", TAG_NAMES[0]));
    let owner = cluster.owner(slot);
    cluster.move_slot(slot, 1 - owner);
    operate(&weir);
}
