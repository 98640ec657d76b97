//! Lines that a simulation cannot decide: each is counted and told before any verdict.

use std::io::Write as _;
use std::process::Command;

use serde_json::{Value, json};

use super::{behind_coverage, directory, simulate};
use crate::support::binary::run_in;
use crate::support::process::{Finished, finish};

/// Every request meets `All`; `PerIp` denies the second one of an address.
const RULES: &str =
    "limits:\n  PerIp: { by: ip, burst: 1, count: 1, period: 24h }\n  All: { by: global, burst: 1000000 }\n";

/// What collectors and damage put before lines.
const PREFIXES: [(&str, &str); 9] = [
    ("CRI", "2026-11-22T10:00:00.000000000Z stdout F "),
    ("docker compose", "web-1  | "),
    ("kubectl --prefix", "[pod/web-7d4b9c/nginx] "),
    ("syslog", "Nov 22 10:00:00 web1 nginx: "),
    ("syslog by an address", "<134>Nov 22 10:00:00 10.0.0.9 nginx: "),
    ("a host's name", "gw.example.net "),
    ("BOM", "\u{feff}"),
    ("NULs of a file cut to 0", "\0\0\0\0"),
    ("half a line", "192.0.2.9 - - [22/Nov/2026:10:0"),
];

/// Samples of servers' logs that lines are taken from.
const FILES: [&str; 12] = [
    "nginx-combined",
    "nginx-json",
    "apache-combined",
    "apache-common",
    "apache-vhost",
    "caddy",
    "envoy-text",
    "envoy-json",
    "traefik-text-by-source",
    "traefik-json-by-source",
    "weir-json",
    "weir-combined",
];

pub(super) fn sample(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/integration/cases/logs/{name}.log", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    // In one line, Traefik has a list of addresses, from which no client can be read.
    let is_listed = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        line.starts_with("198.51.100.1, ") || line.contains("\"ClientHost\":\"198.51.100.1, ")
    };
    let is_alone = |line: &&[u8]| !line.is_empty() && !is_listed(line);
    bytes.split(|byte| *byte == b'\n').filter(is_alone).map(<[u8]>::to_vec).collect()
}

/// The lines, the requests decided, and the lines left out.
#[track_caller]
fn counts(finished: &Finished) -> [u64; 3] {
    let report: Value = serde_json::from_str(&finished.out).unwrap_or_else(|_| panic!("{}", finished.text()));
    let left_out = report["left_out"].as_array().unwrap_or_else(|| panic!("{report}"));
    let left_out = left_out.iter().map(|reason| reason["lines"].as_u64().unwrap()).sum();
    let counts = [report["lines"].as_u64().unwrap(), report["requests"].as_u64().unwrap(), left_out];
    assert_eq!(counts[0], counts[1] + counts[2], "used + told = read: {report}");
    counts
}

fn denied(finished: &Finished) -> Value {
    let report: Value = serde_json::from_str(&finished.out).unwrap();
    report["denied"].clone()
}

/// The log of a server, then the same with something before each line, alone and between the lines as they were.
#[test]
fn every_line_that_is_not_decided_is_told() {
    let json = ["--format", "json"];
    for file in FILES {
        let lines = sample(file);
        let plain = simulate(directory(RULES, &lines.join(&b'\n')).path(), &json);
        assert_eq!(plain.code, Some(0), "{file}: {}", plain.text());
        let [read, used, told] = counts(&plain);
        assert!(read == lines.len() as u64 && used > 40, "{file}: {}", plain.out);
        for (name, prefix) in PREFIXES {
            let prefixed: Vec<Vec<u8>> = lines.iter().map(|line| [prefix.as_bytes(), line].concat()).collect();
            let alone = simulate(directory(RULES, &prefixed.join(&b'\n')).path(), &json);
            let is_read = alone.code == Some(0);
            if is_read {
                // The prefix is part of a value that no limit reads.
                assert_eq!((counts(&alone), denied(&alone)), (counts(&plain), denied(&plain)), "{name} before {file}");
            } else {
                assert_eq!(alone.code, Some(1), "{name} before {file}: {}", alone.text());
            }
            let both: Vec<Vec<u8>> =
                lines.iter().zip(prefixed).flat_map(|(line, prefixed)| [line.clone(), prefixed]).collect();
            let both = simulate(directory(RULES, &both.join(&b'\n')).path(), &json);
            assert_eq!(both.code == Some(0), is_read, "{name} between {file}: {}", both.text());
            let expected = if is_read { [read * 2, used * 2, told * 2] } else { [read * 2, used, told + read] };
            assert_eq!(counts(&both), expected, "{name} between {file}: {}", both.out);
        }
    }
}

