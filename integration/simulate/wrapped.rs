//! Logs inside what collectors put around their lines.

use serde_json::{Value, json};

use super::unread::sample;
use super::{directory, simulate};

const RULES: &str = "limits:\n  PerIp: { by: ip, burst: 1, count: 1, period: 24h }\n  All: { by: global, burst: 30 }\n";

const TIME: &str = "2026-11-27T04:00:00.123456789Z";

/// Wraps the lines of a log, each at its place.
type Wrap = fn(usize, &str) -> String;

const WRAPPERS: [(&str, Wrap); 14] = [
    ("CRI", |_, line| format!("{TIME} stdout F {line}\n")),
    ("CRI", |number, line| {
        // Each third line comes in parts, between lines of another stream.
        let half =
            line.char_indices().nth(line.chars().count() / 2).filter(|_| number % 3 == 0).map_or(0, |half| half.0);
        let (start, end) = line.split_at(half);
        let part = if half > 0 { format!("{TIME} stdout P {start}\n") } else { String::new() };
        format!("{part}{TIME} stdout F {end}\n")
    }),
    ("Docker's JSON", |number, line| {
        json!({ "log": format!("{line}\n"), "stream": "stdout", "time": TIME, "n": number }).to_string() + "\n"
    }),
    ("Docker's JSON", |_, line| {
        let (start, end) = line.split_at(line.char_indices().nth(9).unwrap().0);
        let [start, end] = [start.to_owned(), format!("{end}\n")].map(|log| json!({ "log": log, "stream": "stdout" }));
        format!("{start}\n{end}\n")
    }),
    ("JSON with `log`", |_, line| json!({ "kubernetes": { "pod": "web" }, "log": line }).to_string() + "\n"),
    ("journald's JSON", |_, line| {
        json!({ "MESSAGE": line, "_HOSTNAME": "web", "__REALTIME_TIMESTAMP": "1" }).to_string() + "\n"
    }),
    ("journald's export", |_, line| format!("__CURSOR=s=1\n_HOSTNAME=web\nMESSAGE={line}\n_PID=7\n\n")),
    ("docker compose", |number, line| format!("web-{}  | {line}\n", number % 2 + 1)),
    ("docker compose, a time", |_, line| format!("\u{1b}[36mweb-1  | \u{1b}[0m{TIME} {line}\n")),
    ("kubectl --prefix", |_, line| format!("[pod/web-7d4b9c/nginx] {line}\n")),
    ("kubectl --prefix, a time", |_, line| format!("[pod/web-7d4b9c/nginx] {TIME} {line}\n")),
    ("syslog", |_, line| format!("<13>Nov 27 04:00:00 web nginx: {line}\n")),
    ("syslog", |_, line| format!("Nov  7 04:00:00 web nginx[7]: {line}\n")),
    ("syslog (RFC 5424)", |_, line| format!("<165>1 {TIME} web nginx 7 ID47 [a@1 b=\"c\"] \u{feff}{line}\n")),
];

/// The counts of a report that wrapping must not change.
#[track_caller]
fn counts(log: &str, note: Option<&str>) -> Value {
    let found = simulate(directory(RULES, log).path(), &["--format", "json"]);
    let report: Value = serde_json::from_str(&found.out).unwrap_or_else(|_| panic!("{}", found.text()));
    let told = note.map_or(String::new(), |names| format!("note: access.log: lines are read out of {names}\n"));
    assert_eq!(found.err, told, "{report}");
    let keys = ["coverage", "lines", "requests", "denied", "rejected", "from", "to"];
    let counts: Vec<Value> = keys.iter().map(|key| report[key].clone()).collect();
    json!([counts, report["limits"]["PerIp"]["denied"], report["limits"]["PerIp"]["ids"]])
}

#[test]
fn what_collectors_put_around_lines_changes_no_count() {
    for file in ["nginx-combined", "nginx-json", "caddy", "envoy-json", "traefik-text-by-source", "weir-json"] {
        let lines: Vec<String> = sample(file).into_iter().filter_map(|line| String::from_utf8(line).ok()).collect();
        let plain = counts(&(lines.join("\n") + "\n"), None);
        for (names, wrap) in WRAPPERS {
            let log: String = lines.iter().enumerate().map(|(number, line)| wrap(number, line)).collect();
            assert_eq!(counts(&log, Some(names)), plain, "{names} around {file}: {log}");
        }
    }
}

/// A byte order mark, and what a log that was cut to 0 bytes begins with while its writer goes on.
#[test]
fn damage_at_the_start_of_lines_is_no_part_of_them() {
    let line =
        |client: &str| format!("{client} - - [22/Nov/2026:10:00:00 +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"-\"\n");
    let text = line("\u{feff}192.0.2.1") + &line("192.0.2.1") + &line("\0\0\0\x00192.0.2.1") + &line("\x00192.0.2.1");
    let found = simulate(directory(RULES, &text).path(), &[]);
    assert!(found.code == Some(0) && found.out.starts_with("4 of 4 lines (100.0%) decided\n"), "{}", found.text());
    assert!(found.out.contains("PerIp: 1 of 1 id"), "{}", found.out);
}

/// A line in parts across the blocks in which a file is read.
#[test]
fn parts_of_a_line_in_different_blocks_are_one_line() {
    let path = "x".repeat(3_000);
    let log: String = (0..600)
        .map(|number| {
            let agent =
                format!("192.0.2.{} - - [22/Nov/2026:10:00:00 +0000] \"GET /{path} HTTP/1.1\" 200 5", number % 250);
            let parts = agent.as_bytes().chunks(700).map(|part| String::from_utf8_lossy(part).into_owned());
            let parts: Vec<String> = parts.collect();
            let tag = |place: usize| if place + 1 == parts.len() { "F" } else { "P" };
            let line = |(place, part)| format!("{TIME} stdout {} {part}\n", tag(place));
            parts.iter().enumerate().map(line).collect::<Vec<_>>().concat()
        })
        .collect();
    let found = simulate(directory(RULES, &log).path(), &[]);
    assert!(found.out.starts_with("600 of 600 lines (100.0%) decided\n"), "{}", found.text());
}
