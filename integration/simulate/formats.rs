//! The words of log formats: units of times, statuses, and the parts that several logs have in common.

use serde_json::{Value, json};
use weir::logs::format::MAX_LINE;

use crate::support::binary::run_in;
use crate::support::process::Finished;

const RULES: &str = "limits:\n  PerIp: { by: ip, burst: 1, count: 1, period: 24h }\n";

/// Simulates these rules on logs in a directory of their own.
fn simulate(limits: &str, logs: &[&str], flags: &[&str]) -> Finished {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("limits.yaml"), limits).unwrap();
    let names: Vec<String> = (0..logs.len()).map(|number| format!("{number}.log")).collect();
    for (name, log) in names.iter().zip(logs) {
        std::fs::write(directory.path().join(name), log).unwrap();
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    run_in(directory.path(), &[&["simulate", "--format", "json"], &names[..], flags].concat())
}

#[track_caller]
fn report(limits: &str, logs: &[&str], flags: &[&str]) -> Value {
    let finished = simulate(limits, logs, flags);
    serde_json::from_str(&finished.out).unwrap_or_else(|_| panic!("{}", finished.text()))
}

#[test]
fn every_servers_status_is_read() {
    const APACHE_TIME: &str = "[22/Nov/2026:10:00:00 +0000]";
    for (format, time) in [
        ("$remote_addr - - [$time_local] \"$request\" $status", APACHE_TIME),
        ("%h - - %t \\\"%r\\\" %>s", APACHE_TIME),
        (
            "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% - - [%START_TIME%] \"%REQ(:METHOD)% %REQ(:PATH)% %PROTOCOL%\" \
             %RESPONSE_CODE%",
            "[2026-11-22T10:00:00.000Z]",
        ),
    ] {
        let line = |status: u16| format!("192.0.2.1 - - {time} \"GET /a HTTP/1.1\" {status}\n");
        let report = report(RULES, &[&(line(200).repeat(6) + &line(429).repeat(4))], &["--log-format", format]);
        assert_eq!((&report["requests"], &report["answered_429"]), (&10.into(), &4.into()), "{format}: {report}");
    }
}

/// If a line has the time at which its request ended, the duration leads back to the arrival.
#[test]
fn what_a_request_took_has_the_unit_of_its_word() {
    for (format, took) in [("%T", "7"), ("%{s}T", "7"), ("%{ms}T", "7000"), ("%{us}T", "7000000"), ("%D", "7000000")] {
        let (format, line) =
            (format!("%h %{{end:sec}}t %m %U {format}"), format!("192.0.2.1 1795395607 GET /a {took}\n"));
        let report = report(RULES, &[&line], &["--log-format", &format]);
        assert_eq!(
            (&report["requests"], &report["from"]),
            (&1.into(), &"2026-11-23T01:00:00Z".into()),
            "{format}: {report}"
        );
    }
    let format = "$remote_addr [$time_iso8601] $request_method $request_uri $request_time";
    let report = report(RULES, &["192.0.2.1 [2026-11-23T01:00:07+00:00] GET /a 7.000\n"], &["--log-format", format]);
    assert_eq!(report["from"], "2026-11-23T01:00:00Z", "{report}");
}

