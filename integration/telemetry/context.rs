//! A trace that is not recorded passes, and the access log names it.

use serde_json::Value;

use crate::support::eventually;
use crate::support::server::WIDE;
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn a_trace_is_passed_on_untouched_and_named_in_the_access_log() {
    let upstream = Upstream::answering(|_| ok("hello"));
    let to = format!("http://{}", upstream.address);
    let weir = Weir::serve(WIDE, &["--upstream", &to, "--access-log", "access.log"]);
    let mut client = weir.connect();
    client.get_with("/", &[("traceparent", TRACEPARENT), ("tracestate", "a=1")]);
    client.get_with("/", &[("traceparent", "nonsense"), ("tracestate", "a=1")]);
    client.get("/");
    let requests = upstream.requests();
    let passed: Vec<_> =
        requests.iter().map(|message| (message.header("traceparent"), message.header("tracestate"))).collect();
    assert_eq!(passed, [(Some(TRACEPARENT), Some("a=1")), (Some("nonsense"), Some("a=1")), (None, None)]);
    let records: Vec<Value> = eventually("the lines are written", || {
        let text = std::fs::read_to_string(weir.directory().join("access.log")).unwrap_or_default();
        let records: Vec<_> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if records.len() == 3 { Ok(records) } else { Err(text) }
    });
    let traces: Vec<_> = records.iter().map(|record| record["trace_id"].as_str()).collect();
    assert_eq!(traces, [Some("4bf92f3577b34da6a3ce929d0e0e4736"), None, None]);
}
