//! The commands as a user runs them.

use std::path::PathBuf;
use std::process::Command;

use crate::support::binary::{PATH, command, run};
use crate::support::process::{Finished, finish};
use crate::support::redis::RedisServer;

fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs `weir`, checks the exit code and returns everything it printed.
#[track_caller]
fn check(arguments: &[&str], code: i32) -> String {
    let finished = run(arguments);
    assert_eq!(finished.code, Some(code), "{arguments:?}: {}", finished.text());
    finished.text()
}

#[test]
fn a_command_whose_output_is_closed_does_not_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("limits.yaml");
    std::fs::write(&rules, "limits: { A: { count: 0 } }\n").unwrap();
    for arguments in [&["schema"][..], &["check", rules.to_str().unwrap()]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut weir = command(arguments);
        weir.stdout(writer.try_clone().unwrap()).stderr(writer);
        assert_eq!(weir.status().unwrap().code(), Some(141), "{arguments:?}");
    }
}

/// Text without the escapes of colors.
fn plain(text: &str) -> String {
    let mut pieces = text.split('\u{1b}');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.split_once('m').unwrap().1)
}

#[test]
fn terminals_get_colors_and_pipes_none() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let tests = "tests:\n  t: [{ get: /, expect: deny }]\n";
    let good = write("good.yaml", &format!("limits:\n  A: {{ count: 5, period: 1s }}\n{tests}"));
    let strict = write("strict.yaml", "limits:\n  A: { count: 4, period: 1s }\n");
    let bad = write("bad.yaml", "limits:\n  A: { limit: 5 }\n");
    let log = write("access.log", "192.0.2.1 - - [21/Nov/2026:05:47:30 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n");
    for arguments in [
        &["check", &bad][..],
        &["check", &good],
        &["check", &strict],
        &["check", "no-such-file"],
        &["test", &good],
        &["diff", &good, &strict],
        &["simulate", &log, "--limits", &strict],
        &["--help"],
        &["serve", "--workers", "0"],
        &["bucket", "get", "A:1", "--admin", "ftp://a"],
    ] {
        let text = |variables: &[(&str, &str)]| finish(command(arguments).envs(variables.iter().copied())).text();
        let (piped, forced) = (text(&[]), text(&[("CLICOLOR_FORCE", "1")]));
        assert!(!piped.contains('\u{1b}') && forced.contains("\u{1b}["), "{arguments:?}: {piped}{forced}");
        assert_eq!(plain(&forced), piped, "{arguments:?}");
        assert_eq!(text(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]), piped, "{arguments:?}");
    }
    for format in ["json", "sarif", "github"] {
        let document = finish(command(&["check", "--format", format, &good]).env("CLICOLOR_FORCE", "1")).text();
        assert!(document.contains("expected deny") && !document.contains('\u{1b}'), "{document}");
        assert!(!document.contains("\\u001b"), "{document}");
    }
    let on_terminal = |variable: &str| {
        let mut script = Command::new("script");
        script.args(["-qec", &format!("{variable} {PATH} check {bad}"), "/dev/null"]).env_remove("NO_COLOR");
        finish(script.env("TERM", "xterm")).text()
    };
    let (colored, without) = (on_terminal(""), on_terminal("NO_COLOR=1"));
    assert!(colored.contains("\u{1b}[1m\u{1b}[31merror") && colored.contains("\u{1b}[31m^^^^^"), "{colored:?}");
    assert_eq!(plain(&colored), without);
}

