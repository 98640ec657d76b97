//! Lines that say too little for some limits: each limit tells which lines it leaves out, and decides the others.

use serde_json::{Value, json};

use super::{behind_coverage, directory, simulate};

/// A line of a program that chooses its own names.
fn line(number: usize, change: impl FnOnce(&mut Value)) -> String {
    let mut line = json!({
        "time": format!("2026-11-22T1{}:{:02}:{:02}Z", number / 3_600, number / 60 % 60, number % 60),
        "remote_addr": "192.0.2.1",
        "method": "GET",
        "uri": "/login",
        "host": "a.example",
        "duration": 0.5,
        "x_api_key": "k",
    });
    change(&mut line);
    format!("{line}\n")
}

/// This number of whole lines, then 40 changed ones.
fn log(whole: usize, change: impl Fn(&mut Value)) -> String {
    let whole_lines = (0..whole).map(|number| line(number, |_| {}));
    whole_lines.chain((0..40).map(|number| line(whole + number, &change))).collect()
}

/// `All` decides every line, so that a report never says that nothing was decided.
fn with(limit: &str) -> String {
    format!("limits:\n  All: {{ by: global, burst: 1000000 }}\n  Tested: {limit}\n")
}

const BY_PATH: &str = "{ match: { path: /login }, by: ip, burst: 1000 }";
const BY_METHOD: &str = "{ match: { methods: [GET] }, by: ip, burst: 1000 }";
const BY_HOST: &str = "{ by: host, burst: 1000 }";
const BY_KEY: &str = "{ by: { header: x-api-key }, burst: 1000 }";
const FLIGHTS: &str = "{ by: ip, algorithm: concurrency, burst: 1000 }";

#[test]
fn each_limit_tells_the_lines_that_lack_what_it_reads() {
    let absent = ["null", "\"-\"", "\"\"", "[\"/login\"]", "{}", "gone"];
    for (limit, member, part, is_tolerated) in [
        (BY_PATH, "uri", "the path", false),
        (BY_METHOD, "method", "the method", false),
        (BY_HOST, "host", "the host", true),
        (FLIGHTS, "duration", "how long requests take", false),
    ] {
        for value in absent {
            let change = |line: &mut Value| match serde_json::from_str(value) {
                Ok(value) => line[member] = value,
                Err(_) => drop(line.as_object_mut().unwrap().remove(member)),
            };
            let directory = directory(&with(limit), &log(60, change));
            let case = format!("{member}: {value}");
            let found = simulate(directory.path(), &[]);
            let told = format!(
                "Tested leaves out 40 of 100 lines (40.0%), which lack {part}, such as access.log:61\n\
                 of the 100 requests that were read, 0 (0%) would be denied"
            );
            assert!(behind_coverage(&found.out).starts_with(&told), "{case}: {}", found.text());
            assert_eq!(found.code, Some(i32::from(!is_tolerated)), "{case}: {}", found.text());
            assert_eq!(simulate(directory.path(), &["--allow-unread"]).code, Some(0), "{case}");
            let json = simulate(directory.path(), &["--format", "json"]).out;
            let report: Value = serde_json::from_str(&json).unwrap();
            let tested = &report["limits"]["Tested"];
            let left_out = json!([{ "lacks": part, "lines": 40, "file": "access.log", "line": 61 }]);
            assert_eq!((&tested["requests"], &tested["left_out"]), (&60.into(), &left_out), "{case}: {report}");
            assert_eq!(report["limits"]["All"]["requests"], 100, "{case}");
        }
    }
}

/// An empty place says that the client has sent no such header; no place, or a list, does not.
#[test]
fn a_header_that_was_not_sent_is_not_lacking() {
    for (value, is_lacking) in
        [("null", false), ("\"-\"", false), ("\"\"", false), ("[\"k\"]", true), ("{}", true), ("gone", true)]
    {
        let change = |line: &mut Value| match serde_json::from_str(value) {
            Ok(value) => line["x_api_key"] = value,
            Err(_) => drop(line.as_object_mut().unwrap().remove("x_api_key")),
        };
        for (missing, decided) in [("skip", 60), ("deny", if is_lacking { 60 } else { 100 })] {
            let limits = with(&BY_KEY.replace(" }, burst", &format!(" }}, missing: {missing}, burst")));
            let directory = directory(&limits, &log(60, change));
            let found = simulate(directory.path(), &["--format", "json"]);
            assert_eq!(found.code, Some(0), "{value}: {}", found.text());
            let report: Value = serde_json::from_str(&found.out).unwrap();
            let tested = &report["limits"]["Tested"];
            assert_eq!(tested["requests"], decided, "{value}, {missing}: {report}");
            let lines = tested["left_out"][0]["lines"].as_u64();
            assert_eq!(lines, is_lacking.then_some(40), "{value}, {missing}: {report}");
        }
    }
}

