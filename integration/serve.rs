//! `weir serve` as a user starts it: real processes, a real Redis, faults.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;

use crate::support::binary;
use crate::support::programs::installed;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;
use crate::support::wire::Wire;
use crate::support::{becomes, eventually};

/// One bucket for everyone that never refills.
const THOUSAND: &str = "limits: { L: { by: global, burst: 1000 } }";

/// Sends `each` requests on each of 64 connections at once, spread over the processes. Returns how many pass.
fn rush(processes: &[&Weir], each: usize) -> usize {
    let passed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (_, process) in (0..64).zip(processes.iter().cycle()) {
            let passed = &passed;
            scope.spawn(move || {
                let mut connection = process.connect();
                for _ in 0..each {
                    match connection.get("/").status() {
                        200 => passed.fetch_add(1, Ordering::Relaxed),
                        429 => 0,
                        other => panic!("status {other}"),
                    };
                }
            });
        }
    });
    passed.into_inner()
}

#[test]
fn exactly_the_burst_passes_in_memory_with_two_workers() {
    let weir = Weir::serve(THOUSAND, &["--workers", "2"]);
    assert_eq!(rush(&[&weir], 40), 1_000);
    assert_eq!(weir.metric("weir_decisions_total{limit=\"L\",result=\"allowed\"}"), 1_000);
    assert_eq!(weir.metric("weir_decisions_total{limit=\"L\",result=\"denied\"}"), 1_560);
}

#[test]
fn exactly_the_burst_passes_through_two_processes_that_share_a_redis() {
    let redis = RedisServer::plain();
    let url = redis.url();
    // No policy may decide here, even on a busy machine.
    let flags = ["--workers", "2", "--store", &url];
    let (one, other) = (Weir::serve(THOUSAND, &flags), Weir::serve(THOUSAND, &flags));
    is_connected(&one, 2);
    is_connected(&other, 2);
    assert_eq!(rush(&[&one, &other], 40), 1_000);
}

fn is_connected(weir: &Weir, workers: u64) {
    becomes("all workers are connected", workers, || weir.metric("weir_store_connections"));
}

/// One request, a pause, then ten times the burst at once: at most the burst passes.
fn idle_time_saves_nothing_up(flags: &[&str]) {
    for burst in [10, 20, 100] {
        // Ten minutes for the whole burst: less than a token comes back during the test.
        let limits = format!("limits: {{ L{burst}: {{ by: global, count: {burst}, period: {}m }} }}", burst * 10);
        let weir = Weir::serve(&limits, flags);
        if !flags.is_empty() {
            is_connected(&weir, 1);
        }
        let mut connection = weir.connect();
        assert_eq!(connection.get("/").status(), 200);
        let passed = (0..10 * burst).filter(|_| connection.get("/").status() == 200).count();
        assert_eq!(passed, burst - 1, "burst {burst}");
    }
}

#[test]
fn idle_time_saves_nothing_up_in_memory() {
    idle_time_saves_nothing_up(&[]);
}

#[test]
fn idle_time_saves_nothing_up_on_redis() {
    let redis = RedisServer::plain();
    idle_time_saves_nothing_up(&["--workers", "1", "--store", &redis.url()]);
}

/// The effect of a lost store on limits of each policy, and the recovery.
const POLICIES: &str = "
limits:
  Open:   { match: { path: /open },   by: global, burst: 1000000, on_store_error: allow }
  Closed: { match: { path: /closed }, by: global, burst: 1000000, on_store_error: deny }
  Local:  { match: { path: /local },  by: global, burst: 5,       on_store_error: local }
";