#[test]
fn the_version_is_short_or_says_what_was_built() {
    let short = concat!("weir ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(check(&["-V"], 0), short);
    let long = check(&["--version"], 0);
    let words: Vec<&str> = long.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(long.starts_with(short) && long.contains("compiler  rustc 1."), "{long}");
    assert!(words.ends_with(&["compiler", "target", "features"]), "{long}");
}

/// The last line of `weir test` when every case of the file passes.
fn all_passed(file: &str) -> String {
    let cases = std::fs::read_to_string(file).unwrap().lines().count();
    assert!(cases > 100);
    format!("{cases} passed, 0 failed")
}

#[test]
fn every_scenario_passes_in_memory() {
    let file = "integration/cases/decisions.jsonl";
    let text = check(&["test", file], 0);
    assert_eq!(text.lines().last(), Some(all_passed(file).as_str()));
}

#[test]
fn every_scenario_passes_on_redis_and_leaves_nothing_there() {
    let redis = RedisServer::plain();
    let file = "integration/cases/decisions.jsonl";
    let text = check(&["test", file, "--store", &redis.url()], 0);
    assert_eq!(text.lines().last(), Some(all_passed(file).as_str()));
    assert_eq!(redis.cli(&["dbsize"]).trim(), "0");
}

#[test]
fn a_scenario_that_differs_fails_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrong.jsonl");
    let case = |expect: &str| {
        format!(
            "{{\"case\":\"c\",\"limits\":{{\"L\":{{\"burst\":2}}}},\"steps\":[{{\"at_ms\":0,\"op\":\"spend\",\
             \"limit\":\"L\",\"id\":\"k\",\"cost\":1,\"expect\":{expect}}}]}}\n"
        )
    };
    let right = case("{\"allowed\":true,\"remaining\":1}");
    let lines = [right, case("{\"remaining\":0}"), case("{\"error\":true}"), case("{\"unknown\":1}")].concat();
    std::fs::write(&path, lines).unwrap();
    let text = check(&["test", path.to_str().unwrap()], 1);
    assert!(text.contains("wrong.jsonl:2: c: step 1 (spend at 0 ms): remaining is 1, expected 0"), "{text}");
    assert!(text.ends_with("1 passed, 3 failed\n"), "{text}");
}

#[test]
fn a_test_needs_its_store() {
    let text = check(&["test", "integration/cases/decisions.jsonl", "--store", "redis://127.0.0.1:1"], 3);
    assert!(text.contains("error:"), "{text}");
}

/// The message for a rules file and the exit code of `weir check`.
#[test]
fn check_agrees_with_every_case() {
    let folder = tempfile::tempdir().unwrap();
    let (limits, overrides) = (folder.path().join("limits.yaml"), folder.path().join("overrides.yaml"));
    let cases = std::fs::read_to_string(file("integration/cases/config.jsonl")).unwrap();
    for line in cases.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        std::fs::write(&limits, case["limits"].as_str().unwrap()).unwrap();
        let mut arguments = vec!["check", limits.to_str().unwrap()];
        if let Some(text) = case["overrides"].as_str() {
            std::fs::write(&overrides, text).unwrap();
            arguments.extend(["--overrides", overrides.to_str().unwrap()]);
        }
        let Finished { code, err: text, .. } = run(&arguments);
        let expected = i32::from(case["expect"] == "error");
        assert_eq!(code, Some(expected), "{}: {text}", case["case"]);
        assert_eq!(text.lines().any(|line| line.starts_with("error: ")), expected == 1, "{}: {text}", case["case"]);
        assert!(text.contains("warning: ") || case["expect_warning"].is_null(), "{}: {text}", case["case"]);
    }
}

