//! Simulations of the same traffic, logged by several programs and collectors, against a small model of the limit.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::support::binary::run_in;

const RULES: &str = "limits:\n  PerIp: { by: ip, burst: 3, count: 3, period: 6s }\n";
const INTERVAL: u64 = 2_000;
const BURST: u64 = 3;

/// In milliseconds.
const START: u64 = 1_795_233_600_000;

#[derive(Clone)]
struct Sent {
    at: u64,
    took: u64,
    client: String,
}

impl Sent {
    const fn end(&self) -> u64 {
        self.at + self.took
    }
}

/// Some hundred requests of clients that send now rarely, now in bursts.
fn traffic() -> Vec<Sent> {
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut at = START;
    let mut sent = Vec::new();
    for _ in 0..300 {
        at += random(300);
        let client = random(12);
        let requests = if random(9) == 0 { 5 } else { 1 };
        for _ in 0..requests {
            sent.push(Sent { at, took: 1 + random(1_500), client: format!("198.51.100.{client}") });
        }
    }
    sent
}

/// The denied requests of each client: GCRA by its definition, on instants in milliseconds.
fn denied(instants: impl Iterator<Item = (u64, String)>) -> BTreeMap<String, u64> {
    let mut instants: Vec<_> = instants.collect();
    instants.sort();
    let (mut full, mut denied) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    for (at, client) in instants {
        let tat = full.get(&client).copied().unwrap_or_default().max(at) + INTERVAL;
        if tat - at > BURST * INTERVAL {
            *denied.entry(client).or_default() += 1;
        } else {
            full.insert(client, tat);
        }
    }
    denied
}

/// The name of a format, the value of `--log-format` if it is given, a line with the peer and `X-Forwarded-For`, and the instant that it
/// tells.
type Format = (&'static str, Option<&'static str>, fn(&Sent, &str, &str) -> String, fn(&Sent) -> u64);

fn seconds(millis: u64) -> String {
    format!("{}.{:03}", millis / 1_000, millis % 1_000)
}

