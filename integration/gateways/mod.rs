//! One table of requests through every gateway: real programs with the configurations of `integration/examples`, each
//! in front of the same application, with its own Weir process. Decisions, statuses and headers are the proxy's, except
//! for [`examples::Exceptions`].

mod asking;
mod budgets;
mod compose;
mod draining;
mod example;
mod examples;
mod manifests;
mod protocols;
mod quotas;
mod table;
mod tls;

use std::net::SocketAddr;

use asking::{Asked, check_rows};
use example::{Change, Example, Ports};
use examples::{ALL, Exceptions, Gateway, RESOURCE_EXHAUSTED};
use table::{AT_THE_EDGE, BEHIND_A_LOAD_BALANCER, OWN, OWN_FIELDS, Row};

use crate::support::process::free_port;
use crate::support::programs::{Server, client};
use crate::support::redis::RedisServer;
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;
use crate::support::{becomes, eventually};

/// Workers of each Weir, so that a gateway connects to more than one.
const WORKERS: u64 = 2;

/// Answers with the request, and with its own rate limit headers where the path asks for them.
fn application() -> Upstream {
    Upstream::answering(|request| {
        let body = format!("{} {}", request.start, request.text());
        let own = if request.start.contains(OWN) { OWN_FIELDS } else { "" };
        let head = format!("HTTP/1.1 200 OK\r\n{own}content-length: {}\r\n\r\n", body.len());
        if request.start.starts_with("HEAD ") { head } else { head + &body }
    })
}

/// A gateway and its Weir.
struct Chain {
    gateway: &'static Gateway,
    weir: Option<Weir>,
    process: Option<Example>,
    flags: Vec<String>,
    /// A key of all limits, with its value.
    key: &'static str,
}

impl Chain {
    /// Starts a gateway with these changes and a Weir with these flags in front of an application.
    #[track_caller]
    fn start(gateway: &'static Gateway, application: &str, changes: &[Change], flags: &[&str]) -> Self {
        Self::start_with(gateway, application, changes, flags, "on_store_error: allow")
    }

    #[track_caller]
    fn start_with(
        gateway: &'static Gateway,
        application: &str,
        changes: &[Change],
        flags: &[&str],
        key: &'static str,
    ) -> Self {
        let (_, port) = application.rsplit_once(':').unwrap();
        let ports = Ports { application: port.parse().unwrap(), listener: free_port() };
        let workers = WORKERS.to_string();
        let mut all: Vec<String> = ["--upstream", application, "--workers", &workers].map(str::to_owned).into();
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        if gateway.program.is_some() {
            all.extend([gateway.listener.to_owned(), format!("127.0.0.1:{}", ports.listener)]);
        }
        let mut chain = Self { gateway, weir: None, process: None, flags: all, key };
        chain.start_weir();
        if let Some(program) = gateway.program {
            let changes = [gateway.patience, changes].concat();
            chain.process = Some(Example::start(program, gateway.example, &changes, ports));
        }
        chain
    }

    #[track_caller]
    fn start_weir(&mut self) {
        let own = example::examples().join(self.gateway.example).join("limits.yaml");
        let common = example::examples().join("limits.yaml");
        let rules = std::fs::read_to_string(if own.is_file() { own } else { common }).unwrap();
        let without = |line: &&str| !line.trim_start().starts_with("on_store_error:");
        let rules: String = rules.split_inclusive('\n').filter(without).collect();
        let period = "    period: 1h\n";
        let rules = rules.replace(period, &format!("{period}    {}\n", self.key));
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let weir = Weir::serve(&rules, &flags);
        if flags.contains(&"--store") {
            // Until a worker is connected, its limits allow.
            becomes("every worker is connected to Redis", WORKERS, || weir.metric("weir_store_connections"));
        }
        self.weir = Some(weir);
    }

    fn stop_weir(&mut self) {
        self.weir = None;
    }

    /// The address for clients.
    fn address(&self) -> SocketAddr {
        match (&self.process, &self.weir) {
            (Some(process), _) => process.address,
            (None, Some(weir)) => weir.proxy,
            (None, None) => panic!("neither a gateway nor Weir"),
        }
    }
}

impl Drop for Chain {
    #[expect(clippy::print_stderr, reason = "a failed test shows what its programs said")]
    fn drop(&mut self) {
        if let Some(weir) = self.weir.as_ref().filter(|_| std::thread::panicking()) {
            eprintln!("what Weir said:\n{}", weir.log());
        }
    }
}

/// The table for clients of the gateway.
#[track_caller]
fn check_at_the_edge(gateway: &'static Gateway, flags: &[&str]) {
    check_with(gateway, &[], flags);
}

