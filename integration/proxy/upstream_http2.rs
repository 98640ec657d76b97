//! HTTP/2 upstreams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::upstream_tls::{self, server_config};
use crate::support::certificates::Authority;
use crate::support::frames::Frames;
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::Upstream;
use crate::support::{becomes, eventually};

/// An HTTP/2 server. It ends when this is dropped.
pub(super) struct Http2Upstream {
    pub(super) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    /// Connections that have not ended.
    open: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    _stop: DropGuard,
}

impl Http2Upstream {
    /// Answers with `answer`, which gets the number of earlier requests.
    pub(super) fn start<A: Future<Output = ()> + Send + 'static>(
        answer: impl Fn(usize, Request<h2::RecvStream>, SendResponse<Bytes>) -> A + Send + Sync + 'static,
    ) -> Self {
        Self::start_over(None, &h2::server::Builder::new(), answer)
    }

    /// Like [`Self::start`], over TLS if there is a configuration, and with these settings.
    pub(super) fn start_over<A: Future<Output = ()> + Send + 'static>(
        tls: Option<ServerConfig>,
        settings: &h2::server::Builder,
        answer: impl Fn(usize, Request<h2::RecvStream>, SendResponse<Bytes>) -> A + Send + Sync + 'static,
    ) -> Self {
        let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let [connections, open, requests]: [Arc<AtomicUsize>; 3] = Default::default();
        let stop = CancellationToken::new();
        let (connected, opened, requested) = (connections.clone(), open.clone(), requests.clone());
        let (settings, answer) = (settings.clone(), Arc::new(answer));
        let serve = async move {
            while let Ok((stream, _)) = listener.accept().await {
                connected.fetch_add(1, Ordering::Relaxed);
                let (opened, requested, answer) = (opened.clone(), requested.clone(), answer.clone());
                let (tls, settings) = (tls.clone(), settings.clone());
                let answer =
                    move |request, respond| answer(requested.fetch_add(1, Ordering::Relaxed), request, respond);
                tokio::spawn(async move {
                    opened.fetch_add(1, Ordering::Relaxed);
                    match tls {
                        None => serve_connection(stream, &settings, answer).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve_connection(stream, &settings, answer).await;
                            }
                        }
                    }
                    opened.fetch_sub(1, Ordering::Relaxed);
                });
            }
        };
        let stopped = stop.clone();
        std::thread::spawn(move || runtime.block_on(stopped.run_until_cancelled(serve)));
        Self { address, connections, open, requests, _stop: stop.drop_guard() }
    }

    pub(super) fn url(&self) -> String {
        format!("h2c://{}", self.address)
    }

    pub(super) fn weir(&self) -> Weir {
        Setup::new(WIDE).start(&self.url())
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

async fn serve_connection<A: Future<Output = ()> + Send + 'static>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    settings: &h2::server::Builder,
    answer: impl Fn(Request<h2::RecvStream>, SendResponse<Bytes>) -> A,
) {
    let Ok(mut connection) = settings.handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond));
    }
}

pub(super) fn say(mut respond: SendResponse<Bytes>, text: String) {
    let mut stream = respond.send_response(Response::new(()), false).unwrap();
    stream.send_data(text.into(), true).unwrap();
}

#[test]
fn requests_share_a_connection() {
    let limiter = Arc::new(Semaphore::new(0));
    let held = limiter.clone();
    let upstream = Http2Upstream::start(move |_, request, respond| {
        let held = held.clone();
        async move {
            held.acquire().await.unwrap().forget();
            say(respond, format!("{} {}", request.method(), request.uri()));
        }
    });
    let weir = upstream.weir();
    let mut clients: Vec<_> = (0..8).map(|_| weir.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("GET /{number}?x HTTP/1.1\r\nhost: a.example\r\n\r\n"));
    }
    eventually("all are there", || match upstream.requests() {
        8 => Ok(()),
        other => Err(other),
    });
    limiter.add_permits(8);
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.response().text(), format!("GET http://a.example/{number}?x"));
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_server_over_tls_chooses() {
    for protocols in [vec![b"h2".to_vec(), b"http/1.1".to_vec()], vec![b"h2".to_vec()]] {
        let authority = Authority::new();
        let mut config = server_config(&authority, &["localhost"]);
        config.alpn_protocols = protocols;
        let upstream =
            Http2Upstream::start_over(Some(config), &h2::server::Builder::new(), |_, request, respond| async move {
                say(respond, format!("{:?}", request.version()));
            });
        let url = format!("https://localhost:{}", upstream.address.port());
        let weir = upstream_tls::weir(&url, Some(&authority.path("ca.pem")), None);
        let mut client = weir.connect();
        for _ in 0..2 {
            let response = client.get("/");
            assert_eq!((response.status(), response.text()), (200, "HTTP/2.0"));
        }
        assert_eq!(upstream.connections(), 1);
    }
}

#[test]
fn a_request_that_the_server_refuses_to_begin_is_sent_again_whatever_its_method() {
    let upstream = Http2Upstream::start(|number, _, mut respond| async move {
        match number {
            1 => respond.send_reset(Reason::REFUSED_STREAM),
            _ => say(respond, number.to_string()),
        }
    });
    let weir = upstream.weir();
    let mut client = weir.connect();
    assert_eq!(client.get("/").text(), "0");
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(client.response().text(), "2");
}