/// A combined line of a client.
fn line(client: &str, second: usize) -> String {
    format!(
        "{client} - - [22/Nov/2026:10:{:02}:{:02} +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"curl/8\"\n",
        second / 60,
        second % 60
    )
}

/// So many lines, of which some have this client in place of an address.
fn log(lines: usize, unread: usize, client: &str) -> String {
    (0..lines).map(|number| line(if number < unread { client } else { "192.0.2.1" }, number)).collect()
}

#[test]
fn one_percent_of_the_lines_may_be_unread() {
    const JUNK: &str = "no line at all\n";
    for (log, expected) in [
        (log(100, 0, ""), 0),
        (log(100, 1, "a.example"), 0),
        (log(99, 1, "a.example"), 1),
        (log(200, 2, "a.example"), 0),
        (log(200, 3, "a.example"), 1),
        // The bound is one of both kinds together.
        (log(198, 0, "") + JUNK + JUNK, 0),
        (log(197, 0, "") + JUNK + JUNK, 1),
        (log(199, 1, "a.example") + JUNK, 0),
        (log(199, 2, "a.example") + JUNK, 1),
    ] {
        let directory = directory(RULES, log.as_bytes());
        let finished = simulate(directory.path(), &[]);
        let unread = log.lines().filter(|line| !line.starts_with("192.0.2.1")).count();
        let case = format!("{unread} of {}: {}", log.lines().count(), finished.text());
        assert_eq!(finished.code, Some(expected), "{case}");
        assert_eq!(finished.err.contains("--allow-unread"), expected == 1, "{case}");
        assert_eq!(simulate(directory.path(), &["--allow-unread"]).code, Some(0), "{case}");
    }
}

/// The place of a text.
#[track_caller]
fn place(text: &str, part: &str) -> usize {
    text.find(part).unwrap_or_else(|| panic!("{part} is not in\n{text}"))
}

#[test]
fn lines_without_a_client_are_told_first_with_an_example() {
    let mut text = log(90, 0, "");
    (0..10).for_each(|number| text += &line(&format!("gw.example.net 192.0.2.{number}"), 100 + number));
    let directory = directory(RULES, text.as_bytes());
    let told = "10 of 100 lines (10.0%) are left out: no client's address can be read, such as access.log:91: found `(name) (address)`";
    let verdict = "of the 90 requests that were read, 89 (98.9%) would be denied";
    let found = simulate(directory.path(), &[]);
    assert!(behind_coverage(&found.out).starts_with(&format!("{told}\n{verdict}")), "{}", found.out);
    assert!(found.err.contains("access.log:92: no client's address: found `(name) (address)`"), "{}", found.err);
    assert!(!found.text().contains("192.0.2"), "{}", found.text());
    let found = simulate(directory.path(), &["--show-ids"]);
    assert!(found.out.contains("found `gw.example.net 192.0.2.0`"), "{}", found.out);

    let found = simulate(directory.path(), &["--format", "html"]);
    assert!(place(&found.out, &told.replace('\'', "&#39;")) < place(&found.out, verdict), "{}", found.out);
    assert!(!found.out.contains("requests (98.9%) would be denied"), "{}", found.out);

    let found = simulate(directory.path(), &["--format", "json"]);
    let first = r#"{"coverage":{"decided":90,"of":100},"left_out":[{"file":"access.log","found":"found `(name) (address)`","line":91,"lines":10,"reason":"no_client"}],"interrupted":[],"#;
    assert!(found.out.starts_with(first), "{}", found.out);
    assert_eq!(counts(&found), [100, 90, 10]);
}

