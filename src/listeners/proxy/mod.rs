//! The reverse proxy. Each request is decided once, before its body is read; allowed ones go to an upstream.
//!
//! [`target`] checks that a request can be forwarded, the limiter decides it, [`forwarding`] removes and adds what a proxy
//! must, and [`upstream`](crate::http::upstream) gets the response. Errors on the way become replies in [`failure`].

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Instant;

use http::StatusCode;

use crate::engine::algorithms::delay::LONGEST_DELAY;
use crate::engine::algorithms::micros::Micros;
use crate::engine::answer::accepted;
use crate::engine::answer::headers::add_headers;
use crate::engine::deciding::DecisionSubject;
use crate::engine::request;
use crate::engine::request::incoming::{Incoming, Preparation, Received};
use crate::http::Context;
use crate::http::forwarding::{self, Peer};
use crate::http::message::{Request, Response, ResponseBody};
use crate::http::upstream::{Destination, DestinationKind, Upstreams};
use crate::http::{Server, Source, UpstreamOptions};
use crate::limiter::{DecisionRequest, Limiter, LimiterVerdict, Patience};
use crate::listeners::client_address::client_address;
use crate::listeners::http::failure::{self, Failure};
use crate::listeners::http::{ActiveRequest, Frontend, FrontendOptions, HttpService};
use crate::message::headers::Headers;
use crate::message::reply::Reply;
use crate::telemetry::metrics::{DecisionListener, ListenerKind};
use crate::telemetry::throttle::Throttle;

mod added;
mod counted_body;
mod denials;
mod echo;
mod inspection;
mod redirect;
mod settling;
mod target;
mod trailers;

pub use self::added::{AddedHeaders, Cors, Origins};
use self::added::{REAL_IP, ReplyContext};
use self::denials::DenialReplies;
use self::inspection::Inspected;
use self::settling::Orphans;

#[derive(Clone, Debug)]
pub struct ProxyOptions {
    pub front: FrontendOptions,
    pub upstream: UpstreamOptions,
    pub added: AddedHeaders,
    /// The port at which clients are sent to `https://`; `None` to serve them.
    pub redirect_port: Option<u16>,
}

/// A worker's listener for the proxy's clients.
pub struct Proxy {
    front: Frontend,
    backend: Rc<Backend>,
    /// True for the listener that keeps up the upstreams and counts them.
    is_first: bool,
    denials: DenialReplies,
    added: AddedHeaders,
    redirect_port: Option<u16>,
    log: Throttle,
}

/// The part of a worker's proxy that its listeners share.
struct Backend {
    upstreams: Upstreams,
    orphans: Orphans,
}

/// The step after a decision.
enum NextStep<'a> {
    /// It was denied, a queue has accepted it, or its client is sent to `https://`.
    Answer(Response),
    Forward(Option<Rc<Destination>>, &'a mut LimiterVerdict),
}

impl Proxy {
    /// Must be called inside the worker's runtime.
    pub fn new(limiter: Rc<Limiter>, options: &ProxyOptions) -> Rc<Self> {
        let front = Frontend::new(&options.front, ListenerKind::Proxy, limiter);
        let timeouts = &options.front.http.timeouts;
        let upstreams = Upstreams::new(&options.upstream, timeouts, || front.route());
        let backend = Rc::new(Backend { upstreams, orphans: Orphans::new() });
        Rc::new(Self { is_first: true, ..Self::over(front, backend, options) })
    }

    /// Returns another listener with the same upstreams.
    pub fn beside(&self, limiter: Rc<Limiter>, options: &ProxyOptions) -> Rc<Self> {
        let front = Frontend::new(&options.front, ListenerKind::Proxy, limiter);
        Rc::new(Self::over(front, self.backend.clone(), options))
    }

    fn over(front: Frontend, backend: Rc<Backend>, options: &ProxyOptions) -> Self {
        let denials = DenialReplies::new(front.generations);
        let (added, redirect_port) = (options.added.clone(), options.redirect_port);
        Self { front, backend, is_first: false, denials, added, redirect_port, log: Throttle::default() }
    }

    /// Closes upstream connections that have been idle for too long, and adds measured times to the metrics. Must be called
    /// about once a second.
    pub fn reap(&self) {
        if self.is_first {
            let upstreams = &self.backend.upstreams;
            upstreams.follow(|| self.front.route());
            self.front.count_endpoints(upstreams.reap(Instant::now()));
        }
        self.front.flush();
    }