/// A limit decides the lines of the logs that have what it reads.
#[test]
fn each_log_has_what_its_lines_have() {
    let whole = json!({
        "time_iso8601": "2026-11-22T10:00:00+00:00", "remote_addr": "192.0.2.1", "request_method": "GET",
        "host": "a.example", "uri": "/a", "query": "k=v", "http_x_api_key": "k", "request_time": "0.100",
        "ssl_client_s_dn": "CN=a",
    });
    for (member, by) in [
        ("remote_addr", "by: ip"),
        ("request_method", "by: method"),
        ("host", "by: host"),
        ("uri", "by: path"),
        ("query", "by: { query: k }"),
        ("http_x_api_key", "by: { header: x-api-key }"),
        ("ssl_client_s_dn", "by: { tls: subject }"),
        ("request_time", "by: global, algorithm: concurrency"),
    ] {
        let limits = format!("limits:\n  All: {{ by: global, burst: 100 }}\n  Part: {{ {by}, burst: 1 }}\n");
        let mut part = whole.clone();
        part.as_object_mut().unwrap().remove(member);
        let [whole, part] = [&whole, &part].map(|line| format!("{line}\n").repeat(2));
        for (logs, status, decided, file) in [
            ([&*whole, &*whole], "covered", 4, None),
            ([&*whole, &*part], "covered", 2, Some("1.log")),
            ([&*part, &*whole], "covered", 2, Some("0.log")),
            ([&*part, &*part], "not_covered", 0, None),
        ] {
            let report = report(&limits, &logs, &[]);
            let limit = &report["limits"]["Part"];
            assert_eq!((&limit["status"], &limit["requests"]), (&status.into(), &decided.into()), "{member}: {report}");
            let left_out = &limit["left_out"][0];
            assert_eq!((left_out["file"].as_str(), left_out["lines"].as_u64()), (file, file.map(|_| 2)), "{report}");
        }
    }
    // Caddy tells all headers but those that it redacts.
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/integration/cases/logs/caddy.log");
    let caddy = std::fs::read_to_string(sample).unwrap();
    let limits = "limits:\n  Key: { by: { header: x-api-key }, burst: 1 }\n  Bearer: { by: { header: authorization }, burst: 1 }\n";
    let report = report(limits, &[&caddy, &caddy], &[]);
    let status = ["Key", "Bearer"].map(|limit| report["limits"][limit]["status"].as_str().unwrap());
    assert_eq!(status, ["covered", "not_covered"], "{report}");
}

#[test]
fn a_line_may_have_as_many_bytes_as_the_bound() {
    let line = |length: usize| {
        let bare = "192.0.2.1 - - [22/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n";
        bare.replace("GET /", &format!("GET /{}", "x".repeat(length + 1 - bare.len())))
    };
    let log = line(100).repeat(198) + &line(MAX_LINE) + &line(MAX_LINE + 1);
    let report = report(RULES, &[&log], &[]);
    let counts = ["lines", "requests", "unreadable"].map(|key| report[key].as_u64().unwrap());
    assert_eq!(counts, [200, 199, 1], "{report}");
}

#[test]
fn the_last_line_of_a_short_log_needs_no_end() {
    let line = "192.0.2.1 - - [22/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5";
    for log in [line.to_owned(), format!("\n{line}"), format!("\n\n{line}"), format!("{line}\n{line}")] {
        let report = report(RULES, &[&log], &[]);
        let requests = log.matches("GET").count();
        assert_eq!(
            (&report["requests"], &report["from"]),
            (&requests.into(), &"2026-11-22T10:00:00Z".into()),
            "{log:?}"
        );
    }
}

#[test]
fn a_recording_tells_the_cookies_that_its_first_line_names() {
    for (cookies, status) in [(json!([]), "not_covered"), (json!(["sid"]), "covered")] {
        let head = json!({ "cookies": cookies, "descriptors": [], "headers": [], "weir_recording": 1 });
        let line = json!({ "at_us": 1_795_233_606_000_000_u64, "method": "GET", "host": "a.example", "target": "/",
            "client": "192.0.2.7", "headers": [["cookie", "sid=a"]] });
        let limits = "limits:\n  All: { by: global, burst: 9 }\n  Sessions: { by: { cookie: sid }, burst: 1 }\n";
        let report = report(limits, &[&format!("{head}\n{line}\n{line}\n")], &[]);
        let limit = &report["limits"]["Sessions"];
        let denied = u64::from(status == "covered");
        assert_eq!((&limit["status"], &limit["denied"]), (&status.into(), &denied.into()), "{report}");
    }
}

const IIS: &str = "#Fields: date time cs-method cs-uri-stem cs-uri-query c-ip cs(User-Agent) sc-status time-taken\n";

const SOFTWARE: &str = "#Software: Microsoft Internet Information Services 10.0\n";

fn iis(second: usize) -> String {
    format!("2026-11-22 10:{:02}:{:02} GET /a+b q=1 192.0.2.1 curl/8+(x) 200 500\n", second / 60, second % 60)
}