#[test]
fn a_request_that_the_server_broke_off_is_not() {
    let upstream = Http2Upstream::start(|number, _, mut respond| async move {
        match number {
            0 => say(respond, "first".to_owned()),
            _ => respond.send_reset(Reason::INTERNAL_ERROR),
        }
    });
    let weir = upstream.weir();
    let mut client = weir.connect();
    assert_eq!(client.get("/").text(), "first");
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(client.response().status(), 502);
    assert_eq!(upstream.requests(), 2);
}

#[test]
fn a_response_that_breaks_off_is_counted() {
    let limiter = Arc::new(Semaphore::new(0));
    let held = limiter.clone();
    let upstream = Http2Upstream::start(move |_, _, mut respond| {
        let held = held.clone();
        async move {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            stream.send_data(Bytes::from_static(b"abc"), false).unwrap();
            // A reset discards what was not sent yet.
            held.acquire().await.unwrap().forget();
            stream.send_reset(Reason::INTERNAL_ERROR);
        }
    });
    let weir = upstream.weir();
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.head().unwrap().status(), 200);
    assert_eq!((client.line(), client.line()), ("3".into(), "abc".into()));
    limiter.add_permits(1);
    client.expect_end();
    becomes("it is counted", 1, || weir.metric("weir_upstream_errors_total{reason=\"body\"}"));
}

#[test]
fn a_server_of_http1_alone_is_a_502() {
    let upstream = Upstream::start(|wire, _| {
        wire.send("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        wire.request();
    });
    let weir = Setup::new(WIDE).start(&format!("h2c://{}", upstream.address));
    assert_eq!(weir.connect().get("/").status(), 502);
}

/// HTTP/1.1 would take an empty one for no length, and beside chunks for a second one.
#[test]
fn a_length_that_is_no_number_is_a_502() {
    for lengths in [&[""][..], &["05"], &["5", "5"]] {
        let upstream = Http2Upstream::start(move |_, _, mut respond: SendResponse<Bytes>| async move {
            let head = lengths.iter().fold(Response::builder(), |head, length| head.header("content-length", *length));
            let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
            let _ = stream.send_data(Bytes::from_static(b"hello"), true);
        });
        let weir = Setup::new(WIDE).start(&format!("h2c://{}", upstream.address));
        assert_eq!(weir.connect().get("/").status(), 502, "{lengths:?}");
    }
}

#[test]
fn what_a_call_of_grpc_has_cost_is_in_its_trailers() {
    let upstream = Http2Upstream::start(|number, _, mut respond: SendResponse<Bytes>| async move {
        let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
        let mut stream = respond.send_response(head, false).unwrap();
        stream.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        trailers.insert("x-tokens-used", if number == 0 { 25 } else { 3 }.into());
        stream.send_trailers(trailers).unwrap();
    });
    let rules =
        "limits: { Tokens: { by: global, burst: 100, cost_from_response: { header: x-tokens-used }, reserve: 10 } }";
    let weir = Setup::new(rules).start(&format!("h2c://{}", upstream.address));
    let result = |result: &str| format!("weir_settlements_total{{limit=\"Tokens\",result=\"{result}\"}}");
    // In HTTP/1 the trailers follow a chunked body; in HTTP/2 they are frames.
    let response = weir.connect().get("/s/m");
    assert!(response.trailers.contains(&("x-tokens-used".to_owned(), "25".to_owned())), "{response:?}");
    becomes("the first call is settled", 1, || weir.metric(&result("charged")));
    let mut client = Frames::connect(weir.proxy);
    client.get(1, "/s/m");
    assert!(client.stream(1).last().unwrap().ends_stream());
    becomes("the second call is settled", 1, || weir.metric(&result("refunded")));
    assert_eq!(weir.connect().get("/s/m").header("ratelimit"), Some("\"Tokens\";r=62"), "100 - 25 - 3, and a reserve");
}

#[test]
fn what_a_call_has_cost_is_in_its_body() {
    let upstream = Http2Upstream::start(|number, _, mut respond: SendResponse<Bytes>| async move {
        let (kind, parts) = if number == 0 {
            ("application/json", ["{\"usage\":{\"total_tok", "ens\":25}}"])
        } else {
            ("text/event-stream", ["data: {\"usage\":{\"total_tokens\":3}}\n", "\ndata: [DONE]\n\n"])
        };
        let head = Response::builder().header("content-type", kind).body(()).unwrap();
        let mut stream = respond.send_response(head, false).unwrap();
        stream.send_data(Bytes::from_static(parts[0].as_bytes()), false).unwrap();
        stream.send_data(Bytes::from_static(parts[1].as_bytes()), true).unwrap();
    });
    let rules = "limits: { Tokens: { by: global, burst: 100, cost_from_response: { usage: openai, reserve: 10 } } }";
    let weir = Setup::new(rules).start(&format!("h2c://{}", upstream.address));
    let result = |result: &str| format!("weir_settlements_total{{limit=\"Tokens\",result=\"{result}\"}}");
    weir.connect().get("/");
    becomes("the first call is settled", 1, || weir.metric(&result("charged")));
    weir.connect().get("/");
    becomes("the second call is settled", 1, || weir.metric(&result("refunded")));
    assert_eq!(weir.connect().get("/").header("ratelimit"), Some("\"Tokens\";r=62"), "100 - 25 - 3, and a reserve");
}