/// Requests each path from several connections for a while, and compares each answer with the limit's policy.
fn by_policy(weir: &Weir, requests: usize) {
    let local_passed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for path in ["/open", "/closed", "/local"].into_iter().cycle().take(6) {
            let local_passed = &local_passed;
            scope.spawn(move || {
                let mut connection = weir.connect();
                for _ in 0..requests {
                    let answer = connection.get(path);
                    match (path, answer.status()) {
                        ("/open", 200) | ("/local", 429) => {}
                        ("/closed", 503) => {
                            assert_eq!(answer.header("retry-after"), Some("1"));
                            assert!(answer.text().contains("\"violated-policies\":[\"Closed\"]"), "{}", answer.text());
                        }
                        ("/local", 200) => drop(local_passed.fetch_add(1, Ordering::Relaxed)),
                        (path, status) => panic!("{path} got {status}"),
                    }
                }
            });
        }
    });
    assert!(local_passed.into_inner() <= 5, "the local limit let more pass than its burst");
}

/// The store answers again: requests to the limit that fails closed pass, without a restart.
fn resumes(weir: &Weir) {
    eventually("limiting resumes", || match weir.get("/closed", &[]).status() {
        200 => Ok(()),
        other => Err(other),
    });
    // One connection for each worker.
    eventually("the store is up", || {
        let ready = weir.admin("/readyz");
        if ready.text().contains("\"store\":\"up\"") { Ok(()) } else { Err(ready) }
    });
}

fn with_redis(redis: &RedisServer, flags: &[&str]) -> Weir {
    Weir::serve(POLICIES, &[&["--workers", "1", "--store", &redis.url()], flags].concat())
}

#[test]
fn a_redis_that_is_killed_costs_what_the_policies_say() {
    let mut redis = RedisServer::plain();
    let weir = with_redis(&redis, &[]);
    resumes(&weir);
    redis.kill();
    by_policy(&weir, 50);
    let ready = weir.admin("/readyz");
    assert!(ready.status() == 200 && ready.text().contains("\"store\":\"down\""), "{ready:?}");
    redis.restart();
    resumes(&weir);
}

#[test]
fn a_redis_that_freezes_costs_what_the_policies_say() {
    let redis = RedisServer::plain();
    let weir = with_redis(&redis, &["--store-timeout", "50ms"]);
    resumes(&weir);
    redis.freeze();
    by_policy(&weir, 50);
    assert!(weir.metric("weir_store_errors_total{kind=\"late\"}") >= 1);
    redis.thaw();
    resumes(&weir);
}

#[test]
fn a_redis_without_memory_costs_what_the_policies_say() {
    let redis = RedisServer::plain();
    let weir = with_redis(&redis, &[]);
    resumes(&weir);
    redis.cli(&["config", "set", "maxmemory", "1"]);
    by_policy(&weir, 20);
    assert!(weir.metric("weir_store_errors_total{kind=\"error\"}") >= 1);
    redis.cli(&["config", "set", "maxmemory", "0"]);
    resumes(&weir);
}

#[test]
fn a_process_starts_without_its_redis_and_says_so() {
    let mut redis = RedisServer::start(&RedisConfig { password: Some("pa:ss".into()), ..RedisConfig::default() });
    redis.kill();
    let url = redis.url().replace("pa:ss", "pa%3Ass");
    let weir = Weir::serve(POLICIES, &["--workers", "2", "--store", &url]);
    let ready = weir.admin("/readyz");
    assert!(ready.status() == 200 && ready.text().contains("\"store\":\"down\""), "{ready:?}");
    assert_eq!(weir.admin("/healthz").status(), 200);
    assert_eq!(weir.get("/open", &[]).status(), 200);
    assert_eq!(weir.get("/closed", &[]).status(), 503);
    redis.restart();
    resumes(&weir);
    assert!(!weir.log().contains("pa%3Ass"), "the log shows the password:\n{}", weir.log());
}

