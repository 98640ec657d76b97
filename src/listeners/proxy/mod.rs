//! The proxy: requests come in, each is decided once before its body is read, and what passes goes to an upstream.
//!
//! A request passes through [`target`] (can it be forwarded at all), the limiter (may it pass),
//! [`forwarding`] (what a proxy takes away and adds) and [`upstream`](crate::http::upstream); what goes wrong on the way
//! becomes a reply in [`failure`].

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Instant;

use http::{StatusCode, Version};
use tokio_util::sync::CancellationToken;

use crate::engine::answer::accepted;
use crate::engine::answer::headers::{Generations, add_headers};
use crate::engine::rules::request;
use crate::http::Context;
use crate::http::failure::HeadError;
use crate::http::forwarding::{self, Peer};
use crate::http::message::{Request, Response, ResponseBody};
use crate::http::upstream::{Destination, Upstreams};
use crate::http::{self as connections, Server, Service, Source, Stream, UpstreamOptions};
use crate::limiter::{Ask, AskSubject, Limiter, Ruling, Settlement};
use crate::listeners::http::failure::{self, Failure};
use crate::listeners::http::{Frontend, FrontendOptions, Passage};
use crate::message::headers::Headers;
use crate::message::path;
use crate::message::reply::Reply;
use crate::message::target::split;
use crate::telemetry::metrics::{DecisionListener, HttpListener};
use crate::telemetry::throttle::Throttle;
use crate::telemetry::traces::Trace;

mod denials;
mod echo;
mod settling;
mod target;

use self::denials::DenialReplies;
use self::settling::Orphans;

/// How the proxy is set up.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// How it takes connections and requests.
    pub front: FrontendOptions,
    /// Where requests go.
    pub upstream: UpstreamOptions,
    /// Which rate limit headers are sent.
    pub generations: Generations,
}

/// A worker's proxy.
pub struct Proxy {
    front: Frontend,
    limiter: Rc<Limiter>,
    upstreams: Upstreams,
    generations: Generations,
    denials: DenialReplies,
    orphans: Orphans,
    complaints: Throttle,
}

impl Proxy {
    /// A proxy with its own connections to the upstream. To be called inside the worker's runtime.
    pub fn new(limiter: Rc<Limiter>, options: &ProxyOptions) -> Rc<Self> {
        let front = Frontend::new(&options.front, HttpListener::Proxy, limiter.shared());
        let timeouts = &options.front.http.timeouts;
        let upstreams = Upstreams::new(&options.upstream, timeouts, || front.route());
        let (generations, denials) = (options.generations, DenialReplies::new(options.generations));
        let orphans = Orphans::new(timeouts.response);
        Rc::new(Self { front, limiter, upstreams, generations, denials, orphans, complaints: Throttle::default() })
    }

    /// Serves a client's connection to its end. When `drain` is cancelled, what runs is answered, and one more request
    /// that was on its way.
    pub async fn serve_connection(self: Rc<Self>, stream: Stream, peer: IpAddr, drain: CancellationToken) {
        connections::serve(self, stream, peer, drain).await;
    }

    /// Closes connections to upstreams that have been idle for too long, and tells the metrics what was timed. To be
    /// called about once a second.
    pub fn reap(&self) {
        self.front.count_endpoints(self.upstreams.reap(Instant::now()));
        self.front.flush();
    }

