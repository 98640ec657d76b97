//! `--denied`, `--impact` and `--customers`: who would be denied, when and what for, as CSV.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;

use super::{directory, simulate};
use crate::support::binary::{command, run_in};

const RULES: &str = "
limits:
  PerIp: { by: ip, algorithm: sliding_log, count: 3, period: 1m }
  Tried: { by: { header: user-agent }, algorithm: sliding_log, count: 1000, period: 1m, mode: shadow,
           candidates: { low: { count: 2, period: 1m }, lower: { count: 1, period: 1m } } }
";

/// A request of a log: the second of the day, the client, its agent, the path and the status.
type Line = (u32, u8, u8, u8, u16);

fn log(lines: &[Line]) -> String {
    lines.iter().fold(String::new(), |mut log, (second, client, agent, path, status)| {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let _ = writeln!(
            log,
            "192.0.2.{client} - - [22/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] \"GET /p{path}?q=1 HTTP/1.1\" {status} 5 \
             \"-\" \"=agent,{agent}\""
        );
        log
    })
}

/// The records of a CSV file, by column.
fn records(file: &Path) -> Vec<BTreeMap<String, String>> {
    let script = "import csv, json, sys; print(json.dumps(list(csv.DictReader(open(sys.argv[1])))))";
    let read = std::process::Command::new("python3").args(["-c", script]).arg(file).output().unwrap();
    serde_json::from_slice(&read.stdout).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// A model of its own counts the requests of each last minute.
    #[test]
    fn each_denied_request_and_each_denied_id_is_listed(
        mut lines in prop::collection::vec((0..600_u32, 1..4_u8, 0..3_u8, 0..20_u8, prop::sample::select(vec![200, 401, 404])), 1..120),
    ) {
        lines.sort_by_key(|line| line.0);
        let directory = directory(RULES, &log(&lines));
        let done = simulate(directory.path(), &["--show-ids", "--denied", "denied.csv", "--impact", "impact.csv"]);
        prop_assert_eq!(done.code, Some(0), "{}", done.text());

        let mut admitted = BTreeMap::<(&str, String), Vec<u32>>::new();
        let mut in_minute = BTreeMap::<(&str, String, u32), u64>::new();
        let mut denied = Vec::new();
        let mut ids = BTreeMap::<(&str, String), [u64; 4]>::new();
        for (second, client, agent, path, status) in &lines {
            let mut is_denied = false;
            let agent_id = format!("'=agent,{agent}");
            let candidates = [("candidate:low", agent_id.clone(), 2), ("candidate:lower", agent_id, 1)];
            let all = [("limit", format!("192.0.2.{client}"), 3)].into_iter().chain(candidates);
            for (by, id, most) in all {
                let id_use = ids.entry((by, id.clone())).or_default();
                let minute = in_minute.entry((by, id.clone(), second / 60)).or_default();
                *minute += 1;
                id_use[0] += 1;
                id_use[2] += u64::from(*status == 401);
                id_use[3] = id_use[3].max(*minute);
                let admitted = admitted.entry((by, id.clone())).or_default();
                admitted.retain(|before| before + 60 > *second);
                // A request that another limit denies takes nothing.
                if admitted.len() < most {
                    if !is_denied {
                        admitted.push(*second);
                    }
                } else {
                    is_denied |= by == "limit";
                    id_use[1] += 1;
                    let at = format!("2026-11-22T{:02}:{:02}:{:02}Z", second / 3_600, second / 60 % 60, second % 60);
                    denied.push([at, by.to_owned(), id, format!("/p{path}"), status.to_string(), format!("'=agent,{agent}")]);
                }
            }
        }
        let listed = records(&directory.path().join("denied.csv"));
        let columns = ["time", "denied_by", "id", "path", "status", "agent"];
        let mut listed: Vec<[String; 6]> = listed.iter().map(|row| columns.map(|column| row[column].clone())).collect();
        listed.sort();
        denied.sort();
        prop_assert_eq!(listed, denied);

        ids.retain(|_, counts| counts[1] > 0);
        let listed = records(&directory.path().join("impact.csv"));
        prop_assert_eq!(listed.len(), ids.len());
        for row in listed {
            let [requests, denied, unauthorized, peak] = ids[&(row["denied_by"].as_str(), row["id"].clone())];
            let counts = ["requests", "denied", "peak"].map(|column| row[column].parse::<u64>().unwrap());
            prop_assert_eq!(counts, [requests, denied, peak]);
            let share = |column: &str, part: u64| {
                let share: f64 = row[column].parse().unwrap();
                (share * f64::from(u32::try_from(requests).unwrap()) - f64::from(u32::try_from(part).unwrap())).abs() < 0.1
            };
            prop_assert!(share("share", denied) && share("share_401", unauthorized), "{row:?}");
            let paths: u64 = row["paths"].split("; ").map(|path| path.split(' ').next().unwrap().parse::<u64>().unwrap()).sum();
            prop_assert!(paths <= denied && (paths == denied || row["paths"].matches(';').count() == 4), "{row:?}");
        }
    }
}

