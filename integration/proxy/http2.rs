//! HTTP/2 clients: answers, rejections, and bounds on connections.

use std::time::Duration;

use http::header::{CONTENT_LENGTH, DATE, HeaderName, HeaderValue};
use weir::http::{HeadLimits, Http2Limits, HttpLimits, Timeouts};

use crate::support::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, Frames, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, block, frame, request,
};
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::{NEVER, eventually, eventually_async};

const NO_ERROR: u32 = 0x0;
const PROTOCOL_ERROR: u32 = 0x1;
const INTERNAL_ERROR: u32 = 0x2;
const REFUSED_STREAM: u32 = 0x7;
const CANCEL: u32 = 0x8;
const ENHANCE_YOUR_CALM: u32 = 0xb;

const NONE: &str = "limits: { None: { deny: true } }";

fn weir(rules: &str, upstream: &Upstream) -> Weir {
    Setup::new(rules).start(&format!("http://{}", upstream.address))
}

fn weir_with(http2: Http2Limits, upstream: &Upstream) -> Weir {
    let limits = HttpLimits { http2, ..HttpLimits::default() };
    Setup { limits, ..Setup::new(WIDE) }.start(&format!("http://{}", upstream.address))
}

/// Short timeouts for everything about clients.
fn hasty(upstream: &Upstream) -> Weir {
    let soon = Duration::from_secs(1);
    let timeouts = Timeouts { first_byte: soon, header: soon, body: soon, idle: soon, ..Timeouts::default() };
    Setup { timeouts, ..Setup::new(WIDE) }.start(&format!("http://{}", upstream.address))
}

fn limited(weir: &Weir, limit: &str) -> u64 {
    weir.metric(&format!("weir_http_listener_limits_total{{limit=\"{limit}\"}}"))
}

fn allowed(weir: &Weir) -> u64 {
    weir.metric("weir_decisions_total{limit=\"Wide\",result=\"allowed\"}")
}

/// Answers a request that was sent as these frames on stream 1.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Status(u16),
    Reset(u32),
    GoAway(u32),
}

#[track_caller]
fn outcome(weir: &Weir, frames: impl AsRef<[u8]>) -> Outcome {
    let mut client = Frames::connect(weir.proxy);
    client.send(frames);
    loop {
        match client.next().expect("an answer") {
            frame if frame.kind == HEADERS => return Outcome::Status(frame.status()),
            frame if frame.kind == RST_STREAM => return Outcome::Reset(frame.error()),
            frame if frame.kind == GOAWAY => return Outcome::GoAway(frame.error()),
            _ => {}
        }
    }
}

fn head(headers: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, 1, headers)
}

#[test]
fn a_request_goes_through_and_is_an_http_1_request_behind() {
    let upstream = Upstream::answering(|_| {
        "HTTP/1.1 201 Created\r\nconnection: x-hop\r\nx-hop: 1\r\ntransfer-encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\nx-sum: 1\r\nratelimit: \"a\";r=1\r\n\r\n"
            .to_owned()
    });
    let weir = weir(WIDE, &upstream);
    let mut client = Frames::connect(weir.proxy);
    let more = [("cookie", "a=1"), ("x-id", "7"), ("cookie", "b=2"), ("te", "trailers"), ("host", "A.example")];
    client.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/x/%2F?y=1", &more)));
    client.send(frame(DATA, 0, 1, b"some "));
    client.send(frame(DATA, 0, 1, b"text"));
    client.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&[("x-end", "1"), ("content-length", "3")])));
    let frames = client.stream(1);
    let kinds: Vec<_> = frames.iter().map(|frame| frame.kind).collect();
    assert_eq!((frames[0].status(), &kinds[..]), (201, &[HEADERS, DATA, HEADERS][..]));
    assert_eq!(frames[1].payload, b"hello");
    let seen = &upstream.requests()[0];
    assert_eq!(seen.start, "POST /x/%2F?y=1 HTTP/1.1");
    let headers = |name| seen.all(name);
    assert_eq!((headers("cookie"), headers("x-id"), headers("host")), (vec!["a=1; b=2"], vec!["7"], vec!["a.example"]));
    assert_eq!(
        (headers("te"), headers("transfer-encoding"), headers("via")),
        (vec![], vec!["chunked"], vec!["2 weir"])
    );
    assert_eq!((&seen.body[..], &seen.trailers[..]), (&b"some text"[..], &[("x-end".to_owned(), "1".to_owned())][..]));
}

