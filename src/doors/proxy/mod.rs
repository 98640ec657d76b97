//! The proxy: HTTP/1.1 in, HTTP/1.1 out, and each request judged once before its body is read.
//!
//! A request passes through [`target`] (can it be forwarded at all), the gate (may it pass), [`fields`] (what a proxy
//! takes away and adds) and [`upstream`]; what goes wrong on the way becomes an answer in [`failure`]. A client's
//! connection is one task ([`connection`]), and all that happens for its request happens in it, the upstream's
//! connection included ([`exchange`]).

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Request, Response, Version};
use http_body::Body;
use hyper::body::Incoming;

use self::access_log::AccessLog;
use self::activity::Activity;
use self::admission::Admission;
use self::body::{Content, RequestBody, ResponseBody};
use self::counters::{Counters, InFlight};
use self::failure::Failure;
use self::fields::Peer;
use self::upstream::{Upstreams, Way};
use crate::doors::convert;
use crate::engine::client_address::TrustedProxies;
use crate::engine::fields::Fields;
use crate::engine::reply::{self, Generations};
use crate::engine::{path, request};
use crate::gate::{Gate, Judged};
use crate::store::Clock;

pub mod access_log;
mod activity;
pub mod admission;
mod body;
mod connection;
mod counters;
mod echo;
mod exchange;
mod failure;
mod fields;
mod log;
mod stream;
mod target;
mod transport;
mod upstream;

pub use transport::Stream;
pub use upstream::{HealthCheck, Routes, UpstreamOptions};

/// Bytes that are buffered for one direction of one connection; also the bound on a message's fields. hyper's own is
/// 400 KiB, which a thousand slow clients would turn into 800 MiB.
const MAX_BUFFER: usize = 64 * 1024;

/// How much of a refused request's body is thrown away to keep the connection; a longer one costs the connection.
const MAX_DISCARDED: usize = 64 * 1024;

/// How long the proxy waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a client's first byte, and from a request's first byte to the end of its fields.
    pub header: Duration,
    /// For another request on a client's connection, and for anything to move in a body.
    pub idle: Duration,
    /// For a connection to the upstream, name resolution included.
    pub connect: Duration,
    /// From the end of the request to the upstream's response fields.
    pub response: Duration,
    /// How long a connection to the upstream is kept for another request. It should be shorter than the upstream keeps
    /// it: node and uvicorn close after 5 s.
    pub upstream_idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(10),
            idle: Duration::from_mins(1),
            connect: Duration::from_secs(1),
            response: Duration::from_secs(30),
            upstream_idle: Duration::from_secs(4),
        }
    }
}

/// How the proxy is set up.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// Where requests go.
    pub upstream: UpstreamOptions,
    /// Peers whose word on the client's address is taken.
    pub trusted_proxies: TrustedProxies,
    /// Which rate limit fields are sent.
    pub generations: Generations,
    /// The time of each request: what the memory store decides by and overrides expire by.
    pub clock: Clock,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// The connections of all workers.
    pub admission: Arc<Admission>,
    /// Where requests are logged, if they are.
    pub access_log: Option<AccessLog>,
}

/// A worker's proxy.
pub struct Proxy {
    gate: Gate,
    upstreams: Upstreams,
    trusted_proxies: TrustedProxies,
    generations: Generations,
    timeouts: Timeouts,
    counters: Rc<Counters>,
    clock: Clock,
}

impl Proxy {
    /// A proxy with its own connections to the upstream and to the store.
    pub fn new(gate: Gate, options: &ProxyOptions) -> Rc<Self> {
        let counters = Counters::new(gate.shared().metrics().clone());
        let upstreams = Upstreams::new(&options.upstream, &options.timeouts, &counters);
        Rc::new(Self {
            gate,
            upstreams,
            trusted_proxies: options.trusted_proxies.clone(),
            generations: options.generations,
            timeouts: options.timeouts,
            counters,
            clock: options.clock.clone(),
        })
    }

    /// Closes connections to upstreams that have been idle for too long. To be called about once a second.
    pub fn reap(&self) {
        self.upstreams.reap(Instant::now());
    }