/// Concatenated logs have several directives, and so has a log of an IIS whose fields were changed.
#[test]
fn a_w3c_log_may_change_its_fields() {
    let other = "#Fields: date time c-ip cs-uri-stem cs-method time-taken s-port\n";
    let shorter =
        |second: usize| format!("2026-11-22 10:{:02}:{:02} 192.0.2.1 /a+b GET 500 80\n", second / 60, second % 60);
    let log = (0..1_500).map(iis).collect::<String>()
        + other
        + &(1_500..1_700).map(shorter).collect::<String>()
        + SOFTWARE
        + IIS
        + &(1_700..2_000).map(iis).collect::<String>();
    let limits = format!(
        "{RULES}  Path: {{ match: {{ path: /a%20b }}, by: global, burst: 9999 }}\n  \
        Agent: {{ by: {{ header: user-agent }}, burst: 9999 }}\n"
    );
    let collectors: [fn(&str) -> String; 2] =
        [str::to_owned, |line| format!("2026-11-27T04:00:00.123456789Z stdout F {line}")];
    for wrap in collectors {
        let log: String = (SOFTWARE.to_owned() + IIS + &log).lines().map(|line| wrap(line) + "\n").collect();
        let report = report(&limits, &[&log], &[]);
        let counts = ["lines", "requests", "denied", "unreadable"].map(|key| report[key].as_u64().unwrap());
        assert_eq!(counts, [2_005, 2_000, 1_999, 0], "{report}");
        let [path, agent] = ["Path", "Agent"].map(|limit| &report["limits"][limit]);
        assert_eq!((&path["requests"], &agent["requests"]), (&2_000.into(), &1_800.into()), "{report}");
        let left_out = json!([{ "lacks": "the header `user-agent`", "lines": 200, "file": "0.log", "line": 1_504 }]);
        assert_eq!(agent["left_out"], left_out, "{report}");
    }
    let log =
        other.to_owned() + &(0..200).map(shorter).collect::<String>() + IIS + &(200..500).map(iis).collect::<String>();
    let agent = &report(&limits, &[&log], &[])["limits"]["Agent"];
    assert_eq!((&agent["requests"], &agent["left_out"][0]["lines"]), (&300.into(), &200.into()), "{agent}");
}

#[test]
fn a_w3c_log_whose_fields_lack_the_time_is_not_read_any_further() {
    let log = IIS.to_owned() + &iis(0).repeat(9) + "#Fields: c-ip cs-method\n192.0.2.1 GET\n";
    let found = simulate(RULES, &[&log], &[]);
    let report: Value = serde_json::from_str(&found.out).unwrap_or_else(|_| panic!("{}", found.text()));
    assert_eq!((found.code, &report["requests"]), (Some(1), &9.into()), "{report}");
    let why = "0.log: it cannot be read any further after 10 whole lines, which count (its `#Fields:` name no `date` and `time` any more)";
    assert_eq!(report["interrupted"], json!([why]), "{report}");
    let found = simulate(RULES, &["192.0.2.1 - - no directive\n"], &["--log-format", "w3c"]);
    let why = "0.log: it has no `#Fields:` line that names `date` and `time`, as `w3c` needs";
    assert!(found.code == Some(1) && found.err.contains(why), "{}", found.text());
}

/// IIS writes milliseconds, and `+` for spaces. Others write seconds.
#[test]
fn iis_is_known_by_its_name_or_its_fields() {
    let win32 = IIS.replace("sc-status", "sc-status sc-win32-status");
    let limits = format!(
        "{RULES}  Agent: {{ match: {{ headers: {{ user-agent: {{ value: \"curl/8 (x)\" }} }} }}, by: global, burst: 9 }}\n"
    );
    for (log, unit, from, agents) in [
        (SOFTWARE.to_owned() + IIS + &iis(9), "milliseconds, as IIS writes it", "10:00:08.5Z", 1),
        (win32 + &iis(9).replace(" 200", " 200 0"), "milliseconds, as IIS writes it", "10:00:08.5Z", 1),
        (IIS.to_owned() + &iis(9), "seconds, as the definition of the format says", "09:51:49Z", 0),
    ] {
        let found = simulate(&limits, &[&log], &["--allow-unread"]);
        let report: Value = serde_json::from_str(&found.out).unwrap_or_else(|_| panic!("{}", found.text()));
        assert_eq!(report["from"], format!("2026-11-22T{from}"), "{log}");
        assert!(found.err.contains(&format!("note: 0.log: `time-taken` is read in {unit}\n")), "{}", found.err);
        assert_eq!(report["limits"]["Agent"]["requests"], agents, "{report}");
    }
}