/// What stands in the place of the address, and how it is shown without `--show-ids`.
#[test]
fn what_is_found_in_place_of_an_address_names_no_client() {
    for (found, shown) in [
        ("piweba3y.prodigy.com", "`(name)`"),
        ("unix:", "`unix:`"),
        ("localhost", "`(name)`"),
        ("-", "nothing"),
        ("198.51.100.1, unknown", "`(address), unknown`"),
        ("192.0.2.7 via host-1.example", "`(address) via (name)`"),
        ("x\0[2001:db8::7]:81", "`x%00(address)`"),
        ("300.0.2.7", "`(name)`"),
        (&"a ".repeat(100), &format!("`{}...`", "a ".repeat(30))),
    ] {
        let directory = directory(RULES, (log(3, 0, "") + &line(found, 9)).as_bytes());
        let hidden = simulate(directory.path(), &[]);
        assert!(behind_coverage(&hidden.out).starts_with(&format!("1 of 4 lines (25.0%) are left out: no client's address can be read, such as access.log:4: found {shown}\n")), "{found}: {}", hidden.out);
    }
}

/// Only who trusts the proxies that appended the addresses can say which one is the client's.
#[test]
fn a_list_of_addresses_is_a_client_only_behind_trusted_proxies() {
    let listed = "203.0.113.9, 198.51.100.7, 10.0.0.1";
    let text = line(listed, 0) + &line("203.0.113.9, 198.51.100.8, 10.0.0.1:80", 1) + &line(listed, 2);
    let directory = directory(RULES, text.as_bytes());
    let found = simulate(directory.path(), &[]);
    let told = "3 of 3 lines (100.0%) are left out: no client's address can be read, such as access.log:1: \
                found `(address), (address), (address)`; of a list, --trusted-proxies tells which address is the client's\n";
    assert!(behind_coverage(&found.out).starts_with(told), "{}", found.text());
    assert!(found.code == Some(1) && found.err.contains("could not be read; give --trusted-proxies;"), "{}", found.err);
    for (trusted, client_denied, ids) in [("10.0.0.1", 1, 2), ("10.0.0.0/8,198.51.100.0/24", 2, 1), ("192.0.2.1", 2, 1)]
    {
        let found = simulate(directory.path(), &["--format", "json", "--trusted-proxies", trusted]);
        assert_eq!((found.code, counts(&found)), (Some(0), [3, 3, 0]), "{trusted}: {}", found.text());
        let report: Value = serde_json::from_str(&found.out).unwrap();
        let limit = &report["limits"]["PerIp"];
        assert_eq!((&limit["denied"], &limit["ids"]), (&client_denied.into(), &ids.into()), "{trusted}: {report}");
    }
}