#[test]
fn rules_are_reloaded_when_they_change_and_a_broken_file_changes_nothing() {
    let weir = Weir::serve("limits: { L: { by: global, burst: 3 } }", &["--workers", "1"]);
    let mut connection = weir.connect();
    let mut ask = || {
        let answer = connection.get("/");
        (answer.status(), answer.header("ratelimit").unwrap_or("").to_owned())
    };
    assert_eq!(ask(), (200, "\"L\";r=2".into()));

    std::fs::write(weir.limits_file(), "limits: { L: { by: global, burst: 0 } }").unwrap();
    weir.signal("HUP");
    eventually("the broken file shows", || {
        let ready = weir.admin("/readyz");
        if ready.text().contains("burst must be at least 1") { Ok(()) } else { Err(ready) }
    });
    assert_eq!(weir.metric("weir_config_last_reload_successful"), 0);
    assert_eq!(ask(), (200, "\"L\";r=1".into()));

    // The two used tokens stay used.
    std::fs::write(weir.limits_file(), "limits: { L: { by: global, burst: 10 } }").unwrap();
    weir.signal("HUP");
    becomes("the new rules are in force", 1, || weir.metric("weir_config_last_reload_successful"));
    assert_eq!(ask(), (200, "\"L\";r=7".into()));

    // Without a signal, after a symbolic link is replaced, as Kubernetes does it.
    let swapped = weir.directory().join("swapped.yaml");
    std::fs::write(weir.directory().join("new.yaml"), "limits: { L: { by: global, burst: 20 } }").unwrap();
    std::os::unix::fs::symlink("new.yaml", &swapped).unwrap();
    std::fs::rename(&swapped, weir.limits_file()).unwrap();
    let reloads = || weir.metric("weir_config_reloads_total{result=\"success\"}");
    eventually("the change is noticed", || if reloads() >= 2 { Ok(()) } else { Err(reloads()) });
    assert_eq!(ask(), (200, "\"L\";r=16".into()));
}

/// The day is looked at when the rules load. The unit tests have a clock that passes it.
#[test]
fn a_limit_that_should_have_been_reviewed_is_named_at_the_start_and_on_reload() {
    let rules = |day: &str| format!("limits: {{ L: {{ by: global, burst: 3, review_by: {day} }} }}");
    let weir = Weir::serve(&rules("2020-01-31"), &["--workers", "1"]);
    let warned = || weir.log().matches("the review date of this limit has passed [review-due]").count();
    becomes("the start warns", 1, warned);
    assert_eq!(weir.metric("weir_limit_review_by_timestamp_seconds{limit=\"L\"}"), 1_580_515_200);
    for (warnings, day) in [(2, "2020-02-01"), (2, "2999-12-31")] {
        std::fs::write(weir.limits_file(), rules(day)).unwrap();
        weir.signal("HUP");
        let told = || weir.admin("/limits/L").text().contains(&format!("\"review_by\":\"{day}\""));
        becomes("the new rules are in force", true, told);
        becomes("the reload warns", warnings, warned);
    }
}

#[test]
fn a_flood_of_ids_neither_grows_memory_nor_frees_a_bucket() {
    let limits = "limits: { L: { by: { header: x-id }, count: 2, period: 1h }, \
        M: { by: { header: x-user }, count: 2, period: 1h } }";
    let weir = Weir::serve(limits, &["--workers", "2", "--max-keys", "2000"]);
    let status = |id: &str| weir.get("/", &[("x-id", id)]).status();
    assert_eq!([status("victim"), status("victim"), status("victim")], [200, 200, 429]);
    let before = weir.resident();
    thread::scope(|scope| {
        for thread in 0..8 {
            let weir = &weir;
            scope.spawn(move || {
                let mut connection = weir.connect();
                for id in 0..2_500 {
                    connection.get_with("/", &[("x-id", &format!("{thread}-{id}"))]);
                }
            });
        }
    });
    assert_eq!(status("victim"), 429, "the flood freed the bucket");
    // At the bound, new ids share one empty bucket.
    assert_eq!(status("newcomer"), 429);
    // A quarter of the table is the other limit's share.
    let keys = weir.metric("weir_keys");
    assert!((1_500..=1_503).contains(&keys), "{keys} keys are held");
    for user in 0..20 {
        let ask = || weir.get("/", &[("x-user", &user.to_string())]).status();
        assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    }
    assert!(weir.metric("weir_keys_overflowed_total") > 10_000);
    assert_eq!(weir.metric("weir_keys_limited_total{limit=\"M\"}"), 0);
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < 8 * 1024, "memory grew by {grown} KiB");
}