/// A line that is whole, so that the log has the member, and then none that a limit could decide.
#[test]
fn a_limit_without_a_decision_makes_no_claim() {
    let first = line(0, |line| line["uri"] = "/".into());
    let log = first + &log(0, |line| line["uri"] = Value::Null);
    let directory = directory(&with(BY_PATH), &log);
    let found = simulate(directory.path(), &[]);
    assert_eq!(found.code, Some(1), "{}", found.text());
    assert!(found.out.contains("\nTested: decided no request: lines lack the path\n"), "{}", found.out);
    assert!(!found.out.contains("Tested: 0 of"), "{}", found.out);
    let page = simulate(directory.path(), &["--format", "html"]).out;
    assert!(page.contains("decided no request: lines lack the path"), "{page}");
}

/// One percent is tolerated, as with lines that cannot be read.
#[test]
fn a_line_in_a_hundred_may_lack_a_part() {
    let change = |line: &mut Value| line["uri"] = Value::Null;
    let directory = |whole| directory(&with(BY_PATH), &log(whole, change));
    for (whole, expected) in [(3_960, 0), (3_959, 1)] {
        let found = simulate(directory(whole).path(), &[]);
        assert_eq!(found.code, Some(expected), "{whole}: {}", found.text());
    }
}

#[test]
fn a_member_that_a_line_has_twice_is_told() {
    let twice = |member: &str, second: &str| {
        let line = line(7, |_| {});
        format!("{},\"{member}\":{second}}}\n", line.trim_end().strip_suffix('}').unwrap())
    };
    for (member, second, is_used) in [
        ("uri", "\"/other\"", true),
        ("remote_addr", "\"192.0.2.2\"", true),
        ("x_api_key", "\"k\"", true),
        ("time", "\"2026-11-22T10:00:00Z\"", true),
        ("pod", "1", false),
    ] {
        let lines: String = (0..99).map(|number| line(number, |line| line["pod"] = 7.into())).collect();
        let mut last = twice(member, second);
        if !is_used {
            last = last.replace("\"pod\":1", "\"pod\":1,\"pod\":2");
        }
        let found = simulate(directory(&with(BY_PATH), &(lines + &last)).path(), &[]);
        assert_eq!(found.code, Some(0), "{}", found.text());
        let told = format!(
            "1 of 100 lines (1.00%) are left out: they do not fit the format, such as access.log:100: expected `{member}` only once at byte "
        );
        assert_eq!(behind_coverage(&found.out).starts_with(&told), is_used, "{member}: {}", found.out);
    }
}

type Change = Box<dyn Fn(&mut Value)>;

/// A recording with these lines, whose last line says how many it has.
fn recording(lines: &[Value], kept: usize) -> String {
    let head = json!({ "cookies": [], "descriptors": [], "headers": ["x-api-key"], "weir_recording": 1 });
    let counts = json!({ "dropped": 0, "kept": kept, "outside_the_share": 0, "without_a_request": 0 });
    let last = json!({ "ended": "size", "counts": counts });
    let lines: Vec<String> = [&head].into_iter().chain(lines).chain([&last]).map(Value::to_string).collect();
    lines.join("\n") + "\n"
}

/// The header is an id of another limit, so the recording has a stand-in in its place.
#[test]
fn a_cost_that_is_hashed_is_not_counted() {
    let head = |stand_ins: Value| {
        json!({ "cookies": [], "descriptors": [], "headers": ["x-api-key"], "stand_ins": { "headers": stand_ins },
            "weir_recording": 1 })
    };
    for (stand_ins, is_lacking) in [(json!({ "x-api-key": [] }), true), (json!({}), false)] {
        let limits = with("{ by: ip, cost: { header: x-api-key }, burst: 1000 }");
        let line = recorded(|line| line["headers"] = json!([["x-api-key", "7"]]));
        let text = recording(&[line], 1);
        let (_, rest) = text.split_once('\n').unwrap();
        let directory = directory(&limits, &format!("{}\n{rest}", head(stand_ins)));
        let found = simulate(directory.path(), &[]).text();
        let told = "the values of the header `x-api-key`, which are hashed";
        assert_eq!(found.contains(told), is_lacking, "{found}");
    }
}

fn recorded(change: impl FnOnce(&mut Value)) -> Value {
    let mut line = json!({ "at_us": 1_795_233_606_000_000_u64, "method": "GET", "host": "a.example", "target": "/",
        "client": "192.0.2.7", "headers": [["x-api-key", "k"]] });
    change(&mut line);
    line
}