fn rfc3339(millis: u64) -> String {
    jiff::Timestamp::from_millisecond(millis.cast_signed()).unwrap().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

fn apache(millis: u64, form: &str) -> String {
    jiff::Timestamp::from_millisecond(millis.cast_signed()).unwrap().strftime(form).to_string()
}

const FORMATS: &[Format] = &[
    (
        "a template of nginx",
        Some("$remote_addr $msec $request_time \"$request\" $status \"$http_x_forwarded_for\""),
        |sent, peer, via| {
            format!("{peer} {} {} \"GET /a HTTP/1.1\" 200 \"{via}\"", seconds(sent.end()), seconds(sent.took))
        },
        |sent| sent.at,
    ),
    (
        "main",
        None,
        |sent, peer, via| {
            let time = apache(sent.end(), "%d/%b/%Y:%H:%M:%S +0000");
            format!("{peer} - - [{time}] \"GET /a HTTP/1.1\" 200 5 \"-\" \"curl/8\" \"{via}\"")
        },
        |sent| sent.end() / 1_000 * 1_000,
    ),
    (
        "json",
        None,
        |sent, peer, via| {
            json!({ "msec": seconds(sent.end()), "request_time": seconds(sent.took), "remote_addr": peer, "request": "GET /a HTTP/1.1",
                "http_x_forwarded_for": via })
            .to_string()
        },
        |sent| sent.at,
    ),
    (
        "caddy",
        None,
        |sent, peer, via| {
            let headers = if via == "-" { json!({}) } else { json!({ "X-Forwarded-For": [via] }) };
            let request =
                json!({ "remote_ip": peer, "method": "GET", "host": "a.example", "uri": "/a", "headers": headers });
            let (ts, took) = (seconds(sent.end()), seconds(sent.took));
            format!(
                "{{\"ts\":{ts},\"logger\":\"http.log.access\",\"request\":{request},\"duration\":{took},\"status\":200}}"
            )
        },
        |sent| sent.at,
    ),
    (
        "envoy-json",
        None,
        |sent, peer, via| {
            json!({ "start_time": rfc3339(sent.at), "duration": sent.took, "downstream_remote_address": format!("{peer}:7"),
                "method": "GET", "path": "/a", "response_code": 200, "x_forwarded_for": via })
            .to_string()
        },
        |sent| sent.at,
    ),
    (
        "traefik-json",
        None,
        |sent, peer, via| {
            json!({ "StartUTC": rfc3339(sent.at), "Duration": sent.took * 1_000_000, "ClientHost": peer, "RequestMethod": "GET",
                "RequestPath": "/a", "request_X-Forwarded-For": via })
            .to_string()
        },
        |sent| sent.at,
    ),
    (
        "istio",
        None,
        |sent, peer, via| {
            let (at, took) = (rfc3339(sent.at), sent.took);
            format!(
                "[{at}] \"GET /a HTTP/1.1\" 200 - via_upstream - \"-\" 0 5 {took} 1 \"{via}\" \"curl/8\" \"1\" \"a.example\" \
                 \"10.0.0.3:80\" outbound|80||a 10.0.0.2:4 10.0.0.3:80 {peer}:5 - default"
            )
        },
        |sent| sent.at,
    ),
    (
        "kong",
        None,
        |sent, peer, via| {
            let headers = if via == "-" { json!({ "host": "a.example" }) } else { json!({ "x-forwarded-for": via }) };
            json!({ "started_at": sent.at, "client_ip": peer, "latencies": { "request": sent.took },
                "request": { "method": "GET", "uri": "/a", "headers": headers }, "response": { "status": 200 } })
            .to_string()
        },
        |sent| sent.at,
    ),
    // These have no place for `X-Forwarded-For`.
    (
        "haproxy",
        None,
        |sent, peer, _| {
            let (time, took) = (apache(sent.at, "%d/%b/%Y:%H:%M:%S%.3f"), sent.took);
            format!("{peer}:7 [{time}] in be/srv 1/0/3/6/{took} 200 5 - - ---- 1/1/1/1/0 0/0 \"GET /a HTTP/1.1\"")
        },
        |sent| sent.at,
    ),
    (
        "gcp-load-balancer",
        None,
        |sent, peer, _| {
            json!({ "timestamp": rfc3339(sent.at), "httpRequest": { "latency": seconds(sent.took) + "s", "remoteIp": peer,
                "requestMethod": "GET", "requestUrl": "https://a.example/a", "status": 200 } })
            .to_string()
        },
        |sent| sent.at,
    ),
];

const WRAPPERS: [(&str, &str); 4] = [
    ("plain", ""),
    ("CRI", "2026-11-27T04:00:00.123456789Z stdout F "),
    ("syslog", "<13>Nov 27 04:00:00 web nginx: "),
    ("compose", "web-1  | "),
];

/// The files in which nodes log the requests that they get, each in the order of the ends.
fn files(traffic: &[Sent], nodes: usize, line: impl Fn(&Sent) -> String) -> Vec<String> {
    let mut logs = vec![String::new(); nodes];
    let mut traffic: Vec<(usize, &Sent)> = traffic.iter().enumerate().collect();
    traffic.sort_by_key(|(_, sent)| sent.end());
    for (number, sent) in traffic {
        let _ = writeln!(logs[number * number % nodes], "{}", line(sent));
    }
    logs
}

#[test]
fn the_same_requests_are_denied_however_they_are_logged() {
    let traffic = traffic();
    for (name, given, line, instant) in FORMATS {
        let expected = denied(traffic.iter().map(|sent| (instant(sent), sent.client.clone())));
        assert!(expected.len() == 12 && expected.values().sum::<u64>() > 100, "{expected:?}");
        for (wrapper, prefix) in WRAPPERS {
            for nodes in [1, 3] {
                let has_via = line(&traffic[0], "", "203.0.113.1").contains("203.0.113.1");
                for is_proxied in [false, true].into_iter().filter(|is_proxied| has_via || !is_proxied) {
                    let via =
                        |sent: &Sent| if is_proxied { format!("203.0.113.1, {}", sent.client) } else { "-".to_owned() };
                    let peer = |sent: &Sent| if is_proxied { "10.0.0.9".to_owned() } else { sent.client.clone() };
                    let logs = files(&traffic, nodes, |sent| prefix.to_owned() + &line(sent, &peer(sent), &via(sent)));
                    let directory = tempfile::tempdir().unwrap();
                    std::fs::write(directory.path().join("limits.yaml"), RULES).unwrap();
                    std::fs::create_dir(directory.path().join("logs")).unwrap();
                    for (number, log) in logs.iter().enumerate() {
                        std::fs::write(directory.path().join(format!("logs/{}.log", 9 - number)), log).unwrap();
                    }
                    let mut arguments = vec!["simulate", "logs", "--format", "json", "--show-ids", "--top", "99"];
                    arguments.extend(given.iter().flat_map(|given| ["--log-format", given]));
                    arguments.extend(is_proxied.then_some("--trusted-proxies=10.0.0.0/8"));
                    let found = run_in(directory.path(), &arguments);
                    let case = format!("{name}, {wrapper}, {nodes} nodes, proxied: {is_proxied}: {}", found.text());
                    let report: Value = serde_json::from_str(&found.out).unwrap_or_else(|_| panic!("{case}"));
                    assert_eq!(
                        (found.code, &report["coverage"]["decided"]),
                        (Some(0), &traffic.len().into()),
                        "{case}"
                    );
                    let ids = report["limits"]["PerIp"]["most_denied"].as_array().unwrap().iter();
                    let ids = ids.map(|id| (id["id"].as_str().unwrap().to_owned(), id["denied"].as_u64().unwrap()));
                    assert_eq!(ids.collect::<BTreeMap<_, _>>(), expected, "{case}");
                }
            }
        }
    }
}

/// Without trusted proxies all requests are those of the balancer, which is said first.
#[test]
fn requests_that_a_proxy_passes_on_are_not_taken_for_its_own_in_silence() {
    let traffic = traffic();
    let (_, _, line, _) = FORMATS[1];
    let log = files(&traffic, 1, |sent| line(sent, "10.0.0.9", &sent.client)).concat();
    let directory = super::directory(RULES, &log);
    let all = traffic.len();
    let found = super::simulate(directory.path(), &[]);
    let told = "requests (100.0%) come from private addresses and name other clients: if these are proxies, give --trusted-proxies\n";
    assert!(
        super::behind_coverage(&found.out).starts_with(&format!("{all} of {all} {told}").replacen(
            &all.to_string(),
            &comma(all),
            2
        )),
        "{}",
        found.out
    );
    std::fs::write(directory.path().join("weir.yaml"), "trusted-proxies: 10.0.0.9/32\n").unwrap();
    let found = super::simulate(directory.path(), &["--config", "weir.yaml"]);
    assert!(found.out.contains("PerIp: 12 of 12 ids") && !found.out.contains("name other clients"), "{}", found.text());
    // What the proxy says is not in this log.
    let log = log.lines().map(|line| line.rsplit_once(" \"").unwrap().0.to_owned() + "\n").collect::<Vec<_>>().concat();
    let found = super::simulate(super::directory(RULES, &log).path(), &["--trusted-proxies", "10.0.0.9"]);
    assert!(found.code == Some(1) && found.out.contains("found `the trusted proxy (address)`"), "{}", found.text());
}

fn comma(number: usize) -> String {
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}