/// The same with changes of the example. Returns what has run.
#[track_caller]
fn check_with(gateway: &'static Gateway, changes: &[Change], flags: &[&str]) -> Chain {
    let application = application();
    let chain = Chain::start(gateway, &format!("http://{}", application.address), changes, flags);
    let asked = |row: &Row| Asked { from: row.client.parse().unwrap(), forwarded_for: None };
    check_rows(&chain, &application, AT_THE_EDGE, asked);
    // All clients are gone, so the open connections are the gateway's idle ones.
    if let (Some(weir), Some(_)) = (&chain.weir, gateway.program) {
        let open = weir.metric("weir_http_connections");
        assert!(open > 0 || gateway.listener == "--spoe", "every question opened a connection of its own");
    }
    chain
}

/// The same with buckets in Redis.
#[track_caller]
fn check_on_redis(gateway: &'static Gateway) {
    let redis = RedisServer::plain();
    // Timeouts for a busy machine.
    check_at_the_edge(gateway, &["--store", &redis.url()]);
    assert_ne!(redis.cli(&["DBSIZE"]), "0", "the counts are in Redis");
}

/// The table for clients behind a load balancer.
#[track_caller]
fn check_behind(gateway: &'static Gateway) {
    let application = application();
    let upstream = format!("http://{}", application.address);
    let chain = Chain::start(gateway, &upstream, gateway.behind, gateway.behind_flags);
    let asked = |row: &Row| Asked { from: [127, 0, 0, 1].into(), forwarded_for: Some(row.client) };
    check_rows(&chain, &application, BEHIND_A_LOAD_BALANCER, asked);
}

/// A gRPC client calls until it is denied, in gRPC's words.
#[track_caller]
fn check_grpc(gateway: &'static Gateway) {
    let application = Server::start("grpc_server.py");
    let chain = Chain::start(gateway, &format!("h2c://{}", application.address), gateway.grpc, &[]);
    let call = || client("grpc_client.py", &[&chain.address().to_string(), "--once"]);
    for number in 1..=5 {
        assert_eq!(call()["code"], "OK", "call {number}");
    }
    let denied = call();
    assert_eq!(denied["code"], gateway.exceptions.grpc_code, "{denied}");
    if gateway.exceptions.grpc_code == RESOURCE_EXHAUSTED {
        let told = &denied["trailing"];
        assert!(told["retry-after"].as_str().is_some_and(|seconds| seconds.parse::<u64>().unwrap() <= 60), "{denied}");
        let left = told["ratelimit"].as_str().unwrap_or_default();
        assert!(left.starts_with("\"RequestsPerAddress\";r=0;t="), "{denied}");
    }
}

/// While Weir is down every request gets this status; when it is back the limits hold again.
#[track_caller]
fn check_without_weir(gateway: &'static Gateway, changes: &[Change], status: u16) {
    let application = application();
    let mut chain = Chain::start(gateway, &format!("http://{}", application.address), changes, &[]);
    let asked = Asked { from: [127, 0, 0, 2].into(), forwarded_for: None };
    let get = |chain: &Chain| asked.get(chain.address());
    assert_eq!((get(&chain).status(), get(&chain).all("ratelimit").len()), (200, 1), "with Weir");
    chain.stop_weir();
    for _ in 0..10 {
        let answer = get(&chain);
        assert_eq!((answer.status(), answer.all("ratelimit").len()), (status, 0), "without Weir: {answer:?}");
    }
    chain.start_weir();
    eventually("Weir is asked again", || {
        let answer = get(&chain);
        if answer.all("ratelimit").is_empty() { Err(answer) } else { Ok(()) }
    });
    eventually("its limits hold again", || match get(&chain) {
        answer if answer.status() == 429 => Ok(()),
        answer => Err(answer),
    });
}

/// With `deny` in the limits and no Redis, a gateway that fails closed answers 503.
#[track_caller]
fn check_without_redis(gateway: &'static Gateway) {
    let mut redis = RedisServer::plain();
    let application = application();
    let upstream = format!("http://{}", application.address);
    let flags = ["--store", &redis.url()];
    let chain = Chain::start_with(gateway, &upstream, gateway.closed, &flags, "on_store_error: deny");
    let asked = Asked { from: [127, 0, 0, 2].into(), forwarded_for: None };
    assert_eq!(asked.get(chain.address()).status(), 200, "with Redis");
    redis.kill();
    for _ in 0..3 {
        let answer = asked.get(chain.address());
        assert_eq!((answer.status(), answer.all("ratelimit").len()), (503, 0), "without Redis: {answer:?}");
    }
}

