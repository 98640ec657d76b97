//! Each entry of a file is used or reported: the two add up to what was read.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use crate::support::becomes;
use crate::support::binary::run_in;
use crate::support::process::Finished;
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;

const RULES: &str = "ignore_lints: [free-id]\nlimits:\n  L: { by: { header: x-id }, burst: 2 }\n  \
                     N: { by: { header: x-n, as: integer }, burst: 2 }\n";

/// Entries of an overrides file that cannot be used, each for a reason of its own. `#` is a number.
const BROKEN: [&str; 6] = [
    "M#:a: { burst: 1 }",
    "L:none#: {}",
    "L:zero#: { burst: 0 }",
    "L:word#: { burst: 1, brust: 1 }",
    "N:a#: { burst: 1 }",
    "L: { burst: 1, regex: \"(#\" }",
];

/// A file with this many entries of each kind, mixed.
fn overrides(good: usize, broken: usize) -> String {
    let mut text = String::new();
    for number in 0..good.max(broken) {
        if number < broken {
            writeln!(text, "- {}", BROKEN[number % BROKEN.len()].replace('#', &number.to_string())).unwrap();
        }
        if number < good {
            writeln!(text, "- L:id{number}: {{ burst: {} }}", number + 3).unwrap();
        }
    }
    text
}

/// The mistakes in a report: those that are shown, and those that are only counted.
fn told(report: &str) -> usize {
    let more =
        report.lines().filter_map(|line| line.strip_prefix("and ")?.strip_suffix(" more")?.parse::<usize>().ok());
    report.lines().filter(|line| line.starts_with("error: ")).count() + more.sum::<usize>()
}

/// The number before a word, or 0.
fn number(text: &str, word: &str) -> usize {
    let words: Vec<&str> = text.split([' ', ',', ';', '\n']).filter(|word| !word.is_empty()).collect();
    let place = words.iter().position(|found| found.trim_end_matches('s') == word);
    place.and_then(|place| words[place.checked_sub(1)?].parse().ok()).unwrap_or(0)
}

#[test]
fn each_entry_of_an_overrides_file_is_used_or_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("limits.yaml"), RULES).unwrap();
    let run = |arguments: &[&str]| -> Finished { run_in(folder.path(), arguments) };
    // A report shows 50 mistakes and counts the others.
    for (good, broken) in [(0, 1), (7, 0), (100, 1), (100, 49), (100, 50), (3, 51), (100, 333)] {
        std::fs::write(folder.path().join("o.yaml"), overrides(good, broken)).unwrap();
        let checked = run(&["check", "limits.yaml", "--overrides", "o.yaml"]);
        let used = number(&checked.out, "override");
        let expected = if broken == 0 { good } else { 0 };
        assert_eq!((used, told(&checked.err)), (expected, broken), "{good} {broken}: {}", checked.text());
        // Nothing of a file with a mistake is used, and no command goes on without it.
        assert_eq!(checked.code, Some(i32::from(broken > 0)));
        for arguments in [&["explain", "GET", "/"][..], &["test", "t.yaml"]] {
            std::fs::write(folder.path().join("t.yaml"), "tests: { a: [{ get: /, expect: allow }] }").unwrap();
            let other = run(&[arguments, &["--overrides", "o.yaml"]].concat());
            assert_eq!((other.code, told(&other.err)), (checked.code, broken), "{arguments:?}: {}", other.text());
        }
    }
}

#[test]
fn each_entry_of_a_list_that_is_fetched_is_used_or_told() {
    let cache = tempfile::tempdir().unwrap();
    let list = Arc::new(Mutex::new(overrides(5, 0)));
    let given = list.clone();
    let upstream = Upstream::answering(move |_| {
        let list = given.lock().unwrap();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{list}", list.len())
    });
    let url = format!("http://{}/", upstream.address);
    let flags =
        ["--overrides", &url, "--overrides-cache", cache.path().to_str().unwrap(), "--overrides-interval", "1s"];
    let weir = Weir::serve(RULES, &flags);
    let fetches = |result: &str| weir.metric(&format!("weir_overrides_fetches_total{{result=\"{result}\"}}"));
    let in_force = || {
        let left = |number: u64| -> serde_json::Value {
            let page = weir.admin(&format!("/buckets/L:id{number}"));
            serde_json::from_slice::<serde_json::Value>(&page.body).unwrap()["windows"][0]["remaining"].clone()
        };
        (0..9).map(|number| u64::from(left(number) == number + 3)).sum()
    };
    assert_eq!(in_force(), 5, "used");
    for broken in [1, 60] {
        let (before, logged) = (fetches("broken"), weir.log().len());
        *list.lock().unwrap() = overrides(9, broken);
        becomes("it is read", 1, || (fetches("broken") - before).min(1));
        // A line of the log has the whole report.
        let report = || weir.log()[logged..].replace("\\n", "\n");
        becomes("each mistake is logged", broken as u64, || told(&report()) as u64);
        assert_eq!(in_force(), 5, "the last good ones");
    }
    *list.lock().unwrap() = overrides(9, 0);
    becomes("they are used", 9, in_force);
}

