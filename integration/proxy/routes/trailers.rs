//! Trailers, which may not bring what a header may not.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};

use super::weir;
use crate::proxy::upstream_http2::Http2Upstream;
use crate::support::frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, block, frame, request};
use crate::support::upstream::Upstream;

const ROUTES: &str = "  /a:\n    upstream: http://UPSTREAM\n    \
                      request-headers: { remove: X-Gone, set: { x-env: prod }, add: { x-more: 1 } }\n    \
                      response-headers: { remove: X-Gone, set: { x-env: prod }, add: { x-more: 1 } }\n  \
                      /b: { upstream: http://UPSTREAM }\n";

#[test]
fn trailers_of_a_request_do_not_bring_what_its_headers_may_not() {
    const SENT: [(&str, &str); 6] = [
        ("x-gone", "1"),
        ("x-env", "test"),
        ("x_id", "1"),
        ("x-more", "2"),
        ("x-forwarded-for", "9.9.9.9"),
        ("x-sum", "1"),
    ];
    for (flags, path, expected) in [
        (&[][..], "/a", &["x-more", "x-sum"][..]),
        (&[], "/b", &["x-gone", "x-env", "x-more", "x-sum"]),
        (&["--underscores", "keep"], "/b", &["x-gone", "x-env", "x_id", "x-more", "x-sum"]),
        (&["--underscores", "reject"], "/b", &[]),
        (&["--drop-headers", "x-sum"], "/a", &["x-more"]),
    ] {
        let upstream = Upstream::saying("");
        let weir = weir(&upstream, ROUTES, flags);
        let lines = SENT.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
        let mut client = weir.connect();
        client.send(format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n{lines}\r\n"
        ));
        assert_eq!(client.response().status(), 200);
        let mut http2 = Frames::connect(weir.proxy);
        http2.send(frame(HEADERS, END_HEADERS, 1, &request("POST", path, &[])));
        http2.send(frame(DATA, 0, 1, b"x"));
        http2.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&SENT)));
        assert_eq!(http2.stream(1)[0].status(), 200);
        for seen in upstream.requests() {
            let names: Vec<_> = seen.trailers.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, expected, "{flags:?} {path}");
        }
    }
}

#[test]
fn trailers_of_a_response_do_not_bring_what_its_headers_may_not() {
    let http1 = Upstream::answering(|_| {
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Gone: 1\r\nx-env: test\r\n\r\n"
            .to_owned()
    });
    let http2 = Http2Upstream::start(|_, _, mut respond: SendResponse<Bytes>| async move {
        // With a length, trailers are still possible.
        let head = Response::builder().header("content-length", "1").body(()).unwrap();
        let mut stream = respond.send_response(head, false).unwrap();
        stream.send_data(Bytes::from_static(b"x"), false).unwrap();
        let one = HeaderValue::from_static("1");
        stream
            .send_trailers(HeaderMap::from_iter(
                [("x-gone", &one), ("x-env", &one)].map(|(name, value)| (name.parse().unwrap(), value.clone())),
            ))
            .unwrap();
    });
    let of_http2 = ROUTES.replace("http://UPSTREAM", &format!("h2c://{}", http2.address));
    for routes in [ROUTES, &of_http2] {
        let weir = weir(&http1, routes, &[]);
        for (path, is_filtered) in [("/a", true), ("/b", false)] {
            assert_eq!(http2_trailers(weir.proxy, path).is_empty(), is_filtered, "{path} in {routes}");
        }
    }
    let weir = weir(&http1, ROUTES, &[]);
    let names = |path| {
        let response = weir.get(path, &[]);
        assert_eq!(response.text(), "x");
        response.trailers.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!((names("/a"), names("/b")), (vec![], vec!["x-gone".to_owned(), "x-env".to_owned()]));
}

/// The block of the trailers that an HTTP/2 client gets.
fn http2_trailers(proxy: SocketAddr, path: &str) -> Vec<u8> {
    let mut client = Frames::connect(proxy);
    client.get(1, path);
    let mut frames = client.stream(1);
    assert!(frames.iter().any(|frame| frame.kind == DATA && frame.payload == b"x"), "{frames:?}");
    let last = frames.pop().unwrap();
    if last.kind == HEADERS { last.payload } else { Vec::new() }
}
