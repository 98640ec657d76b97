//! Many requests to one HTTP/2 upstream at once: its limit of streams, and windows that slow receivers fill.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use http::{Request, Response};
use tokio::sync::Semaphore;
use weir::http::Timeouts;

use super::upstream_http2::{Http2Upstream, say};
use crate::support::frames::{END_HEADERS, END_STREAM, Frames, HEADERS, SETTINGS, frame, request};
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::{PATIENCE, becomes, eventually, eventually_async};

/// Connections of a worker to one address.
const MAX_SHARED: usize = 256;

/// `SETTINGS_INITIAL_WINDOW_SIZE` (RFC 9113 section 6.5.2).
const INITIAL_WINDOW_SIZE: u16 = 4;

/// A server that allows this many streams on a connection and answers when it may.
fn holding(streams: u32) -> (Http2Upstream, Arc<Semaphore>) {
    let may_answer = Arc::new(Semaphore::new(0));
    let held = may_answer.clone();
    let upstream =
        Http2Upstream::start_over(None, Builder::new().max_concurrent_streams(streams), move |_, _, respond| {
            let held = held.clone();
            async move {
                held.acquire().await.unwrap().forget();
                say(respond, "here".to_owned());
            }
        });
    (upstream, may_answer)
}

/// A client with this many requests on one connection. It gives no window for their responses.
fn unread(weir: &Weir, requests: u32) -> Frames {
    let mut client = Frames::connect(weir.proxy);
    let setting = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &[0; 4]].concat();
    client.send(frame(SETTINGS, 0, 0, &setting));
    for number in 0..requests {
        let head = request("GET", &format!("/{number}"), &[]);
        client.send(frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &head));
    }
    client
}

#[test]
fn requests_beyond_the_streams_of_a_connection_get_another_one() {
    let (upstream, may_answer) = holding(20);
    let timeouts = Timeouts { upstream_idle: Duration::from_millis(1), ..Timeouts::default() };
    let weir = Setup { timeouts, ..Setup::new(WIDE) }.start(&upstream.url());
    let mut clients: Vec<_> = (0..60).map(|_| weir.connect()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    becomes("all are there", 60, || upstream.requests() as u64);
    assert_eq!(upstream.connections(), 3);
    may_answer.add_permits(61);
    for client in &mut clients {
        assert_eq!(client.response().text(), "here");
    }
    becomes("idle connections are closed", 0, || upstream.open() as u64);
    assert_eq!(weir.connect().get("/").text(), "here");
    assert_eq!(upstream.connections(), 4);
}

#[test]
fn requests_beyond_all_streams_wait_for_one_and_have_a_deadline() {
    let (upstream, may_answer) = holding(1);
    let timeouts = Timeouts { connect: Duration::from_secs(2), ..Timeouts::default() };
    let weir = Setup { timeouts, ..Setup::new(WIDE) }.start(&upstream.url());
    let mut clients: Vec<_> = [100, 100, MAX_SHARED - 200].map(|count| (Frames::connect(weir.proxy), count)).into();
    for (client, count) in &mut clients {
        for number in 0..*count {
            let before = upstream.requests();
            client.get(2 * u32::try_from(number).unwrap() + 1, "/");
            becomes("it has a connection", before as u64 + 1, || upstream.requests() as u64);
        }
    }
    let response = weir.connect().get("/");
    assert_eq!(response.status(), 503, "{}", response.text());
    assert!(response.text().contains("no connection to the upstream is free"), "{}", response.text());
    assert_eq!(weir.metric("weir_upstream_errors_total{reason=\"busy\"}"), 1);
    assert_eq!(upstream.connections(), MAX_SHARED);

    let mut waiting = weir.connect();
    waiting.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    may_answer.add_permits(MAX_SHARED + 1);
    assert_eq!(waiting.response().text(), "here");
    assert_eq!(upstream.connections(), MAX_SHARED);
    for (client, count) in &mut clients {
        let mut ended = 0;
        while ended < *count {
            ended += usize::from(client.next().expect("an answer").ends_stream());
        }
    }
}

/// Sends frames of this size as long as there is a window, and counts the bytes that were sent.
async fn flood(mut respond: SendResponse<Bytes>, size: usize, sent: Arc<AtomicUsize>) {
    let mut stream = respond.send_response(Response::new(()), false).unwrap();
    let part = Bytes::from(vec![b'x'; size]);
    loop {
        stream.reserve_capacity(size);
        while stream.capacity() < size {
            match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(Ok(_)) => {}
                _ => return,
            }
        }
        sent.fetch_add(size, Ordering::Relaxed);
        if stream.send_data(part.clone(), false).is_err() {
            return;
        }
    }
}

