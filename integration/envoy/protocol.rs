//! gRPC itself: invalid messages, connections that end, floods.

use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Request as AttributeRequest};
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest};
use http::{HeaderMap, Method, Request};
use prost::Message;
use tokio::net::TcpStream;
use weir::listeners::grpc::messages::rate_limit::{RateLimitDescriptor, RateLimitRequest};
use weir::listeners::grpc::messages::{MapEntry, authorization as ours};
use weir::listeners::grpc::{ConnectionAge, EnvoyLimits};

use crate::support::becomes;
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, RST_STREAM, WINDOW_UPDATE, frame, request,
};
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::wire::Wire;

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const HEALTH: &str = "/grpc.health.v1.Health/Check";

const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

fn serve(age: ConnectionAge) -> Weir {
    Setup { connection_age: age, ..Setup::new(WIDE) }.start("echo")
}

fn limited(envoy: EnvoyLimits) -> Weir {
    Setup { envoy, ..Setup::new(WIDE) }.start("echo")
}

/// The metric of checks with this code.
fn answered(code: &str) -> String {
    format!("weir_grpc_calls_total{{code=\"{code}\",method=\"check\"}}")
}

/// A message with its length prefix.
fn framed(message: &[u8]) -> Vec<u8> {
    [&[0], &u32::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
}

/// The answer to a call.
struct Answer {
    status: u16,
    head: HeaderMap,
    /// The code and the message, from the trailers, or from the headers if there are no trailers.
    code: String,
    message: String,
}

/// Calls a method on a new connection. Each piece of the body is a frame.
async fn call(weir: &Weir, path: &str, headers: &[(&'static str, &str)], pieces: &[&[u8]]) -> Answer {
    let stream = TcpStream::connect(weir.grpc).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut head = Request::builder().method(Method::POST).uri(format!("http://a.example{path}"));
    if !headers.iter().any(|(name, _)| *name == "content-type") {
        head = head.header("content-type", "application/grpc");
    }
    for (name, value) in headers {
        head = head.header(*name, *value);
    }
    let (response, mut body) = client.send_request(head.body(()).unwrap(), pieces.is_empty()).unwrap();
    for (place, piece) in pieces.iter().enumerate() {
        // The answer may have come already.
        let _ = body.send_data(Bytes::copy_from_slice(piece), place + 1 == pieces.len());
    }
    let response = response.await.unwrap();
    let (status, head) = (response.status().as_u16(), response.headers().clone());
    let mut body = response.into_body();
    while let Some(data) = body.data().await {
        let length = data.unwrap().len();
        body.flow_control().release_capacity(length).unwrap();
    }
    let trailers = body.trailers().await.unwrap().unwrap_or_else(|| head.clone());
    let text = |name: &str| trailers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let answer = Answer { status, code: text("grpc-status"), message: text("grpc-message"), head };
    connection.abort();
    answer
}

#[tokio::test]
async fn messages_that_are_none_have_each_their_code() {
    let weir = limited(EnvoyLimits { message: 512 * 1024, ..EnvoyLimits::default() });
    let huge = vec![7; 600 * 1024];
    let huge = [&[0, 0, 9, 0x60, 0][..], &huge].concat();
    let empty = framed(&[]);
    let rows: [(&str, &[&[u8]], &str, &str); 13] = [
        ("no message", &[], "12", "none came"),
        ("an empty body", &[&[]], "12", "none came"),
        ("half a prefix", &[&empty[..3]], "13", "ends within a message"),
        ("half a message", &[&[0, 0, 0, 0, 9, 1]], "13", "ends within a message"),
        ("two messages", &[&empty, &empty], "12", "more came"),
        ("a compressed message", &[&[1, 0, 0, 0, 0]], "12", "compressed"),
        ("another flag", &[&[2, 0, 0, 0, 0]], "13", "0 or 1"),
        ("a length of 4 GiB", &[&[0, 0xff, 0xff, 0xff, 0xff]], "8", "4294967295 bytes"),
        ("a message that is too long", &[&huge], "8", "more than 524288"),
        ("no protocol buffer", &[&framed(&[0xff; 20])], "13", "cannot be read"),
        ("a field that ends early", &[&framed(&[0x0a, 0x7f, 1])], "13", "cannot be read"),
        ("nothing to check", &[&empty], "3", "attributes.request.http"),
        ("nothing to check, byte by byte", &[&empty[..1], &empty[1..2], &empty[2..]], "3", "attributes.request.http"),
    ];
    for (what, pieces, code, part) in rows {
        let answer = call(&weir, CHECK, &[], pieces).await;
        assert_eq!((answer.status, answer.code.as_str()), (200, code), "{what}: {}", answer.message);
        assert!(answer.message.contains(part), "{what}: {}", answer.message);
        assert_eq!(answer.head["content-type"], "application/grpc", "{what}");
    }
    let compressed = call(&weir, CHECK, &[("grpc-encoding", "gzip")], &[&[1, 0, 0, 0, 0]]).await;
    assert_eq!(compressed.head["grpc-accept-encoding"], "identity");
}

#[tokio::test]
async fn messages_that_are_nested_too_deep_are_rejected() {
    let weir = serve(ConnectionAge::default());
    // `attributes` with unknown groups, ten thousand deep.
    let groups = [vec![0x7b; 10_000], vec![0x7c; 10_000]].concat();
    let mut attributes = vec![0x0a];
    prost::encoding::encode_varint(groups.len() as u64, &mut attributes);
    attributes.extend(groups);
    let answer = call(&weir, CHECK, &[], &[&framed(&attributes)]).await;
    assert_eq!(answer.code, "13", "{}", answer.message);
}

#[tokio::test]
async fn calls_that_are_none_are_told_so() {
    let weir = serve(ConnectionAge::default());
    for (path, headers, status, code) in [
        ("/envoy.service.auth.v3.Authorization/Nothing", &[][..], 200, "12"),
        ("/", &[], 200, "12"),
        (CHECK, &[("content-type", "application/json")], 415, ""),
        (CHECK, &[("content-type", "application/grpc-web")], 415, ""),
        (CHECK, &[("content-type", "application/grpc+proto")], 200, "3"),
        (CHECK, &[("grpc-timeout", "soon")], 200, "3"),
        (CHECK, &[("grpc-timeout", "100m")], 200, "3"),
    ] {
        let answer = call(&weir, path, headers, &[&framed(&[])]).await;
        assert_eq!((answer.status, answer.code.as_str()), (status, code), "{path} {headers:?} {}", answer.message);
    }
    assert_eq!(Wire::connect(weir.grpc).get("/").status(), 415);
    let answer = Wire::connect(weir.grpc).get_with(CHECK, &[("content-type", "application/grpc")]);
    assert!(answer.status() == 505 && answer.text().contains("HTTP/2"), "{answer:?}");
}

/// Envoy sends the beginning of a body if configured.
#[tokio::test]
async fn a_message_may_bring_a_long_body() {
    let weir = serve(ConnectionAge::default());
    let body = "x".repeat(2 * 1024 * 1024);
    let http = HttpRequest { method: "GET".into(), path: "/".into(), host: "a".into(), body, ..HttpRequest::default() };
    let request = AttributeRequest { http: Some(http), ..AttributeRequest::default() };
    let attributes = AttributeContext { request: Some(request), ..AttributeContext::default() };
    let check = CheckRequest { attributes: Some(attributes) };
    let answer = call(&weir, CHECK, &[], &[&framed(&check.encode_to_vec())]).await;
    assert_eq!(answer.code, "0", "{}", answer.message);
    let long = framed(&vec![0; 4 * 1024 * 1024 + 1]);
    assert_eq!(call(&weir, CHECK, &[], &[&long]).await.code, "8");
}

/// Envoy passes on clients' bytes, which need not be UTF-8.
#[tokio::test]
async fn bytes_that_are_not_utf8_are_read_as_they_are() {
    let rules = "limits: { Keys: { match: { domain: d }, by: { descriptor: k }, count: 1, period: 1h } }";
    let weir = Setup::new(rules).start("echo");
    for (what, principal) in [(&b"/\xff"[..], &b"a"[..]), (b"/", b"\xff")] {
        let (method, host) = ("GET".into(), "a".into());
        let path = Bytes::copy_from_slice(what);
        let http = ours::HttpRequest { method, path, host, ..ours::HttpRequest::default() };
        let request = Some(ours::AttributeRequest { http: Some(http) });
        let source = Some(ours::Peer { principal: Bytes::copy_from_slice(principal), ..ours::Peer::default() });
        let attributes = Some(ours::AttributeContext { source, request, ..ours::AttributeContext::default() });
        let check = ours::CheckRequest { attributes }.encode_to_vec();
        let answer = call(&weir, CHECK, &[], &[&framed(&check)]).await;
        assert_eq!(answer.code, "0", "{what:?}: {}", answer.message);
    }
    for (value, answer, count) in [(&b"\xff"[..], "ok", 1), (b"\xff", "over_limit", 1), (b"\xfe", "ok", 2)] {
        let entry = MapEntry { key: "k".into(), value: Bytes::copy_from_slice(value) };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        let request =
            RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], ..RateLimitRequest::default() };
        let called = call(&weir, SHOULD_RATE_LIMIT, &[], &[&framed(&request.encode_to_vec())]).await;
        assert_eq!(called.code, "0", "{value:?}: {}", called.message);
        let metric = format!("weir_rate_limit_service_answers_total{{answer=\"{answer}\"}}");
        assert_eq!(weir.metric(&metric), count, "{value:?}");
    }
}

#[test]
fn unfinished_messages_are_bounded_together() {
    let weir = limited(EnvoyLimits { message: 1_024, ..EnvoyLimits::default() });
    let mut client = Frames::connect(weir.grpc);
    let head = request("POST", CHECK, &[("content-type", "application/grpc"), ("te", "trailers")]);
    let half = [&[0, 0, 0, 4, 0][..], &[7; 1_000]].concat();
    let begin = |client: &mut Frames, stream| {
        client.send([frame(HEADERS, END_HEADERS, stream, &head), frame(DATA, 0, stream, &half)].concat());
    };
    (0..17).for_each(|number| begin(&mut client, 2 * number + 1));
    client.stream(33);
    assert_eq!(weir.metric(&answered("resource_exhausted")), 1);
    client.send(frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()));
    begin(&mut client, 35);
    client.send(frame(DATA, END_STREAM, 35, &[7; 24]));
    client.stream(35);
    assert_eq!(weir.metric(&answered("internal")), 1, "there was room for it");
}