/// Limits and logs whose requests no limit decides, for one reason or another.
#[test]
fn a_log_that_no_limit_decides_is_no_all_clear() {
    let json = |member: &str| {
        format!(
            "{{\"time\":\"2026-11-22T10:00:00Z\",\"remote_addr\":\"192.0.2.1\",\"request\":\"GET /a HTTP/1.1\"{member}}}\n"
        )
    };
    let by_key = "limits: { PerKey: { by: { header: x-api-key }, count: 1, period: 1h } }";
    let by_ip = "limits: { PerIp: { by: ip, count: 1, period: 1h } }";
    for (why, limits, log, told) in [
        ("the log lacks the header", by_key, log(9, 0, ""), "no limit decided any of the 9 requests"),
        (
            "no line has the header",
            by_key,
            json(",\"http_x_api_key\":\"\"").repeat(9),
            "no limit decided any of the 9 requests",
        ),
        (
            "no request has the path",
            "limits: { Login: { match: { path: /login }, count: 1, period: 1h } }",
            log(9, 0, ""),
            "no limit decided any of the 9 requests",
        ),
        (
            "the limit is off",
            "limits: { Off: { count: 1, period: 1h, mode: off } }",
            log(9, 0, ""),
            "no limit decided any of the 9 requests",
        ),
        ("all clients are names", by_ip, log(9, 9, "a.example"), "no request could be decided"),
        ("no client is there", by_ip, log(9, 9, "-"), "no request could be decided"),
        (
            "all requests are rejected",
            by_ip,
            log(9, 0, "").replace("GET /a HTTP/1.1", "-"),
            "no request could be decided",
        ),
    ] {
        let directory = directory(limits, log.as_bytes());
        for format in ["text", "html"] {
            let found = simulate(directory.path(), &["--format", format]);
            assert_eq!(found.code, Some(1), "{why}: {}", found.text());
            assert!(found.out.contains(told), "{why}: {}", found.out);
            assert!(!found.out.contains("would be denied"), "{why}: {}", found.out);
        }
        let found = simulate(directory.path(), &["--format", "json"]);
        assert_eq!(found.code, Some(1), "{why}: {}", found.text());
        counts(&found);
        assert_eq!(simulate(directory.path(), &["--allow-unread"]).code, Some(0), "{why}");
    }
}

/// A limit that decides nothing beside one that decides everything.
#[test]
fn limits_that_decide_nothing_are_named_before_the_details() {
    let limits = "limits:\n  PerIp: { by: ip, count: 100, period: 1h }\n  PerKey: { by: { header: x-api-key }, count: 1, period: 1h }\n  \
        Login: { match: { path: /login }, count: 1, period: 1h }\n  Off: { count: 1, period: 1h, mode: off }\n";
    let directory = directory(limits, log(9, 0, "").as_bytes());
    let found = simulate(directory.path(), &[]);
    assert_eq!(found.code, Some(0), "{}", found.text());
    let named = "1 of 3 limits decided no request: Login\n";
    assert!(place(&found.out, named) < place(&found.out, "\nPerIp: "), "{}", found.out);
    let not_simulated = "PerKey is not simulated: the log lacks the header `x-api-key`\n";
    assert!(behind_coverage(&found.out).starts_with(not_simulated), "{}", found.out);
    assert!(
        found.out.contains("\nLogin: no request of this log meets it, which reads the path, the client's address\n"),
        "{}",
        found.out
    );
    let page = simulate(directory.path(), &["--format", "html"]).out;
    assert!(page.contains(named.trim()) && page.contains("no request of this log meets it"), "{page}");
}

/// The first lines show the format, and later ones have another.
#[test]
fn a_format_that_changes_later_is_told() {
    let first = "{\"time\":\"2026-11-22T10:00:00Z\",\"remote_addr\":\"192.0.2.1\",\"request\":\"GET /a HTTP/1.1\"}\n";
    let later = first.replace("remote_addr", "peer_address");
    let text = first.repeat(1_500) + &later.repeat(500);
    let found = simulate(directory(RULES, text.as_bytes()).path(), &["--format", "json"]);
    assert_eq!((found.code, counts(&found)), (Some(1), [2_000, 1_500, 500]), "{}", found.text());
    let text = log(1_500, 0, "") + &first.repeat(500);
    let found = simulate(directory(RULES, text.as_bytes()).path(), &["--format", "json"]);
    assert_eq!((found.code, counts(&found)), (Some(1), [2_000, 1_500, 500]), "{}", found.text());
}

/// An address that a proxy has is not its client's.
#[test]
fn the_peer_does_not_stand_in_for_a_client_that_cannot_be_read() {
    let line = |client: &str| {
        format!(
            "{{\"start_time\":\"2026-11-22T10:00:00Z\",\"response_code\":200,\"downstream_remote_address\":{client},\"downstream_direct_remote_address\":\"10.0.0.1:9\"}}\n"
        )
    };
    let log = line("\"web-1 | 192.0.2.1:7\"").repeat(2) + &line("null") + &line("\"192.0.2.1:7\"");
    let found = simulate(directory(RULES, log.as_bytes()).path(), &["--format", "json"]);
    assert_eq!(counts(&found), [4, 2, 2], "{}", found.text());
}

