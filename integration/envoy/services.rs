//! Health and authorization, with a client that is not written in Rust.

use serde_json::json;

use crate::support::programs::client;
use crate::support::weir::Weir;

#[test]
fn python_can_call_all_services() {
    let limits = "limits: { Three: { by: ip, burst: 3, count: 3, period: 60s } }";
    let weir = Weir::serve(limits, &["--grpc", "127.0.0.1:0", "--drain-delay", "30s"]);
    let address = weir.listener("grpc").to_string();
    let checks = client("envoy_client.py", &[&address]);
    assert!(checks["passed"].as_array().is_some_and(|passed| passed.len() == 6), "{checks}");
}

/// Watchers learn that the process is about to leave before it stops to accept.
#[test]
fn a_watch_is_told_of_the_drain() {
    let limits = "limits: { Wide: { by: global, burst: 1000 } }";
    let weir = Weir::serve(limits, &["--grpc", "127.0.0.1:0", "--drain-delay", "30s"]);
    let address = weir.listener("grpc").to_string();
    let process = weir.id().to_string();
    let seen = client("envoy_client.py", &[&address, "--drain", &process]);
    assert_eq!(seen, json!({ "statuses": ["SERVING", "NOT_SERVING"], "code": "UNAVAILABLE" }));
}

/// Connections that live for a moment: callers do not notice.
#[test]
fn no_call_is_lost_when_connections_are_told_to_end() {
    let limits = "limits: { Wide: { by: global, burst: 1000000 } }";
    let weir = Weir::serve(limits, &["--grpc", "127.0.0.1:0", "--grpc-max-connection-age", "20ms"]);
    let seen = client("envoy_client.py", &[&weir.listener("grpc").to_string(), "--calls", "500"]);
    assert_eq!(seen, json!({ "OK": 500 }));
    assert_eq!(weir.metric("weir_grpc_calls_total{code=\"ok\",method=\"check\"}"), 500);
}