#[test]
fn customers_are_named_beside_their_ids() {
    let lines: Vec<Line> = (0..8).map(|second| (second, 1 + u8::from(second % 2 == 1), 0, 0, 404)).collect();
    let rules = "limits:\n  Both: { by: [{ header: user-agent }, ip], count: 2, period: 1h }\n";
    let directory = directory(rules, &log(&lines));
    let customers = "\u{feff}id,name,plan\n192.0.2.1,\"Acme, Inc.\",gold\n192.0.2.1,Twice,\n198.51.100.1,Absent,free\n";
    std::fs::write(directory.path().join("customers.csv"), customers).unwrap();
    let flags = ["--customers", "customers.csv", "--show-ids", "--impact", "impact.csv"];
    let done = simulate(directory.path(), &flags);
    assert_eq!(done.code, Some(0), "{}", done.text());
    assert!(done.err.contains("note: customers.csv: 1 rows repeat an id"), "{}", done.err);
    assert!(done.err.contains("note: customers.csv has 1 of the 2 denied ids"), "{}", done.err);
    assert!(
        done.out.contains("2 =agent,0:192.0.2.1\n                 Acme, Inc.: 2 of 4 requests (50.0%) denied, peak 4, one every 2.0s (variation 0.0), 1 agent, 401: 0%, 404: 100.0%"),
        "{}",
        done.out
    );
    assert!(
        done.out.contains("\n  paths        /p0 (4)\n  methods      GET (4)\n  statuses     404 (4)\n"),
        "{}",
        done.out
    );
    let listed = records(&directory.path().join("impact.csv"));
    let named: Vec<_> =
        listed.iter().map(|row| (row["customer_name"].as_str(), row["customer_plan"].as_str())).collect();
    assert_eq!(named, [("Acme, Inc.", "gold"), ("", "")]);

    let json = simulate(directory.path(), &[&flags[..], &["--format", "json"]].concat()).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let impact = &json["limits"]["Both"]["impact"];
    assert_eq!(
        (&impact["ids"][0]["customer"], &impact["ids"][1]["customer"]),
        (&"Acme, Inc.".into(), &serde_json::Value::Null)
    );
    assert_eq!(impact["by"]["statuses"][0]["denied"], 4);
    let page = simulate(directory.path(), &[&flags[..], &["--format", "html"]].concat()).out;
    assert!(page.contains("<td>Acme, Inc.: 2 of 4 requests"), "{page}");
}

/// Without `--show-ids`, a list has the stand-ins of the report.
#[test]
fn lists_show_no_ids_unless_they_are_to() {
    let lines: Vec<Line> = (0..8).map(|second| (second, 1, 0, 0, 200)).collect();
    let directory = directory(RULES, &log(&lines));
    let done = simulate(directory.path(), &["--impact", "impact.csv", "--denied", "denied.csv"]);
    let (impact, denied) =
        (records(&directory.path().join("impact.csv")), records(&directory.path().join("denied.csv")));
    let id = &impact[0]["id"];
    assert!(id.starts_with('#') && done.out.contains(id.as_str()), "{}", done.out);
    assert!(denied.iter().any(|row| row["id"] == *id) && denied.iter().all(|row| row["id"].starts_with('#')));
    // An id may be a path or an agent.
    let told = std::fs::read_to_string(directory.path().join("denied.csv")).unwrap()
        + &std::fs::read_to_string(directory.path().join("impact.csv")).unwrap();
    assert!(!told.contains("/p0") && !told.contains("=agent") && !done.out.contains("/p0"), "{told}{}", done.out);
    let refused = simulate(directory.path(), &["--customers", "customers.csv"]);
    assert!(refused.code == Some(2) && refused.err.contains("--show-ids"), "{}", refused.text());
}