/// The requests behind the break are unknown.
#[test]
fn a_log_that_breaks_off_is_told_first_and_fails() {
    let directory = directory(RULES, log(2_000, 0, "").as_bytes());
    finish(Command::new("gzip").arg("access.log").current_dir(directory.path()));
    let packed = directory.path().join("access.log.gz");
    let bytes = std::fs::read(&packed).unwrap();
    std::fs::File::create(&packed).unwrap().write_all(&bytes[..bytes.len() * 3 / 4]).unwrap();
    for format in ["text", "html", "json"] {
        let found = run_in(directory.path(), &["simulate", "access.log.gz", "--format", format]);
        assert_eq!(found.code, Some(1), "{}", found.text());
        let told = place(&found.out, "access.log.gz: its compressed data is broken or cut off after ");
        let verdict = if format == "json" { "\"denied\"" } else { "would be denied" };
        assert!(told < place(&found.out, verdict), "{}", found.out);
    }
    let allowed = run_in(directory.path(), &["simulate", "access.log.gz", "--allow-unread"]);
    assert_eq!(allowed.code, Some(0), "{}", allowed.text());
}

/// Limits that do not need the address decide lines without one.
#[test]
fn lines_without_a_client_count_where_nothing_needs_it() {
    let limits = "limits: { All: { by: global, burst: 3 } }";
    let found = simulate(directory(limits, log(5, 5, "a.example").as_bytes()).path(), &[]);
    assert_eq!(found.code, Some(0), "{}", found.text());
    assert!(behind_coverage(&found.out).starts_with("2 of 5 requests (40.0%) would be denied"), "{}", found.out);
    // What the other rules need counts as well.
    let directory = directory(limits, log(5, 5, "a.example").as_bytes());
    std::fs::write(directory.path().join("other.yaml"), RULES).unwrap();
    let found = simulate(directory.path(), &["--against", "other.yaml", "--format", "json"]);
    assert_eq!((found.code, counts(&found)), (Some(1), [5, 0, 5]), "{}", found.text());
}

/// A recording: its first line, two requests, two calls that carry limits, and its last line with these counts.
fn recording(counts: Option<[u64; 3]>) -> String {
    let line = |value: Value| value.to_string() + "\n";
    let head = json!({ "cookies": [], "descriptors": [], "headers": [], "weir_recording": 1 });
    let call = json!({ "at_us": 1_795_233_606_789_014_u64, "domain": "d", "descriptors": [[["k", "v"]]], "carries_limits": true });
    let request = |at: u64| {
        let at = 1_795_233_606_000_000 + at;
        json!({ "at_us": at, "method": "GET", "host": "a.example", "target": "/", "client": "192.0.2.7" })
    };
    let last = counts.map(|[dropped, outside, without]| {
        let counts =
            json!({ "dropped": dropped, "kept": 4, "outside_the_share": outside, "without_a_request": without });
        json!({ "ended": "size", "counts": counts })
    });
    [head, request(0), call.clone(), request(1), call].into_iter().chain(last).map(line).collect()
}