    /// Answers one request.
    async fn serve(
        &self,
        peer: &Peer,
        activity: &Rc<Activity>,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        activity.exchange(!request.body().is_end_stream());
        let in_flight = InFlight::begin(&self.counters, activity);
        // In a box, because it goes through many hands: as a value, each of their futures would have room for it.
        let request = Box::new(request.map(|body| RequestBody::new(body, activity.clone())));
        Ok(self.answer(peer, activity, request).await.map(|content| {
            activity.answer();
            ResponseBody::new(content, in_flight)
        }))
    }

    async fn answer(
        &self,
        peer: &Peer,
        activity: &Rc<Activity>,
        mut request: Box<Request<RequestBody>>,
    ) -> Response<Content> {
        let checked = match target::check(&mut request) {
            Ok(checked) => checked,
            Err(failure) => return self.failed(&failure, request.into_body(), true),
        };
        let judged = match self.judge(peer, &checked.host, &request).await {
            Ok(judged) => judged,
            Err(failure) => return self.failed(&failure, request.into_body(), checked.expects_continue),
        };
        let Judged { snapshot, verdict } = judged;
        if !verdict.is_allowed() {
            let is_grpc = is_grpc(request.headers());
            let refusal = reply::refusal(snapshot.rules(), &verdict, self.generations, is_grpc);
            return self.own(convert::response(refusal), request.into_body(), checked.expects_continue);
        }
        let mut response = match self.forward(peer, &checked.host, activity, request).await {
            Ok(response) => {
                self.counters.answered(response.status(), false);
                response
            }
            Err(failure) => {
                let response = convert::response(failure.response());
                self.counters.answered(response.status(), false);
                response.map(text)
            }
        };
        let mut all = to_fields(response.headers());
        reply::add_fields(snapshot.rules(), &verdict, self.generations, &mut all);
        *response.headers_mut() = convert::header_map(&all);
        response
    }

    /// The one charge of a request, made before its body is read.
    async fn judge(&self, peer: &Peer, host: &str, request: &Request<RequestBody>) -> Result<Judged, Failure> {
        let headers = to_fields(request.headers());
        let view = request::Request {
            method: request.method().as_str(),
            host,
            path: &path::normalise(request.uri().path()),
            query: request.uri().query(),
            headers: &headers,
            client: self.trusted_proxies.client(peer.address, &headers),
            tls_subject: None,
            now: self.clock.now(),
        };
        self.gate.judge(&view).await.map_err(Failure::BadCost)
    }

    async fn forward(
        &self,
        peer: &Peer,
        host: &str,
        activity: &Rc<Activity>,
        mut request: Box<Request<RequestBody>>,
    ) -> Result<Response<Content>, Failure> {
        let version = request.version();
        fields::strip(request.headers_mut());
        peer.forward(version, request.headers_mut());
        let way = self.upstreams.pick(host, &path::normalise(request.uri().path())).ok_or(Failure::NoRoute)?;
        match way {
            Way::Echo => Ok(echo::answer(*request).await?.map(text)),
            Way::Servers(forwarder) => {
                let mut response = forwarder.send(request, activity).await?;
                *response.version_mut() = Version::HTTP_11;
                fields::strip(response.headers_mut());
                Ok(response.map(Content::Upstream))
            }
        }
    }

    fn failed(&self, failure: &Failure, body: RequestBody, expects_continue: bool) -> Response<Content> {
        self.own(convert::response(failure.response()), body, expects_continue)
    }

    /// An answer of ours to a request whose body nobody reads. The connection stays if the body has come already.
    ///
    /// A client that waits for a `100 Continue` may send its body after any answer or leave it out (RFC 9110 section
    /// 10.1.1), so nobody could tell where its next request begins.
    fn own(&self, mut response: Response<String>, body: RequestBody, expects_continue: bool) -> Response<Content> {
        self.counters.answered(response.status(), true);
        if !body.is_end_stream() && (expects_continue || !discard(body)) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(text)
    }
}

/// Throws away what has come of a body; returns whether that was all of it.
fn discard(mut body: RequestBody) -> bool {
    let mut discarded = 0;
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(frame) = std::pin::Pin::new(&mut body).poll_frame(&mut context) {
        match frame {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => discarded += frame.data_ref().map_or(0, Bytes::len),
        }
        if body.is_end_stream() {
            return true;
        }
        if discarded > MAX_DISCARDED {
            return false;
        }
    }
    false
}

fn to_fields(headers: &HeaderMap) -> Fields {
    headers.iter().collect()
}

fn text(text: String) -> Content {
    Content::Text(Bytes::from(text))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
