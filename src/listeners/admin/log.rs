//! What operators ask of the log over HTTP.
//!
//! | | |
//! |---|---|
//! | `GET /log` | the filter in force, and until when |
//! | `PUT /log` `{"filter": "debug", "for": "10m"}` | another one for a time, an hour unless given |
//! | `DELETE /log` | that of `--log` again |
//!
//! Whoever reaches the listener may look; to change something takes a token. A filter that is set here ends by itself: one
//! that somebody forgets would fill a disk.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;
use http::header::HeaderMap;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::spawn_local;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::Admin;
use super::body::{members, read, span, text};
use super::buckets::{Caller, Rejection, json_reply, not_with};
use crate::engine::algorithms::micros::Micros;
use crate::http::simple::Incoming;
use crate::message::reply::Reply;
use crate::telemetry::metrics::{AdminWrite, AdminWriteResult};

/// How long a filter holds unless something else is asked.
const USUAL: Micros = Micros(3_600_000_000);

/// How long it may hold at most. What is to stay longer is not for the night, and belongs to the flag.
const LONGEST: Micros = Micros(7 * 86_400_000_000);

/// What is said of one that is to hold longer.
const FOR_GOOD: &str = "for good, start Weir with another `--log`";

/// Reads a filter, and makes what puts it in force. The error says what is wrong with it.
pub type Read = Box<dyn Fn(&str) -> Result<Box<dyn FnOnce()>, String> + Send + Sync>;

/// The filter of the process' log. Its copies are one filter.
#[derive(Clone)]
pub struct LogFilter {
    read: Arc<Read>,
    /// That of `--log`.
    flag: Arc<str>,
    set: Arc<Mutex<Option<Set>>>,
}

/// A filter that an operator has set.
#[derive(Clone, Debug)]
struct Set {
    filter: String,
    until: Instant,
    by: String,
}

impl LogFilter {
    /// A filter that is now what `flag` says.
    pub fn new(flag: &str, read: Read) -> Self {
        Self { read: Arc::new(read), flag: flag.into(), set: Arc::default() }
    }

    /// Puts a filter in force, or that of the flag. `say` writes into the log that this is done: under the filter of before
    /// if that lets it through, so that nobody can make the log silent unseen.
    fn change(&self, set: Option<Set>, say: impl Fn()) -> Result<(), String> {
        let apply = (self.read)(set.as_ref().map_or(&self.flag, |set| &set.filter))?;
        let is_heard = tracing::enabled!(tracing::Level::INFO);
        if is_heard {
            say();
        }
        apply();
        *self.set.lock() = set;
        if !is_heard {
            say();
        }
        Ok(())
    }

    /// Puts that of the flag in force; its text was read when the process began.
    fn restore(&self, say: impl Fn()) {
        if let Err(error) = self.change(None, say) {
            tracing::error!("the log's filter stays as it is: {error}");
        }
    }

    fn told(&self) -> Reply {
        let set = self.set.lock().clone();
        let left = set.as_ref().map(|set| set.until.saturating_duration_since(Instant::now()));
        let until = left.and_then(|left| Timestamp::now().checked_add(left).ok());
        json_reply(&json!({
            "filter": set.as_ref().map_or(&*self.flag, |set| &set.filter),
            "flag": &*self.flag,
            "until": until.and_then(|until| Timestamp::from_second(until.as_second()).ok()).map(|until| until.to_string()),
            "left_ms": left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            "by": set.as_ref().map(|set| &set.by),
        }))
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogFilter").field("flag", &self.flag).field("set", &self.set).finish_non_exhaustive()
    }
}

impl Admin {
    /// Answers what is asked of the log.
    pub(super) async fn answer_log(
        self: &Rc<Self>,
        filter: &LogFilter,
        method: &Method,
        headers: &HeaderMap,
        body: Incoming,
        peer: Option<SocketAddr>,
    ) -> Reply {
        match *method {
            Method::GET | Method::HEAD => return filter.told(),
            Method::PUT | Method::DELETE => {}
            _ => return not_with(method, "GET, HEAD, PUT, DELETE"),
        }
        let (result, reply) = match self.caller(headers, peer) {
            Err(rejection) => {
                if let Some(suppressed) = self.complaints.pass() {
                    let peer = peer.map(|peer| peer.to_string());
                    tracing::warn!(peer, suppressed, "a change of the log's filter was rejected: {}", rejection.detail);
                }
                (AdminWriteResult::Unauthorized, rejection.reply())
            }
            Ok(caller) => match self.obey_log(filter, method, body, &caller).await {
                Ok(()) => (AdminWriteResult::Done, filter.told()),
                Err(rejection) => (AdminWriteResult::Mistaken, rejection.reply()),
            },
        };
        self.metrics.listeners.admin_writes[AdminWrite::Log as usize][result as usize].inc();
        reply
    }

    /// Changes the filter, and writes into the log who has.
    async fn obey_log(
        self: &Rc<Self>,
        filter: &LogFilter,
        method: &Method,
        body: Incoming,
        caller: &Caller<'_>,
    ) -> Result<(), Rejection> {
        let body = read(body).await?;
        let (by, agent) = (caller.name.as_str(), caller.agent.as_ref());
        if *method == Method::DELETE {
            members(&body, &[])?;
            self.returning.take();
            filter.restore(|| {
                tracing::info!(by, agent, filter = &*filter.flag, "the log's filter is that of the flag again");
            });
            return Ok(());
        }
        members(&body, &["filter", "for"])?;
        let wanted = text(&body, "filter", "a level or directives, as in {\"filter\": \"debug\", \"for\": \"10m\"}")?;
        let span = match body.get("for") {
            None => USUAL,
            Some(_) => span(&body, LONGEST, FOR_GOOD)?,
        };
        let span = Duration::from_micros(span.0);
        let set = Set { filter: wanted.to_owned(), until: Instant::now() + span, by: caller.name.clone() };
        let changed = filter.change(Some(set), || {
            tracing::info!(by, agent, filter = wanted, "the log's filter is another one for {span:?}");
        });
        changed.map_err(|error| Rejection::bad(format!("`filter`: {error}")))?;
        let (listener, back) = (self.clone(), filter.clone());
        let returning = spawn_local(async move {
            sleep(span).await;
            // It is this task that is dropped here, at its end.
            let _own = listener.returning.take();
            back.restore(|| {
                tracing::info!(filter = &*back.flag, "its time is over: the log's filter is that of the flag");
            });
        });
        self.returning.replace(Some(AbortOnDropHandle::new(returning)));
        Ok(())
    }
}