#[test]
fn what_a_recording_lacks_is_told_first() {
    let carried = "2 of 6 lines (33.3%) are left out: their calls carry limits, which a recording does not keep, such as access.log:3\n";
    for (counts, told, verdict) in [
        (Some([0, 0, 0]), "", "1 of 2 requests (50.0%) would be denied"),
        (
            Some([1_200, 0, 3]),
            "access.log lacks 1,200 requests that came faster than they could be written, 3 calls that name their limits\n",
            "of the 2 requests that were read, 1 (50.0%) would be denied",
        ),
        (
            Some([0, 90, 0]),
            "access.log lacks 90 requests of clients outside its share\n",
            "1 of 2 requests (50.0%) would be denied",
        ),
        (
            None,
            "access.log has no last line: the recording was cut off, and nothing says what else is missing\n",
            "of the 2 requests that were read, 1 (50.0%) would be denied",
        ),
    ] {
        let carried =
            if counts.is_some() { carried.to_owned() } else { carried.replace("6 lines (33.3%)", "5 lines (40.0%)") };
        let directory = directory(RULES, recording(counts).as_bytes());
        let found = simulate(directory.path(), &[]);
        assert_eq!(found.code, Some(0), "{}", found.text());
        assert!(behind_coverage(&found.out).starts_with(&format!("{carried}{told}{verdict}")), "{}", found.out);
        let json = simulate(directory.path(), &["--format", "json"]);
        assert_eq!(self::counts(&json)[1], 2, "{}", json.out);
        let report: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(report["recordings"][0]["is_whole"], counts.is_some(), "{report}");
        assert_eq!(report["recordings"][0]["dropped"].as_u64(), counts.map(|counts| counts[0]), "{report}");
    }
}

/// Each line is looked at, whatever the first ones have.
#[test]
fn what_only_later_lines_have_is_read_from_these() {
    let plain = "{\"time\":\"2026-11-22T10:00:00Z\",\"remote_addr\":\"192.0.2.1\",\"request\":\"GET /a HTTP/1.1\"}\n";
    let with = |member: &str| plain.replace("}\n", &format!(",{member}}}\n"));
    let all = "limits:\n  All: { by: global, burst: 1000000 }\n";
    let limits = format!("{all}  PerKey: {{ by: {{ header: x-api-key }}, missing: deny, count: 1, period: 1h }}\n");
    let (key, none) = (with("\"http_x_api_key\":\"k\""), with("\"http_x_api_key\":\"\""));
    for (log, lines, requests, denied, left_out, first) in [
        (plain.repeat(1_500) + &key.repeat(2), 1_502, 2, 1, 1_500, 1),
        (plain.repeat(1_500) + &none.repeat(2) + &key + plain, 1_504, 3, 2, 1_501, 1),
        (key.repeat(2) + &plain.repeat(1_500), 1_502, 2, 1, 1_500, 3),
    ] {
        let directory = directory(&limits, log.as_bytes());
        let found = simulate(directory.path(), &[]);
        let share = if left_out == 1_501 { "99.8%" } else { "99.9%" };
        let told = format!(
            "PerKey leaves out {},{} of 1,{} lines ({share}), which lack the header `x-api-key`, such as access.log:{first}\n",
            left_out / 1_000,
            left_out % 1_000,
            lines - 1_000
        );
        assert!(found.code == Some(0) && behind_coverage(&found.out).starts_with(&told), "{told}{}", found.text());
        let report: Value = serde_json::from_str(&simulate(directory.path(), &["--format", "json"]).out).unwrap();
        let limit = &report["limits"]["PerKey"];
        assert_eq!((&limit["requests"], &limit["denied"]), (&requests.into(), &denied.into()), "{limit}");
    }
    let late = "{\"time\":\"2026-11-22T10:00:00Z\",\"remote_addr\":\"192.0.2.1\"}\n";
    let limits = format!("{all}  Paths: {{ by: path, count: 1, period: 1h }}\n");
    let directory = directory(&limits, (late.repeat(1_500) + &plain.repeat(3)).as_bytes());
    let found = simulate(directory.path(), &["--format", "json"]);
    let report: Value = serde_json::from_str(&found.out).unwrap();
    let paths = &report["limits"]["Paths"];
    assert_eq!((found.code, &paths["requests"], &paths["denied"]), (Some(1), &3.into(), &2.into()), "{report}");
}

