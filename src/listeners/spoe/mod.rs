//! `HAProxy`'s Stream Processing Offload Engine: it asks about its requests over connections that stay, and is told the
//! verdict in variables.
//!
//! The protocol is that of `doc/SPOE.txt` in `HAProxy`'s sources. It is written here, as far as an agent for one message
//! needs it, because the library that reads it best, spop 0.13, does not say why a frame is none, so that no status code
//! could be told, changes text that is not UTF-8, and copies each argument.
//!
//! # The message
//!
//! `check`, with any of these arguments; all others are entries of the request's descriptor by their names.
//!
//! | argument | sample | what it is |
//! |---|---|---|
//! | `method` | `method` | the method |
//! | `path` or `uri` | `path`, `pathq`, `url` | the path, with its query or without, or the whole URL; none is that of `OPTIONS *` |
//! | `query` | `query` | the query |
//! | `host` | `req.hdr(host)` | the host; `headers` have it too |
//! | `src` | `src` | the client's address |
//! | `headers` | `req.hdrs_bin`, `req.hdrs` | the headers |
//! | `tls_subject` | `ssl_c_s_dn(,0,rfc2253)` | the subject of a client's certificate that `HAProxy` has verified |
//!
//! # The variables
//!
//! All are of the transaction, behind `HAProxy`'s own prefix.
//!
//! | variable | what it is |
//! |---|---|
//! | `deny` | whether to deny the request; not set if Weir did not answer |
//! | `status` | of a denial: 429, 503 if the store is down and the limit fails closed, 400 if the request is invalid; 202 if a queue has taken it |
//! | `retry_after`, `ratelimit`, `ratelimit_policy`, ... | the headers of the response, each by its name with `_` for `-` |
//! | `body` | of a denial: the problem as JSON; of a 202: the entry's id |

use std::borrow::Cow;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio_util::sync::CancellationToken;

use self::check::{Check, Mistake};
use self::connection::Connection;
use self::data::Data;
use self::frame::{Ack, Notify};
use self::status::Status;
use crate::clock::Clock;
use crate::engine::answer::accepted;
use crate::engine::answer::headers::{Generations, add_headers};
use crate::engine::answer::problem::denial;
use crate::http::{HttpOptions, Stream};
use crate::limiter::{Ask, AskSubject, Limiter};
use crate::message::client_address::TrustedProxies;
use crate::message::headers::Headers;
use crate::message::path::EscapedSlashes;
use crate::message::reply::{Reply, problem};
use crate::message::underscores::Underscores;
use crate::telemetry::metrics::DecisionListener;
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

/// How the listener is set up.
#[derive(Clone, Debug)]
pub struct SpoeOptions {
    /// Peers of `HAProxy` whose word on the client's address is taken.
    pub trusted_proxies: TrustedProxies,
    /// Which rate limit headers there are variables for.
    pub generations: Generations,
    /// The time of each request: what the memory store decides by and overrides expire by.
    pub clock: Clock,
    /// What `%2F` and `%5C` in a path mean.
    pub escaped_slashes: EscapedSlashes,
    /// What becomes of headers whose names have underscores.
    pub underscores: Underscores,
    /// How long to wait for what.
    pub timeouts: SpoeTimeouts,
}

impl SpoeOptions {
    /// As the other listeners take requests and connections.
    pub fn new(http: &HttpOptions, clock: Clock, generations: Generations) -> Self {
        Self {
            trusted_proxies: http.trusted_proxies.clone(),
            generations,
            clock,
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

/// How long the listener waits for `HAProxy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoeTimeouts {
    /// For the first byte of a connection.
    pub hello: Duration,
    /// For the rest of a frame that has begun, and for an answer to be taken.
    pub frame: Duration,
    /// For the next question.
    pub idle: Duration,
}

impl Default for SpoeTimeouts {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(10),
            frame: Duration::from_secs(10),
            // HAProxy ends idle connections by its own `timeout idle`, minutes as a rule. It had better be the one who
            // does: a question that crosses our farewell has no answer.
            idle: Duration::from_mins(10),
        }
    }
}

/// A worker's listener.
pub struct Spoe {
    limiter: Rc<Limiter>,
    trusted_proxies: TrustedProxies,
    generations: Generations,
    clock: Clock,
    escaped_slashes: EscapedSlashes,
    underscores: Underscores,
    timeouts: SpoeTimeouts,
    /// What is logged of connections, and of configurations. One line a second each.
    connection_log: Throttle,
    message_log: Throttle,
}

impl Spoe {
    /// A listener that asks `limiter`.
    pub fn new(limiter: Rc<Limiter>, options: &SpoeOptions) -> Rc<Self> {
        Rc::new(Self {
            limiter,
            trusted_proxies: options.trusted_proxies.clone(),
            generations: options.generations,
            clock: options.clock.clone(),
            escaped_slashes: options.escaped_slashes,
            underscores: options.underscores,
            timeouts: options.timeouts,
            connection_log: Throttle::default(),
            message_log: Throttle::default(),
        })
    }