#[test]
fn a_recorded_line_that_no_recorder_writes_is_told() {
    let gone = |name: &'static str| move |line: &mut Value| drop(line.as_object_mut().unwrap().remove(name));
    let set = |name: &'static str, value: Value| move |line: &mut Value| line[name] = value.clone();
    let changes: [(Change, &str); 7] = [
        (Box::new(gone("target")), "expected `target` or `domain` at byte 0"),
        (Box::new(|line| *line = json!({ "at_us": 1 })), "expected `target` or `domain` at byte 0"),
        (Box::new(set("client", Value::Null)), "expected a text in `client`"),
        (Box::new(set("client", json!(["192.0.2.7"]))), "expected a text in `client`"),
        (Box::new(set("target", json!(7))), "expected a text in `target`"),
        (Box::new(set("headers", json!("x-api-key"))), "expected a text for `domain`, arrays for `headers`"),
        (Box::new(set("headers", json!({ "x-api-key": "k" }))), "expected a text for `domain`, arrays for `headers`"),
    ];
    for (change, expected) in changes {
        let lines = [recorded(|_| {}), recorded(&change)];
        let directory = directory(&with(BY_KEY), &recording(&lines, 2));
        let found = simulate(directory.path(), &[]);
        let told =
            format!("1 of 4 lines (25.0%) are left out: they do not fit the format, such as access.log:3: {expected}");
        assert!(
            found.code == Some(1) && behind_coverage(&found.out).starts_with(&told),
            "{}: {}",
            lines[1],
            found.text()
        );
    }
    // A request need not have an address. `missing` says what follows.
    let lines = [recorded(|_| {}), recorded(gone("client"))];
    for (missing, decided) in [("skip", 1), ("deny", 2)] {
        let limits = with(&format!("{{ by: ip, missing: {missing}, burst: 1000 }}"));
        let directory = directory(&limits, &recording(&lines, 2));
        let found = simulate(directory.path(), &[]);
        let told = "Tested leaves out 1 of 4 lines (25.0%), which lack the client's address, such as access.log:3\n";
        assert_eq!(behind_coverage(&found.out).starts_with(told), missing == "skip", "{}", found.out);
        assert_eq!(found.code, Some(0), "{}", found.text());
        let report: Value = serde_json::from_str(&simulate(directory.path(), &["--format", "json"]).out).unwrap();
        assert_eq!(report["limits"]["Tested"]["requests"], decided, "{report}");
    }
}

#[test]
fn a_recording_whose_last_line_counts_other_lines_is_told() {
    let lines = [recorded(|_| {}), recorded(|_| {})];
    for (kept, is_told) in [(2, false), (3, true), (1, true)] {
        let directory = directory(&with(BY_KEY), &recording(&lines, kept));
        let found = simulate(directory.path(), &[]);
        let told = format!("access.log has 2 requests, but its last line counts {kept}: lines were removed or added\n");
        assert_eq!(behind_coverage(&found.out).starts_with(&told), is_told, "{}", found.out);
        let report: Value = serde_json::from_str(&simulate(directory.path(), &["--format", "json"]).out).unwrap();
        let recording = &report["recordings"][0];
        let expected = (Some(2), Some(kept as u64), Some(!is_told));
        let found = (recording["lines"].as_u64(), recording["kept"].as_u64(), recording["is_whole"].as_bool());
        assert_eq!(found, expected, "{report}");
    }
}

/// A later line has the header, so the log does not lack it, though no request meets the limit.
#[test]
fn a_limit_that_no_request_meets_is_not_said_to_lack_what_lines_have() {
    let rules = "limits:\n  Met: { by: { header: x-a }, count: 1, period: 1h }\n  \
                 Unmet: { match: { path: /b }, by: { header: x-a }, count: 1, period: 1h }\n";
    let line = |more: &str| {
        format!(
            "{{\"time\":\"2026-11-22T10:00:00.123Z\",\"client\":\"192.0.2.1\",\"method\":\"GET\",\"target\":\"/a\",\"protocol\":\"HTTP/1.1\",\"host\":\"a\",\"status\":200,\"bytes\":1,\"duration_ms\":1.5,\"user_agent\":\"c\",\"verdict\":\"allowed\"{more}}}\n"
        )
    };
    let with = line(",\"headers\":{\"x-a\":[\"7\"]}");
    for (log, told) in [
        (with.repeat(2), "Unmet: no request of this log meets it"),
        (line("").repeat(2), "Unmet: not covered by this log, which lacks the header `x-a`"),
    ] {
        let directory = directory(rules, &log);
        let found = simulate(directory.path(), &["--allow-unread"]);
        assert!(found.out.contains(told), "{told}: {}", found.text());
    }
}
