//! Costs in the bodies of responses.

use super::{settled, settles, setup, start};
use crate::support::becomes;
use crate::support::frames::{END_HEADERS, END_STREAM, Frames, HEADERS, frame, request};
use crate::support::upstream::Upstream;

/// Each model's API has a limit of its own, that allows a thousand and reserves 10.
const RULES: &str = "
limits:
  OpenAi: { match: { path: /openai/** }, by: global, burst: 1000, cost_from_response: { usage: openai, reserve: 10 } }
  Anthropic: { match: { path: /anthropic/** }, by: global, burst: 1000, cost_from_response: { usage: anthropic, reserve: 10 } }
  Gemini: { match: { path: /gemini/** }, by: global, burst: 1000, cost_from_response: { usage: gemini, reserve: 10 } }
  Json: { match: { path: /json/** }, by: global, burst: 1000, cost_from_response: { json: /billed/0/units, reserve: 10 } }
  Bytes: { match: { path: /bytes/** }, by: global, burst: 1000, cost_from_response: { bytes: response, reserve: 10 } }
";

/// For each limit, a whole body and a stream of events with the same cost. The last stream begins with a byte order mark.
const BODIES: [(&str, &str, &str, u64); 4] = [
    (
        "OpenAi",
        r#"{"choices":[{"message":{"content":"Hi"}}],"usage":{"total_tokens":25}}"#,
        "data: {\"choices\":[{\"delta\":{}}],\"usage\":null}\n\ndata: {\"usage\":{\"total_tokens\":25}}\n\ndata: [DONE]\n\n",
        25,
    ),
    (
        "Anthropic",
        r#"{"content":[],"usage":{"input_tokens":3,"cache_creation_input_tokens":2,"cache_read_input_tokens":5,"output_tokens":32}}"#,
        "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":3,\"cache_creation_input_tokens\":2,\
         \"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n\
         event: message_delta\ndata: {\"usage\":{\"output_tokens\":32}}\n\n",
        42,
    ),
    (
        "Gemini",
        r#"{"usageMetadata":{"totalTokenCount":7}}"#,
        "data: {\"usageMetadata\":{\"totalTokenCount\":3}}\r\n\r\ndata: {\"usageMetadata\":{\"totalTokenCount\":7}}\r\n\r\n",
        7,
    ),
    ("Json", r#"{"billed":[{"units":11}]}"#, "\u{feff}data: {\"billed\":[\ndata: {\"units\":11}]}\n\n", 11),
];

/// Answers `/LIMIT/FRAMING/FORM` with the body of the limit.
fn answering() -> Upstream {
    Upstream::answering(|request| {
        let path = request.start.split(' ').nth(1).unwrap();
        let [limit, framing, form] = path[1..].split('/').collect::<Vec<_>>()[..] else { panic!("{path}") };
        let body = BODIES.iter().find(|(name, ..)| name.eq_ignore_ascii_case(limit));
        let (kind, body) = match form {
            "events" => ("text/event-stream", body.unwrap().2),
            "json" => ("application/json; charset=utf-8", body.unwrap().1),
            "text" => ("text/plain", body.unwrap().1),
            "cut" => ("application/json", "{\"billed\":[{\"units\":11}"),
            "twice" => ("application/json", "{\"billed\":[{\"units\":11}],\"billed\":[]}"),
            "bomb" => ("application/json", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["),
            _ => ("application/octet-stream", "0123456789abcdef0123456789"),
        };
        let length = body.len();
        match framing {
            // A chunk for every seven bytes.
            "chunked" => {
                let chunks = body
                    .as_bytes()
                    .chunks(7)
                    .map(|chunk| format!("{:x}\r\n{}\r\n", chunk.len(), std::str::from_utf8(chunk).unwrap()));
                let chunks: String = chunks.collect();
                format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
                )
            }
            "gzip" => format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: gzip\r\ncontent-length: {length}\r\n\r\n{body}"
            ),
            _ => format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"),
        }
    })
}

#[test]
fn the_body_says_what_a_request_has_cost() {
    let upstream = answering();
    let weir = start(setup(RULES), &upstream);
    for (limit, json, events, cost) in BODIES {
        let mut left = 1000;
        for (framing, form, body) in [
            ("length", "json", json),
            ("chunked", "json", json),
            ("length", "events", events),
            ("chunked", "events", events),
        ] {
            let path = format!("/{}/{framing}/{form}", limit.to_ascii_lowercase());
            assert_eq!(weir.connect().get(&path).text(), body, "{path}");
            left -= cost;
            settles(&weir, limit, left);
            let mut client = Frames::connect(weir.proxy);
            client.get(1, &path);
            assert!(client.stream(1).last().unwrap().ends_stream());
            left -= cost;
            settles(&weir, limit, left);
        }
    }
}

#[test]
fn the_bytes_of_a_body_are_a_cost() {
    let upstream = answering();
    let weir = start(setup(RULES), &upstream);
    for (framing, left) in [("length", 974), ("chunked", 948), ("gzip", 922)] {
        weir.connect().get(&format!("/bytes/{framing}/octets"));
        settles(&weir, "Bytes", left);
    }
}

/// For clients of HTTP/1 and HTTP/2.
#[test]
fn a_response_without_a_body_costs_nothing_by_its_bytes() {
    let upstream = Upstream::answering(|request| {
        let (path, length) = (request.start.split(' ').nth(1).unwrap(), "content-length: 0\r\n\r\n");
        match path {
            "/bytes/ok" => format!("HTTP/1.1 200 OK\r\n{length}"),
            "/bytes/none" => "HTTP/1.1 204 No Content\r\n\r\n".into(),
            "/bytes/same" => "HTTP/1.1 304 Not Modified\r\ncontent-length: 26\r\n\r\n".into(),
            "/bytes/head" => "HTTP/1.1 200 OK\r\ncontent-length: 26\r\n\r\n".into(),
            "/bytes/error" => format!("HTTP/1.1 500 Oh\r\n{length}"),
            "/bytes/chunked" => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".into(),
            _ => format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{}", "1"),
        }
    });
    let weir = start(setup(RULES), &upstream);
    let mut refunds = 0;
    let mut check = |path: &str, cost: u64, left: &mut u64| {
        *left -= cost;
        refunds += 1;
        becomes(path, refunds, || settled(&weir, "Bytes", "refunded"));
        assert_eq!(super::left(&weir, "Bytes"), *left, "{path}");
    };
    let mut left = 1000;
    for path in ["/bytes/ok", "/bytes/none", "/bytes/same", "/bytes/head", "/bytes/error", "/bytes/chunked", "/bytes/1"]
    {
        let cost = u64::from(path == "/bytes/1");
        let method = if path == "/bytes/head" { "HEAD" } else { "GET" };
        let mut client = weir.connect();
        client.send(format!("{method} {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        assert!(client.head().is_some());
        check(path, cost, &mut left);
        let mut client = Frames::connect(weir.proxy);
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &request(method, path, &[])));
        assert!(client.stream(1).last().unwrap().ends_stream(), "{path}");
        check(path, cost, &mut left);
    }
    let result = |result: &str| settled(&weir, "Bytes", result);
    assert_eq!([result("absent"), result("unchanged"), result("charged")], [0; 3]);
}

#[test]
fn a_body_that_tells_no_cost_leaves_the_reserve() {
    let upstream = answering();
    let weir = start(setup(RULES), &upstream);
    let unread = |reason: &str| weir.metric(&format!("weir_uninspected_bodies_total{{reason=\"{reason}\"}}"));
    for (path, left) in [
        ("/json/length/cut", 990),
        ("/json/chunked/bomb", 980),
        ("/json/length/text", 970),
        ("/json/gzip/json", 960),
        ("/json/length/twice", 950),
    ] {
        assert_eq!(weir.connect().get(path).status(), 200, "{path}");
        settles(&weir, "Json", left);
    }
    becomes("four are settled", 4, || settled(&weir, "Json", "absent"));
    becomes("the fifth is settled", 1, || settled(&weir, "Json", "unreadable"));
    assert_eq!((unread("response_type"), unread("response_encoded")), (1, 1));
}

#[test]
fn the_upstream_is_asked_not_to_compress_what_is_read() {
    let upstream = answering();
    let weir = start(setup(RULES), &upstream);
    for (path, expected) in [("/openai/length/json", "identity"), ("/bytes/length/octets", "gzip")] {
        weir.connect().get_with(path, &[("accept-encoding", "gzip")]);
        assert_eq!(upstream.requests().last().unwrap().all("accept-encoding"), [expected], "{path}");
    }
}

#[test]
fn a_client_that_leaves_has_spent_what_was_told() {
    let upstream = Upstream::start(|wire, _| {
        let Some(request) = wire.request() else { return };
        let event = if request.start.contains("anthropic") {
            "data: {\"message\":{\"usage\":{\"input_tokens\":100,\"output_tokens\":1}}}\n\n"
        } else {
            "data: {\"usage\":null}\n\n"
        };
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\r\n";
        wire.send(format!("{head}{event}"));
        // Until Weir closes.
        let _ = wire.request();
    });
    let weir = start(setup(RULES), &upstream);
    for (path, limit, left) in [("/anthropic/a/b", "Anthropic", 899), ("/openai/a/b", "OpenAi", 990)] {
        let mut client = weir.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        client.head().unwrap();
        client.exactly(20);
        drop(client);
        settles(&weir, limit, left);
    }
    becomes("it is settled", 1, || settled(&weir, "OpenAi", "absent"));
}