/// Members that are not parts of a request, such as its status, are ignored and counted.
#[test]
fn what_only_later_lines_have_and_cannot_be_used_is_told() {
    let plain = "{\"time\":\"2026-11-22T10:00:00Z\",\"remote_addr\":\"192.0.2.1\",\"request\":\"GET /a HTTP/1.1\"}\n";
    let with = |member: &str| plain.replace("}\n", &format!(",{member}}}\n"));
    for (member, told) in [
        (
            "\"status\":200",
            "2 of 1,502 lines (0.13%) have members that the first lines lack, such as `status` in access.log:1501; they \
             are ignored: start the log with such a line\n",
        ),
        ("\"pod\":\"web-1\"", ""),
        (
            "\"http_x_api_key\":\"k\",\"x_api_key\":\"l\"",
            "2 of 1,502 lines (0.13%) are left out: they do not fit the format, such as access.log:1501: expected the \
             same header as in another member in `x_api_key` at byte ",
        ),
        (
            "\"http_x_api_key\":\"k\",\"http_x_api_key\":\"k\"",
            "2 of 1,502 lines (0.13%) are left out: they do not fit the format, such as access.log:1501: expected \
             only one value in `http_x_api_key` at byte ",
        ),
    ] {
        let log = plain.repeat(1_500) + &with(member).repeat(2);
        let found = simulate(directory(RULES, log.as_bytes()).path(), &[]);
        assert!(found.code == Some(0) && behind_coverage(&found.out).starts_with(told), "{member}: {}", found.text());
        assert!(!told.is_empty() || !found.out.contains("the first lines lack"), "{member}: {}", found.out);
    }
}

/// They were demand that a limit had denied, and the clients may have sent other requests for it.
#[test]
fn requests_that_were_denied_already_are_told() {
    let text = log(6, 0, "") + &log(4, 0, "").replace("\" 200 5", "\" 429 5");
    let directory = directory(RULES, text.as_bytes());
    let told =
        "4 of 10 requests (40.0%) were already answered with 429 and count like the others: a limit was in force";
    for format in ["text", "html"] {
        let found = simulate(directory.path(), &["--format", format]);
        assert!(
            place(&found.out, "9 of 10 requests (90.0%) would be denied") < place(&found.out, told),
            "{}",
            found.out
        );
        assert!(format == "html" || place(&found.out, told) < place(&found.out, "\nPerIp: "), "{}", found.out);
    }
    let report: Value = serde_json::from_str(&simulate(directory.path(), &["--format", "json"]).out).unwrap();
    assert_eq!((&report["answered_429"], &report["requests"]), (&4.into(), &10.into()));
    assert!(!simulate(self::directory(RULES, log(6, 0, "").as_bytes()).path(), &[]).out.contains("429"));
}

#[test]
fn an_instant_without_brackets_is_no_part_of_the_request() {
    let text = log(6, 0, "").replace(['[', ']', '"'], "");
    let format = "$remote_addr - $remote_user $time_local $request_method $request_uri $server_protocol $status $body_bytes_sent \
                  $http_referer $http_user_agent";
    let directory = directory(RULES, text.as_bytes());
    let found = simulate(directory.path(), &["--log-format", format]);
    assert!(
        behind_coverage(&found.out).starts_with("5 of 6 requests (83.3%) would be denied, 2026-11-22 10:00:00"),
        "{}",
        found.text()
    );
}

/// A log that was cut to 0 bytes has a hole where its writer had been, larger than any line.
#[test]
fn zeros_at_the_start_of_a_log_hide_none_of_its_lines() {
    let text = [vec![0_u8; 600 * 1024], log(5, 0, "").into_bytes()].concat();
    let found = simulate(directory(RULES, &text).path(), &["--format", "json"]);
    assert_eq!((found.code, counts(&found)), (Some(0), [5, 5, 0]), "{}", found.text());
    let found = simulate(directory(RULES, &vec![0_u8; 600 * 1024]).path(), &[]);
    assert!(found.code == Some(1) && found.err.contains("the logs have no lines"), "{}", found.text());
}