/// A gateway cancels the calls of clients that leave. Other calls on the connection go on.
#[test]
fn cancelled_calls_do_not_end_the_connection() {
    let weir = serve(ConnectionAge::default());
    let mut client = Frames::connect(weir.grpc);
    cancel(&mut client, 600);
    let head = request("POST", CHECK, &[("content-type", "application/grpc"), ("te", "trailers")]);
    client.send([frame(HEADERS, END_HEADERS, 5_001, &head), frame(DATA, END_STREAM, 5_001, &framed(&[]))].concat());
    client.stream(5_001);
    assert_eq!(weir.metric(&answered("invalid_argument")), 1);
    assert_eq!(weir.metric("weir_http_listener_limits_total{limit=\"http2_resets\"}"), 0);
}

/// Opens calls and resets each at once.
fn cancel(client: &mut Frames, calls: u32) {
    let head = request("POST", CHECK, &[("content-type", "application/grpc"), ("te", "trailers")]);
    for stream in (1..2 * calls).step_by(2) {
        let cancelled = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        client.send([frame(HEADERS, END_HEADERS, stream, &head), cancelled].concat());
    }
}

/// A client that opens and resets calls is cut off, and the next one is served.
#[tokio::test]
async fn a_flood_of_resets_is_cut_off() {
    let weir = limited(EnvoyLimits { resets: 100, ..EnvoyLimits::default() });
    let mut client = Frames::connect(weir.grpc);
    cancel(&mut client, 1_000);
    assert_eq!(client.next_of(GOAWAY).error(), 11, "ENHANCE_YOUR_CALM");
    becomes("it is counted", 1, || weir.metric("weir_http_listener_limits_total{limit=\"http2_resets\"}"));
    assert_eq!(call(&weir, CHECK, &[], &[&framed(&[])]).await.code, "3");
}

