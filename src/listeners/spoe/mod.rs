//! `HAProxy`'s Stream Processing Offload Engine: questions about requests over lasting connections, answered with
//! variables.
//!
//! The protocol is in `doc/SPOE.txt` of `HAProxy`'s sources. It is implemented here, as far as an agent for one message
//! needs it, because the best library, spop 0.13, does not say why a frame is invalid (so the status code is unknown), changes
//! text that is not UTF-8, and copies each argument.
//!
//! # The message
//!
//! `check`, with any of these arguments. All others become entries of the request's descriptor.
//!
//! | argument | sample | meaning |
//! |---|---|---|
//! | `method` | `method` | the method |
//! | `path` or `uri` | `path`, `pathq`, `url` | the path, with or without its query, or the URL; null for `OPTIONS *` |
//! | `query` | `query` | the query |
//! | `host` | `req.hdr(host)` | the host, unless `headers` have it |
//! | `src` | `src` | the client's address |
//! | `headers` | `req.hdrs_bin`, `req.hdrs` | the headers |
//! | `tls_subject` | `ssl_c_s_dn(,0,rfc2253)` | the subject of the client's certificate, verified by `HAProxy` |
//!
//! # The variables
//!
//! Their scope is the transaction, and `HAProxy` adds its prefix.
//!
//! | variable | meaning |
//! |---|---|
//! | `deny` | whether to deny the request; not set if Weir did not answer |
//! | `status` | of a denial: 429, 503 if the store is down and the limit fails closed, 400 if the request is invalid; 202 if a queue has taken it |
//! | `retry_after`, `ratelimit`, `ratelimit_policy`, ... | the headers of the response, each by its name with `_` for `-` |
//! | `body` | of a denial: the problem as JSON; of a 202: the entry's id |

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio_util::sync::CancellationToken;

use self::check::Check;
use self::connection::Connection;
use self::data::Data;
use self::frame::{Ack, Notify};
use self::status::Status;
use crate::clock::Clock;
use crate::engine::answer::accepted;
use crate::engine::answer::headers::{Generations, add_headers};
use crate::engine::answer::problem::denial;
use crate::engine::deciding::DecisionSubject;
use crate::engine::request::Request;
use crate::engine::text::quote::shown;
use crate::http::{AcceptOptions, Acceptor, Admission, Stream};
use crate::limiter::{DecisionRequest, Limiter};
use crate::listeners::client_address::client_address;
use crate::listeners::http::{ConnectionObserver, FrontendOptions};
use crate::message::client_address::TrustedProxies;
use crate::message::headers::Headers;
use crate::message::path::EscapedSlashes;
use crate::message::reply::{Reply, problem};
use crate::message::underscores::Underscores;
use crate::telemetry::metrics::{DecisionListener, ListenerKind};
use crate::telemetry::throttle::Throttle;

mod check;
mod connection;
mod data;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod status;
#[cfg(test)]
mod tests;

/// The characters of a peer's text in the log.
const MAX_SHOWN: usize = 60;

#[derive(Clone, Debug)]
pub struct SpoeOptions {
    pub accept: AcceptOptions,
    pub admission: Arc<Admission>,
    /// `HAProxy`'s peers whose claims about the client's address are accepted.
    pub trusted_proxies: TrustedProxies,
    /// The rate limit headers that become variables.
    pub generations: Generations,
    /// The time of requests.
    pub clock: Clock,
    pub escaped_slashes: EscapedSlashes,
    pub underscores: Underscores,
    pub timeouts: SpoeTimeouts,
}

impl From<&FrontendOptions> for SpoeOptions {
    fn from(FrontendOptions { http, clock, generations, .. }: &FrontendOptions) -> Self {
        Self {
            accept: http.accept.clone(),
            admission: http.admission.clone(),
            trusted_proxies: http.trusted_proxies.clone(),
            generations: *generations,
            clock: clock.clone(),
            escaped_slashes: http.limits.escaped_slashes,
            underscores: http.client_headers.underscores,
            timeouts: SpoeTimeouts {
                hello: http.timeouts.first_byte,
                frame: http.timeouts.header,
                ..SpoeTimeouts::default()
            },
        }
    }
}