/// A limit that says what a denied client gets: no gateway takes the status or the type for a failed check.
#[track_caller]
fn check_other_denials(gateway: &'static Gateway) {
    let application = application();
    let upstream = format!("http://{}", application.address);
    let key = "deny_with: { status: 503, body: 'Not now: {limit}' }";
    let chain = Chain::start_with(gateway, &upstream, &[], &[], key);
    let asked = Asked { from: [127, 0, 0, 2].into(), forwarded_for: None };
    for _ in 0..5 {
        assert_eq!(asked.get(chain.address()).status(), 200);
    }
    let answer = asked.get(chain.address());
    let Exceptions { denial, denied_with, .. } = gateway.exceptions;
    assert_eq!(answer.status(), denied_with, "{answer:?}");
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    if denial.is_none() {
        assert_eq!(answer.text(), "Not now: RequestsPerAddress");
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    }
}

/// The same tests for every gateway.
macro_rules! gateways {
    ($($name:ident: $gateway:ident,)*) => { $(
        mod $name {
            use super::examples::$gateway;

            #[test]
            fn answers_as_the_proxy_does() {
                super::check_at_the_edge(&$gateway, &[]);
            }

            #[test]
            fn answers_as_the_proxy_does_on_redis() {
                super::check_on_redis(&$gateway);
            }

            #[test]
            fn takes_a_load_balancers_word_for_the_client() {
                super::check_behind(&$gateway);
            }

            #[test]
            fn tells_a_client_of_grpc_in_its_words() {
                super::check_grpc(&$gateway);
            }

            #[test]
            fn denies_with_what_the_limit_says() {
                super::check_other_denials(&$gateway);
            }

            #[test]
            fn lets_requests_pass_without_weir() {
                super::check_without_weir(&$gateway, &[], 200);
            }

            #[test]
            fn denies_requests_without_weir_if_it_is_told_to() {
                super::check_without_weir(&$gateway, $gateway.closed, 503);
            }

            #[test]
            fn denies_requests_without_redis_if_the_limits_say_so() {
                super::check_without_redis(&$gateway);
            }
        }
    )* };
}

gateways! {
    envoy_ext_authz_grpc: ENVOY_EXT_AUTHZ_GRPC,
    envoy_ext_authz_http: ENVOY_EXT_AUTHZ_HTTP,
    envoy_rls: ENVOY_RLS,
    nginx: NGINX,
    haproxy: HAPROXY,
    haproxy_spoe: HAPROXY_SPOE,
    caddy: CADDY,
}

mod proxy {
    use super::examples::PROXY;

    #[test]
    fn answers_as_the_table_says() {
        super::check_at_the_edge(&PROXY, &[]);
    }

    #[test]
    fn answers_as_the_table_says_on_redis() {
        super::check_on_redis(&PROXY);
    }

    #[test]
    fn takes_a_load_balancers_word_for_the_client() {
        super::check_behind(&PROXY);
    }

    #[test]
    fn tells_a_client_of_grpc_in_its_words() {
        super::check_grpc(&PROXY);
    }

    #[test]
    fn denies_with_what_the_limit_says() {
        super::check_other_denials(&PROXY);
    }

    #[test]
    fn denies_requests_without_redis_if_the_limits_say_so() {
        super::check_without_redis(&PROXY);
    }
}

/// A gateway's row in the examples' table.
fn row(gateway: &Gateway) -> String {
    let Gateway { example, program, listener, closed, exceptions, .. } = gateway;
    let name =
        if program.is_none() { "the proxy itself".to_owned() } else { format!("[`{example}`]({})", page(example)) };
    let body = if exceptions.denial.is_some() { "its own" } else { "Weir's" };
    let path = if exceptions.forwards.is_empty() { "as it was sent" } else { "in one spelling" };
    let without = if closed.is_empty() { "no answer" } else { "passes, or 503" };
    format!("| {name} | `{listener}` | {body} | {} | {path} | {without} |", exceptions.grpc_code)
}

/// The page on an example's gateway, beside the page with the table.
fn page(example: &str) -> String {
    let gateway = ["envoy-ext-authz", "envoy-rls", "haproxy"].into_iter().find(|name| example.starts_with(name));
    match gateway {
        Some("haproxy") => "haproxy.md".to_owned(),
        Some(_) => "envoy.md".to_owned(),
        None => format!("{example}.md"),
    }
}

#[test]
fn the_table_of_the_examples_says_what_is_tested() {
    let table = include_str!("../../docs/gateways/index.md");
    let missing: Vec<_> = ALL.iter().map(row).filter(|row| !table.lines().any(|line| line == row)).collect();
    assert!(missing.is_empty(), "these lines are not in docs/gateways/index.md:\n{}", missing.join("\n"));
}
