//! The gRPC listener: Envoy's external authorization, rate limit service and rate limit quota service, Kuadrant's rate limit service, and gRPC's
//! health service.
//!
//! Calls are HTTP/2 requests ([`crate::http`]). [`protocol`] reads the message in a body, [`calls`] names the methods,
//! [`messages`] has the messages, and each service has a module.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{Method as HttpMethod, StatusCode, Version};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use self::answers::Answers;
use self::calls::{Method, Streams};
use self::protocol::{Code, MessageReader, Status, decode, frame};
use crate::engine::charging::descriptors::DescriptorMode;
use crate::engine::text::quote::shown;
use crate::http::Context;
use crate::http::message::{
    KeptHeaders, Message, Piece, Request, RequestBody, Response, ResponseBody, ResponseHeaders,
};
use crate::http::{Stream, open, serve};
use crate::limiter::Limiter;
use crate::listeners::admin::Readiness;
use crate::listeners::http::{ActiveRequest, Frontend, FrontendOptions, HttpService};
use crate::listeners::replies::method_not_allowed;
use crate::message::headers::Headers;
use crate::message::reply::{Reply, problem};
use crate::telemetry::metrics::ListenerKind;

mod age;
mod answers;
mod authorization;
mod calls;
mod health;
mod json;
pub mod messages;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod protocol;
mod quota;
mod rate_limit;
mod reservation;

pub use age::ConnectionAge;
pub use authorization::AddressSources;
pub use protocol::DEFAULT_MAX_MESSAGE;

/// The divisor of a caller's timeout that gives the time for the answer's way back; the store has the rest. Envoy waits
/// 20 ms for its rate limit service and 200 ms for an authorization, so this is 2.5 ms or 25 ms.
const RETURN_SHARE: u32 = 8;

const CONTENT_TYPE: &str = "content-type";
const GRPC: &str = "application/grpc";

/// Messages of the greatest length that a worker's unfinished messages may take together. Gateways send messages whole, so
/// few are unfinished at a time.
const MESSAGES_AT_ONCE: usize = 16;

/// The limits for gateways. They are higher than the proxy's for clients: a gateway's connection carries the calls of many
/// clients, and closing it loses all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvoyLimits {
    /// Concurrent calls on a connection.
    pub streams: u32,
    /// Calls that may be cancelled within 10 s, each within a second of its start. A gateway cancels a call whenever its
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

#[derive(Clone, Debug)]
pub struct EnvoyOptions {
    pub front: FrontendOptions,
    pub address_sources: AddressSources,
    pub connection_age: ConnectionAge,
    /// In place of the limits of `front`.
    pub limits: EnvoyLimits,
    /// Reported by the health service.
    pub readiness: Arc<Readiness>,
}

/// A worker's gRPC listener.
pub struct Envoy {
    pub(super) front: Frontend,
    address_sources: AddressSources,
    connection_age: ConnectionAge,
    readiness: Arc<Readiness>,
    streams: Streams,
    messages: MessageBuffers,
    answers: RefCell<Answers>,
    /// The memory of the headers in a check.
    spare: Cell<Headers>,
    /// The headers and trailers of successful calls.
    headers: Rc<KeptHeaders>,
    trailers: Rc<KeptHeaders>,
}

/// Bounds a worker's unfinished messages.
struct MessageBuffers {
    /// Bytes of one.
    max: usize,
    /// Free bytes of all.
    free: Semaphore,
}

/// The surroundings of a call.
struct CallContext<'a> {
    context: &'a Context,
    start: Instant,
    /// The store must have answered by then.
    deadline: Option<Instant>,
}

impl Envoy {
    pub fn new(limiter: Rc<Limiter>, options: &EnvoyOptions) -> Rc<Self> {
        let mut front = options.front.clone();
        // Connections end by age instead of a number of calls, and the messages are bounded instead of the bodies.
        let limits = &mut front.http.limits;
        limits.requests = u32::MAX;
        limits.body_bytes = u64::MAX;
        limits.http2.max_streams = options.limits.streams;
        limits.http2.max_resets = options.limits.resets;
        Rc::new(Self {
            front: Frontend::new(&front, ListenerKind::Grpc, limiter),
            address_sources: options.address_sources,
            connection_age: options.connection_age,
            readiness: options.readiness.clone(),
            streams: Streams::default(),
            answers: RefCell::default(),
            spare: Cell::default(),
            headers: Rc::new(Headers::from_iter([(CONTENT_TYPE, GRPC)]).into()),
            trailers: Rc::new(Headers::from_iter([("grpc-status", Code::Ok.text())]).into()),
            messages: MessageBuffers {
                max: options.limits.message,
                free: Semaphore::new(
                    options.limits.message.saturating_mul(MESSAGES_AT_ONCE).min(Semaphore::MAX_PERMITS),
                ),
            },
        })
    }

    pub(super) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Serves a connection until it or its age ends. When `drain` is cancelled, open calls are answered, and one more that
    /// was on its way.
    pub async fn serve_connection(self: Rc<Self>, stream: Stream, peer: IpAddr, drain: CancellationToken) {
        let age = self.connection_age;
        age.limit(&drain, |drain| serve(open(self, stream, peer, drain))).await;
    }