/// A name without a unit means seconds, unless requests would have taken too long.
#[test]
fn a_duration_without_a_unit_is_read_in_the_one_that_fits_the_log() {
    for (durations, unit, from) in [
        (["0.5", "1.25"], "seconds", "10:00:09.5Z"),
        (["1", "2"], "seconds", "10:00:09Z"),
        (["500", "1250"], "milliseconds", "10:00:09.5Z"),
        (["500.5", "1250.25"], "milliseconds", "10:00:09.4995Z"),
        (["500000", "1250000"], "microseconds", "10:00:09.5Z"),
        (["500000000", "1250000000"], "nanoseconds", "10:00:09.5Z"),
    ] {
        let line = |second: usize, duration: &str| {
            format!(
                "{{\"time\":\"2026-11-22T10:00:{second}Z\",\"remote_addr\":\"192.0.2.1\",\"request\":\"GET / HTTP/1.1\",\"duration\":{duration}}}\n"
            )
        };
        let found = simulate(RULES, &[&(line(10, durations[0]) + &line(15, durations[1]))], &[]);
        let report: Value = serde_json::from_str(&found.out).unwrap_or_else(|_| panic!("{}", found.text()));
        assert_eq!(report["from"], format!("2026-11-22T{from}"), "{durations:?}");
        assert!(found.err.contains(&format!("note: 0.log: `duration` is read in {unit}; ")), "{}", found.err);
    }
}

/// The line of a program at a second past ten, with members for durations.
fn timed(second: usize, durations: &Value) -> String {
    let mut line = json!({ "time": format!("2026-11-22T{}:{:02}:{:02}Z", 10 + second / 3_600, second / 60 % 60, second % 60),
        "remote_addr": "192.0.2.1", "request": "GET / HTTP/1.1" });
    line.as_object_mut().unwrap().extend(durations.as_object().unwrap().clone());
    format!("{line}\n")
}

/// A long log makes no duration more plausible, and a short one of the same program none less.
#[test]
fn all_logs_together_show_the_unit_of_a_duration() {
    let log = |durations: &[u64]| -> String {
        (0..).zip(durations).map(|(place, duration)| timed(place * 3_600, &json!({ "duration": duration }))).collect()
    };
    let long = log(&[900, 20, 35, 11, 700]);
    let short = log(&[1, 2]);
    for (logs, unit) in [
        (vec![&*long], "milliseconds"),
        (vec![&*long, &*short], "milliseconds"),
        (vec![&*short, &*long], "milliseconds"),
        (vec![&*short], "seconds"),
    ] {
        let found = simulate(RULES, &logs, &[]);
        let note = |number| {
            format!("note: {number}.log: `duration` is read in {unit}; a name such as `duration_ms` would say it\n")
        };
        let notes: Vec<String> = (0..logs.len()).map(note).collect();
        assert_eq!(found.err, notes.concat(), "{}", found.out);
    }
    // Each member has its own unit, and a value that names it needs no note.
    let line = |number: usize| timed(number, &json!({ "took": 0.25, "response_time": 1_250, "duration": "250ms" }));
    let found = simulate(RULES, &[&(line(9) + &line(11))], &[]);
    let notes = ["`took` is read in seconds", "`response_time` is read in milliseconds"];
    assert!(notes.iter().all(|note| found.err.contains(note)) && found.err.lines().count() == 2, "{}", found.err);
}

