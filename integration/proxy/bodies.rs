//! Ids and costs in the bodies of requests.

use crate::support::frames::{Frames, frame, request};
use crate::support::server::{Setup, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::Wire;

/// A budget for each model, and one that costs what a request asks for.
const RULES: &str = "
limits:
  PerModel:
    match: { methods: [POST], path: /v1/** }
    by: { body: /model }
    burst: 3
    missing: shared
  Asked:
    match: { path: /asked }
    by: global
    burst: 100
    cost: { body: /options/max_tokens }
";

fn start() -> (Upstream, Weir) {
    let upstream = Upstream::answering(|_| ok("done"));
    let weir = Setup::new(RULES).start(&format!("http://{}", upstream.address));
    (upstream, weir)
}

/// Sends JSON with its length.
fn post(client: &mut Wire, path: &str, body: &str) -> (u16, Option<String>) {
    post_as(client, path, "content-type: application/json\r\n", body)
}

fn post_as(client: &mut Wire, path: &str, headers: &str, body: &str) -> (u16, Option<String>) {
    client.send(format!("POST {path} HTTP/1.1\r\nhost: a\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()));
    let response = client.response();
    let left = response.header("ratelimit").and_then(|header| header.split(";r=").nth(1)).map(str::to_owned);
    (response.status(), left)
}

fn left(text: &str) -> (u16, Option<String>) {
    (200, Some(text.to_owned()))
}

#[test]
fn each_model_has_a_bucket() {
    let (upstream, weir) = start();
    let mut client = weir.connect();
    for (body, expected) in [
        (r#"{"model":"a"}"#, "2"),
        (r#"{"messages":[{"model":"x"}],"model":"a"}"#, "1"),
        (r#"{"model":"b","stream":true}"#, "2"),
        (r#"{"MODEL":"a"}"#, "0"),
        // Without a model they share a bucket.
        (r#"{"messages":[]}"#, "2"),
    ] {
        assert_eq!(post(&mut client, "/v1/chat", body), left(expected), "{body}");
        assert_eq!(upstream.requests().last().unwrap().text(), body, "it is forwarded unchanged");
    }
    assert_eq!(post(&mut client, "/v1/chat", "not JSON"), left("2"), "it is malformed, and so shares another bucket");
    assert_eq!(post(&mut client, "/v1/chat", r#"{"model":"a"}"#).0, 429);
    let mut http2 = Frames::connect(weir.proxy);
    http2.send(frame(1, 4, 1, &request("POST", "/v1/chat", &[("content-type", "application/json")])));
    http2.send(frame(0, 0, 1, br#"{"mod"#));
    http2.send(frame(0, 1, 1, br#"el":"b"}"#));
    assert_eq!(http2.stream(1)[0].status(), 200);
    assert_eq!(post(&mut client, "/v1/chat", r#"{"model":"b"}"#), left("0"));
}

#[test]
fn a_request_costs_what_its_body_asks_for() {
    let (_upstream, weir) = start();
    let mut client = weir.connect();
    assert_eq!(post(&mut client, "/asked", r#"{"options":{"max_tokens":40}}"#), left("60"));
    assert_eq!(post(&mut client, "/asked", r#"{"options":{}}"#), left("59"));
    assert_eq!(post(&mut client, "/asked", r#"{"options":{"max_tokens":60}}"#).0, 429);
    for bad in ["\"many\"", "-1", "1.5", "[1]", "1,\"max_tokens\":2"] {
        assert_eq!(post(&mut client, "/asked", &format!("{{\"options\":{{\"max_tokens\":{bad}}}}}")).0, 429, "{bad}");
    }
    assert_eq!(post(&mut client, "/asked", r#"{"options":{"max_tokens":59}}"#), left("0"));
}

/// In chunks, split at every byte.
#[test]
fn a_body_in_chunks_is_read_and_forwarded_in_chunks() {
    let (upstream, weir) = start();
    let mut client = weir.connect();
    client.send("POST /v1/chat HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n");
    client.send("transfer-encoding: chunked\r\n\r\n");
    assert_eq!(client.head().unwrap().status(), 100);
    for byte in br#"{"model":"c"}"# {
        client.send(format!("1\r\n{}\r\n", char::from(*byte)));
    }
    client.send("0\r\nx-sum: 1\r\n\r\n");
    let response = client.response();
    assert_eq!(response.header("ratelimit"), Some("\"PerModel\";r=2"));
    let received = upstream.requests().pop().unwrap();
    assert_eq!((received.text(), received.header("transfer-encoding")), (r#"{"model":"c"}"#, Some("chunked")));
    assert_eq!(received.trailers, [("x-sum".to_owned(), "1".to_owned())]);
}

#[test]
fn what_is_not_read_is_malformed_and_forwarded() {
    let (upstream, weir) = start();
    let unread = |reason: &str| weir.metric(&format!("weir_uninspected_bodies_total{{reason=\"{reason}\"}}"));
    let mut client = weir.connect();
    let small = r#"{"model":"d"}"#;
    let large = format!("{{\"model\":\"d\",\"pad\":\"{}\"}}", "x".repeat(100_000));
    let json = "content-type: application/json\r\n";
    assert_eq!(post_as(&mut client, "/v1/chat", "content-type: text/plain\r\n", small), left("2"), "any type is read");
    assert_eq!(post_as(&mut client, "/v1/chat", &format!("{json}content-encoding: gzip\r\n"), small), left("2"));
    assert_eq!(post_as(&mut client, "/v1/chat", json, &large), left("1"));
    assert_eq!(upstream.requests().last().unwrap().text(), large);
    assert_eq!(post_as(&mut client, "/v1/chat", "content-type: text/plain\r\n", "a=b"), left("0"));
    let counted = (unread("request_encoded"), unread("request_too_long"), unread("request_type"));
    assert_eq!(counted, (1, 1, 1));
    // Without a length, a part is held before the bound is reached.
    client.send(format!("POST /v1/chat HTTP/1.1\r\nhost: a\r\n{json}transfer-encoding: chunked\r\n\r\n"));
    client.send(format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len()));
    assert_eq!(client.response().status(), 429);
    assert_eq!(unread("request_too_long"), 2);
}

#[test]
fn nested_bombs_cost_no_stack() {
    let (_upstream, weir) = start();
    let mut client = weir.connect();
    for (bomb, expected) in [("[".repeat(60_000), "2"), ("{\"model\":".repeat(7_000), "1")] {
        assert_eq!(post(&mut client, "/v1/chat", &bomb), left(expected));
    }
}