#[test]
fn what_has_no_content_ends_with_its_fields() {
    let upstream = Upstream::answering(|request| match request.start.split(' ').nth(1).unwrap() {
        "/head" => "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n".to_owned(),
        "/204" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        "/304" => "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n".to_owned(),
        _ => ok(""),
    });
    let weir = weir(WIDE, &upstream);
    for (method, path, status) in
        [("HEAD", "/head", 200), ("GET", "/204", 204), ("GET", "/304", 304), ("GET", "/", 200)]
    {
        let mut client = Frames::connect(weir.proxy);
        client.send(head(&request(method, path, &[])));
        let frames = client.stream(1);
        assert_eq!(
            (frames.len(), frames[0].status(), frames[0].ends_stream()),
            (1, status, true),
            "{path}: {frames:?}"
        );
    }
}

#[test]
fn malformed_requests_are_rejected_and_the_connection_stays() {
    let upstream = Upstream::saying("hello");
    let weir = weir(WIDE, &upstream);
    let reset = Outcome::Reset(PROTOCOL_ERROR);
    let bad = || Outcome::Status(400);
    let pseudo = |headers: &[(&str, &str)]| head(&block(headers));
    let good = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    for (what, frames, expected) in [
        ("connection", head(&request("GET", "/", &[("connection", "close")])), &reset),
        ("transfer-encoding", head(&request("GET", "/", &[("transfer-encoding", "chunked")])), &reset),
        ("upgrade", head(&request("GET", "/", &[("upgrade", "h2c")])), &reset),
        ("te", head(&request("GET", "/", &[("te", "gzip")])), &reset),
        ("a length and no body", head(&request("GET", "/", &[("content-length", "3")])), &reset),
        ("two hosts", head(&request("GET", "/", &[("host", "a.example"), ("host", "b.example")])), &bad()),
        ("another host", head(&request("GET", "/", &[("host", "b.example")])), &bad()),
        ("white space", head(&request("GET", "/", &[("x-id", " 7")])), &bad()),
        ("no authority", pseudo(&good), &bad()),
        ("user", pseudo(&[&good[..], &[(":authority", "u@a.example")]].concat()), &bad()),
        ("no host at all", pseudo(&[&good[..], &[(":authority", "a b")]].concat()), &reset),
        ("scheme", pseudo(&[(":method", "GET"), (":scheme", "ftp"), (":path", "/"), (":authority", "a")]), &bad()),
        ("asterisk", head(&request("GET", "*", &[])), &bad()),
        ("no ASCII", head(&request("GET", "/caf\u{e9}", &[])), &bad()),
        ("connect", pseudo(&[(":method", "CONNECT"), (":authority", "a:443")]), &Outcome::Status(405)),
        ("trace", head(&request("TRACE", "/", &[])), &Outcome::Status(405)),
        ("expectation", head(&request("GET", "/", &[("expect", "more")])), &Outcome::Status(417)),
    ] {
        assert_eq!(&outcome(&weir, &frames), expected, "{what}");
        let mut client = Frames::connect(weir.proxy);
        client.send(frames);
        client.get(3, "/");
        assert_eq!(client.stream(3)[0].status(), 200, "after {what}");
    }
    for seen in upstream.requests() {
        assert_eq!(seen.start, "GET / HTTP/1.1");
        assert_eq!(seen.all("host"), ["a.example"]);
    }
}