/// Kong leaves out an object of headers that it does not know.
#[test]
fn a_line_of_a_program_without_its_headers_lacks_them() {
    let line = |second: u64, headers: Value| {
        let mut line = json!({ "started_at": 1_795_233_600_000 + second * 1_000, "client_ip": "192.0.2.7",
            "latencies": { "request": 12 }, "request": { "method": "GET", "uri": "/a", "headers": headers },
            "response": { "status": 200 } });
        if headers.is_null() {
            line["request"].as_object_mut().unwrap().remove("headers");
        }
        format!("{line}\n")
    };
    let limits = "limits:\n  All: { by: global, burst: 9999 }\n  Key: { by: { header: x-api-key }, missing: deny, burst: 9999 }\n";
    let with = |second| line(second, json!({ "host": "a.example", "x-api-key": "k" }));
    let log = (0..60).map(with).chain((60..100).map(|second| line(second, Value::Null))).collect::<String>();
    let key = &report(limits, &[&log], &[])["limits"]["Key"];
    let left_out = json!([{ "lacks": "the header `x-api-key`", "lines": 40, "file": "0.log", "line": 61 }]);
    assert_eq!((&key["denied"], &key["left_out"]), (&0.into(), &left_out), "{key}");
    let twice = with(0).replace("\"x-api-key\"", "\"x-api-key\":\"l\",\"x-api-key\"");
    let report = report(limits, &[&(with(0).repeat(199) + &twice)], &[]);
    assert_eq!(report["unreadable"], 1, "{report}");
    // Members that the first lines lack are counted.
    let log = (0..1_500).map(|second| line(second, Value::Null)).collect::<String>() + &with(1_500);
    let report = self::report(limits, &[&log], &[]);
    assert_eq!(report["new_members"], 1, "{report}");
}

/// Lines of each of HAProxy's kinds of formats, given as it is in its configuration.
#[test]
fn formats_of_haproxy_are_read() {
    let limits = "limits:\n  PerIp: { by: ip, burst: 1 }\n  Key: { by: { header: x-api-key }, burst: 9 }\n  \
        Slots: { by: global, algorithm: concurrency, burst: 9 }\n  Login: { match: { methods: [POST], path: /login }, burst: 9 }\n";
    let text = |client: &str| {
        format!("{client}:4711 [22/Nov/2026:10:00:07.500] 250 200 key#2d1 \"POST /login?a=b HTTP/1.1\"\n")
    };
    let json = |client: &str| {
        let line = json!({ "who": client, "at": "22/Nov/2026:10:00:07.500", "took": 250, "status": 200, "key": "key-1",
            "line": "POST /login?a=b HTTP/1.1" });
        format!("{line}\n")
    };
    let (v4, v6) = ("192.0.2.1", "2001:db8::1");
    for (format, log) in [
        (r"%ci:%cp\ [%tr]\ %Ta\ %ST\ %[req.hdr(X-Api-Key)]\ %{+Q}r", text(v4) + &text(v6) + &text(v6)),
        (
            "%{+json}o %(who)ci %(at)tr %(took)Ta %(status)ST %(key)[req.hdr(X-Api-Key)] %(line)r",
            json(v4) + &json(v6) + &json(v6),
        ),
        (
            r#"{"at":"%tr","key":"%[req.hdr(x-api-key)]","line":"%r","status":%ST,"took":%Ta,"who":"%ci"}"#,
            json(v4) + &json(v6) + &json(v6),
        ),
        (
            "json:who=remote_addr,at=start_time,took=duration_ms,key=http_x_api_key,line=request",
            json(v4) + &json(v6) + &json(v6),
        ),
    ] {
        let report = report(limits, &[&log], &["--log-format", format]);
        let limits = ["PerIp", "Key", "Slots", "Login"].map(|limit| {
            let limit = &report["limits"][limit];
            ["requests", "ids", "denied"].map(|key| limit[key].as_u64().unwrap())
        });
        assert_eq!(limits, [[3, 2, 1], [3, 1, 0], [3, 1, 0], [3, 2, 0]], "{format}: {report}");
        assert_eq!(report["from"], "2026-11-22T10:00:07.5Z", "{format}: {report}");
    }
    for (format, expected) in [
        ("json:who", "expected `NAME=VARIABLE`, found `who`"),
        ("json:who=client_name", "`client_name` is not a variable of nginx"),
        ("%ci %[src", "an expression that begins with `%[` must end with `]`"),
    ] {
        let found = simulate(limits, &[""], &["--log-format", format]);
        assert!(found.code == Some(2) && found.err.contains(expected), "{format}: {}", found.text());
    }
}