#[test]
fn each_key_of_a_file_of_flags_is_used_or_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("l.yaml"), "limits: { L: { by: { body: /m }, burst: 1 } }\n").unwrap();
    let good = ["limits: l.yaml", "max-inspected-body: 9", "trusted-proxies: 10.0.0.0/8"];
    let broken =
        ["limit: l.yaml", "max-inspected-body: [1, 2]", "trusted-proxies: { a: b }", "limits: other.yaml", "store:"];
    let explain = |lines: &[&str]| {
        std::fs::write(folder.path().join("weir.yaml"), lines.join("\n")).unwrap();
        let request =
            ["explain", "POST", "/", "--config", "weir.yaml", "--data", "{\"m\": \"long\"}", "--ip", "10.0.0.1"];
        run_in(folder.path(), &[&request[..], &["-H", "x-forwarded-for: 192.0.2.7"]].concat())
    };
    let found = explain(&good);
    // The name of the rules, the size of bodies and the proxies: each has an effect.
    for part in ["L: ", "(malformed)", "POST / from 192.0.2.7"] {
        assert!(found.code == Some(0) && found.out.contains(part), "`{part}`: {}", found.text());
    }
    for count in 1..=broken.len() {
        let found = explain(&[&good[..1], &broken[..count]].concat());
        assert_eq!((found.code, told(&found.err), found.out.as_str()), (Some(2), count, ""), "{}", found.text());
    }
    let found = explain(&["limits: l.yaml", "---", "max-inspected-body: 9"]);
    assert!(found.code == Some(2) && found.err.contains("a second YAML document"), "{}", found.text());
}

/// Limits and overrides are written, left out with the reason, or mistakes.
#[test]
fn each_limit_and_override_of_an_import_is_written_or_told() {
    let folder = tempfile::tempdir().unwrap();
    let import = |format: &str, text: &str| {
        std::fs::write(folder.path().join("in.yaml"), text).unwrap();
        run_in(folder.path(), &["import", format, "in.yaml"])
    };
    let too_large = "{ size: 1000000000, per_interval: 1, interval: 86400000000 }";
    let bucket = |name: &str, own: &str| {
        format!(
            "  {name}:\n    size: 5\n    {own}\n    overrides: {{ a: {{ size: 6 }}, b: {{ size: 6, match: '(' }}, c: {too_large} }}\n"
        )
    };
    let limitd = format!("buckets:\n{}{}  z: {too_large}\n", bucket("x", "per_second: 5"), bucket("y", "interval: 9"));
    let boulder = "- NewOrdersPerAccount: { burst: 1, count: 1, period: 1s, ids: [7, '007', 7, x] }\n\
                   - Other: { burst: 1, count: 1, period: 1s, ids: ['', a] }\n";
    let limitador = "- { namespace: a, max_value: 1, seconds: 1, conditions: [\"x == '1' && f(y)\"] }\n\
                     - { namespace: a, max_value: 1, seconds: 1, variables: [' x'] }\n";
    let rule = "rate_limit: { unit: day, requests_per_unit: 1 }";
    let envoy = format!(
        "domain: d\ndescriptors: [{{ key: a, {rule} }}, {{ key: b, descriptors: [{{ key: b, {rule} }}] }}, {{ key: ' c', {rule} }}]\n"
    );
    // Limits and overrides that were read; the numbers of those that are only told.
    for (format, text, read, left_out) in [
        ("limitd", limitd.as_str(), [3, 6], [1, 4]),
        ("boulder", boulder, [2, 6], [0, 4]),
        ("limitador", limitador, [2, 0], [0, 0]),
        ("envoy-ratelimit", &envoy, [3, 0], [2, 0]),
    ] {
        let found = import(format, text);
        assert_eq!(found.code, Some(0), "{format}: {}", found.text());
        let (written, told) = found.err.split_once("; left out: ").unwrap_or((&found.err, ""));
        let used = ["limit", "override"].map(|word| number(written, word));
        let mut told = ["limit", "override"].map(|word| number(told, word));
        // The path with one key twice makes no limit at all. It is a comment at the top.
        told[0] += found.out.matches("the limit is left out").count();
        assert_eq!((told, [used[0] + told[0], used[1] + told[1]]), (left_out, read), "{format}: {}", found.text());
        std::fs::write(folder.path().join("out.yaml"), &found.out).unwrap();
        let checked = run_in(folder.path(), &["check", "out.yaml"]);
        assert_eq!(["limit", "override"].map(|word| number(&checked.out, word)), used, "{format}: {}", checked.text());
    }
    for (format, text) in [
        ("limitd", "{}"),
        ("limitador", "a: 1"),
        ("boulder", "A: {}"),
        ("limitd", "buckets: { a: { size: 1 } }\n---\nb: 1"),
    ] {
        let found = import(format, text);
        assert!(found.code == Some(1) && found.out.is_empty() && told(&found.err) > 0, "{format}: {}", found.text());
    }
}
