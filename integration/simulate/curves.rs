//! `--curve`: what each limit would deny with other numbers.

use std::fmt::Write as _;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{directory, simulate};

/// Requests of clients, by second of a log that begins on a Monday.
fn log(requests: &[(u32, u8)]) -> String {
    requests.iter().fold(String::new(), |mut log, (second, client)| {
        let (day, hour, minute) = (second / 86_400 + 2, second / 3_600 % 24, second / 60 % 60);
        let second = second % 60;
        let _ = writeln!(
            log,
            "192.0.2.{client} - - [{day:02}/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"a\""
        );
        log
    })
}

fn report(rules: &str, log: &str, flags: &[&str]) -> Value {
    let directory = directory(rules, log);
    let done = simulate(directory.path(), &[&["--format", "json"], flags].concat());
    assert_eq!(done.code, Some(0), "{}", done.text());
    serde_json::from_str(&done.out).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Rules with these numbers deny as much, also beside an override and another limit that denies.
    #[test]
    fn a_point_is_what_a_simulation_with_its_numbers_says(
        mut requests in prop::collection::vec((0..1_500_u32, 1..6_u8), 30..300),
        algorithm in prop::sample::select(vec!["gcra", "token_bucket", "fixed_window", "sliding_window", "sliding_log"]),
        picked in prop::collection::vec(any::<prop::sample::Index>(), 2),
    ) {
        requests.sort_unstable();
        let log = log(&requests);
        let rules = |burst: u64, count: u64| {
            let burst = if algorithm.starts_with("sliding") || burst == count { String::new() } else { format!("burst: {burst}, ") };
            format!(
                "limits:\n  Tried: {{ by: ip, algorithm: {algorithm}, {burst}count: {count}, period: 1m, mode: shadow }}\n  \
                 Other: {{ by: global, count: 200, period: 5m }}\n  \
                 Shut: {{ match: {{ cidr: 192.0.2.4/32 }}, deny: true }}\noverrides:\n  - Tried: {{ ids: [192.0.2.5], count: 1, period: 10m }}\n"
            )
        };
        let (burst, count) = if algorithm.starts_with("sliding") { (4, 4) } else { (3, 4) };
        let found = report(&rules(burst, count), &log, &["--curve"]);
        let curve = &found["limits"]["Tried"]["curve"];
        let axes: Vec<&String> = curve["curves"].as_object().unwrap().keys().collect();
        prop_assert!(axes.len() == 3 || axes == ["both"], "{axes:?}");
        for (axis, points) in curve["curves"].as_object().unwrap() {
            let points = points.as_array().unwrap();
            for picked in &picked {
                let point = picked.get(points);
                let number = point["number"].as_u64().unwrap();
                let (burst, count) = match axis.as_str() {
                    "burst" => (number, count),
                    "count" => (burst, number),
                    _ => (number, number),
                };
                let with = &report(&rules(burst, count), &log, &[])["limits"]["Tried"];
                let told = (&point["denied"], &point["ids_denied"]);
                prop_assert_eq!(told, (&with["denied"], &with["ids_denied"]), "{} {}: {}", axis, number, rules(burst, count));
            }
        }
    }
}

/// Two weeks, with more requests on Tuesdays.
#[test]
fn a_log_of_weeks_is_compared_by_day() {
    let requests: Vec<(u32, u8)> = (0..15)
        .flat_map(|day| (0..if day % 7 == 1 { 9 } else { 2 }).map(move |second| (day * 86_400 + 36_000 + second, 1)))
        .collect();
    let rules = "limits:\n  PerIp: { by: ip, algorithm: sliding_log, count: 5, period: 1h }\n";
    let curve = &report(rules, &log(&requests), &["--curve"])["limits"]["PerIp"]["curve"];
    assert_eq!(curve["peaks"], json!({ "p50": 9, "p90": 9, "p99": 9, "p999": 9, "max": 9 }));
    let points = curve["curves"]["both"].as_array().unwrap();
    let by_day = |number: u64| points.iter().find(|point| point["number"] == number).unwrap()["denied_by_day"].clone();
    assert_eq!(by_day(5), json!([0, 8, 0, 0, 0, 0, 0]));
    assert_eq!(by_day(1), json!([3, 16, 2, 2, 2, 2, 2]));

    let week = report(rules, &log(&requests[..30]), &["--curve"]);
    assert_eq!(week["limits"]["PerIp"]["curve"]["curves"]["both"][0]["denied_by_day"], Value::Null);
    assert_eq!(report(rules, &log(&requests), &[])["limits"]["PerIp"]["curve"], Value::Null);
}

#[test]
fn a_limit_without_a_curve_says_why() {
    let rules = "limits:\n  Two: { by: ip, rates: [{ count: 2, period: 1s }, { count: 9, period: 1h }] }\n";
    let directory = directory(rules, &log(&[(1, 1), (2, 1)]));
    let text = simulate(directory.path(), &["--curve"]).out;
    assert!(text.contains("\n  curve        none: it has several windows\n"), "{text}");
    let page = simulate(directory.path(), &["--format", "html"]).out;
    assert!(page.contains("No curve: it has several windows"), "{page}");
}

/// Each descriptor of a call has a bucket of its own, and a curve would count the first one only.
#[test]
fn a_limit_that_calls_charge_more_than_once_has_no_curve() {
    let rules = "limits:\n  Key: { match: { domain: d }, by: { descriptor: k }, count: 1, period: 1h }\n";
    let curve = |descriptors: Value| {
        let head = json!({ "cookies": [], "descriptors": ["k"], "headers": [], "weir_recording": 1 });
        let call = json!({ "at_us": 1_795_233_606_789_014_u64, "domain": "d", "descriptors": descriptors });
        report(rules, &format!("{head}\n{call}\n{call}\n"), &["--curve"])["limits"]["Key"]["curve"].clone()
    };
    let several = curve(json!([[["k", "a"]], [["k", "b"]]]));
    assert_eq!(several, json!({ "none": "some calls charge it more than once" }));
    let one = curve(json!([[["k", "a"]]]));
    assert_eq!((&one["requests"], &one["curves"]["both"][0]["denied"]), (&json!(2), &json!(1)));
}