    /// Whether a request can be forwarded and may pass. This is its one charge, made before its body is read.
    async fn decide(
        &self,
        context: &Context,
        request: &mut Request,
        passage: &mut Passage,
    ) -> Result<Ruled<'_>, Failure> {
        let Server { limits, client_headers, .. } = &self.front.server;
        target::check(request, &context.peer, limits.escaped_slashes)?;
        client_headers.strip(&mut request.headers, context.peer.is_trusted).map_err(Failure::Malformed)?;
        forwarding::strip_named(&mut request.headers);
        let host = target::host(request, &context.peer)?;
        if context.peer.tls.as_ref().is_some_and(|tls| !tls.covers(&host)) {
            return Err(Failure::Misdirected);
        }
        if request.body.length().is_some_and(|length| length > limits.body_bytes) {
            return Err(Failure::TooLong(limits.body_bytes));
        }
        let client = self.client(&context.peer, &request.headers)?;
        let (path, query) = split(&request.target);
        let path = path::normalise(path);
        let way = self.upstreams.pick(&host, &path);
        let view = request::Request {
            method: request.method.as_str(),
            host: &host,
            path: &path,
            query,
            headers: &request.headers,
            client,
            tls_subject: context.peer.subject(),
            domain: None,
            descriptor: &[],
            now: self.front.clock.at(context.activity.now()),
        };
        let ask = Ask::new(AskSubject::Request(&view), DecisionListener::Proxy, context.activity.now());
        let ruling = self.limiter.decide(Ask { sees_response: true, ..ask }).await;
        let mut ruling = ruling.map_err(|error| Failure::InvalidRequest(error.to_string()))?;
        passage.slots = ruling.slots.take().into();
        let settlement = ruling.settlement.take();
        passage.decided(&ruling, context.activity.now(), Some(&view));
        context.ready_to_answer().await;
        let rules = ruling.view.rules();
        if let Some(accepted) = accepted::accepted(rules, &ruling.verdict, self.generations) {
            return Ok(Ruled::Answered(accepted.into()));
        }
        if ruling.verdict.is_allowed() {
            return Ok(Ruled::Passed(way, ruling, settlement));
        }
        let is_grpc = request.headers.is_grpc();
        Ok(Ruled::Answered(self.denials.response(ruling, is_grpc)))
    }

    /// The address that limits go by. A request that a load balancer passes on without one is rejected if that would let
    /// it past a limit; the balancer's own, its health checks, are not.
    fn client(&self, peer: &Peer, headers: &Headers) -> Result<Option<IpAddr>, Failure> {
        let client = self.front.client(peer, headers);
        if client.is_some_and(|client| client.is_disputed) {
            self.limiter.shared().metrics().listeners.client_conflicts.inc(DecisionListener::Proxy.label());
        }
        if peer.source == Source::Unknown
            && let Some(limit) = self.limiter.view().rules().evaded_without_client()
        {
            if let Some(suppressed) = self.complaints.pass() {
                tracing::warn!(
                    suppressed,
                    limit = limit.name,
                    "a load balancer does not say whose connection it passes on"
                );
            }
            return Err(Failure::Nameless);
        }
        Ok(client.map(|client| client.address))
    }

    /// Gets the answer to a request that may pass.
    async fn pass(
        &self,
        context: &Context,
        request: Request,
        way: Option<&Destination>,
        ruling: &Ruling,
        settlement: Option<Box<Settlement>>,
        trace: &mut Trace,
    ) -> Response {
        let mut response = match self.forward(context, request, way, ruling, settlement, trace).await {
            Ok(response) => {
                self.front.answered(response.status);
                response
            }
            Err(failure) => self.front.failed(&failure),
        };
        add_headers(ruling.view.rules(), &ruling.verdict, self.generations, &mut response.headers);
        response
    }

    async fn forward(
        &self,
        context: &Context,
        mut request: Request,
        way: Option<&Destination>,
        ruling: &Ruling,
        settlement: Option<Box<Settlement>>,
        trace: &mut Trace,
    ) -> Result<Response, Failure> {
        let way = way.ok_or(Failure::NoRoute)?;
        if target::count_down(&mut request) == Some(0) {
            return Ok(last_hop());
        }
        let upgrade = forwarding::upgrade(&request).map(str::to_owned);
        forwarding::strip(&mut request.headers);
        context.peer.forward(request.version, &mut request.headers);
        accepted::add_entries(ruling.view.rules(), &ruling.verdict, &mut request.headers);
        trace.pass_on(&mut request.headers);
        if let Some(protocol) = upgrade {
            request.headers.append("connection", "upgrade");
            request.headers.append("upgrade", protocol);
        }
        let mut response = match (way, settlement) {
            (Destination::Servers(forwarder), None) => forwarder.send(request, context).await?,
            (Destination::Servers(forwarder), Some(settlement)) => {
                settling::exchange(forwarder.clone(), request, context, settlement, &self.orphans).await?
            }
            (Destination::Echo, None) => echo::answer(request, &context.activity).await?,
            (Destination::Echo, Some(mut settlement)) => {
                settlement.sent();
                settling::settle(settlement, echo::answer(request, &context.activity).await, true)?
            }
        };
        let protocol = match response.body {
            ResponseBody::Tunnel(_) => response.headers.text("upgrade").map(str::to_owned),
            _ => None,
        };
        forwarding::strip(&mut response.headers);
        if matches!(response.status, StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT) {
            // Neither has a body, and a client that believed a length would wait for one (RFC 9110 section 8.6).
            response.headers.remove("content-length");
        }
        if let Some(protocol) = protocol {
            response.headers.append("upgrade", protocol);
        }
        Ok(response)
    }
}

impl Service for Proxy {
    type Exchange = Passage;

    fn server(&self) -> &Server {
        &self.front.server
    }

    fn begin(&self, context: &Context, request: &Request) -> Passage {
        self.front.begin(context, request)
    }

    async fn answer(&self, context: &Context, mut request: Request, passage: &mut Passage) -> Response {
        match self.decide(context, &mut request, passage).await {
            Ok(Ruled::Answered(response)) => self.front.own(response),
            Ok(Ruled::Passed(way, ruling, settlement)) => {
                self.pass(context, request, way, &ruling, settlement, &mut passage.trace).await
            }
            Err(failure) => self.front.failed(&failure),
        }
    }

    fn rejected(&self, context: &Context, version: Version, error: HeadError, response: &Response) {
        self.front.rejected(context, version, error, response);
    }
}

/// What became of a request at the limiter.
enum Ruled<'a> {
    /// Denied, or taken by a queue.
    Answered(Response),
    Passed(Option<&'a Destination>, Ruling, Option<Box<Settlement>>),
}

/// The answer to an OPTIONS request that was meant for us (RFC 9110 section 7.6.2).
fn last_hop() -> Response {
    let headers = Headers::from_iter([("allow", failure::ALLOWED)]);
    Reply { status: StatusCode::NO_CONTENT, headers, body: String::new() }.into()
}