#[test]
fn what_is_read_is_not_overwritten_and_a_full_disk_is_an_error() {
    let lines: Vec<Line> = (0..8).map(|second| (second, 1, 0, 0, 200)).collect();
    let directory = directory(RULES, &log(&lines));
    let at = directory.path();
    std::fs::write(at.join("customers.csv"), "name,address\nAcme,192.0.2.1\n").unwrap();
    std::fs::create_dir(at.join("logs")).unwrap();
    std::fs::copy(at.join("access.log"), at.join("logs/access.log")).unwrap();
    std::fs::hard_link(at.join("access.log"), at.join("linked.csv")).unwrap();
    for (flags, code, told) in [
        (&["--impact", "access.log"][..], 2, "--impact access.log: the file is read"),
        (&["--denied", "./limits.yaml"], 2, "--denied ./limits.yaml: the file is read"),
        (&["logs", "--denied", "logs/access.log"], 2, "--denied logs/access.log: the file is read"),
        (&["--impact", "linked.csv"], 2, "--impact linked.csv: the file is read"),
        (&["logs", "--impact", "logs/new.csv"], 2, "--impact logs/new.csv: the file is read, or lies in a directory"),
        (&["--denied", "./a.csv", "--impact", "a.csv"], 2, "--impact a.csv: the file is also that of --denied"),
        (&["--denied", "a.csv", "--impact", "a.csv"], 2, "--impact a.csv: the file is also that of --denied"),
        (&["--denied", "absent/a.csv"], 1, "cannot write absent/a.csv: No such file"),
        (&["--denied", "/dev/full"], 1, "cannot write /dev/full: No space left"),
        (
            &["--customers", "customers.csv", "--show-ids"],
            1,
            "expected a column `id` in the first line, found `name`, `address`",
        ),
    ] {
        let done = simulate(at, flags);
        assert!(done.code == Some(code) && done.err.contains(told), "{flags:?}: {}", done.text());
    }
    let kept = std::fs::read_to_string(at.join("access.log")).unwrap();
    assert_eq!(kept, log(&lines));
    assert_eq!(run_in(at, &["simulate", "access.log"]).code, Some(0));

    // Neither is the file behind standard input, nor an old list by a run that fails.
    let input = std::fs::File::open(at.join("access.log")).unwrap();
    let refused = command(&["simulate", "-", "--denied", "access.log"]).current_dir(at).stdin(input).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert_eq!(std::fs::read_to_string(at.join("access.log")).unwrap(), log(&lines));
    std::fs::write(at.join("empty.log"), "").unwrap();
    std::fs::write(at.join("old.csv"), "of yesterday, and much longer than what is written below\n".repeat(99))
        .unwrap();
    assert_eq!(run_in(at, &["simulate", "empty.log", "--impact", "old.csv"]).code, Some(1));
    assert!(std::fs::read_to_string(at.join("old.csv")).unwrap().starts_with("of yesterday"));
    assert_eq!(run_in(at, &["simulate", "access.log", "--impact", "old.csv"]).code, Some(0));
    assert!(!std::fs::read_to_string(at.join("old.csv")).unwrap().contains("yesterday"));
}

/// A denied request may have no id, and values that occur once are not counted as often as others.
#[test]
fn requests_without_an_id_and_rare_values_are_counted_as_they_are() {
    let rules = "limits:\n  Account: { by: { header: referer }, missing: deny, count: 5, period: 1h }\n  \
                 All: { by: global, count: 1, period: 1h, mode: shadow }\n";
    let mut log = String::new();
    for number in 0..500 {
        let (minute, second) = (number / 60, number % 60);
        let _ = writeln!(
            log,
            "192.0.2.1 - - [22/Nov/2026:10:{minute:02}:{second:02} +0000] \"GET /item/{number} HTTP/1.1\" 200 5 \"-\" \"a\u{1b}[31m\""
        );
    }
    let directory = directory(rules, &log);
    let done = simulate(directory.path(), &["--show-ids", "--impact", "impact.csv", "--denied", "denied.csv"]);
    assert!(done.err.contains("note: 500 denied requests have no id"), "{}", done.err);
    assert!(!done.text().contains('\u{1b}'), "{}", done.text());
    let denied = records(&directory.path().join("denied.csv"));
    let ids: Vec<_> = denied.iter().filter(|row| row["limit"] == "Account").map(|row| row["id"].as_str()).collect();
    assert_eq!(ids, vec!["(none)"; 500]);
    assert!(denied.iter().all(|row| !row["agent"].contains('\u{1b}')), "{denied:?}");
    let impact = records(&directory.path().join("impact.csv"));
    assert!(impact.iter().all(|row| row["paths"].split("; ").all(|path| path.starts_with("1 /item/"))), "{impact:?}");
}
