//! The gRPC listener: what Envoy asks, as external authorization and as a rate limit service, what Kuadrant asks, and what gRPC
//! itself wants of a server.
//!
//! A call comes by HTTP/2 as any request does ([`crate::http`]). [`protocol`] takes the message out of its body,
//! [`calls`] tells which method is meant, and each service has a module; what they say to each other is in [`messages`].

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{Method as HttpMethod, StatusCode, Version};
use tokio_util::sync::CancellationToken;

use self::age::Age;
use self::calls::{Calls, Method, Streams};
use self::protocol::{Code, Deframer, Status, decode, frame};
use crate::engine::answer::headers::Generations;
use crate::engine::rules::descriptors::DescriptorMode;
use crate::http::Context;
use crate::http::failure::HeadError;
use crate::http::message::{Message, Piece, Request, RequestBody, Response, ResponseBody};
use crate::http::{Server, Service, Stream, serve};
use crate::limiter::Limiter;
use crate::listeners::admin::Readiness;
use crate::listeners::http::{Frontend, FrontendOptions, Passage};
use crate::message::headers::Headers;
use crate::message::reply::{Reply, problem};
use crate::telemetry::metrics::HttpListener;

mod age;
mod authorization;
mod calls;
mod health;
pub mod messages;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod protocol;
mod rate_limit;

pub use age::ConnectionAge;
pub use authorization::AddressSources;
pub use protocol::DEFAULT_MAX_MESSAGE;

/// The part of a caller's patience that is kept for the way back: the store has the rest. Envoy waits 20 ms for its rate
/// limit service and 200 ms for an authorization, so this is 2.5 ms or 25 ms.
const WAY_BACK: u32 = 8;

const CONTENT_TYPE: &str = "content-type";
const GRPC: &str = "application/grpc";

/// Messages of the greatest length that the unfinished ones of a worker may take together. Gateways send them whole, so
/// there are few at a time.
const MESSAGES_AT_ONCE: usize = 16;

/// What a gateway may take. It brings the calls of many clients over few connections, and to cut one off loses the calls
/// of all of them, so this is more than the proxy gives to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvoyLimits {
    /// Calls at once on a connection.
    pub streams: u32,
    /// Calls that may be cancelled within 10 s, each within a second of its coming. A gateway cancels one whenever its
    /// client leaves.
    pub resets: u32,
    /// Bytes of a message; a longer one ends the call with `RESOURCE_EXHAUSTED`.
    pub message: usize,
}

impl Default for EnvoyLimits {
    fn default() -> Self {
        Self { streams: 1_024, resets: 100_000, message: DEFAULT_MAX_MESSAGE }
    }
}

/// How the listener is set up.
#[derive(Clone, Debug)]
pub struct EnvoyOptions {
    /// How it takes connections and calls.
    pub front: FrontendOptions,
    /// Which rate limit headers are sent.
    pub generations: Generations,
    /// Where the client's address is looked for.
    pub address_sources: AddressSources,
    /// How long connections are kept.
    pub connection_age: ConnectionAge,
    /// What a gateway may take, in place of the limits of `front`.
    pub limits: EnvoyLimits,
    /// What the health service says.
    pub readiness: Arc<Readiness>,
}

/// A worker's gRPC listener.
pub struct Envoy {
    front: Frontend,
    limiter: Rc<Limiter>,
    generations: Generations,
    address_sources: AddressSources,
    age: Age,
    readiness: Arc<Readiness>,
    calls: Calls,
    streams: Streams,
    messages: Messages,
}

/// The unfinished messages of a worker.
struct Messages {
    /// Bytes of one.
    most: usize,
    /// Bytes that are kept of all of them.
    buffered: Cell<usize>,
}

/// What is kept of an unfinished message.
struct Buffered<'m> {
    messages: &'m Messages,
    bytes: usize,
}

impl Buffered<'_> {
    /// It has so many bytes now; an error if that is too much with what all others have.
    fn grown(&mut self, bytes: usize) -> Result<(), Status> {
        let all = self.messages.buffered.get() - self.bytes + bytes;
        self.messages.buffered.set(all);
        self.bytes = bytes;
        if all > self.messages.most.saturating_mul(MESSAGES_AT_ONCE) {
            return Err(Status::new(Code::ResourceExhausted, "there are too many long messages at once"));
        }
        Ok(())
    }
}

impl Drop for Buffered<'_> {
    fn drop(&mut self) {
        self.messages.buffered.set(self.messages.buffered.get() - self.bytes);
    }
}

/// Who calls, and for how long they wait.
struct Caller<'a> {
    context: &'a Context,
    /// When the call came.
    start: Instant,
    /// When the store must have answered.
    deadline: Option<Instant>,
}

impl Envoy {
    /// A worker's listener.
    pub fn new(limiter: Rc<Limiter>, options: &EnvoyOptions) -> Rc<Self> {
        let metrics = limiter.shared().metrics().clone();
        let mut front = options.front.clone();
        // Connections end by their age, and a call is too small for a bound on how many a connection may have. Its body is
        // bounded as a message.
        let limits = &mut front.http.limits;
        limits.requests = u32::MAX;
        limits.body_bytes = u64::MAX;
        limits.http2.max_streams = options.limits.streams;
        limits.http2.max_resets = options.limits.resets;
        Rc::new(Self {
            front: Frontend::new(&front, HttpListener::Grpc, limiter.shared()),
            limiter,
            generations: options.generations,
            address_sources: options.address_sources,
            age: Age::new(options.connection_age),
            readiness: options.readiness.clone(),
            calls: Calls::new(metrics),
            streams: Streams::default(),
            messages: Messages { most: options.limits.message, buffered: Cell::new(0) },
        })
    }