    /// Returns a message, or a body that goes on.
    async fn call(
        &self,
        method: Method,
        context: &Context,
        request: &mut Request,
        active: &mut ActiveRequest,
    ) -> Result<ResponseBody, Status> {
        if method == Method::Unknown {
            let detail = format!("unknown method {}", shown(&request.target, 80));
            return Err(Status::new(Code::Unimplemented, detail));
        }
        let start = context.activity.now();
        let patience =
            protocol::timeout(&request.headers)?.map(|patience| patience.saturating_sub(patience / RETURN_SHARE));
        let deadline = patience.and_then(|patience| start.checked_add(patience));
        let call = CallContext { context, start, deadline };
        if method == Method::StreamRateLimitQuotas {
            let permit = self.streams.begin()?;
            let stream = self.stream_quotas(std::mem::take(&mut request.body), permit);
            return Ok(ResponseBody::Stream(Box::new(stream)));
        }
        let message = self.messages.next(&mut request.body).await?;
        let answer = match method {
            Method::Check => {
                let answer = self.check(decode(message)?, &call, active).await?;
                frame(&answer, &mut self.answers.borrow_mut().memory)
            }
            Method::ShouldRateLimit => self.rate_limit(DescriptorMode::Decide, message, &call, active).await?,
            Method::CheckRateLimit => self.rate_limit(DescriptorMode::Check, message, &call, active).await?,
            Method::Report => self.rate_limit(DescriptorMode::Report, message, &call, active).await?,
            Method::Reserve => self.counted(self.reserve(message, &call, active).await)?,
            Method::Commit => self.counted(self.commit(message, &call, active).await)?,
            Method::HealthCheck => {
                frame(&health::check(&self.readiness, &decode(message)?)?, &mut self.answers.borrow_mut().memory)
            }
            Method::HealthList => frame(&health::list(&self.readiness), &mut self.answers.borrow_mut().memory),
            Method::HealthWatch => {
                let permit = self.streams.begin()?;
                let watch = health::Watch::new(&self.readiness, &decode(message)?, permit);
                return Ok(ResponseBody::Stream(Box::new(watch)));
            }
            Method::StreamRateLimitQuotas | Method::Unknown => Bytes::new(),
        };
        Ok(ResponseBody::Message(Message { data: answer, trailers: Some(self.trailers.clone()) }))
    }
}

impl HttpService for Envoy {
    fn front(&self) -> &Frontend {
        &self.front
    }

    async fn respond(&self, context: &Context, request: &mut Request, active: &mut ActiveRequest) -> Response {
        if let Err(reply) = check_call(request) {
            return self.front.own(reply);
        }
        let method = Method::of(&request.target);
        let body = self.call(method, context, request, active).await;
        self.front.answered(StatusCode::OK);
        let code = body.as_ref().map_or_else(|status| status.code, |_| Code::Ok);
        method.count(code, self.front.limiter.shared().metrics());
        if method != Method::Unknown {
            active.trace.called(&request.target, code.text());
        }
        match body {
            Ok(body) => Response { status: StatusCode::OK, headers: ResponseHeaders::Kept(self.headers.clone()), body },
            Err(status) => failed(&status),
        }
    }
}

/// The answer of a call that failed: headers alone.
fn failed(status: &Status) -> Response {
    let mut headers = Headers::with_capacity(4, 128);
    headers.append(CONTENT_TYPE, GRPC);
    status.write(&mut headers);
    if status.code == Code::Unimplemented {
        headers.append("grpc-accept-encoding", "identity");
    }
    Response { status: StatusCode::OK, headers: headers.into(), body: ResponseBody::Text(Bytes::new()) }
}

/// Checks that a request is a gRPC call; the error is the answer in HTTP.
fn check_call(request: &Request) -> Result<(), Reply> {
    if !protocol::is_grpc(request.headers.get(CONTENT_TYPE)) {
        let detail = "this port speaks gRPC, with `content-type: application/grpc`";
        let mut reply = problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
        reply.headers.append("accept-post", GRPC);
        return Err(reply);
    }
    if request.version != Version::HTTP_2 {
        return Err(problem(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "gRPC needs HTTP/2"));
    }
    if request.method != HttpMethod::POST {
        return Err(method_not_allowed(&request.method, "POST"));
    }
    Ok(())
}

impl MessageBuffers {
    /// Reads the message of a request.
    async fn next(&self, body: &mut RequestBody) -> Result<Bytes, Status> {
        let mut reader = MessageReader::new(self.max);
        // Given back at the end of the call.
        let mut kept: Option<SemaphorePermit<'_>> = None;
        while let Some(piece) = body.piece().await {
            // Nobody reads the answer then.
            let piece =
                piece.map_err(|error| Status::new(Code::Cancelled, format!("the request broke off: {error}")))?;
            let Piece::Data(data) = piece else { continue };
            let more = reader.push(data)?.saturating_sub(kept.as_ref().map_or(0, SemaphorePermit::num_permits));
            let more = self.free.try_acquire_many(u32::try_from(more).unwrap_or(u32::MAX));
            let more =
                more.map_err(|_| Status::new(Code::ResourceExhausted, "there are too many long messages at once"))?;
            match &mut kept {
                Some(kept) => kept.merge(more),
                None => kept = Some(more),
            }
        }
        reader.finish()
    }
}
