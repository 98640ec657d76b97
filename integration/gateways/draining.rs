//! Envoy moves from a Weir that ends to another one without a failed call.

use std::sync::atomic::{AtomicBool, Ordering};

use super::application;
use super::budgets::PATIENCE;
use super::example::{Change, Example, Ports};
use crate::support::becomes;
use crate::support::process::free_port;
use crate::support::programs::Program;
use crate::support::server::WIDE;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

/// By gRPC's health service Envoy notices that a Weir is about to leave, as the page on Envoy says.
const HEALTH: Change = (
    "  - name: weir\n",
    "  - name: weir\n    health_checks: [{ timeout: 1s, interval: 0.5s, no_traffic_interval: 0.5s, unhealthy_threshold: 1, \
     healthy_threshold: 1, grpc_health_check: {} }]\n",
);

/// A call that fails is seen.
const CLOSED: Change = ("failure_mode_deny: false", "failure_mode_deny: true");

const ENDPOINT: &str = "{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 9001 } } } }";

const CALLS: &str = "weir_grpc_calls_total{code=\"ok\",method=\"should_rate_limit\"}";

#[test]
fn envoy_loses_no_call_when_one_of_two_processes_ends() {
    let application = application();
    let ports = Ports { application: application.address.port(), listener: free_port() };
    let serve = |port: u16| {
        let address = format!("127.0.0.1:{port}");
        Weir::serve(WIDE, &["--grpc", &address, "--drain-delay", "4s"])
    };
    let other = free_port();
    let (_stays, mut leaves) = (serve(ports.listener), serve(other));
    let both = format!("{ENDPOINT}, {}", ENDPOINT.replace("9001", &other.to_string()));
    let both: Change = (ENDPOINT, both.leak());
    let envoy = Example::start(Program::Envoy, "envoy-rls", &[&PATIENCE[..], &[HEALTH, CLOSED, both]].concat(), ports);
    let is_over = AtomicBool::new(false);
    let ask = || {
        let get = || Wire::connect(envoy.address).get_from("www.example.com", "/", &[("x-api-key", "a")]).status();
        std::iter::from_fn(|| (!is_over.load(Ordering::Acquire)).then(get)).filter(|status| *status != 200).count()
    };
    let failed: usize = std::thread::scope(|scope| {
        let asking = [scope.spawn(ask), scope.spawn(ask)];
        becomes("it is asked", true, || leaves.metric(CALLS) > 0);
        leaves.signal("TERM");
        assert!(leaves.wait().success());
        is_over.store(true, Ordering::Release);
        asking.into_iter().map(|asking| asking.join().unwrap()).sum()
    });
    assert_eq!(failed, 0);
}
