//! Decisions on the other servers: older and newer Redis, and Valkey.

use std::thread;

use super::inspection::{RIGHTS, with_user};
use crate::support::binary::run;
use crate::support::redis::{OTHER_SERVERS, RedisConfig, RedisServer};

/// They run at the same time: each spends most of it waiting for round trips.
#[test]
fn every_scenario_passes_on_each_server() {
    let file = "integration/cases/decisions.jsonl";
    let cases = std::fs::read_to_string(file).unwrap().lines().count();
    thread::scope(|scope| {
        for other in OTHER_SERVERS {
            scope.spawn(move || {
                let server = RedisServer::start(&RedisConfig { other: Some(other), ..RedisConfig::default() });
                let finished = run(&["test", file, "--store", &server.url()]);
                let text = finished.text();
                assert_eq!(text.lines().last(), Some(format!("{cases} passed, 0 failed").as_str()), "{other}: {text}");
                assert_eq!(server.cli(&["DBSIZE"]), "0", "{other}");
            });
        }
    });
}

/// Their errors about rights differ.
#[test]
fn missing_rights_are_found_on_each_server() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("limits.yaml");
    std::fs::write(&file, "limits:\n  A: { algorithm: concurrency, count: 1 }\n").unwrap();
    for other in OTHER_SERVERS {
        let rights = format!("{RIGHTS} +zadd +zcount +zrange +zrangebyscore +zrem +zremrangebyscore");
        let (_server, url) = with_user(&rights, RedisConfig { other: Some(other), ..RedisConfig::default() });
        let finished = run(&["check", file.to_str().unwrap(), "--store", &url]);
        let expected =
            "may not call ZSCORE, which limits with `algorithm: concurrency` need: `ACL SETUSER weir +zscore`";
        assert!(finished.code == Some(1) && finished.err.contains(expected), "{other}: {finished:?}");
    }
}
