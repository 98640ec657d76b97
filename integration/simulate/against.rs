//! Two rules files and one log.

use std::path::Path;

use serde_json::{Value, json};

use super::{directory, simulate};

#[track_caller]
fn report(directory: &Path, flags: &[&str]) -> Value {
    let found = simulate(directory, &[flags, &["--format", "json", "--show-ids"]].concat());
    assert_eq!(found.code, Some(0), "{}", found.text());
    serde_json::from_str(&found.out).unwrap()
}

/// Checks the report of one file against another: that of the other file is the one it has alone. Returns the denied requests of
/// the two.
#[track_caller]
fn check(log: &str, here: &str, there: &str) -> [Value; 2] {
    let directory = directory(here, log);
    std::fs::write(directory.path().join("other.yaml"), there).unwrap();
    let both = report(directory.path(), &["--against", "other.yaml"]);
    let alone = report(directory.path(), &["--limits", "other.yaml"]);
    for (key, value) in both["against"]["there"].as_object().unwrap() {
        assert_eq!(value, &alone[key], "`{key}` of\n{there}\nagainst\n{here}");
    }
    [both["denied"].clone(), alone["denied"].clone()]
}

/// The second request of an address waits from 2 s to 10 s and is in flight then, as the one of another address begins.
#[test]
fn a_request_waits_by_the_file_that_lets_it_wait() {
    let lines = [("192.0.2.1", 0.0), ("192.0.2.1", 2.0), ("192.0.2.2", 10.5)].map(|(client, begins)| {
        let line = json!({ "time": format!("2026-11-22T10:00:{:06.3}Z", begins + 1.0), "remote_addr": client,
            "request": "GET /a HTTP/1.1", "status": 200, "request_time": 1.0 });
        line.to_string() + "\n"
    });
    let limits = |paced: &str| {
        format!(
            "limits:\n  Paced: {{ by: ip, burst: 1, count: 1, period: 10s{paced} }}\n  \
             Flights: {{ by: global, algorithm: concurrency, burst: 1 }}\n"
        )
    };
    let (passes, waits) = (limits(", mode: shadow"), limits(", delay: 20s"));
    assert_eq!(check(&lines.concat(), &passes, &waits), [0, 1]);
    assert_eq!(check(&lines.concat(), &waits, &passes), [1, 0]);
}