    /// Checks and charges a request, before its body is read. The verdict gets its place from the caller and stays there.
    async fn decide<'a>(
        &'a self,
        context: &Context,
        request: &mut Request,
        active: &mut ActiveRequest,
        decided: &'a mut Option<LimiterVerdict>,
    ) -> Result<NextStep<'a>, Failure> {
        let Server { limits, client_headers, .. } = &self.front.server;
        target::check(request)?;
        let authority = target::in_origin_form(request)?;
        let is_trusted = context.peer.is_trusted;
        let incoming = Incoming {
            method: Some(request.method.as_str()),
            target: &request.target,
            query: None,
            authority: authority.as_deref(),
            headers: &mut request.headers,
            preparation: Preparation::Forwarded { accepted: client_headers, is_trusted },
            slashes: limits.escaped_slashes,
        };
        let received = incoming.read_with(|host| context.peer.host(host)).map_err(Failure::Malformed)?;
        target::has_host(request.version, received.headers)?;
        let Received { host, headers, .. } = &received;
        if context.peer.tls.as_ref().is_some_and(|tls| !tls.covers(host)) {
            return Err(Failure::Misdirected);
        }
        if let Some(port) = self.redirect_port {
            return Ok(NextStep::Answer(redirect::to_https(host, port, &request.target)?.into()));
        }
        let (destination, rewritten) = self.route(context, &received, &request.target, request.body.length())?;
        let client = self.client(&context.peer, headers)?;
        let tls_subject = context.peer.subject();
        let view = request::Request { client, tls_subject, ..received.request() };
        let limiter = &self.front.limiter;
        let needs_body = limiter.view().rules().needs_body(&view);
        let inspected = if needs_body {
            let (most, metrics) = (limits.inspected_bytes, limiter.shared().metrics());
            let activity = &context.activity;
            // Boxed, so that other requests have a smaller future.
            Box::pin(inspection::inspect(&mut request.body, headers, most, activity, metrics)).await?
        } else {
            Inspected::Absent
        };
        // The body may have taken a while.
        let now = self.front.clock.at(context.activity.now());
        let view = request::Request { body: inspected.body(), now, ..view };
        let asked =
            DecisionRequest::new(DecisionSubject::Request(&view), DecisionListener::Proxy, context.activity.now());
        let asked = DecisionRequest { sees_response: true, patience: Patience::Held(Micros(LONGEST_DELAY)), ..asked };
        let verdict = limiter.decide(asked).await.map_err(|error| Failure::InvalidRequest(error.to_string()))?;
        let decided = decided.insert(verdict);
        active.decided(limiter, &asked, context, decided).await;
        let accepted = accepted::accepted(decided.view.rules(), &decided.verdict, self.front.generations);
        Ok(match accepted {
            Some(accepted) => NextStep::Answer(accepted.into()),
            None if decided.verdict.is_allowed() => {
                if let Some(target) = rewritten {
                    request.target = target;
                }
                NextStep::Forward(destination, decided)
            }
            None => NextStep::Answer(self.denials.response(decided, headers.is_grpc())),
        })
    }

    /// Returns a request's destination and its target there if that is another, and bounds its body, which has this length.
    fn route(
        &self,
        context: &Context,
        received: &Received<'_, Rc<str>>,
        target: &str,
        length: Option<u64>,
    ) -> Result<(Option<Rc<Destination>>, Option<String>), Failure> {
        let upstreams = &self.backend.upstreams;
        upstreams.follow(|| self.front.route());
        let destination = upstreams.pick(&received.host, &received.path);
        let rewritten = destination.as_ref().map_or(Ok(None), |found| found.rewritten(target));
        let rewritten = rewritten.map_err(Failure::Malformed)?;
        let own_bytes = destination.as_ref().and_then(|found| found.options.as_ref()?.body_bytes);
        let most = own_bytes.unwrap_or(self.front.server.limits.body_bytes);
        if length.is_some_and(|length| length > most) {
            return Err(Failure::TooLong(most));
        }
        if let Some(bytes) = own_bytes {
            context.limit_body(bytes);
        }
        Ok((destination, rewritten))
    }

    /// Returns the client's address for limits. If the load balancer did not send one, the request is rejected when it would
    /// evade a limit; the balancer's own health checks are not.
    fn client(&self, peer: &Peer, headers: &Headers) -> Result<Option<IpAddr>, Failure> {
        let limiter = &self.front.limiter;
        let client = client_address(limiter, DecisionListener::Proxy, self.front.client(peer, headers));
        if peer.source == Source::Unknown
            && let Some(limit) = limiter.view().rules().evaded_without_client()
        {
            if let Some(suppressed) = self.log.pass() {
                tracing::warn!(suppressed, limit = limit.name, "a load balancer did not send the client's address");
            }
            return Err(Failure::UnknownClient);
        }
        Ok(client)
    }

    /// Returns the answer of a request that is not forwarded.
    fn answer_decided(&self, response: Response, reply: Option<&ReplyContext>) -> Response {
        let is_denied = response.status.is_client_error() || response.status.is_server_error();
        let preflight = reply.filter(|_| is_denied).and_then(ReplyContext::preflight);
        self.finish(self.front.own(preflight.map_or(response, Response::from)), reply)
    }

    fn finish(&self, mut response: Response, reply: Option<&ReplyContext>) -> Response {
        if let Some(reply) = reply {
            self.added.finish(reply, &mut response.headers);
        }
        response
    }

    async fn forward(
        &self,
        context: &Context,
        request: &mut Request,
        destination: Option<Rc<Destination>>,
        decided: &mut LimiterVerdict,
        active: &mut ActiveRequest,
    ) -> Result<Response, Failure> {
        let destination = destination.ok_or(Failure::NoRoute)?;
        if target::count_down(request) == Some(0) {
            return Ok(last_hop());
        }
        let upgrade = forwarding::upgrade(request).map(str::to_owned);
        let client = if self.added.real_ip { self.front.client(&context.peer, &request.headers) } else { None };
        context.peer.forward(request.version, &mut request.headers);
        if self.added.real_ip {
            request.headers.remove(REAL_IP);
        }
        if let Some(client) = client {
            request.headers.append(REAL_IP, client.address.to_string());
        }
        destination.prepare(request, &context.activity);
        trailers::filter_request(&mut request.body, &self.front.server.client_headers, &context.peer, &destination);
        accepted::add_entries(decided.view.rules(), &decided.verdict, &mut request.headers);
        active.trace.pass_on(&mut request.headers);
        if let Some(protocol) = upgrade {
            request.headers.append("connection", "upgrade");
            request.headers.append("upgrade", protocol);
        }
        if decided.settlement.as_ref().is_some_and(|settlement| settlement.reads_body()) {
            // A compressed body is not read. Without the header, any coding would be acceptable (RFC 9110 section 12.5.3).
            request.headers.remove("accept-encoding");
            request.headers.append("accept-encoding", "identity");
        }
        if let Some(uploaded) = decided.settlement.as_ref().and_then(|settlement| settlement.uploaded()) {
            counted_body::count(&mut request.body, uploaded);
        }
        let mut response = match (&destination.kind, decided.settlement.take()) {
            (DestinationKind::Servers(forwarder), None) => forwarder.send(request, context).await?,
            (DestinationKind::Servers(forwarder), Some(settlement)) => {
                let request = std::mem::take(request);
                settling::exchange(forwarder.clone(), request, context, settlement, &self.backend.orphans).await?
            }
            (DestinationKind::Echo, None) => echo::answer(request, &context.activity).await?,
            (DestinationKind::Echo, Some(mut settlement)) => {
                settlement.sent();
                settling::settle(settlement, echo::answer(request, &context.activity).await, true)?
            }
        };
        let protocol = match response.body {
            ResponseBody::Tunnel(_) => response.headers.text("upgrade").map(str::to_owned),
            _ => None,
        };
        forwarding::strip(&mut response.headers);
        destination.finish(&mut response.headers);
        trailers::filter_response(&mut response.body, &destination);
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

impl HttpService for Proxy {
    fn front(&self) -> &Frontend {
        &self.front
    }

    async fn respond(&self, context: &Context, request: &mut Request, active: &mut ActiveRequest) -> Response {
        let reply = self.added.prepare(request, context.peer.is_trusted);
        if let Some(id) = reply.as_ref().and_then(|reply| reply.request_id()) {
            active.named(id);
        }
        let mut decided = None;
        let (destination, decided) = match self.decide(context, request, active, &mut decided).await {
            Ok(NextStep::Forward(destination, decided)) => (destination, decided),
            Ok(NextStep::Answer(response)) => return self.answer_decided(response, reply.as_deref()),
            Err(failure) => return self.finish(self.front.failed(&failure), reply.as_deref()),
        };
        let forwarded = self.forward(context, request, destination, decided, active).await;
        let is_own = forwarded.is_err();
        let mut response = match forwarded {
            Ok(response) => {
                self.front.answered(response.status);
                response
            }
            Err(failure) => {
                if let Failure::Upstream(error) = &failure {
                    active.upstream_failed(error);
                }
                self.front.failed(&failure)
            }
        };
        add_headers(decided.view.rules(), &decided.verdict, self.front.generations, &mut response.headers);
        if is_own { self.finish(response, reply.as_deref()) } else { response }
    }
}

/// Answers an OPTIONS request whose `Max-Forwards` ends here (RFC 9110 section 7.6.2).
fn last_hop() -> Response {
    let headers = Headers::from_iter([("allow", failure::ALLOWED)]);
    Reply { status: StatusCode::NO_CONTENT, headers, body: String::new() }.into()
}