#[test]
fn explain_says_of_every_limit_whether_and_why() {
    let text = check(
        &[
            "explain",
            "POST",
            "http://api.example.com//v1/./orders/",
            "-H",
            "x-account-id: 12345678",
            "--ip",
            "10.0.0.2",
        ],
        0,
    );
    for part in [
        "POST api.example.com/v1/orders from 10.0.0.2",
        "RequestsPerIPAddress: applies\n  id        10.0.0.2\n  allows    burst 20, 40 per 1s\n",
        "NewOrdersPerAccount: applies\n  id        12345678\n  allows    burst 300, 600 per 3h\n",
        "given by  the override at limits.yaml:",
        "CertificatesPerDomainPerAccount: does not apply\n  because   the path is /v1/orders, the limit covers /v1/certificates/{domain}",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let text = check(&["explain", "GET", "/v1/certificates/www.example.co.uk", "--ip", "2001:db8::7"], 0);
    assert!(text.contains("  id        2001:db8::/64\n"), "{text}");
    assert!(text.contains("because   the request has no header `x-account-id`"), "{text}");
    for (account, id) in [("x-account-id: 07", "7"), ("x-account-id: 0x7", "(malformed)")] {
        let text = check(&["explain", "POST", "/v1/orders", "-H", account], 0);
        assert!(text.contains(&format!("NewOrdersPerAccount: applies\n  id        {id}\n")), "{text}");
    }
}

#[test]
fn explain_says_what_the_response_decides() {
    let directory = tempfile::tempdir().unwrap();
    let limits = directory.path().join("limits.yaml");
    let rules = "limits:\n  Tokens: { count: 100, period: 1m, cost_from_response: { header: x-tokens-used }, reserve: 10 }\n  \
        Logins: { count: 5, period: 1m, spend_when: { status: [401, 5xx] } }\n  \
        Prices: { count: 9, period: 1m, cost_from_response: { usage: gemini, weights: { cached_input: 0.125, output: 4 } } }\n";
    std::fs::write(&limits, rules).unwrap();
    let text = check(&["explain", "GET", "/", "--limits", limits.to_str().unwrap()], 0);
    for part in [
        "  cost      10\n  settled   by the response header `x-tokens-used`\n",
        "  cost      1\n  spent     if the upstream answers 401, 5xx, or does not answer after it was sent the request\n",
        "by the response body (usage gemini: input 1, cached_input 0.125, cache_write 1, output 4, reasoning 4)\n",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn explain_says_who_is_denied_and_who_would_be() {
    let directory = tempfile::tempdir().unwrap();
    let limits = directory.path().join("limits.yaml");
    let rules = "limits:\n  Whole: { by: { header: x-id }, burst: 1, missing: deny }\n  \
        Watched: { by: { header: x-id }, burst: 1, missing: deny, mode: shadow }\n  \
        Begun: { by: { header: x-id }, burst: 1, missing: deny, enforce_for: 0% }\n  \
        Closed: { deny: true, mode: shadow }\n";
    std::fs::write(&limits, rules).unwrap();
    let text = check(&["explain", "GET", "/", "--limits", limits.to_str().unwrap()], 0);
    for (limit, verb) in [
        ("Whole", "denies"),
        ("Watched", "would deny, in shadow mode"),
        ("Begun", "would deny, in shadow mode"),
        ("Closed", "would deny, in shadow mode"),
    ] {
        assert!(text.contains(&format!("{limit}: applies, {verb}\n")), "{limit} in\n{text}");
    }
}

#[test]
fn explain_shows_elevated_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let limits = directory.path().join("limits.yaml");
    let rules = "limits:\n  Api: { cost: 30, burst: 30, count: 10, period: 1s, \
        elevated: { count: 100, period: 1s, for: 900s, activations_per_month: 5 } }\n\
        overrides:\n  Api:10.0.0.1: { elevated: { burst: 200, count: 200, period: 1s } }\n\
        \x20 Api:10.0.0.2: { count: 20, period: 1s }\n";
    std::fs::write(&limits, rules).unwrap();
    let limits = limits.to_str().unwrap();
    for (client, expected) in [
        (
            "10.0.0.0",
            "burst 30, 10 per 1s\n  elevated  burst 100, 100 per 1s, for 15m, 5 times a month\n  cost      30\n",
        ),
        (
            "10.0.0.1",
            "burst 30, 10 per 1s\n  elevated  burst 200, 200 per 1s, for 15m, 5 times a month\n  cost      30\n",
        ),
        (
            "10.0.0.2",
            "burst 20, 20 per 1s\n  elevated  burst 100, 100 per 1s, for 15m, 5 times a month\n  cost      30\n",
        ),
    ] {
        let text = check(&["explain", "GET", "/", "--limits", limits, "--ip", client], 0);
        assert!(text.contains(&format!("  allows    {expected}  given by")), "{text}");
    }
}

#[test]
fn explain_takes_the_subject_of_a_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let limits = directory.path().join("limits.yaml");
    let rules = "limits: { PerClient: { by: { tls: subject }, burst: 1, count: 1, period: 1s } }\n\
        overrides: { \"PerClient:CN=client 1,O=Acme\": { burst: 5, count: 5, period: 1s } }";
    std::fs::write(&limits, rules).unwrap();
    let limits = limits.to_str().unwrap();
    let text = check(&["explain", "GET", "/", "--limits", limits, "--tls-subject", "CN=client 1,O=Acme"], 0);
    assert!(
        text.contains("PerClient: applies\n  id        CN=client 1,O=Acme\n  allows    burst 5, 5 per 1s"),
        "{text}"
    );
    let text = check(&["explain", "GET", "/", "--limits", limits], 0);
    assert!(text.contains("because   the request has no client certificate subject"), "{text}");
}

#[test]
fn explain_says_what_is_malformed_and_what_is_excluded() {
    let directory = tempfile::tempdir().unwrap();
    let limits = directory.path().join("limits.yaml");
    let rules = "limits:\n  \
        Denied: { by: { query: id, as: integer }, malformed: deny, burst: 1 }\n  \
        Skipped: { by: { query: id, duplicates: first, as: integer }, malformed: skip, burst: 1 }\n  \
        Header: { match: { headers: { x-plan: { not: [paid, { prefix: gold }], present: true } } }, burst: 1 }\n  \
        Host: { match: { host: { not: [a.example, '::1'] } }, burst: 1 }\n  \
        Path: { match: { path: /V1, path_case: ignore }, burst: 1 }\n  \
        Prefix: { match: { path: [/v2, { prefix: /V1/ }, { regex: '^v' }] }, burst: 1 }\n  \
        Except: { match: { path: ['/**', { not: [/v2, { regex: ';x$' }] }] }, burst: 1 }\n";
    std::fs::write(&limits, rules).unwrap();
    let limits = limits.to_str().unwrap();
    let url = "http://a.example/V1;x?id=x&ID=y";
    let text = check(&["explain", "GET", url, "--limits", limits, "-H", "x-plan: golden", "-H", "x-plan: paid"], 0);
    for part in [
        "Denied: applies, denies\n  id        (malformed)\n  given by  `malformed: deny`\n",
        "Skipped: does not apply\n  because   the query parameter `id` is malformed, and the limit has `malformed: skip`\n",
        "because   the header `x-plan` is `golden` and `paid`, the limit requires it to be present and not to be `paid` and \
         not to start with `gold`\n",
        "because   the host is `a.example`, the limit does not cover a.example\n",
        "because   the path is /v1;x, the limit covers /v1\n",
        "because   the path is /V1;x, the limit covers /v2, /V1/**, { regex: '^v' }\n",
        "because   the path is /V1;x, the limit does not cover { regex: ';x$' }\n",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn explain_tells_which_rule_covers_a_descriptor() {
    let file = |name: &str| format!("integration/cases/rate_limit_service/{name}.yaml");
    let config = file("basic");
    let rules = ["--envoy-ratelimit-config", config.as_str()];
    let domain =
        ["explain", "--domain", "test-domain", "--descriptor", "key1=value1", "--descriptor", "subkey1=subvalue1"];
    let text = check(&[&domain[..], &rules].concat(), 0);
    for part in [
        "descriptor key1=value1, subkey1=subvalue1 in domain test-domain\n",
        "test-domain/key1=value1/subkey1: does not apply\n  because   a rule for this value",
        "test-domain/key1=value1/subkey1=subvalue1: applies\n  id        (one bucket for all)\n  allows    burst 10, 10 per clock window of 1s\n",
        "test-domain/key2: does not apply\n  because   entry 1 is `key1`, the limit requires `key2`\n",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let limits = file("limits");
    let of_tenant = ["explain", "--domain", "api", "--descriptor", "tenant=a", "--limits", limits.as_str()];
    let text = check(&of_tenant, 0);
    for part in [
        "PerTenant: does not apply\n  because   the entry `path` is absent, the limit requires it to match `/v1/*`\n",
        "Whole: applies\n",
        "Free: does not apply\n  because   the domain is `api`, the limit covers free\n",
        "Web: does not apply\n  because   the request has no address\n",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // Both kinds of files at once, and an ext_authz request with context extensions.
    let text = check(
        &[
            &["explain", "GET", "/", "--descriptor", "plan=free", "--descriptor", "tenant=a", "--limits", &limits][..],
            &rules,
        ]
        .concat(),
        0,
    );
    assert!(text.contains("PerMinute: applies\n  id        free:a\n") && text.contains("Web: applies\n"), "{text}");
    check(&["explain", "--domain", "d", "--descriptor", "no equals sign", "--limits", &limits], 2);
    check(&["explain", "GET", "/", "--domain", "d", "--limits", &limits], 2);
    check(&[&["check"][..], &rules].concat(), 0);
    check(&["check", &limits, "--envoy-ratelimit-config", &limits], 1);
}

#[test]
fn explain_shows_windows_as_windows() {
    let directory = tempfile::tempdir().unwrap();
    let limits = directory.path().join("limits.yaml");
    let rules = "limits:\n  A: { algorithm: fixed_window, aligned: clock, count: 10, period: 1h }\n  \
        B: { algorithm: fixed_window, burst: 20, count: 10, period: 90s }\n  \
        C: { algorithm: fixed_window, count: 10, period: month, timezone: Europe/Berlin, resets_on: 15 }\n  \
        D: { algorithm: fixed_window, count: 10, period: year }\n";
    std::fs::write(&limits, rules).unwrap();
    let text = check(&["explain", "GET", "/", "--limits", limits.to_str().unwrap()], 0);
    for part in [
        "  allows    burst 10, 10 per clock window of 1h\n",
        "  allows    burst 20, 10 per window of 90s\n",
        "  allows    burst 10, 10 per calendar month from day 15, Europe/Berlin\n",
        "  allows    burst 10, 10 per calendar year, UTC\n",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn a_cluster_shows_which_limits_are_charged_apart() {
    let directory = tempfile::tempdir().unwrap();
    let limits = directory.path().join("limits.yaml");
    let write = |tag: &str| {
        let rules = format!(
            "limits:\n  PerAddress: {{ by: ip/64, count: 10, period: 1s }}\n  \
             PerRoute: {{ by: [ip/64, path], count: 5, period: 1s }}\n  \
             PerKey: {{ by: {{ header: x-key }}, count: 5, period: 1s{tag} }}\n  \
             All: {{ by: global, count: 100, period: 1s{tag} }}\n"
        );
        std::fs::write(&limits, rules).unwrap();
    };
    let path = limits.to_str().unwrap();
    let cluster = ["--store", "redis+cluster://127.0.0.1:1,127.0.0.1:2"];
    let explain = ["explain", "GET", "/a", "--limits", path, "--ip", "192.0.2.1", "-H", "x-key: 12345678"];

    write("");
    let text = run(&[&["check", path][..], &cluster].concat()).text();
    let expected = "4 limits, 0 overrides\nnote: PerAddress, PerRoute, PerKey and All may be charged in different hash slots \
                    of the cluster: a request then takes two round trips";
    assert!(text.contains(expected), "{text}");
    assert!(!check(&["check", path], 0).contains("note"));
    let text = check(&[&explain[..], &cluster].concat(), 0);
    for part in [
        "  tag       68\n\nPerRoute: ",
        "  tag       68\n\nPerKey: ",
        "\ntags: 68, 112 (2 hash slots: 2 round trips)\n",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!check(&explain, 0).contains("tag"));
    check(&["explain", "GET", "/", "--store", "postgres://x"], 2);

    write(", tag: Tenants");
    let tagged = ["explain", "POST", "/a", "--limits", path, "-H", "x-key: 1", "--descriptor", "a=b"];
    let text = check(&[&tagged[..], &cluster].concat(), 0);
    assert_eq!(text.matches("\n  tag       ").count(), 4, "{text}");
    let of =
        |limit: &str| text.split(limit).nth(1).and_then(|rest| rest.split("tag       ").nth(1)).map(|rest| &rest[..2]);
    assert_eq!(of("PerKey: applies"), of("All: applies"), "{text}");
}

#[test]
fn exit_codes_tell_what_was_wrong() {
    check(&["check", "limits.yaml"], 0);
    check(&["--version"], 0);
    check(&["check", "no-such-file.yaml"], 1);
    check(&["explain", "GET", "/", "--limits", "no-such-file.yaml"], 1);
    check(&["explain", "GET", "http://[/"], 1);
    check(&["explain", "GET", "/", "-H", "no colon"], 2);
    check(&["test", "Cargo.toml"], 1);
    check(&["replay", "Cargo.toml"], 1);
    check(&["test", "limits.yaml", "--store", "postgres://x"], 2);
    check(&["no-such-command"], 2);
    check(&[], 2);
}

#[test]
fn the_schema_is_json() {
    let schema: serde_json::Value = serde_json::from_str(&check(&["schema"], 0)).unwrap();
    assert!(schema["properties"]["limits"].is_object(), "{schema}");
    let flags: serde_json::Value = serde_json::from_str(&check(&["schema", "--config"], 0)).unwrap();
    assert!(flags["properties"]["upstream"].is_object(), "{flags}");
    assert_ne!(schema["title"], flags["title"]);
    // Editors take a schema for another one with the same id. Without a site, schemas have no id.
    assert!(schema["$id"] != flags["$id"] || [&schema, &flags].iter().all(|schema| schema.get("$id").is_none()));
}

#[test]
fn shells_complete_commands_and_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = check(&["completions", shell], 0);
        assert!(script.contains("simulate") && script.contains("envoy-ratelimit-config"), "{shell}: {script}");
    }
    check(&["completions", "ksh"], 2);
    // What bash offers for `weir serve --envoy-ratelimit-c`.
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("weir.bash");
    std::fs::write(&script, check(&["completions", "bash"], 0)).unwrap();
    let ask = "source \"$1\" && COMP_WORDS=(weir serve --envoy-ratelimit-c) COMP_CWORD=2 && \
        _weir weir --envoy-ratelimit-c serve && echo \"${COMPREPLY[@]}\"";
    let told = finish(Command::new("bash").args(["--norc", "-c", ask, "bash"]).arg(&script));
    assert_eq!(told.text(), "--envoy-ratelimit-config\n");
}

#[test]
fn each_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    check(&["man", "--dir", directory.path().to_str().unwrap()], 0);
    let main = check(&["man"], 0);
    assert_eq!(main, std::fs::read_to_string(directory.path().join("weir.1")).unwrap());
    for command in ["serve", "check", "simulate", "bucket-reset"] {
        let page = std::fs::read_to_string(directory.path().join(format!("weir-{command}.1"))).unwrap();
        assert!(page.contains(&format!(".TH weir-{command} 1")), "{page}");
    }
    let text = check(&["man", "--dir", "no/such/directory"], 1);
    assert!(text.contains("cannot write to no/such/directory"), "{text}");
}

#[test]
fn the_short_help_of_serve_has_the_flags_to_begin_with_and_the_long_one_all() {
    let flags = |text: &str| text.lines().filter(|line| line.trim_start().starts_with("--")).count();
    let (short, long) = (check(&["serve", "-h"], 0), check(&["serve", "--help"], 0));
    assert_eq!(flags(&short), 20, "{short}");
    assert!(short.contains("--upstream") && short.contains("weir serve --help"), "{short}");
    assert!(flags(&long) > 80 && long.contains("--http2-resets"), "{long}");
    for heading in ["Listeners:", "gRPC listener:", "Admin listener:", "Upstreams:"] {
        assert!(long.contains(&format!("\n{heading}\n")), "{heading}");
    }
}
