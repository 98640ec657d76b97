//! Imported configurations of other rate limiters: their text, and decisions as the original's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use weir::clock::Clock;

use crate::support::binary::run_in;
use crate::support::programs::repository;
use crate::support::server::{Setup, Weir};
use crate::support::wire::Wire;

mod apisix;
mod beside;
mod corpus;
mod ingress;
mod kong;
mod random;
mod verdicts;

/// The start of all buckets in microseconds. It is a full hour, as clock windows start with one.
const START: u64 = 1_700_000_000_000_000 / 3_600_000_000 * 3_600_000_000;

/// Runs `weir`, checks the exit code and returns both outputs.
#[track_caller]
fn check(arguments: &[&str], code: i32) -> (String, String) {
    let finished = run_in(&repository().join("integration/cases/import"), arguments);
    assert_eq!(finished.code, Some(code), "{arguments:?}: {}", finished.text());
    (finished.out, finished.err)
}

/// Imports files and compares the result with the expected file, and the counts on standard error.
#[track_caller]
fn written(format: &str, files: &[&str], expected: &str, counts: &str) {
    let (out, err) = check(&[&["import", format], files].concat(), 0);
    let path = repository().join("integration/cases/import").join(expected);
    assert_eq!(out, std::fs::read_to_string(&path).unwrap(), "{expected}");
    assert_eq!(err, format!("{counts}\n"));
}

#[test]
fn each_format_is_written_as_expected_and_passes_check() {
    for (format, files, expected, counts) in [
        (
            "limitd",
            &["limitd.yml"][..],
            "limitd.expected.yaml",
            "6 limits, 4 overrides, 10 comments on what Weir cannot express; left out: 1 override",
        ),
        (
            "limitd",
            &["limitd-redis.json"],
            "limitd-redis.expected.yaml",
            "4 limits, 6 overrides, 8 comments on what Weir cannot express",
        ),
        (
            "limitd",
            &["limitd-elevated.json"],
            "limitd-elevated.expected.yaml",
            "1 limit, 1 override, 0 comments on what Weir cannot express",
        ),
        (
            "limitador",
            &["limitador.yaml"],
            "limitador.expected.yaml",
            "5 limits, 0 overrides, 5 comments on what Weir cannot express",
        ),
        (
            "envoy-ratelimit",
            &["envoy-ratelimit.yaml"],
            "envoy-ratelimit.expected.yaml",
            "11 limits, 4 overrides, 8 comments on what Weir cannot express",
        ),
        (
            "boulder",
            &["boulder-defaults.yml", "boulder-overrides.yml"],
            "boulder.expected.yaml",
            "7 limits, 6 overrides, 3 comments on what Weir cannot express; left out: 2 overrides",
        ),
        (
            "boulder",
            &["boulder-keys.yml"],
            "boulder-keys.expected.yaml",
            "2 limits, 3 overrides, 0 comments on what Weir cannot express",
        ),
    ] {
        written(format, files, expected, counts);
        let (out, err) = check(&["check", expected], 0);
        // Imported limits keep the edges of their windows, the ids that clients choose, regular expressions that match within
        // ids and limits without an effect, which the linter tells.
        let warnings = err.lines().filter(|line| line.starts_with("warning: "));
        let names = ["[window-edge]", "[free-id]", "[whole-ipv6-address]", "[unanchored-regex]", "[exempts-nothing]"];
        let kept = |line: &str| names.iter().any(|name| line.ends_with(name));
        let others: Vec<_> = warnings.filter(|line| !kept(line)).collect();
        assert!(out.contains(": ok, ") && others.is_empty(), "{out}{others:?}");
    }
}