#[test]
fn error_logs_of_a_directory_are_named_and_not_read() {
    let directory = directory(RULES, log(5, 0, "").as_bytes());
    let logs = directory.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    std::fs::copy(directory.path().join("access.log"), logs.join("access.log")).unwrap();
    let error = "2026/11/22 10:00:00 [error] 7#7: *1 open() failed (2: No such file or directory), client: 192.0.2.1\n";
    for name in ["error.log", "error.log.1", "site-error_log"] {
        std::fs::write(logs.join(name), error.repeat(9)).unwrap();
    }
    let found = run_in(directory.path(), &["simulate", "logs"]);
    let told = "not read, because of names of error logs: logs/error.log, logs/error.log.1, logs/site-error_log\n";
    assert!(found.code == Some(0) && behind_coverage(&found.out).starts_with(told), "{}", found.text());
    let found = run_in(directory.path(), &["simulate", "logs", "--format", "json"]);
    assert_eq!(counts(&found), [5, 5, 0]);
    // With another name it is taken for an access log.
    std::fs::rename(logs.join("error.log"), logs.join("warnings")).unwrap();
    let found = run_in(directory.path(), &["simulate", "logs"]);
    let hint = "give the names of the others, or `--log-format combined`, which counts its lines as unreadable";
    assert!(found.code == Some(1) && found.err.contains(hint), "{}", found.text());
    let found = run_in(directory.path(), &["simulate", "logs", "--log-format", "combined", "--format", "json"]);
    assert_eq!((found.code, counts(&found)), (Some(1), [14, 5, 9]), "{}", found.text());
}

#[test]
fn a_log_under_two_names_is_an_error() {
    let directory = directory(RULES, log(2_000, 0, "").as_bytes());
    std::fs::hard_link(directory.path().join("access.log"), directory.path().join("link.log")).unwrap();
    let found = run_in(directory.path(), &["simulate", "access.log", "link.log"]);
    let told = "link.log: it is the same file as access.log, so its requests would count twice";
    assert!(found.code == Some(1) && found.err.contains(told), "{}", found.text());
    finish(Command::new("gzip").args(["-kf", "access.log"]).current_dir(directory.path()));
    let found = run_in(directory.path(), &["simulate", "access.log", "access.log.gz"]);
    let told = "access.log.gz: it begins with the same lines as access.log, so its requests would count twice";
    assert!(found.code == Some(1) && found.err.contains(told), "{}", found.text());
    // A log that was compressed under this name before may be another one.
    std::fs::write(directory.path().join("access.log"), log(3, 0, "").replace("10:00", "12:00")).unwrap();
    let found = run_in(directory.path(), &["simulate", "access.log", "access.log.gz", "--format", "json"]);
    assert_eq!((found.code, counts(&found)), (Some(0), [2_003, 2_003, 0]), "{}", found.text());
}

/// It is that of a proxy, and the log says no more.
#[test]
fn one_private_address_for_all_requests_is_told() {
    let told = "every request comes from one private address: if that is a proxy, ";
    for (clients, flag, is_told) in [
        (["10.0.0.1", "10.0.0.1"], "--allow-unread", true),
        (["10.0.0.1", "10.0.0.2"], "--allow-unread", false),
        (["192.0.2.1", "192.0.2.1"], "--allow-unread", false),
        (["10.0.0.1", "10.0.0.1"], "--trusted-proxies=10.0.0.0/8", false),
    ] {
        let text = line(clients[0], 0) + &line(clients[1], 1) + &line(clients[0], 2);
        let found = simulate(directory(RULES, text.as_bytes()).path(), &[flag]);
        assert_eq!(behind_coverage(&found.out).starts_with(told), is_told, "{clients:?}: {}", found.text());
    }
    let by_path = "limits: { Paths: { by: path, burst: 3 } }";
    let found = simulate(directory(by_path, (line("10.0.0.1", 0)).repeat(9).as_bytes()).path(), &[]);
    assert!(!found.out.contains(told), "{}", found.text());
}