#[test]
fn a_crowd_that_has_gone_leaves_its_memory_to_the_system() {
    const CLIENTS: usize = 400;
    const HEAD: usize = 30_000;
    let weir = Weir::serve(THOUSAND, &["--workers", "1"]);
    assert_eq!(weir.get("/", &[]).status(), 200);
    let before = weir.resident();
    let most = before + (CLIENTS * HEAD / 1024) as u64;
    let mut crowd: Vec<_> = (0..CLIENTS).map(|_| weir.connect()).collect();
    for client in &mut crowd {
        client.send(format!("GET / HTTP/1.1\r\nX-Long: {}", "x".repeat(HEAD)));
    }
    let is = |what, holds: fn(u64, u64) -> bool, bound| {
        eventually(what, || Some(weir.resident()).filter(|now| holds(*now, bound)).ok_or_else(|| weir.resident()));
    };
    is("the crowd's heads are held", |now, most| now >= most, most);
    drop(crowd);
    is("most of it is given back", |now, few| now <= few, before + (most - before) / 3);
}

/// The process' own shortage is not the upstreams' fault.
#[test]
fn a_lack_of_descriptors_ejects_no_upstream() {
    let upstreams = [(); 2].map(|()| Upstream::saying("hello"));
    let [first, second] = upstreams.each_ref().map(|upstream| upstream.address);
    let limits = "limits: { Shut: { match: { path: /shut }, by: global, deny: true } }";
    let weir = Weir::serve(limits, &["--upstream", &format!("http://{first},http://{second}"), "--workers", "1"]);
    let mut client = weir.connect();
    assert_eq!(client.get("/shut").status(), 429);
    let open: Vec<u32> = std::fs::read_dir(format!("/proc/{}/fd", weir.id()))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    let lowest_free = (0..1_024).find(|number| !open.contains(number)).unwrap();
    let limit = |soft: u32| {
        let soft = format!("--nofile={soft}:");
        installed("prlimit", &["--pid", &weir.id().to_string(), &soft]);
    };
    limit(lowest_free);
    for _ in 0..12 {
        assert_eq!(client.get("/").status(), 503);
    }
    limit(1_024);
    assert_eq!(client.get("/").status(), 200);
    assert!(weir.metric("weir_upstream_errors_total{reason=\"exhausted\"}") >= 12);
    assert_eq!(weir.metric("weir_upstream_ejections_total"), 0);
}

#[test]
fn sigterm_lets_what_runs_end_and_takes_nothing_new() {
    // The grace is longer than anybody waits.
    let mut weir = Weir::serve(THOUSAND, &["--workers", "2", "--grace", "1h"]);
    let mut connection = weir.connect();
    assert_eq!(connection.get("/").status(), 200);
    weir.signal("TERM");
    assert_eq!(weir.wait().code(), Some(0));
    assert!(!weir.log().contains("connections were cut off"), "an idle connection kept the process: {}", weir.log());
    assert!(std::net::TcpStream::connect(weir.proxy).is_err(), "the port is still taken");
}

#[test]
fn generations_of_fields_are_chosen() {
    let weir = Weir::serve("limits: { L: { by: global, burst: 3 } }", &["--headers", "x-ratelimit"]);
    let answer = weir.get("/", &[]);
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("2"));
    assert_eq!(answer.header("ratelimit"), None);
}