#[test]
fn a_file_is_replaced_only_if_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    let path = path.to_str().unwrap();
    let import = ["import", "boulder", "boulder-keys.yml", "--output", path];
    let (out, err) = check(&import, 0);
    assert_eq!(
        (out.as_str(), err.as_str()),
        ("", &*format!("{path}: 2 limits, 3 overrides, 0 comments on what Weir cannot express\n"))
    );
    let first = std::fs::read_to_string(path).unwrap();
    assert_eq!(first, check(&["import", "boulder", "boulder-keys.yml"], 0).0);

    std::fs::write(path, "mine".repeat(1_000)).unwrap();
    let (_, err) = check(&import, 2);
    assert!(err.contains("already exists; use --force to replace it"), "{err}");
    assert!(std::fs::read_to_string(path).unwrap().starts_with("mine"));
    check(&[&import[..], &["--force"]].concat(), 0);
    assert_eq!(std::fs::read_to_string(path).unwrap(), first);

    // Unreadable input leaves the file as it is.
    let (_, err) = check(&["import", "boulder", "limitador.yaml", "--output", path, "--force"], 1);
    assert!(
        err.contains("error: an override must be a map, found a single value\n --> limitador.yaml:2:14\n"),
        "{err}"
    );
    assert_eq!(std::fs::read_to_string(path).unwrap(), first);
    let nowhere = folder.path().join("no/such/folder.yaml");
    let (_, err) = check(&["import", "boulder", "boulder-keys.yml", "--output", nowhere.to_str().unwrap()], 1);
    assert!(err.contains("cannot write"), "{err}");
}

#[test]
fn exit_codes_tell_what_was_wrong() {
    assert!(
        check(&["import", "limitd", "no-such-file.yml"], 1).1.contains("error: does not exist\n --> no-such-file.yml")
    );
    let (_, err) = check(&["import", "limitd", "boulder-keys.yml"], 1);
    assert!(err.contains("`NewRegistrationsPerIPAddress` has neither a size nor a rate"), "{err}");
    check(&["import", "caddy", "limitd.yml"], 2);
    check(&["import", "limitd"], 2);
    check(&["import", "limitd", "limitd.yml", "--force"], 2);
    let (out, _) = check(&["import", "--help"], 0);
    for format in ["limitd", "envoy-ratelimit", "limitador", "boulder", "nginx", "ingress-nginx", "traefik", "haproxy"]
    {
        assert!(out.contains(format), "{out}");
    }
}

/// A check listener with imported rules, on a clock that the test sets.
struct Listener {
    clock: Arc<AtomicU64>,
    wire: Wire,
    weir: Weir,
}

impl Listener {
    #[track_caller]
    fn open(arguments: &[&str]) -> Self {
        Self::serve(&check(&[&["import"], arguments].concat(), 0).0)
    }

    /// Serves the result of an import.
    #[track_caller]
    fn imported(arguments: &[&str]) -> Self {
        Self::serve(&check(&[&["import"], arguments].concat(), 0).0)
    }

    #[track_caller]
    fn serve(rules: &str) -> Self {
        let clock = Arc::new(AtomicU64::new(START));
        let setup = Setup {
            check: true,
            trusted: vec!["127.0.0.0/8"],
            clock: Clock::Set(Arc::clone(&clock)),
            ..Setup::new(rules)
        };
        let weir = setup.start("echo");
        Self { clock, wire: weir.connect_check(), weir }
    }

    /// Takes `cost` at a time in milliseconds after the start, and compares whether it is allowed, what remains, and
    /// the milliseconds until the bucket is full.
    #[track_caller]
    fn take(&mut self, at: u64, limit: &str, id: &str, cost: u64, expected: (bool, u64, u64)) {
        let call = json!({ "limit": limit, "id": id, "cost": cost });
        let answer = self.call(at, &call);
        let told = &answer["limits"][0];
        let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
        let given = (answer["allowed"] == true, number(&told["remaining"]), number(&told["reset_after_ms"]));
        assert_eq!(given, expected, "{call} at {at}: {answer}");
    }

