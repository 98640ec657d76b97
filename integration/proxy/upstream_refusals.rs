//! Requests that an HTTP/2 upstream refuses without processing them (RFC 9113 section 8.7).

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::Request;

use super::upstream_http2::{Http2Upstream, say};
use crate::support::frames::{DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame};
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::wire::Message;

/// The longest body that is sent again.
const KEPT: usize = 64 * 1024;

/// A server that takes the whole of the first `refused` requests and refuses them. It answers others with their method and
/// the length of their body, if that is the one that clients send here.
fn refusing(refused: usize) -> Http2Upstream {
    Http2Upstream::start(move |number, request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>| async move {
        let method = request.method().clone();
        let mut body = request.into_body();
        let mut taken = Vec::new();
        while let Some(Ok(data)) = body.data().await {
            body.flow_control().release_capacity(data.len()).unwrap();
            taken.extend_from_slice(&data);
        }
        if number < refused {
            respond.send_reset(Reason::REFUSED_STREAM);
        } else {
            assert_eq!(taken, text(taken.len()));
            say(respond, format!("{method} {}", taken.len()));
        }
    })
}

/// A body that is different at each place.
fn text(length: usize) -> Vec<u8> {
    (0..length).map(|place| b'a' + u8::try_from(place / 7 % 26).unwrap()).collect()
}

/// Sends a request with a length or in chunks.
fn send(weir: &Weir, method: &str, body: &[u8], is_chunked: bool) -> Message {
    let mut client = weir.connect();
    if is_chunked {
        client.send(format!("{method} / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"));
        for chunk in body.chunks(5_000) {
            client.send([format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
        }
        client.send("0\r\n\r\n");
    } else {
        client.send(format!("{method} / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()));
        client.send(body);
    }
    client.response()
}

#[test]
fn a_request_is_sent_again_with_its_body_whatever_its_method() {
    for (method, length, is_sent_again) in [
        ("GET", 0, true),
        ("POST", 0, true),
        ("POST", 10, true),
        ("PATCH", 5_001, true),
        ("POST", KEPT, true),
        ("POST", KEPT + 1, false),
        ("PUT", 3 * KEPT, false),
    ] {
        for is_chunked in [false, true] {
            let upstream = refusing(1);
            let response = send(&upstream.weir(), method, &text(length), is_chunked);
            let expected = if is_sent_again { (200, 2) } else { (502, 1) };
            let seen = (response.status(), upstream.requests());
            assert_eq!(seen, expected, "{method} {length}, chunked: {is_chunked}: {}", response.text());
            assert!(!is_sent_again || response.text() == format!("{method} {length}"), "{}", response.text());
        }
    }
}

#[test]
fn a_server_that_refuses_all_is_not_asked_forever() {
    let upstream = refusing(usize::MAX);
    assert_eq!(send(&upstream.weir(), "POST", b"abc", false).status(), 502);
    assert_eq!(upstream.requests(), 3);
}

#[test]
fn another_server_gets_what_one_refuses() {
    let (bad, good) = (refusing(usize::MAX), refusing(0));
    let weir = Setup::new(WIDE).start(&format!("{},{}", bad.url(), good.url()));
    assert_eq!(send(&weir, "POST", &text(4_000), true).text(), "POST 4000");
    assert_eq!((bad.requests(), good.requests()), (3, 1));
}

#[test]
fn each_of_two_servers_is_asked_three_times_and_no_other() {
    let servers: Vec<_> = (0..3).map(|_| refusing(usize::MAX)).collect();
    let urls: Vec<_> = servers.iter().map(Http2Upstream::url).collect();
    let weir = Setup::new(WIDE).start(&urls.join(","));
    assert_eq!(send(&weir, "POST", b"abc", false).status(), 502);
    let mut asked: Vec<_> = servers.iter().map(Http2Upstream::requests).collect();
    asked.sort_unstable();
    assert_eq!(asked, [0, 3, 3]);
}

/// A server that answers the first `answered` requests of its first connection, takes one more with its body, and says by a
/// GOAWAY that it did not process it. It answers all on later connections.
fn leaving(answered: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepted: Arc<AtomicUsize> = Arc::default();
    let counted = accepted.clone();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            counted.fetch_add(1, Ordering::Relaxed);
            let answered = if number == 0 { answered } else { usize::MAX };
            std::thread::spawn(move || serve(Frames::accept(stream.unwrap()), answered));
        }
    });
    (address, accepted)
}

fn serve(mut server: Frames, answered: usize) {
    server.send(frame(SETTINGS, 0, 0, &[]));
    let mut done = 0;
    let mut last: u32 = 0;
    while let Some(received) = server.next() {
        if !matches!(received.kind, DATA | HEADERS) || !received.ends_stream() {
            continue;
        }
        if done == answered {
            server.send(frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat()));
            continue;
        }
        // `:status: 200` (RFC 7541 appendix A).
        server.send(frame(HEADERS, END_HEADERS | END_STREAM, received.stream, &[0x88]));
        last = received.stream;
        done += 1;
    }
}

#[test]
fn a_request_that_a_goaway_excludes_is_sent_again_on_another_connection() {
    for answered in [0, 1, 2] {
        for (method, body) in [("GET", ""), ("POST", "abc")] {
            let (address, accepted) = leaving(answered);
            let weir = Setup::new(WIDE).start(&format!("h2c://{address}"));
            for number in 0..answered + 2 {
                let response = send(&weir, method, body.as_bytes(), false);
                assert_eq!(response.status(), 200, "{method} {number} after {answered}: {}", response.text());
            }
            assert_eq!(accepted.load(Ordering::Relaxed), 2, "{method} after {answered}");
        }
    }
}

#[test]
fn a_request_that_a_server_may_have_processed_is_not_sent_again() {
    for (frame_kind, payload) in [(RST_STREAM, vec![0, 0, 0, 2]), (GOAWAY, [[0, 0, 0, 1], [0; 4]].concat())] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("h2c://{}", listener.local_addr().unwrap());
        let requests: Arc<AtomicUsize> = Arc::default();
        let counted = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut server = Frames::accept(stream.unwrap());
                server.send(frame(SETTINGS, 0, 0, &[]));
                while let Some(received) = server.next() {
                    if matches!(received.kind, DATA | HEADERS) && received.ends_stream() {
                        counted.fetch_add(1, Ordering::Relaxed);
                        let stream = if frame_kind == GOAWAY { 0 } else { received.stream };
                        server.send(frame(frame_kind, 0, stream, &payload));
                        if frame_kind == GOAWAY {
                            break;
                        }
                    }
                }
            }
        });
        let weir = Setup::new(WIDE).start(&url);
        assert_eq!(send(&weir, "POST", b"abc", false).status(), 502, "{frame_kind}");
        assert_eq!(requests.load(Ordering::Relaxed), 1, "{frame_kind}");
    }
}
