//! The path of docs/change-a-limit.md with logs as clusters keep them: three nodes behind a balancer, each line behind the
//! prefix of the container runtime.

use std::fmt::Write as _;

use crate::support::binary::run_in;
use crate::support::weir::Weir;

const RULES: &str = "
limits:
  SearchPerAddress: { match: { path: /search }, by: ip/64, count: 600, period: 1h }
";

/// A script among the clients.
const SCRIPT: &str = "198.51.100.9";

/// Four hours: people who search up to 12 times an hour, and a script in the night. The balancer, 10.1.0.5, deals requests to the nodes in turn.
fn logs() -> [String; 3] {
    let mut logs = [const { String::new() }; 3];
    let mut request = 0;
    let mut add = |minute: u32, second: u32, client: &str| {
        let (hour, minute) = (minute / 60, minute % 60);
        let log = &mut logs[request % 3];
        request += 1;
        let _ = writeln!(
            log,
            "2026-11-22T{hour:02}:{minute:02}:{second:02}.{request:09}Z stdout F 10.1.0.5 - - [22/Nov/2026:{hour:02}:{minute:02}:\
             {second:02} +0000] \"GET /search?q={request} HTTP/1.1\" 200 512 \"-\" \"Mozilla/5.0\" \"{client}\""
        );
    };
    for minute in 0..240 {
        for client in 5..=16 {
            if minute * client % 60 + 14 < client + 10 {
                add(minute, client, &format!("192.0.2.{client}"));
            }
        }
        if (60..180).contains(&minute) {
            for second in [45, 50, 55] {
                add(minute, second, SCRIPT);
            }
        }
    }
    logs
}

#[test]
fn from_the_logs_of_three_nodes_to_an_enforced_limit() {
    let weir = Weir::serve(RULES, &["--trusted-proxies", "127.0.0.1/32"]);
    let directory = weir.directory();
    std::fs::create_dir(directory.join("logs")).unwrap();
    for (node, log) in (1..).zip(logs()) {
        std::fs::write(directory.join(format!("logs/node-{node}.log")), log).unwrap();
    }
    let trusted = ["--trusted-proxies", "10.0.0.0/8"];

    // Without the flag, the report says that it is missing.
    let balancer = run_in(directory, &["simulate", "logs"]);
    assert!(balancer.out.contains("if these are proxies, give --trusted-proxies"), "{}", balancer.text());

    let suggested = run_in(directory, &[&["suggest", "logs", "--deny-at-most-ids", "8%"], &trusted[..]].concat());
    assert_eq!(suggested.code, Some(0), "{}", suggested.text());
    let candidate = suggested.out.lines().find(|line| line.trim_start().starts_with("candidate: ")).unwrap().trim();
    let tests = suggested.out.split("```yaml\ntests:\n").nth(1).unwrap().split("```").next().unwrap();
    let count: usize = candidate.split("count: ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!((8..100).contains(&count), "{candidate}");

    let proposed = RULES.replace("600", &count.to_string()) + "tests:\n" + tests;
    std::fs::write(directory.join("proposed.yaml"), &proposed).unwrap();
    let simulated = run_in(
        directory,
        &[&["simulate", "logs", "--limits", "proposed.yaml", "--show-ids", "--impact", "impact.csv"], &trusted[..]]
            .concat(),
    );
    assert!(simulated.code == Some(0) && simulated.out.contains("1 of "), "{}", simulated.text());
    let impact = std::fs::read_to_string(directory.join("impact.csv")).unwrap();
    let ids: Vec<&str> = impact.lines().skip(1).filter_map(|line| line.split(',').nth(2)).collect();
    assert_eq!(ids, [SCRIPT]);
    let tested = run_in(directory, &["test", "proposed.yaml", "--require-denials"]);
    assert_eq!(tested.code, Some(0), "{}", tested.text());

    let with_candidate = RULES.replace("period: 1h }", &format!("period: 1h, {candidate} }}"));
    weir.reload(&with_candidate);
    let ask = |client: &str| weir.get("/search?q=a", &[("x-forwarded-for", client)]).start;
    for _ in 0..count + 3 {
        assert_eq!(ask(SCRIPT), "HTTP/1.1 200 OK");
    }
    let decisions =
        |result: &str| weir.metric(&format!("weir_decisions_total{{limit=\"SearchPerAddress\",result=\"{result}\"}}"));
    let candidate = "weir_candidate_decisions_total{limit=\"SearchPerAddress\",candidate=\"\",result=\"denied\"}";
    assert_eq!((weir.metric(candidate), decisions("denied")), (3, 0));

    weir.reload(&proposed);
    assert_eq!(ask(SCRIPT), "HTTP/1.1 429 Too Many Requests");
    assert_eq!(ask("192.0.2.1"), "HTTP/1.1 200 OK");
}