    #[track_caller]
    fn call(&mut self, at: u64, call: &Value) -> Value {
        self.clock.store(START + at * 1_000, Ordering::Relaxed);
        let body = call.to_string();
        self.wire.send(format!(
            "POST /json HTTP/1.1\r\nhost: limiter\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
        let answer = self.wire.response();
        serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    }
}

/// Answers documented by limitd-redis or in its tests.
#[test]
fn buckets_of_limitd_decide_as_they_did() {
    let mut listener = Listener::open(&["limitd", "limitd-redis.json"]);
    // A burst of 10, then 5 per second.
    listener.take(0, "ip", "203.0.113.1", 10, (true, 0, 2_000));
    listener.take(0, "ip", "203.0.113.1", 1, (false, 0, 2_000));
    listener.take(199, "ip", "203.0.113.1", 1, (false, 0, 1_801));
    listener.take(200, "ip", "203.0.113.1", 1, (true, 0, 2_000));
    listener.take(200, "ip", "any key: {at} all", 1, (true, 9, 200));
    // By key, by expression, and until a date.
    listener.take(0, "ip", "127.0.0.1", 100, (true, 0, 2_000));
    listener.take(0, "ip", "192.168.7.7", 40, (true, 60, 800));
    listener.take(0, "ip", "54.32.12.31", 100, (true, 0, 2_000));
    let after = (1_798_675_200_000_000 - START) / 1_000 + 1;
    listener.take(after, "ip", "54.32.12.31", 1, (true, 9, 200));
    // Without a rate it never refills; it has expired like the other.
    listener.take(0, "ip", "10.0.0.7", 20, (true, 0, u64::MAX));
    listener.take(3_600_000, "ip", "10.0.0.7", 1, (false, 0, u64::MAX));
    // 100 in each minute from the first request on, all at once.
    listener.take(0, "tenant", "a", 100, (true, 0, 60_000));
    listener.take(59_999, "tenant", "a", 1, (false, 0, 1));
    listener.take(60_000, "tenant", "a", 100, (true, 0, 60_000));
    listener.take(0, "tenant", "acme", 500, (true, 0, 60_000));
    listener.take(0, "jobs", "x", 20, (true, 0, 6_000));
    // A request alone is not charged.
    assert_eq!(listener.weir.connect().get("/").header("ratelimit"), None);
}

/// The worked example of Boulder's documentation with its overrides.
#[test]
fn limits_of_boulder_decide_as_they_did() {
    let mut listener = Listener::open(&["boulder", "boulder-keys.yml"]);
    let limit = "NewRegistrationsPerIPAddress";
    listener.take(0, limit, "172.23.45.22", 1, (true, 19, 50));
    listener.take(5, limit, "172.23.45.22", 1, (true, 18, 95));
    listener.take(49, limit, "172.23.45.22", 18, (true, 0, 951));
    listener.take(49, limit, "172.23.45.22", 1, (false, 0, 951));
    listener.take(50, limit, "172.23.45.22", 1, (true, 0, 1_000));
    // Twice the count, the same burst.
    listener.take(0, limit, "10.0.0.2", 20, (true, 0, 500));
    listener.take(0, limit, "2001:db8::ff00:42:8329", 20, (true, 0, 500));
    listener.take(0, "NewOrdersPerAccount", "1", 300, (true, 0, 10_800_000));
    listener.take(0, "NewOrdersPerAccount", "12345678", 300, (true, 0, 5_400_000));
    // Charges requests on the path to the account in the header.
    let mut wire = listener.weir.connect();
    wire.send("POST /acme/new-order HTTP/1.1\r\nhost: a\r\nx-account-id: 12345678\r\ncontent-length: 0\r\n\r\n");
    let denied = wire.response();
    assert_eq!((denied.status(), denied.header("retry-after")), (429, Some("18")));
    assert_eq!(listener.weir.connect().get_with("/acme/new-order", &[("x-account-id", "12345678")]).status(), 200);

    let mut listener = Listener::open(&["boulder", "boulder-defaults.yml", "boulder-overrides.yml"]);
    let week = 7 * 86_400_000;
    listener.take(0, "CertificatesPerDomain", "www.example.co.uk", 1, (true, 49, week / 50));
    listener.take(0, "CertificatesPerDomain", "example.com", 1, (true, 299, week / 300));
    listener.take(0, "CertificatesPerFQDNSet", "example.net,EXAMPLE.com", 40, (true, 0, 1_000));
    listener.take(0, "CertificatesPerFQDNSet", "example.net", 5, (true, 0, week));
    listener.take(0, "CertificatesPerDomainPerAccount", "12345678:example.com", 1_000, (true, 0, week));
    // An account without an override does not have this limit.
    let call = json!({ "limit": "CertificatesPerDomainPerAccount", "id": "7:example.com" });
    assert_eq!(listener.call(0, &call)["limits"], json!([]));
}

/// Each entry is written, or commented on and counted.
#[test]
fn what_is_left_out_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let import = |format: &str, text: &str| {
        let path = folder.path().join("in.yaml");
        std::fs::write(&path, text).unwrap();
        check(&["import", format, path.to_str().unwrap()], 0)
    };
    // Settings, an unknown key, an id that is not an address, and keys of a resource beside its limits.
    let (out, err) = import(
        "limitd",
        "port: 9001\ntelemetry: on\nbuckets:\n  ip:\n    size: 10\n    colour: red\n    per_second: 5\n",
    );
    assert_eq!(err, "1 limit, 0 overrides, 3 comments on what Weir cannot express\n", "{out}");
    assert!(out.contains("in.yaml:2: `telemetry`: no equivalent; left out."), "{out}");
    let (out, err) = import(
        "boulder",
        "NewRegistrationsPerIPAddress: { burst: 20, count: 20, period: 1s }\n\
         NewRegistrationsPerIPAddress:10.0.0.2: { burst: 20, count: 40, period: 1s }\n\
         NewRegistrationsPerIPAddress:example.com: { burst: 20, count: 40, period: 1s }\n",
    );
    assert_eq!(err, "1 limit, 1 override, 1 comment on what Weir cannot express; left out: 1 override\n", "{out}");
    let (out, err) = import(
        "limitador",
        "apiVersion: limitador.kuadrant.io/v1alpha1\nkind: Limitador\nspec:\n  replicas: 2\n  limits:\n    \
         - { namespace: a, max_value: 5, seconds: 60, name: first, id: second }\n",
    );
    assert_eq!(err, "1 limit, 0 overrides, 2 comments on what Weir cannot express\n", "{out}");
    for part in ["replicas", "id"] {
        assert!(out.contains(&format!("`{part}`: no equivalent; left out.")), "{part}: {out}");
    }
}

/// Keys that the importer knows, where they have no effect: each is written into the rules or commented on.
#[test]
fn a_known_key_that_has_no_effect_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.yaml");
    let limitador = "{ namespace: a, max_value: 5, seconds: 60 }";
    for (format, text, told) in [
        (
            "limitd",
            "buckets: { a: { size: 10, interval: 1000 } }",
            &["`interval` is left out: it is the interval of `per_interval`"][..],
        ),
        ("limitd", "buckets: { a: { per_second: 5, interval: 1000 } }", &["`interval` is left out"]),
        (
            "limitd",
            "buckets: { a: { size: 1, overrides: { b: { size: 2, interval: 9 } } } }",
            &["`interval` is left out"],
        ),
        (
            "limitd",
            "buckets: { a: { per_second: 5, elevated_limits: { size: 9, interval: 9, erl_activation_period_seconds: 9, quota_per_calendar_month: 9 } } }",
            &["`interval` is left out"],
        ),
        ("limitd", "buckets: { a: { per_second: 5, per_minute: 0 } }", &["`per_minute`: a rate of 0 counts as absent"]),
        (
            "limitd",
            "buckets: { a: { unlimited: true, size: 5, per_second: 5, fixed_window: true } }",
            &["`size`, `per_second`: an unlimited bucket needs no numbers", "`fixed_window` is left out"],
        ),
        (
            "limitd",
            "buckets: { a: { size: 5, fixed_window: true } }",
            &["`fixed_window` is left out: a bucket without a rate"],
        ),
        (
            "limitd",
            "buckets: { a: { size: 1, override: { b: { size: 2, purpose: For tests, override: {}, overrides: {} } } } }",
            &["# For tests", "`override`: only valid in a bucket", "`overrides`: only valid in a bucket"],
        ),
        (
            "limitd",
            "buckets: { a: { per_second: 1, override: { b: { per_second: 2, skip_n_calls: 3 } } } }",
            &["`skip_n_calls: 3` is left out: an override has the `lease` of its limit"],
        ),
        ("limitador", &format!("limits: [{limitador}]\nspec: {{ replicas: 2 }}"), &["`spec`: no equivalent; left out"]),
        (
            "limitador",
            &format!("limits: []\nspec: {{ limits: [{limitador}], kind: b }}"),
            &["`limits`: no equivalent; left out", "`kind`: no equivalent; left out"],
        ),
        (
            "envoy-ratelimit",
            "domain: d\ndescriptors: [{ key: a, shadow_mode: true, metadata: { b: c }, descriptors: [{ key: e, rate_limit: { unit: day, requests_per_unit: 1 } }] }]",
            &["`metadata` has no effect without `rate_limit`", "`shadow_mode` has no effect without `rate_limit`"],
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let (out, err) = check(&["import", format, path.to_str().unwrap()], 0);
        let words = out.split_whitespace().filter(|word| *word != "#").collect::<Vec<_>>().join(" ");
        for part in told {
            let part = part.trim_start_matches("# ");
            assert!(words.contains(part), "`{part}` is not in\n{out}");
        }
        assert!(!err.contains(", 0 comments"), "{text}: {err}");
    }
}