/// Clients leave this many responses unread, in frames of this size. Another client is answered nevertheless.
#[track_caller]
fn check_unread(responses: u32, size: usize) {
    const WINDOW: usize = 256 * 1024;
    let sent: Arc<AtomicUsize> = Arc::default();
    let counted = sent.clone();
    let upstream = Http2Upstream::start(move |_, request: Request<h2::RecvStream>, respond| {
        let sent = counted.clone();
        async move {
            match request.uri().path() {
                "/ordinary" => say(respond, "ordinary".to_owned()),
                _ => flood(respond, size, sent).await,
            }
        }
    });
    // The clients are too slow on purpose.
    let timeouts = Timeouts { min_rate: 0, body: Duration::from_mins(10), ..Timeouts::default() };
    let weir = Setup { timeouts, ..Setup::new(WIDE) }.start(&upstream.url());
    let _clients: Vec<_> = [100; 8]
        .into_iter()
        .scan(responses, |left, most: u32| {
            let count = most.min(*left);
            *left -= count;
            (count > 0).then(|| unread(&weir, count))
        })
        .collect();
    let full = responses as usize * (WINDOW - WINDOW % size);
    eventually("all windows are full", || match sent.load(Ordering::Relaxed) {
        bytes if bytes >= full => Ok(()),
        bytes => Err(format!("{bytes} of {full} bytes on {} connections", upstream.connections())),
    });
    assert_eq!(weir.connect().get("/ordinary").text(), "ordinary");
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn responses_that_clients_do_not_read_stop_no_others() {
    // 50 MiB.
    check_unread(200, 16 * 1024);
}

#[test]
fn nor_do_unread_responses_in_small_frames() {
    check_unread(24, 100);
}

#[test]
fn uploads_that_an_upstream_does_not_take_stop_no_others() {
    const STUCK: usize = 16;
    const WINDOW: usize = 64 * 1024;
    let mut settings = Builder::new();
    // It takes 64 KiB of each upload, and would take more of others.
    settings.initial_window_size(u32::try_from(WINDOW).unwrap()).initial_connection_window_size(64 * 1024 * 1024);
    let taken: Arc<AtomicUsize> = Arc::default();
    let counted = taken.clone();
    let upstream = Http2Upstream::start_over(None, &settings, move |_, request: Request<h2::RecvStream>, respond| {
        let taken = counted.clone();
        async move {
            let is_stuck = request.uri().path() == "/stuck";
            let mut body = request.into_body();
            while let Some(Ok(data)) = body.data().await {
                if is_stuck {
                    taken.fetch_add(data.len(), Ordering::Relaxed);
                } else {
                    body.flow_control().release_capacity(data.len()).unwrap();
                }
            }
            say(respond, "taken".to_owned());
        }
    });
    let weir = Setup::new(WIDE).start(&upstream.url());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(weir.proxy).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut sender = sender.ready().await.unwrap();
        let post = |path: &str| Request::post(format!("http://a.example{path}")).body(()).unwrap();
        let mut uploads = Vec::new();
        for _ in 0..STUCK {
            let (response, mut upload) = sender.send_request(post("/stuck"), false).unwrap();
            // The upstream's window and ours.
            upload.send_data(vec![b'x'; 320 * 1024].into(), false).unwrap();
            uploads.push((response, upload));
        }
        eventually_async("the upstream takes no more", async || match taken.load(Ordering::Relaxed) {
            bytes if bytes == STUCK * WINDOW => Ok(()),
            bytes => Err(bytes),
        })
        .await;
        // One after the other, while the rest of the stuck uploads arrives.
        for number in 0..50 {
            let (response, mut upload) = sender.send_request(post("/ordinary"), false).unwrap();
            upload.send_data(Bytes::from_static(b"ordinary"), true).unwrap();
            let answered = tokio::time::timeout(PATIENCE, response).await;
            assert_eq!(answered.expect("an answer").unwrap().status(), 200, "{number}");
        }
    });
    assert_eq!(weir.metric("weir_http_listener_limits_total{limit=\"upload_rate\"}"), 0);
}

/// The window of all uploads on a connection is 64 KiB unless the server enlarges it.
#[test]
fn an_upload_that_an_upstream_does_not_take_stops_no_others_within_the_default_window() {
    const WINDOW: usize = 65_535;
    let taken: Arc<AtomicUsize> = Arc::default();
    let counted = taken.clone();
    let upstream = Http2Upstream::start(move |_, request: Request<h2::RecvStream>, respond| {
        let taken = counted.clone();
        async move {
            let is_stuck = request.uri().path() == "/stuck";
            let (mut body, mut length) = (request.into_body(), 0);
            while let Some(Ok(data)) = body.data().await {
                length += data.len();
                if is_stuck {
                    taken.fetch_add(data.len(), Ordering::Relaxed);
                } else {
                    body.flow_control().release_capacity(data.len()).unwrap();
                }
            }
            say(respond, length.to_string());
        }
    });
    let weir = Setup::new(WIDE).start(&upstream.url());
    let post = |path: &str, length: usize| {
        let mut client = weir.connect();
        client.send(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"));
        client.send(vec![b'x'; length]);
        client
    };
    let _stuck = post("/stuck", 100_000);
    becomes("the upstream takes no more", WINDOW as u64, || taken.load(Ordering::Relaxed) as u64);
    assert_eq!(weir.connect().get("/").text(), "0");
    assert_eq!(upstream.connections(), 1, "a request without a body needs no window");
    for length in [1, 1_000, 50_000, 200_000] {
        assert_eq!(post("/ordinary", length).response().text(), length.to_string());
    }
    assert_eq!(upstream.connections(), 2, "the others share one");
}