#[test]
fn heads_have_limits() {
    let upstream = Upstream::saying("hello");
    let limits = HttpLimits { head: HeadLimits { bytes: 4096, target: 1000, lines: 20 }, ..HttpLimits::default() };
    let weir = Setup { limits, ..Setup::new(WIDE) }.start(&format!("http://{}", upstream.address));
    let long = |length| "x".repeat(length);
    let many: Vec<_> = (0..21).map(|number| format!("x-{number}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "")).collect();
    for (what, frames, expected) in [
        ("header_bytes", head(&request("GET", "/", &[("x-id", &long(5000))])), Outcome::Status(431)),
        ("header_count", head(&request("GET", "/", &many)), Outcome::Status(431)),
        ("target", head(&request("GET", &format!("/{}", long(1000)), &[])), Outcome::Status(414)),
    ] {
        assert_eq!(outcome(&weir, frames), expected, "{what}");
        assert_eq!(limited(&weir, what), 1, "{what}");
    }
    assert_eq!(outcome(&weir, head(&request("GET", "/", &[("x-id", &long(10_000))]))), Outcome::Status(431));
    // Endless blocks, and one that is far too large.
    let begun =
        |flags, payload: &[u8]| [frame(HEADERS, flags, 1, &request("GET", "/", &[])), payload.to_vec()].concat();
    let empty = frame(0x9, 0, 1, &[]).repeat(1000);
    assert_eq!(outcome(&weir, begun(END_STREAM, &empty)), Outcome::GoAway(ENHANCE_YOUR_CALM));
    let large = frame(0x9, 0, 1, &block(&[("x-id", &long(8000))])).repeat(100);
    assert!(matches!(outcome(&weir, begun(END_STREAM, &large)), Outcome::GoAway(_)));
    assert_eq!(upstream.requests().len(), 0);
}

/// The library bounds heads, too, and nobody counts what it rejects.
#[test]
fn a_head_may_have_all_its_bytes_in_all_its_lines() {
    const LINES: usize = 200;
    let upstream = Upstream::saying("hello");
    for bytes in [4096, 10_000] {
        let limits = HttpLimits { head: HeadLimits { bytes, target: 1000, lines: LINES }, ..HttpLimits::default() };
        let weir = Setup { limits, ..Setup::new(WIDE) }.start(&format!("http://{}", upstream.address));
        let head_of = |lines: usize, bytes: usize| {
            let names: Vec<_> = (0..lines).map(|number| format!("x-{number:03}")).collect();
            let rest = "x".repeat(bytes - names.iter().map(String::len).sum::<usize>());
            let more: Vec<_> =
                names.iter().map(|name| (name.as_str(), if *name == "x-000" { &*rest } else { "" })).collect();
            head(&request("GET", "/", &more))
        };
        assert_eq!(outcome(&weir, head_of(LINES, bytes)), Outcome::Status(200), "{bytes} bytes");
        assert_eq!(outcome(&weir, head_of(LINES, bytes + 1)), Outcome::Status(431), "{bytes} bytes");
        assert_eq!(outcome(&weir, head_of(LINES + 1, bytes)), Outcome::Status(431), "{bytes} bytes");
        assert_eq!((limited(&weir, "header_bytes"), limited(&weir, "header_count")), (1, 1), "{bytes} bytes");
    }
}

#[test]
fn a_denial_does_not_wait_for_the_body() {
    let upstream = Upstream::saying("hello");
    let weir = weir(NONE, &upstream);
    let mut client = Frames::connect(weir.proxy);
    client.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/", &[("expect", "100-continue")])));
    let frames = client.stream(1);
    assert_eq!((frames[0].status(), frames.len()), (429, 2), "no 100 before it: {frames:?}");
    let reset = client.next_of(RST_STREAM);
    assert_eq!((reset.stream, reset.error()), (1, NO_ERROR), "RFC 9113 section 8.1");
    // Frames on their way are not mistakes, and the connection continues.
    client.send([frame(DATA, 0, 1, &[0; 1000]), frame(DATA, END_STREAM, 1, &[])].concat());
    client.get(3, "/");
    assert_eq!(client.next_of(HEADERS).stream, 3);
    assert_eq!(upstream.accepted(), 0);
}

#[tokio::test]
async fn a_denial_is_the_same_when_it_is_said_again() {
    let upstream = Upstream::saying("hello");
    let weir = weir(NONE, &upstream);
    let socket = tokio::net::TcpStream::connect(weir.proxy).await.unwrap();
    let (mut client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let mut said = Vec::new();
    for method in ["GET", "POST", "GET", "HEAD"] {
        let request = http::Request::builder().method(method).uri("http://a/").body(()).unwrap();
        let (answer, _) = client.send_request(request, true).unwrap();
        let (mut head, mut body) = answer.await.unwrap().into_parts();
        let date = head.headers.insert(DATE, HeaderValue::from_static("then")).unwrap();
        assert!(httpdate::parse_http_date(date.to_str().unwrap()).is_ok(), "{date:?}");
        let text = body.data().await.transpose().unwrap().unwrap_or_default();
        let length = head.headers[CONTENT_LENGTH].to_str().unwrap().parse().unwrap();
        assert_eq!(text.len(), if method == "HEAD" { 0 } else { length });
        let names: Vec<_> = head.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(
            (head.status.as_u16(), &names[..]),
            (429, &["content-type", "cache-control", "content-length", "date"][..])
        );
        said.push((head.headers, text));
    }
    assert_eq!((&said[0], &said[1]), (&said[1], &said[2]));
    assert_eq!(said[3].0, said[0].0);
}

#[tokio::test]
async fn a_denial_that_is_said_again_has_the_date_of_the_moment() {
    let upstream = Upstream::saying("hello");
    let weir = weir(NONE, &upstream);
    let socket = tokio::net::TcpStream::connect(weir.proxy).await.unwrap();
    let (mut client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let mut ask = async || {
        let request = http::Request::builder().uri("http://a/").body(()).unwrap();
        let (answer, _) = client.send_request(request, true).unwrap();
        let dates = answer.await.unwrap().headers().get_all(DATE).iter().cloned().collect::<Vec<_>>();
        let [date] = &dates[..] else { panic!("{dates:?}") };
        httpdate::parse_http_date(date.to_str().unwrap()).unwrap()
    };
    // The date of the first denial that is said again is right even if it stays.
    let mut last = ask().await;
    for _ in 0..2 {
        last =
            eventually_async("a later date", async || Some(ask().await).filter(|date| *date > last).ok_or(last)).await;
    }
}

#[test]
fn a_grpc_call_is_denied_by_trailers_alone() {
    let upstream = Upstream::saying("hello");
    let weir = weir(NONE, &upstream);
    let mut client = Frames::connect(weir.proxy);
    let more = [("content-type", "application/grpc"), ("te", "trailers")];
    client.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/s/m", &more)));
    client.send(frame(DATA, END_STREAM, 1, &[0; 5]));
    let frames = client.stream(1);
    assert_eq!((frames.len(), frames[0].status(), frames[0].ends_stream()), (1, 200, true), "{frames:?}");
}

#[test]
fn who_waits_is_told_to_go_on_once_the_request_may_pass() {
    let upstream = Upstream::start(|wire, _| {
        while let Some(request) = wire.request() {
            assert!(request.header("expect").is_none());
            wire.send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
            wire.send(ok("hello"));
        }
    });
    let weir = weir(WIDE, &upstream);
    let mut client = Frames::connect(weir.proxy);
    let more = [("expect", "100-continue"), ("content-length", "4")];
    client.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/", &more)));
    assert_eq!(client.next_of(HEADERS).status(), 100);
    client.send(frame(DATA, END_STREAM, 1, b"text"));
    let frames = client.stream(1);
    let statuses: Vec<_> = frames.iter().filter(|frame| frame.kind == HEADERS).map(Frame::status).collect();
    assert_eq!(statuses, [103, 200]);
}

#[test]
fn a_response_that_breaks_off_is_no_whole_one() {
    let upstream = Upstream::start(|wire, _| {
        if wire.request().is_some() {
            wire.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello");
        }
    });
    let weir = weir(WIDE, &upstream);
    let mut client = Frames::connect(weir.proxy);
    client.get(1, "/");
    let frames = client.stream(1);
    let last = frames.last().unwrap();
    assert_eq!((frames[0].status(), last.kind, last.error()), (200, RST_STREAM, INTERNAL_ERROR));
    assert!(!frames.iter().any(Frame::ends_stream));
}

#[test]
fn who_takes_a_request_back_is_charged_for_it() {
    let upstream = Upstream::saying("hello");
    let weir = weir(WIDE, &upstream);
    let mut client = Frames::connect(weir.proxy);
    let cancel = |stream| frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
    let get = |stream| frame(HEADERS, END_STREAM | END_HEADERS, stream, &request("GET", "/", &[]));
    let burst: Vec<u8> = (0..80).flat_map(|number| [get(2 * number + 1), cancel(2 * number + 1)].concat()).collect();
    client.send(burst);
    client.get(1001, "/");
    assert_eq!(client.stream(1001)[0].status(), 200);
    assert_eq!(allowed(&weir), 81);
    assert_eq!(upstream.accepted(), 1, "a reset request is not forwarded");
    assert_eq!(limited(&weir, "http2_resets"), 0);
}

#[test]
fn who_takes_many_requests_back_is_sent_away_and_charged() {
    let upstream = Upstream::saying("hello");
    let weir = weir_with(Http2Limits { max_resets: 10, ..Http2Limits::default() }, &upstream);
    let mut client = Frames::connect(weir.proxy);
    let block = request("GET", "/", &[]);
    for stream in (0..200).map(|number| 2 * number + 1) {
        client.send(frame(HEADERS, END_STREAM | END_HEADERS, stream, &block));
        client.send(frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
    }
    assert_eq!(client.next_of(GOAWAY).error(), ENHANCE_YOUR_CALM);
    assert!(allowed(&weir) >= 11);
    assert_eq!(limited(&weir, "http2_resets"), 1);
}

#[test]
fn floods_end_the_connection() {
    let upstream = Upstream::saying("hello");
    let http2 = Http2Limits { max_control_frames: 100, max_errors: 50, ..Http2Limits::default() };
    let weir = weir_with(http2, &upstream);
    let post = frame(HEADERS, END_HEADERS, 1, &request("POST", "/", &[]));
    let window = |stream, increment: u32| frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
    let mistakes: Vec<u8> = (0..100)
        .flat_map(|number| {
            let stream = 2 * number + 1;
            [frame(HEADERS, END_HEADERS, stream, &request("POST", "/", &[])), window(stream, 0x7fff_ffff)].concat()
        })
        .collect();
    for (what, frames, limit) in [
        ("PING", frame(PING, 0, 0, &[0; 8]).repeat(2000), "http2_control_frames"),
        ("answers to no PING", frame(PING, ACK, 0, &[0; 8]).repeat(2000), "http2_control_frames"),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[]).repeat(2000), "http2_control_frames"),
        ("PRIORITY", frame(PRIORITY, 0, 5, &[0, 0, 0, 3, 1]).repeat(2000), "http2_control_frames"),
        ("WINDOW_UPDATE", window(0, 1).repeat(2000), "http2_control_frames"),
        ("unknown", frame(0xee, 0, 0, &[]).repeat(2000), "http2_control_frames"),
        ("empty DATA", [post.clone(), frame(DATA, 0, 1, &[]).repeat(2000)].concat(), "http2_errors"),
        ("mistakes", mistakes, "http2_errors"),
    ] {
        let before = limited(&weir, limit);
        assert_eq!(outcome_of_flood(&weir, frames), ENHANCE_YOUR_CALM, "{what}");
        // It is counted after the connection's last frame.
        eventually(what, || match limited(&weir, limit) {
            count if count == before + 1 => Ok(()),
            count => Err(count),
        });
    }
}

/// The error code of the GOAWAY that ends a flood.
#[track_caller]
fn outcome_of_flood(weir: &Weir, frames: Vec<u8>) -> u32 {
    let mut client = Frames::connect(weir.proxy);
    let mut writer = client.stream.try_clone().unwrap();
    // The peer stops reading at some point, so its frames are read meanwhile.
    let writing = std::thread::spawn(move || {
        let _ = std::io::Write::write_all(&mut writer, &frames);
    });
    let error = client.next_of(GOAWAY).error();
    drop(client);
    writing.join().unwrap();
    error
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let upstream = Upstream::start(|wire, _| while wire.request().is_some() {});
    let weir = weir_with(Http2Limits { max_streams: 2, ..Http2Limits::default() }, &upstream);
    let mut client = Frames::connect(weir.proxy);
    for stream in [1, 3, 5] {
        client.get(stream, "/");
    }
    let reset = client.next_of(RST_STREAM);
    assert_eq!((reset.stream, reset.error()), (5, REFUSED_STREAM));
}

#[test]
fn what_does_not_come_in_time_ends() {
    let upstream = Upstream::start(|wire, _| while wire.request().is_some() {});
    let weir = hasty(&upstream);
    // An endless block: no other stream can be served meanwhile.
    let mut client = Frames::connect(weir.proxy);
    client.send(frame(HEADERS, END_STREAM, 1, &request("GET", "/", &[])));
    assert_eq!(client.next_of(GOAWAY).error(), ENHANCE_YOUR_CALM);
    assert_eq!(limited(&weir, "header_timeout"), 1);
    // An incomplete frame head.
    let mut client = Frames::connect(weir.proxy);
    client.send([0, 0]);
    assert_eq!(client.next_of(GOAWAY).error(), ENHANCE_YOUR_CALM);
    assert_eq!(limited(&weir, "header_timeout"), 2);
    // No request.
    let mut client = Frames::connect(weir.proxy);
    assert_eq!(client.next_of(GOAWAY).error(), NO_ERROR);
    while client.next().is_some() {}
    assert_eq!(limited(&weir, "idle_timeout"), 1);
    // A body that stops: its stream gets an answer, and the connection serves another request.
    let mut client = Frames::connect(weir.proxy);
    client.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/", &[])));
    client.send(frame(DATA, 0, 1, b"some"));
    assert_eq!(client.next_of(HEADERS).status(), 408);
    assert_eq!(limited(&weir, "body_timeout"), 1);
}

#[test]
fn who_does_not_read_one_response_gets_the_others() {
    let large: &'static str = "x".repeat(1_000_000).leak();
    let upstream =
        Upstream::answering(move |request| if request.start.contains("/large") { ok(large) } else { ok("small") });
    let weir = hasty(&upstream);
    let mut client = Frames::connect(weir.proxy);
    // The connection has a window for all, the stream only its first 65 535 bytes.
    client.send(frame(WINDOW_UPDATE, 0, 0, &10_000_000_u32.to_be_bytes()));
    client.get(1, "/large");
    let mut received = 0;
    while received < 65_535 {
        received += client.next_of(DATA).payload.len();
    }
    client.get(3, "/small");
    let frames = client.stream(3);
    assert_eq!((frames[0].status(), &frames[1].payload[..]), (200, &b"small"[..]));
    let reset = client.next_of(RST_STREAM);
    assert_eq!((reset.stream, reset.error()), (1, CANCEL), "it is not waited for for ever");
    client.get(5, "/small");
    assert_eq!(client.stream(5)[0].status(), 200);
    assert_eq!(limited(&weir, "body_timeout"), 1);
}

#[test]
fn a_client_that_is_not_there_is_noticed() {
    let upstream = Upstream::start(|wire, _| while wire.request().is_some() {});
    let soon = Duration::from_millis(100);
    let weir = weir_with(Http2Limits { ping_interval: soon, ping_timeout: soon, ..Http2Limits::default() }, &upstream);
    let mut client = Frames::connect(weir.proxy);
    client.get(1, "/");
    // `next` answers each PING, so this client is alive until it goes silent.
    std::thread::sleep(Duration::from_millis(10));
    eventually("it is given up", || match limited(&weir, "http2_ping_timeout") {
        1 => Ok(()),
        count => Err(count),
    });
    while client.next().is_some() {}
}

#[test]
fn a_connection_has_so_many_requests() {
    let upstream = Upstream::saying("hello");
    let limits = HttpLimits { requests: 3, ..HttpLimits::default() };
    let weir = Setup { limits, ..Setup::new(WIDE) }.start(&format!("http://{}", upstream.address));
    let mut client = Frames::connect(weir.proxy);
    for stream in [1, 3] {
        client.get(stream, "/");
        assert_eq!(client.stream(stream)[0].status(), 200);
    }
    client.get(5, "/");
    let mut frames = Vec::new();
    while let Some(frame) = client.next() {
        frames.push(frame);
    }
    let status = frames.iter().find(|frame| frame.kind == HEADERS).map(|frame| (frame.stream, frame.status()));
    assert_eq!(status, Some((5, 200)), "{frames:?}");
    let goaways: Vec<_> = frames
        .iter()
        .filter(|frame| frame.kind == GOAWAY)
        .map(|frame| (frame.error(), frame.payload[..4].to_vec()))
        .collect();
    assert_eq!(goaways, [(NO_ERROR, vec![0x7f, 0xff, 0xff, 0xff]), (NO_ERROR, vec![0, 0, 0, 5])]);
    assert_eq!(limited(&weir, "requests"), 1);
}

#[test]
fn what_runs_is_answered_when_the_process_ends() {
    let upstream = Upstream::start(|wire, _| {
        while wire.request().is_some() {
            std::thread::sleep(Duration::from_millis(300));
            wire.send(ok("hello"));
        }
    });
    let weir = Setup { grace: NEVER, ..Setup::new(WIDE) }.start(&format!("http://{}", upstream.address));
    let mut client = Frames::connect(weir.proxy);
    client.get(1, "/");
    eventually("the request is under way", || if upstream.accepted() == 1 { Ok(()) } else { Err("not yet") });
    weir.stop();
    assert_eq!(client.next_of(GOAWAY).error(), NO_ERROR);
    let frames = client.stream(1);
    assert_eq!((frames[0].status(), &frames[1].payload[..]), (200, &b"hello"[..]));
    while client.next().is_some() {}
    weir.join();
}