#[test]
fn the_client_is_found_behind_trusted_proxies() {
    let limits = "limits: { L: { by: ip, burst: 1 } }";
    let weir = Weir::serve(limits, &["--trusted-proxies", "127.0.0.0/8,10.0.0.0/8"]);
    let status = |forwarded: &str| weir.get("/", &[("x-forwarded-for", forwarded)]).status();
    assert_eq!(status("203.0.113.7"), 200);
    assert_eq!(status("1.2.3.4, 203.0.113.7, 10.0.0.9"), 429, "a client must not choose its own address");
    assert_eq!(status("203.0.113.8"), 200);
    let flags = ["--trusted-proxies", "0.0.0.0/0", "--client-address", "hops=2", "--drop-headers", "X-A,x_b"];
    let weir = Weir::serve(limits, &[&flags[..], &["--underscores", "reject"]].concat());
    let status = |forwarded: &str| weir.get("/", &[("x-forwarded-for", forwarded)]).status();
    assert_eq!(status("1.2.3.4, 203.0.113.7, 10.0.0.9"), 200);
    assert_eq!(status("5.6.7.8, 203.0.113.7, 203.0.113.8"), 429, "a client must not choose its own address");
    assert_eq!(weir.get("/", &[("x_id", "1")]).status(), 400);
}

#[test]
fn what_is_wrong_at_the_start_is_said_at_once() {
    const ANY: &str = "127.0.0.1:0";
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flags, code, part) in [
        (vec![], 2, "--upstream is missing"),
        (vec!["--upstream", "ftp://x"], 2, "--upstream"),
        (vec!["--upstream", "a=http://x", "--upstream", "A=http://y"], 2, "two routes are for `a`"),
        (vec!["--upstream", "http://x/v1", "--upstream", "y"], 2, "error: --upstream: `y` has no scheme"),
        (vec!["--upstream", "echo", "--health-check", "up"], 2, "write `/up`"),
        (vec!["--upstream", "echo", "--health-interval", "1s"], 2, "--health-check"),
        (vec!["--upstream", "echo", "--upstream-connections", "0"], 2, "from 1 to"),
        (vec!["--upstream", "https://x", "--upstream-ca", "none.pem"], 2, "none.pem"),
        (vec!["--upstream", "https://x", "--upstream-cert", "c.pem"], 2, "--upstream-key"),
        (vec!["--upstream", "echo", "--headers", "draft"], 2, "unknown generation"),
        (vec!["--upstream", "echo", "--store", "redis://"], 2, "--store"),
        (vec!["--upstream", "echo", "--grace", "5"], 2, "no unit"),
        (vec!["--upstream", "echo", "--client-address", "hops=0"], 2, "a number from 1 to 255"),
        (vec!["--upstream", "echo", "--limits", "none.yaml"], 1, "none.yaml"),
        (vec!["--upstream", "echo", "--proxy", "tls:127.0.0.1:0"], 2, "--proxy tls:ADDR needs --tls-cert"),
        (vec!["--upstream", "echo", "--proxy", "redirect:127.0.0.1:0"], 2, "redirect:ADDR needs another --proxy"),
        (vec!["--upstream", "echo", "--proxy", "http:127.0.0.1:0"], 2, "expected an address with a port"),
        (vec!["--upstream", "echo", "--proxy", "[::]:1,plain:[::]:1"], 2, "--proxy: [::]:1 is given twice"),
        (vec!["--upstream", "echo", "--redirect-port", "0"], 2, "a whole number, 1 or more"),
        (
            vec!["--upstream", "echo", "--proxy", "plain:127.0.0.1:0", "--tls-cert", "c.pem", "--tls-key", "k.pem"],
            2,
            "--tls-cert: no --proxy uses it",
        ),
        (vec!["--grpc", ANY, "--grpc", ANY], 2, "'--grpc <ADDR>' cannot be used multiple times"),
        (vec!["--check", ANY, "--check=unix:/a"], 2, "'--check <ADDR>' cannot be used multiple times"),
        (vec!["--spoe", ANY, "--spoe", ANY], 2, "'--spoe <ADDR>' cannot be used multiple times"),
        (vec!["--admin", ANY, "--admin", ANY], 2, "'--admin <ADDR>' cannot be used multiple times"),
        (vec!["--limits", "a.yaml", "--limits", "b.yaml"], 2, "'--limits <FILE>' cannot be used multiple times"),
        (vec!["--workers", "1", "--workers", "2"], 2, "'--workers <N>' cannot be used multiple times"),
        (vec!["--upstream", "echo", "--admin", "127.0.0.1:0", "--proxy", &address], 3, "cannot listen"),
    ] {
        let serve = binary::run(&[&["serve"], &flags[..]].concat());
        assert_eq!(serve.code, Some(code), "{flags:?}: {}", serve.err);
        assert!(serve.err.contains(part), "{flags:?}: {}", serve.err);
    }
}

