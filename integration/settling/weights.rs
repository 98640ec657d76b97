//! Tokens that cost by their kind: bodies with their costs worked out by hand.

use std::fmt::Write;

use serde_json::Value;

use super::{on_both, settled, settles};
use crate::support::becomes;
use crate::support::upstream::Upstream;

fn cases() -> Vec<Value> {
    let lines = include_str!("../cases/token_costs.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A text as it is, anything else as JSON.
fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A limit of 1000 for each case, that reserves 10.
fn rules(cases: &[Value]) -> String {
    let mut rules = "limits:\n".to_owned();
    for (place, case) in cases.iter().enumerate() {
        let usage = case["usage"].as_str().unwrap();
        let weights = if case["weights"].is_null() { String::new() } else { format!(", weights: {}", case["weights"]) };
        let _ = writeln!(
            rules,
            "  C{place}: {{ match: {{ path: /{place} }}, by: global, burst: 1000, \
             cost_from_response: {{ usage: {usage}{weights}, reserve: 10 }} }}"
        );
    }
    rules
}

#[test]
fn tokens_cost_by_their_kind() {
    let cases = cases();
    let answers = cases.clone();
    let upstream = Upstream::answering(move |request| {
        let path = request.start.split(' ').nth(1).unwrap();
        let case = &answers[path[1..].parse::<usize>().unwrap()];
        let (kind, body) = match case["events"].as_array() {
            Some(events) => {
                let events: Vec<_> = events.iter().map(|event| format!("data: {}\n\n", written(event))).collect();
                ("text/event-stream", events.concat())
            }
            None => ("application/json", written(&case["body"])),
        };
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    });
    on_both(&rules(&cases), &upstream, |weir| {
        let mut client = weir.connect();
        for (place, case) in cases.iter().enumerate() {
            let limit = format!("C{place}");
            assert_eq!(client.get(&format!("/{place}")).status(), 200, "{case}");
            let left = case["cost"].as_u64().map_or(990, |cost| 1000 - cost.min(1000));
            settles(weir, &limit, left);
            let result = match case["cost"].as_u64() {
                Some(cost) if cost < 10 => "refunded",
                Some(_) => "charged",
                None => case["cost"].as_str().unwrap(),
            };
            becomes(&case.to_string(), 1, || settled(weir, &limit, result));
        }
    });
}