#[test]
fn a_connection_that_is_old_is_told_to_end() {
    let age = ConnectionAge { most: Some(Duration::from_millis(50)), grace: Duration::from_secs(10) };
    let weir = serve(age);
    let mut frames = Frames::connect(weir.grpc);
    assert_eq!(frames.next_of(GOAWAY).error(), 0, "NO_ERROR");
}

/// A call that is answered before its body is complete leaves no stream open.
#[test]
fn an_answer_does_not_wait_for_a_body_that_nobody_reads() {
    let weir = serve(ConnectionAge::default());
    let mut client = Frames::connect(weir.grpc);
    let head = request("POST", "/a.B/Unknown", &[("content-type", "application/grpc")]);
    client.send(frame(HEADERS, END_HEADERS, 1, &head));
    let frames = client.stream(1);
    assert!(frames[0].kind == HEADERS && frames[0].flags & END_STREAM != 0, "{frames:?}");
}

/// gRPC's C++ and Python libraries may send calls right behind their answer to the PING of a graceful shutdown, each with a window update.
/// The second GOAWAY names the last call that counts; they send later ones elsewhere.
#[test]
fn calls_behind_a_shutdown_do_not_break_those_before_it() {
    let age = ConnectionAge { most: Some(Duration::from_millis(20)), grace: Duration::from_mins(1) };
    let weir = serve(age);
    let mut frames = Frames::connect(weir.grpc);
    let call = |stream: u32, path: &str| {
        let head = request("POST", path, &[("content-type", "application/grpc"), ("te", "trailers")]);
        let head = frame(HEADERS, END_HEADERS, stream, &head);
        [head, frame(WINDOW_UPDATE, 0, stream, &5_u32.to_be_bytes())].concat()
    };
    let end = |stream: u32| frame(DATA, END_STREAM, stream, &framed(&[]));
    // A call that is under way.
    frames.send(call(1, HEALTH));
    let first = frames.next_of(GOAWAY);
    assert_eq!(first.payload[..4], (u32::MAX >> 1).to_be_bytes());
    // [`Frames`] answers the PING, and then the second one comes.
    let second = frames.next_of(GOAWAY);
    assert_eq!((&second.payload[..4], second.error()), (&1_u32.to_be_bytes()[..], 0));
    frames.send([call(3, HEALTH), end(3), end(1)].concat());
    let answer = frames.stream(1);
    assert_eq!(answer.iter().map(|frame| frame.kind).collect::<Vec<_>>(), [HEADERS, DATA, HEADERS]);
    // The end of the connection, without an error.
    let mut rest = std::iter::from_fn(|| frames.next());
    assert!(!rest.any(|frame| frame.stream == 3 || frame.kind == GOAWAY && frame.error() != 0));
}
