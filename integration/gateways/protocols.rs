//! The same limits behind Envoy by each of its protocols: pushed by xDS and asked for by the rate limit service, in a rules file and asked
//! for by external authorization, and assigned by the rate limit quota service.

use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};

use super::application;
use super::budgets::PATIENCE;
use super::example::{Change, Example, Ports};
use super::examples::ENVOY_EXT_AUTHZ_GRPC;
use crate::support::eventually;
use crate::support::process::free_port;
use crate::support::programs::Program;
use crate::support::weir::Weir;
use crate::support::wire::Wire;
use crate::xds::management_server::ManagementServer;

/// Envoy denies what it has no share for.
const UNASSIGNED: [Change; 2] = [
    ("connect_timeout: 1s\n    typed", "connect_timeout: 60s\n    typed"),
    ("fallback_rate_limit: { blanket_rule: ALLOW_ALL }", "fallback_rate_limit: { blanket_rule: DENY_ALL }"),
];

/// An API key, and how many of ten requests with it pass.
const ROWS: [(&str, usize); 5] = [("ann", 3), ("bob", 3), ("gold", 6), ("partner", 10), ("stolen", 0)];

const RULES: &str = "
limits:
  PerKey: { by: { header: x-api-key }, algorithm: fixed_window, aligned: clock, count: 3, period: 1d }
overrides:
  PerKey:gold: { count: 6, period: 1d }
  PerKey:partner: { unlimited: true }
  PerKey:stolen: { deny: true }
";

fn pushed() -> RateLimitConfig {
    let descriptor = |value: &str, policy: RateLimitPolicy| RateLimitDescriptor {
        key: "api_key".to_owned(),
        value: value.to_owned(),
        rate_limit: Some(policy),
        ..RateLimitDescriptor::default()
    };
    let daily = |requests_per_unit| RateLimitPolicy {
        unit: RateLimitUnit::Day.into(),
        requests_per_unit,
        ..RateLimitPolicy::default()
    };
    let unlimited = RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() };
    let descriptors = vec![
        descriptor("", daily(3)),
        descriptor("gold", daily(6)),
        descriptor("partner", unlimited),
        descriptor("stolen", daily(0)),
    ];
    RateLimitConfig { name: "web".to_owned(), domain: "web".to_owned(), descriptors }
}

/// Sends the requests of the table through an example, which asks a Weir.
fn check(example: &'static str, changes: &[Change], ports: Ports) {
    let envoy = Example::start(Program::Envoy, example, changes, ports);
    for (key, expected) in ROWS {
        let statuses: Vec<u16> = (0..10).map(|_| get(&envoy, key)).collect();
        let passed = statuses.iter().filter(|status| **status == 200).count();
        let denied = statuses.iter().filter(|status| **status == 429).count();
        assert_eq!((passed, denied), (expected, 10 - expected), "{example}, {key}: {statuses:?}");
    }
}

fn get(envoy: &Example, key: &str) -> u16 {
    Wire::connect(envoy.address).get_from("www.example.com", "/", &[("x-api-key", key)]).status()
}

#[test]
fn envoy_enforces_one_table_by_each_protocol() {
    let application = application();
    let ports = || Ports { application: application.address.port(), listener: free_port() };
    let listener = |ports: Ports| format!("127.0.0.1:{}", ports.listener);

    let by_xds = ports();
    let server = ManagementServer::start();
    server.set("envoy-ratelimit", "1", &[pushed()]);
    let flags = ["--grpc", &listener(by_xds), "--xds-server", &server.url(), "--xds-node-id", "envoy-ratelimit"];
    let _pushed = Weir::serve("", &flags);
    server.until_accepted("1");
    check("envoy-rls", &PATIENCE, by_xds);

    let by_authorization = ports();
    let _asked = Weir::serve(RULES, &["--grpc", &listener(by_authorization)]);
    check("envoy-ext-authz-grpc", ENVOY_EXT_AUTHZ_GRPC.patience, by_authorization);

    let by_quota = ports();
    let rules = RULES.replace("{ header: x-api-key }", "{ descriptor: api_key }, match: { domain: web }");
    let _assigns = Weir::serve(&rules, &["--grpc", &listener(by_quota)]);
    let envoy = Example::start(Program::Envoy, "envoy-rlqs", &UNASSIGNED, by_quota);
    // Envoy denies until it has its share.
    let mut passed = [0; ROWS.len()];
    eventually("the shares are used", || {
        for ((key, expected), passed) in ROWS.iter().zip(&mut passed) {
            *passed += usize::from(*passed < *expected && get(&envoy, key) == 200);
        }
        if passed == ROWS.map(|(_, expected)| expected) { Ok(()) } else { Err(passed) }
    });
    for (key, _) in ROWS {
        let more = (0..10).filter(|_| get(&envoy, key) == 200).count();
        assert_eq!(more, if key == "partner" { 10 } else { 0 }, "{key}");
    }
}