#[test]
fn connections_beyond_the_total_are_closed_at_once_and_counted() {
    let weir = Weir::serve(THOUSAND, &["--workers", "2", "--max-connections", "3"]);
    let mut places: Vec<_> = (0..3).map(|_| weir.connect()).collect();
    // A connection counts when it is accepted, and two workers accept in any order.
    for place in &mut places {
        assert_eq!(place.get("/").status(), 200);
    }
    weir.connect().expect_end();
    weir.connect().expect_end();
    assert_eq!(weir.metric("weir_http_connections_rejected_total{reason=\"total\"}"), 2);
    assert_eq!(weir.metric("weir_http_connections_rejected_total{reason=\"address\"}"), 0);
    places.pop();
    becomes("there is room again", 2, || weir.metric("weir_http_connections"));
    assert_eq!(weir.get("/", &[]).status(), 200);
}

#[test]
fn one_address_leaves_descriptors_for_others() {
    let weir = Weir::launch(THOUSAND, |_| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "ulimit -n 900 && exec \"$@\"", "sh", binary::PATH]);
        command.args(Weir::arguments(&["--workers", "1"]));
        command
    });
    weir.until_logged(
        "at most 418 connections, 104 of them from one address, because the limit of file descriptors is 900",
    );
    let mut greedy: Vec<_> = (0..450).map(|_| weir.connect()).collect();
    becomes("the others are closed", 450 - 104, || {
        weir.metric("weir_http_connections_rejected_total{reason=\"address\"}")
    });
    let other = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    other.bind(&std::net::SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
    other.connect(&weir.proxy.into()).unwrap();
    assert_eq!(Wire::new(other.into()).get("/").status(), 200);
    assert_eq!(greedy[0].get("/").status(), 200, "those who are in stay");
}

#[test]
fn a_process_without_descriptors_waits_and_recovers() {
    let weir = Weir::launch(THOUSAND, |_| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "ulimit -n 64 && exec \"$@\"", "sh", binary::PATH]);
        command.args(Weir::arguments(&[
            "--workers",
            "1",
            "--max-connections",
            "1000",
            "--max-connections-per-address",
            "0",
        ]));
        command
    });
    weir.until_logged("raise it (`ulimit -n`, `LimitNOFILE=`)");
    let mut before = weir.connect();
    assert_eq!(before.get("/").status(), 200);
    let many: Vec<_> = (0..100).map(|_| weir.connect()).collect();
    weir.until_logged("cannot accept a connection: Too many open files");
    assert_eq!(before.get("/").status(), 200, "those who are in are served");
    drop(many);
    becomes("connections are accepted again", 1, || weir.metric("weir_http_connections"));
    assert_eq!(weir.get("/", &[]).status(), 200);
    assert!(weir.metric("weir_http_accept_errors_total") >= 1);
}

#[test]
fn each_line_of_a_log_in_json_is_an_object_also_with_warnings_about_rules() {
    let limits = "limits: { A: { by: ip/64, count: 5, period: 1s, review_by: 2020-01-01 } }";
    let log = Weir::serve(limits, &["--log-format", "json"]).log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let warning = lines.iter().find(|line| line["level"] == "WARN").expect(&log);
    assert!(warning["fields"]["message"].as_str().unwrap().contains("[review-due]"), "{warning}");
}