#[cfg(any(test, fuzzing))]
impl SpoeOptions {
    /// Options that trust peers in 10.0.0.0/8.
    fn sample() -> Self {
        Self {
            accept: AcceptOptions::default(),
            admission: Admission::new(crate::http::ConnectionLimits::default()),
            trusted_proxies: TrustedProxies::new("10.0.0.0/8".parse().into_iter().collect()),
            generations: Generations::default(),
            clock: Clock::set(crate::engine::algorithms::micros::Micros(0)),
            escaped_slashes: EscapedSlashes::Keep,
            underscores: Underscores::Drop,
            timeouts: SpoeTimeouts::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoeTimeouts {
    /// For the first byte of a connection.
    pub hello: Duration,
    /// For the rest of a frame, and for writing one.
    pub frame: Duration,
    /// For the next frame.
    pub idle: Duration,
}

impl Default for SpoeTimeouts {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(10),
            frame: Duration::from_secs(10),
            // Longer than HAProxy's own `timeout idle`, usually minutes: a question that crosses our disconnect gets no
            // answer.
            idle: Duration::from_mins(10),
        }
    }
}

/// A worker's SPOE listener.
pub struct Spoe {
    limiter: Rc<Limiter>,
    options: SpoeOptions,
    /// Performs the handshakes, if TLS is used.
    acceptor: Option<Acceptor>,
    observer: Rc<ConnectionObserver>,
    connection_log: Throttle,
    configuration_log: Throttle,
}

impl Spoe {
    pub fn new(limiter: Rc<Limiter>, options: &SpoeOptions) -> Rc<Self> {
        let (connection_log, configuration_log) = (Throttle::default(), Throttle::default());
        let metrics = limiter.shared().metrics().clone();
        let observer = Rc::new(ConnectionObserver { metrics, listener: ListenerKind::Spoe });
        let acceptor = options.accept.tls.is_some().then(|| Acceptor {
            options: options.accept.clone(),
            patience: options.timeouts.hello,
            admission: options.admission.clone(),
            observer: observer.clone(),
            logs_peers: true,
        });
        Rc::new(Self { limiter, options: options.clone(), acceptor, observer, connection_log, configuration_log })
    }

    /// Serves a connection to its end. When `drain` is cancelled, what has come is answered first.
    pub async fn serve_connection(self: Rc<Self>, stream: Stream, peer: IpAddr, drain: CancellationToken) {
        let stream = match &self.acceptor {
            Some(acceptor) => match acceptor.open(stream, peer, &drain).await {
                Some(opened) => opened.stream,
                None => return,
            },
            None => stream,
        };
        Connection::new(&self, stream, peer).serve(&drain).await;
    }

    /// Returns the ACK for a NOTIFY. The decision is timed from `received`.
    async fn answer(&self, notify: &Notify<'_>, max_frame: u32, received: Instant) -> Vec<u8> {
        let mut ack = Ack::new(notify, max_frame);
        if let Some(name) = notify.unknown {
            let name = String::from_utf8_lossy(name);
            self.log_misconfiguration(&format!("unknown message `{}`; name it `check`", shown(&name, MAX_SHOWN)));
        }
        let Some(arguments) = &notify.check else { return ack.finish() };
        match Check::read(arguments, &self.options) {
            Ok(check) => self.decide(check, &mut ack, received).await,
            Err(detail) => deny(&problem(StatusCode::BAD_REQUEST, detail), &mut ack),
        }
        ack.finish()
    }