    /// Serves a client's connection to its end. When `drain` is cancelled, what runs is answered, and one more call that
    /// was on its way.
    pub async fn serve_connection(self: Rc<Self>, stream: Stream, peer: IpAddr, drain: CancellationToken) {
        let listener = self.clone();
        // On the heap: with the messages of a call in it it takes 19 KiB, and the tasks of all listeners are one type.
        self.age.limit(&drain, |drain| Box::pin(serve(listener, stream, peer, drain))).await;
    }

    /// Tells the metrics what was timed. To be called about once a second.
    pub fn reap(&self) {
        self.front.flush();
    }

    /// The answer to a call: a message, or a body that goes on.
    async fn call(&self, method: Method, context: &Context, request: &mut Request, passage: &mut Passage) -> Answered {
        if method == Method::Unknown {
            let name = request.target.chars().take(80).collect::<String>();
            return Err(Status::new(Code::Unimplemented, format!("there is no method {name}")));
        }
        let start = context.activity.now();
        let patience =
            protocol::timeout(&request.headers)?.map(|patience| patience.saturating_sub(patience / WAY_BACK));
        let deadline = patience.and_then(|patience| start.checked_add(patience));
        let caller = Caller { context, start, deadline };
        let message = self.messages.next(&mut request.body).await?;
        let answer = match method {
            Method::Check => frame(&self.check(decode(message)?, &caller, passage).await?),
            Method::ShouldRateLimit => self.rate_limit(DescriptorMode::Decide, message, &caller, passage).await?,
            Method::CheckRateLimit => self.rate_limit(DescriptorMode::Check, message, &caller, passage).await?,
            Method::Report => self.rate_limit(DescriptorMode::Report, message, &caller, passage).await?,
            Method::HealthCheck => frame(&health::check(&self.readiness, &decode(message)?)?),
            Method::HealthList => frame(&health::list(&self.readiness)),
            Method::HealthWatch => {
                let permit = self.streams.begin()?;
                let watch = health::Watch::new(&self.readiness, &decode(message)?, permit);
                return Ok(ResponseBody::Stream(Box::new(watch)));
            }
            Method::Unknown => Bytes::new(),
        };
        let trailers = Headers::from_iter([("grpc-status", Code::Ok.text())]);
        Ok(ResponseBody::Message(Box::new(Message { data: answer, trailers: Some(trailers) })))
    }
}

type Answered = Result<ResponseBody, Status>;

impl Service for Envoy {
    type Exchange = Passage;

    fn server(&self) -> &Server {
        &self.front.server
    }

    fn begin(&self, context: &Context, request: &Request) -> Passage {
        self.front.begin(context, request)
    }

    async fn answer(&self, context: &Context, mut request: Request, passage: &mut Passage) -> Response {
        if let Err(reply) = is_call(&request) {
            return self.front.own(reply);
        }
        let method = Method::of(&request.target);
        let answered = self.call(method, context, &mut request, passage).await;
        self.front.answered(StatusCode::OK);
        let code = answered.as_ref().map_or_else(|status| status.code, |_| Code::Ok);
        self.calls.count(method, code);
        if method != Method::Unknown {
            passage.trace.called(&request.target, code.text());
        }
        let mut headers = Headers::with_capacity(4, 128);
        headers.append(CONTENT_TYPE, GRPC);
        let body = answered.unwrap_or_else(|status| {
            status.write(&mut headers);
            if status.code == Code::Unimplemented {
                headers.append("grpc-accept-encoding", "identity");
            }
            ResponseBody::Text(Bytes::new())
        });
        Response { status: StatusCode::OK, headers: headers.into(), body }
    }

    fn rejected(&self, context: &Context, version: Version, error: HeadError, response: &Response) {
        self.front.rejected(context, version, error, response);
    }
}

/// Whether a request is a call of gRPC; if not, the answer to it, in words of HTTP.
fn is_call(request: &Request) -> Result<(), Reply> {
    if !protocol::is_grpc(request.headers.get(CONTENT_TYPE)) {
        let mut reply =
            problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, "this port speaks gRPC, with `content-type: application/grpc`");
        reply.headers.append("accept-post", GRPC);
        return Err(reply);
    }
    if request.version != Version::HTTP_2 {
        return Err(problem(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "gRPC goes by HTTP/2"));
    }
    if request.method != HttpMethod::POST {
        let mut reply = problem(StatusCode::METHOD_NOT_ALLOWED, "a call of gRPC is a POST");
        reply.headers.append("allow", "POST");
        return Err(reply);
    }
    Ok(())
}

impl Messages {
    /// The one message of a request.
    async fn next(&self, body: &mut RequestBody) -> Result<Bytes, Status> {
        let mut deframer = Deframer::new(self.most);
        let mut buffered = Buffered { messages: self, bytes: 0 };
        let mut found = None;
        loop {
            let mut data = match body.piece().await {
                Some(Ok(Piece::Data(data))) => data,
                Some(Ok(Piece::Trailers(_))) => continue,
                // Nobody reads the answer then.
                Some(Err(error)) => {
                    return Err(Status::new(Code::Cancelled, format!("the request broke off: {error}")));
                }
                None => break,
            };
            while let Some(message) = deframer.next(&mut data)? {
                if found.replace(message).is_some() {
                    return Err(Status::new(Code::Unimplemented, "the method takes one message, and more came"));
                }
            }
            buffered.grown(deframer.buffered())?;
        }
        deframer.finish()?;
        found.ok_or_else(|| Status::new(Code::Unimplemented, "the method takes one message, and none came"))
    }
}
