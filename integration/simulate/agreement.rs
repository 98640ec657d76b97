//! A simulation agrees with the proxy whose access log it reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::support::binary::run_in;
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::{becomes, eventually};

/// The periods are long, so that it does not matter when exactly a request is decided, but for `Brief`.
const LIMITS: &str = "
limits:
  Gcra:     { match: { path: /gcra/** }, by: { header: user-agent }, burst: 12, count: 10, period: 1h, warn_at: [50%, 100%] }
  Fixed:    { match: { path: /fixed/** }, by: { header: user-agent }, algorithm: fixed_window, count: 9, period: 2h, warn_at: 80% }
  Clock:    { match: { path: /clock/** }, by: { header: user-agent }, algorithm: fixed_window, aligned: clock, count: 8, period: month, warn_at: [1%, 99%] }
  Log:      { match: { path: /log/** }, by: { header: user-agent }, algorithm: sliding_log, count: 7, period: 1h, warn_at: [40%, 70%, 100%] }
  Sliding:  { match: { path: /sliding/** }, by: { header: user-agent }, algorithm: sliding_window, count: 11, period: 30d, warn_at: 90% }
  Counting: { match: { path: /counting/** }, by: { header: user-agent }, algorithm: sliding_window, count: 6, period: 30d, count_denied: true, warn_at: 100% }
  Elevated: { match: { path: /elevated/** }, by: { header: user-agent }, count: 5, period: 1h, elevated: { burst: 20, count: 20, period: 1h, for: 900s, activations_per_month: 1 }, warn_at: [80%, 100%] }
  Rates:    { match: { path: /rates/** }, by: { header: user-agent }, rates: [{ count: 10, period: 1h }, { count: 13, period: 1d }], warn_at: [50%, 100%] }
  Given:    { match: { path: /given/** }, by: { header: user-agent }, count: 4, period: 1h }
  Shadow:   { match: { path: /shadow/** }, by: { header: user-agent }, count: 5, period: 1h, mode: shadow, warn_at: 100%, ban: { after: 2, within: 1h, for: 10m } }
  Share:    { match: { path: /share/** }, by: { header: user-agent }, count: 5, period: 1h, enforce_for: 50% }
  Missing:  { match: { path: /missing/** }, by: { header: referer }, count: 50, period: 1h, missing: deny }
  Open:     { match: { path: /open/** }, by: { header: referer }, unlimited: true }
  Closed:   { match: { path: /closed/** }, by: global, deny: true }
  Tried:    { match: { path: /tried/** }, by: { header: user-agent }, count: 9, period: 1h, candidates: { low: { count: 3, period: 1h }, high: { burst: 5, count: 12, period: 1h } }, warn_at: 80% }
  Banning:  { match: { path: /banning/** }, by: { header: user-agent }, burst: 4, count: 1, period: 1h, ban: { after: 3, within: 1h, for: 1d } }
  Brief:    { match: { path: /brief/** }, by: { header: user-agent }, algorithm: fixed_window, count: 5, period: 2s }
  Slots:    { match: { path: /slots }, by: global, algorithm: concurrency, burst: 2 }
  All:      { by: ip, burst: 5500, count: 10, period: 24h }
overrides:
  Given:u1: { count: 15, period: 1h }
  Given:u2: { unlimited: true }
  Given:u3: { deny: true }
  Given:u4: { count: 15, period: 1h, until: 2020-01-01T00:00:00Z }
";

const KINDS: &[&str] = &[
    "gcra", "fixed", "clock", "log", "sliding", "counting", "elevated", "rates", "given", "shadow", "share", "missing",
    "open", "closed", "tried", "banning",
];

const REQUESTS: usize = 10_000;

/// The denials that the clients saw.
struct Truth {
    /// Denied requests.
    denied: u64,
    /// By id, in `Gcra`.
    of_ids: BTreeMap<String, u64>,
}

/// Sends the requests; three of them are in flight at once.
fn traffic(weir: &Weir, is_released: &AtomicBool) -> Truth {
    let mut truth = Truth { denied: 0, of_ids: BTreeMap::new() };
    let mut client = weir.connect();
    let mut sent = 0;
    let mut send = |path: &str, id: &str, referer: bool| {
        let headers: &[(&str, &str)] =
            if referer { &[("user-agent", id), ("referer", "https://b.example/")] } else { &[("user-agent", id)] };
        let is_denied = client.get_with(path, headers).status() == 429;
        truth.denied += u64::from(is_denied);
        if is_denied && path.starts_with("/gcra") {
            *truth.of_ids.entry(id.to_owned()).or_default() += 1;
        }
        sent += 1;
    };
    let hold = || {
        is_released.store(false, Ordering::Relaxed);
        let mut clients = [weir.connect(), weir.connect()];
        for (number, client) in (1..).zip(&mut clients) {
            client.send("GET /slots HTTP/1.1\r\nhost: a\r\n\r\n");
            becomes("the request is in flight", number, || weir.metric("weir_http_requests_in_flight"));
        }
        // The simulation computes starts from ends and durations, which a busy machine may measure some milliseconds apart.
        std::thread::sleep(Duration::from_millis(100));
        clients
    };
    for burst in 0..2 {
        for _ in 0..10 {
            send("/brief/x", "u1", false);
        }
        let clients = hold();
        send("/slots", "u1", false);
        is_released.store(true, Ordering::Relaxed);
        for mut client in clients {
            assert_eq!(client.response().status(), 200);
        }
        if burst == 0 {
            // The window of `Brief` is over.
            std::thread::sleep(Duration::from_millis(2_100));
        }
    }
    for number in 0..REQUESTS - 26 {
        let kind = KINDS[number % KINDS.len()];
        let id = number / KINDS.len();
        send(&format!("/{kind}/{}", number % 7), &format!("u{}", id * id % 53), !id.is_multiple_of(3));
    }
    assert_eq!(sent + 4, REQUESTS);
    truth
}

#[test]
fn a_simulation_of_the_access_log_denies_what_the_proxy_has_denied() {
    let is_released = Arc::new(AtomicBool::new(true));
    let upstream = Upstream::start({
        let is_released = is_released.clone();
        move |wire, _| {
            while let Some(request) = wire.request() {
                while request.start.starts_with("GET /slots") && !is_released.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                wire.send(ok("hello"));
            }
        }
    });
    let flags = ["--upstream", &format!("http://{}", upstream.address), "--access-log", "access.log", "--workers", "1"];
    let weir = Weir::serve(LIMITS, &flags);
    let truth = traffic(&weir, &is_released);
    assert!(truth.denied > 4_500, "all limits deny: {}", truth.denied);
    eventually("the lines are written", || {
        let lines = std::fs::read_to_string(weir.directory().join("access.log")).unwrap().lines().count();
        if lines == REQUESTS { Ok(()) } else { Err(format!("{lines} lines")) }
    });
    let arguments = ["simulate", "access.log", "--format", "json", "--show-ids", "--top", "1000"];
    let finished = run_in(weir.directory(), &arguments);
    assert_eq!(finished.code, Some(0), "{}", finished.text());
    let report: Value = serde_json::from_str(&finished.out).unwrap();
    assert_eq!((&report["lines"], &report["unreadable"]), (&REQUESTS.into(), &0.into()), "{}", finished.err);
    let limits = report["limits"].as_object().unwrap();
    let metrics = weir.admin("/metrics").text().to_owned();
    let mut warnings = 0;
    for (name, limit) in limits {
        assert_eq!(limit["status"], "covered", "{name}: {limit}");
        let count = |key: &str| limit[key].as_u64().unwrap_or_default();
        let counted_in = |metric: &str, result: &str| {
            let name = format!("{metric}{{limit=\"{name}\",result=\"{result}\"}}");
            metrics.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse().ok()).unwrap_or(0_u64)
        };
        let counted = |result: &str| counted_in("weir_decisions_total", result);
        let simulated = (count("denied") - count("denied_in_shadow"), count("denied_in_shadow"));
        assert_eq!(simulated, (counted("denied"), counted("shadow_denied")), "{name}: {limit}");
        let made = counted_in("weir_bans_total", "banned") + counted_in("weir_bans_total", "would_ban");
        assert_eq!(
            (limit["bans"].is_null(), count("bans")),
            (!["Banning", "Shadow"].contains(&name.as_str()), made),
            "{name}"
        );
        if let Some(count) = limit["warnings"].as_u64() {
            warnings += count;
            let warned = format!("weir_warnings_total{{limit=\"{name}\",result=\"warned\"}}");
            becomes(name, count, || weir.metric(&warned));
            assert_eq!(counted_in("weir_warnings_total", "dropped"), 0, "{name}");
        }
        for (candidate, found) in limit["candidates"].as_object().unwrap() {
            let series = format!(
                "weir_candidate_decisions_total{{limit=\"{name}\",candidate=\"{candidate}\",result=\"denied\"}}"
            );
            assert!(found["denied"].as_u64().is_some_and(|denied| denied > 0), "{name}: {found}");
            assert_eq!(found["denied"], weir.metric(&series), "{name}: {candidate}");
        }
    }
    assert_eq!(report["denied"], truth.denied);
    assert!(warnings > 300, "{warnings}");
    let by_id = limits["Gcra"]["most_denied"].as_array().unwrap().iter();
    let by_id = by_id.map(|id| (id["id"].as_str().unwrap().to_owned(), id["denied"].as_u64().unwrap()));
    assert_eq!(by_id.filter(|(_, denied)| *denied > 0).collect::<BTreeMap<_, _>>(), truth.of_ids);
}

const BY_HEADERS: &str = "
limits:
  Key:     { match: { path: /key }, by: { header: x-api-key }, count: 5, period: 1h }
  Tenant:  { match: { path: /tenant, headers: { x-plan: { value: free } } }, by: [{ header: x-tenant, as: integer }, ip], count: 4, period: 1h }
  Session: { match: { path: /session }, by: { cookie: sid }, count: 3, period: 1h, missing: shared }
  Token:   { match: { path: /token }, by: credentials, count: 4, period: 1h, missing: deny }
  Agent:   { match: { path: /agent }, by: { header: user-agent }, count: 6, period: 1h }
  Plan:    { match: { path: /plan, headers: { authorization: { value: Bearer t1 } } }, by: ip, count: 6, period: 1h }
overrides:
  Key:k1: { count: 9, period: 1h }
";

/// Limits by headers, whose values the log has beside what it always has.
#[test]
fn a_log_with_the_parts_that_rules_read_simulates_limits_by_them() {
    let flags = ["--upstream", "echo", "--access-log", "access.log", "--workers", "1", "--access-log-parts"];
    let weir = Weir::serve(BY_HEADERS, &flags);
    let (mut client, mut denied, mut sent) = (weir.connect(), 0_u64, 0);
    for number in 0..400_usize {
        let id = number * number % 7;
        let key = ["k\u{e9}\"\\", "k1", "", "k3", "k4", "k5", "k6"][id];
        let token = ["Bearer t0", "bearer  t0", "t0", "Bearer t1", "Basic dTpw", "Bearer t2", "a b c"][id];
        let tenant = ["7", "007", "8", "9", "x", "10", "11"][id];
        let plan = if number % 3 == 0 { "pro" } else { "free" };
        let cookie = format!("theme=dark; sid=s{id}");
        let mut headers = vec![("user-agent", ["a", "b", "c"][number % 3])];
        if number % 5 > 0 {
            headers.extend([
                ("x-api-key", key),
                ("authorization", token),
                ("x-tenant", tenant),
                ("x-plan", plan),
                ("cookie", &cookie),
            ]);
        }
        for path in ["/key", "/tenant", "/session", "/token", "/agent", "/plan"] {
            denied += u64::from(client.get_with(path, &headers).status() == 429);
            sent += 1;
        }
    }
    let log = || std::fs::read_to_string(weir.directory().join("access.log")).unwrap();
    eventually("the lines are written", || {
        let lines = log().lines().count();
        if lines == sent { Ok(()) } else { Err(format!("{lines} lines")) }
    });
    for secret in ["t0", "t1", "dTpw", "=s1", "dark"] {
        assert!(!log().contains(secret), "{secret}");
    }
    let finished = run_in(weir.directory(), &["simulate", "access.log", "--format", "json"]);
    assert_eq!(finished.code, Some(0), "{}", finished.text());
    let report: Value = serde_json::from_str(&finished.out).unwrap();
    let metrics = weir.admin("/metrics").text().to_owned();
    let counted = |limit: &str, result: &str| {
        let name = format!("weir_decisions_total{{limit=\"{limit}\",result=\"{result}\"}}");
        metrics.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    for name in ["Key", "Tenant", "Session", "Token", "Agent"] {
        let limit = &report["limits"][name];
        assert!(counted(name, "denied") > 20, "{name}: {metrics}");
        assert_eq!(
            (&limit["status"], &limit["denied"]),
            (&"covered".into(), &counted(name, "denied").into()),
            "{limit}"
        );
        assert_eq!(limit["left_out"], serde_json::json!([]), "{limit}");
    }
    // It compares a token, of which the log has a hash.
    let plan = &report["limits"]["Plan"];
    let missing = ["the header `authorization`", "the values of the header `authorization`, which are hashed"];
    assert_eq!(plan["missing"], serde_json::json!(missing), "{plan}");
    assert_eq!(report["denied"], denied - counted("Plan", "denied"), "{report}");
}