    async fn decide(&self, mut check: Check<'_>, ack: &mut Ack, start: Instant) {
        if let Some(mistake) = check.mistake {
            self.log_misconfiguration(mistake);
        }
        let client = client_address(&self.limiter, DecisionListener::Spoe, check.client);
        let mut headers = std::mem::take(&mut check.headers);
        let (entries, generations) = (check.entries(), self.options.generations);
        let received = match check.received(&mut headers, &self.options) {
            Ok(received) => received,
            Err(detail) => return deny(&problem(StatusCode::BAD_REQUEST, detail), ack),
        };
        let (tls_subject, now) = (check.tls_subject.as_deref(), self.options.clock.now());
        let view = Request { client, tls_subject, descriptor: &entries, now, ..received.request() };
        let asked = DecisionRequest::new(DecisionSubject::Request(&view), DecisionListener::Spoe, start);
        let decided = match self.limiter.decide(asked).await {
            Ok(decided) => decided,
            Err(error) => return deny(&problem(StatusCode::BAD_REQUEST, &error.to_string()), ack),
        };
        decided.log_denials(Some(&view), None);
        let rules = decided.view.rules();
        if let Some(accepted) = accepted::accepted(rules, &decided.verdict, generations) {
            deny(&accepted, ack);
        } else if decided.verdict.is_allowed() {
            let mut headers = Headers::new();
            add_headers(rules, &decided.verdict, generations, &mut headers);
            accepted::add_entries(rules, &decided.verdict, &mut headers);
            ack.set("deny", Data::Bool(false));
            set_headers(&headers, ack);
        } else {
            deny(&denial(rules, &decided.verdict, generations, received.headers.is_grpc()), ack);
        }
    }

    fn log_misconfiguration(&self, mistake: &str) {
        if let Some(suppressed) = self.configuration_log.pass() {
            tracing::warn!(suppressed, "HAProxy's configuration: {mistake}");
        }
    }

    /// Logs that `HAProxy` ends a connection, unless it is idle.
    fn log_disconnect(&self, peer: IpAddr, code: u64, message: &[u8]) {
        if code == Status::Normal.code() || code == Status::Timeout.code() {
            return;
        }
        if let Some(suppressed) = self.connection_log.pass() {
            let message = String::from_utf8_lossy(message);
            tracing::warn!(%peer, code, suppressed, "HAProxy ended a connection: {}", shown(&message, MAX_SHOWN));
        }
    }

    /// Logs why a connection ends.
    fn log_connection(&self, peer: IpAddr, reason: &str) {
        if let Some(suppressed) = self.connection_log.pass() {
            tracing::warn!(%peer, suppressed, "disconnected from HAProxy: {reason}");
        }
    }

    /// Counts and logs that we end a connection.
    fn disconnects(&self, peer: IpAddr, status: Status) {
        self.limiter.shared().metrics().listeners.spoe_disconnects[status].inc();
        if status != Status::Normal
            && let Some(suppressed) = self.connection_log.pass()
        {
            tracing::warn!(%peer, code = status.code(), suppressed, "disconnected from HAProxy: {}", status.message());
        }
    }
}

/// Sets the variables of a request that goes no further.
fn deny(reply: &Reply, ack: &mut Ack) {
    ack.set("deny", Data::Bool(true));
    ack.set("status", Data::Unsigned(reply.status.as_u16().into()));
    set_headers(&reply.headers, ack);
    if !reply.body.is_empty() {
        ack.set("body", Data::Text(reply.body.as_bytes()));
    }
}

/// Sets a variable for each header.
fn set_headers(headers: &Headers, ack: &mut Ack) {
    for (name, value) in headers.iter() {
        // A script may name the header; a variable's name has letters, digits and `_`.
        let plain = |byte: &u8| if byte.is_ascii_alphanumeric() { char::from(byte.to_ascii_lowercase()) } else { '_' };
        let name: String = name.iter().map(plain).collect();
        ack.set(&name, Data::Text(value));
    }
}
