//! Requests that are not written to their end.

use std::io::Write;

use crate::support::frames::{DATA, END_HEADERS, Frames, HEADERS, frame, request};
use crate::support::server::{Setup, WIDE};
use crate::support::upstream::{Upstream, ok};

/// More than all sockets and buffers on the way take.
const LARGE: usize = 32 << 20;

/// The starts of requests that the upstream answers without their rest.
fn starts() -> [(&'static str, Vec<u8>); 5] {
    let post = |rest: &str| format!("POST /unfinished HTTP/1.1\r\nhost: a\r\n{rest}").into_bytes();
    let (length, chunked) = (format!("content-length: {LARGE}\r\n\r\n"), "transfer-encoding: chunked\r\n\r\n");
    [
        ("a length and no byte", post("content-length: 10\r\n\r\n")),
        ("a length and not the last byte", post("content-length: 10\r\n\r\n123456789")),
        ("chunks and not the last one", post(&format!("{chunked}5\r\nhello\r\n"))),
        ("no chunk", post(chunked)),
        ("more than there is room for", [post(&length), vec![b'x'; LARGE - 1]].concat()),
    ]
}

/// The upstream would read the next request as the rest of the last one.
#[test]
fn a_connection_is_not_used_again_before_its_request_has_ended() {
    for (name, start) in starts() {
        let upstream = Upstream::start(|wire, _| {
            while let Some(head) = wire.head() {
                wire.send(ok(head.start.split(' ').nth(1).unwrap()));
            }
        });
        let weir = Setup::new(WIDE).start(&format!("http://{}", upstream.address));
        let mut first = weir.connect();
        let mut sender = first.stream.try_clone().unwrap();
        // All of it goes only where somebody reads it.
        let sending = std::thread::spawn(move || sender.write_all(&start).is_ok());
        assert_eq!(first.response().text(), "/unfinished", "{name}");
        assert_eq!(weir.connect().get("/next").text(), "/next", "{name}");
        assert_eq!(upstream.accepted(), 2, "{name}");
        // A finished one is used again.
        assert_eq!(weir.connect().get("/next").text(), "/next", "{name}");
        assert_eq!(upstream.accepted(), 2, "{name}");
        drop(first);
        sending.join().unwrap();
    }
}

#[test]
fn a_connection_is_not_used_again_before_the_request_of_a_stream_has_ended() {
    for headers in [&[][..], &[("content-length", "10")]] {
        let upstream = Upstream::start(|wire, _| {
            while let Some(head) = wire.head() {
                wire.send(ok(head.start.split(' ').nth(1).unwrap()));
            }
        });
        let weir = Setup::new(WIDE).start(&format!("http://{}", upstream.address));
        let mut client = Frames::connect(weir.proxy);
        client.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/unfinished", headers)));
        client.send(frame(DATA, 0, 1, b"12345"));
        client.stream(1);
        client.get(3, "/next");
        client.stream(3);
        assert_eq!((weir.connect().get("/next").text(), upstream.accepted()), ("/next", 2), "{headers:?}");
    }
}