    /// Serves a connection of `HAProxy`'s to its end. When `drain` is cancelled, what has come is answered first.
    pub async fn serve_connection(self: Rc<Self>, stream: Stream, peer: IpAddr, drain: CancellationToken) {
        Connection::new(&self, stream, peer).serve(&drain).await;
    }

    /// The ACK for a NOTIFY. The time that it takes is counted from `received`.
    async fn answer(&self, notify: &Notify<'_>, max_frame: u32, received: Instant) -> Vec<u8> {
        let mut ack = Ack::new(notify, max_frame);
        if let Some(name) = notify.unknown {
            let name = String::from_utf8_lossy(name);
            self.misconfigured(&format!("the message `{}` is not known; name it `check`", shown(&name)));
        }
        let Some(arguments) = &notify.check else { return ack.finish() };
        match Check::read(arguments, &self.trusted_proxies, self.escaped_slashes, self.underscores) {
            Ok(check) => {
                if let Some(mistake) = check.mistake {
                    self.misconfigured(Mistake::text(mistake));
                }
                if check.client.is_some_and(|client| client.is_disputed) {
                    self.limiter.shared().metrics().listeners.client_conflicts.inc(DecisionListener::Spoe.label());
                }
                self.decide(&check, &mut ack, received).await;
            }
            Err(detail) => deny(&problem(StatusCode::BAD_REQUEST, detail), &mut ack),
        }
        ack.finish()
    }

    async fn decide(&self, check: &Check<'_>, ack: &mut Ack, received: Instant) {
        let entries = check.entries();
        let view = check.view(&entries, self.clock.now());
        let ask = Ask::new(AskSubject::Request(&view), DecisionListener::Spoe, received);
        let ruling = match self.limiter.decide(ask).await {
            Ok(ruling) => ruling,
            Err(error) => return deny(&problem(StatusCode::BAD_REQUEST, &error.to_string()), ack),
        };
        ruling.log_denials(Some(&view), None);
        let rules = ruling.view.rules();
        if let Some(accepted) = accepted::accepted(rules, &ruling.verdict, self.generations) {
            deny(&accepted, ack);
        } else if ruling.verdict.is_allowed() {
            let mut headers = Headers::new();
            add_headers(rules, &ruling.verdict, self.generations, &mut headers);
            accepted::add_entries(rules, &ruling.verdict, &mut headers);
            ack.set("deny", Data::Bool(false));
            set_headers(&headers, ack);
        } else {
            deny(&denial(rules, &ruling.verdict, self.generations, check.is_grpc()), ack);
        }
    }

    /// Logs what is wrong with the messages of a configuration.
    fn misconfigured(&self, mistake: &str) {
        if let Some(suppressed) = self.message_log.pass() {
            tracing::warn!(suppressed, "HAProxy's configuration: {mistake}");
        }
    }

    /// Logs that `HAProxy` ends a connection because of us.
    fn disconnected(&self, peer: IpAddr, code: u64, message: &[u8]) {
        // It says so too when it has nothing more to ask, or has waited long enough for that.
        if code == Status::Normal.code() || code == Status::Timeout.code() {
            return;
        }
        if let Some(suppressed) = self.connection_log.pass() {
            let message = String::from_utf8_lossy(message);
            tracing::warn!(%peer, code, suppressed, "HAProxy ended a connection: {}", shown(&message));
        }
    }

    /// Logs that we end a connection because of `HAProxy`, and counts it.
    fn disconnects(&self, peer: IpAddr, status: Status) {
        self.limiter.shared().metrics().listeners.spoe_disconnects.inc(status.label());
        if status != Status::Normal
            && let Some(suppressed) = self.connection_log.pass()
        {
            tracing::warn!(%peer, code = status.code(), suppressed, "disconnected from HAProxy: {}", status.message());
        }
    }
}

/// The variables of a request that goes no further.
fn deny(reply: &Reply, ack: &mut Ack) {
    ack.set("deny", Data::Bool(true));
    ack.set("status", Data::Unsigned(reply.status.as_u16().into()));
    set_headers(&reply.headers, ack);
    if !reply.body.is_empty() {
        ack.set("body", Data::Text(reply.body.as_bytes()));
    }
}

/// A variable for each header.
fn set_headers(headers: &Headers, ack: &mut Ack) {
    for (name, value) in headers.iter() {
        // Names of ours, in lower case, or of a script; a variable's name has letters, digits and `_`.
        let plain = |byte: &u8| if byte.is_ascii_alphanumeric() { char::from(byte.to_ascii_lowercase()) } else { '_' };
        let name: String = name.iter().map(plain).collect();
        ack.set(&name, Data::Text(value));
    }
}

/// What a peer has written, as far as a log needs it and without what steers a terminal.
fn shown(text: &str) -> Cow<'_, str> {
    const MOST: usize = 60;
    if text.len() <= MOST && !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().take(MOST).filter(|letter| !letter.is_control()).collect())
}
