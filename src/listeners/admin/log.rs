//! The log's filter over HTTP. A filter that is set here expires: a forgotten one would fill the disk.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::spawn_local;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::body::{read, span};
use super::buckets::json_reply;
use super::change::{AdminRequest, Caller, Rejection};
use super::{Admin, AdminAnswer};
use crate::engine::algorithms::micros::Micros;
use crate::http::simple::Incoming;
use crate::message::reply::{Reply, problem};
use crate::telemetry::metrics::AdminWrite;

const DEFAULT_SPAN: Micros = Micros(3_600_000_000);

const LONGEST_SPAN: Micros = Micros(7 * 86_400_000_000);

/// Parses a filter and returns a function that applies it.
pub type FilterParser = Box<dyn Fn(&str) -> Result<Box<dyn FnOnce()>, String> + Send + Sync>;

/// The filter of the process' log. Clones share it.
#[derive(Clone)]
pub struct LogFilter {
    parse: Arc<FilterParser>,
    /// The filter of `--log`.
    flag: Arc<str>,
    temporary: Arc<Mutex<Option<TemporaryFilter>>>,
}

/// A filter that an operator has set.
#[derive(Clone, Debug)]
struct TemporaryFilter {
    filter: String,
    until: Instant,
    by: String,
}

impl LogFilter {
    /// `flag` is the filter in force now.
    pub fn new(flag: &str, parse: FilterParser) -> Self {
        Self { parse: Arc::new(parse), flag: flag.into(), temporary: Arc::default() }
    }

    /// Applies a filter, or that of the flag. `log` logs the change. It is called under the old filter if that lets it
    /// through, so that nobody can silence the log unseen.
    fn apply(&self, temporary: Option<TemporaryFilter>, log: impl Fn()) -> Result<(), String> {
        let apply = (self.parse)(temporary.as_ref().map_or(&self.flag, |temporary| &temporary.filter))?;
        let is_logged = tracing::enabled!(tracing::Level::INFO);
        if is_logged {
            log();
        }
        apply();
        *self.temporary.lock() = temporary;
        if !is_logged {
            log();
        }
        Ok(())
    }

    /// Applies the filter of the flag, which was parsed at the start.
    fn restore(&self, log: impl Fn()) {
        if let Err(error) = self.apply(None, log) {
            tracing::error!("cannot restore the log's filter: {error}");
        }
    }

    fn page(&self) -> Reply {
        let temporary = self.temporary.lock().clone();
        let temporary = temporary.as_ref();
        let left = temporary.map(|temporary| temporary.until.saturating_duration_since(Instant::now()));
        let until = left.and_then(|left| Timestamp::now().checked_add(left).ok());
        json_reply(&json!({
            "filter": temporary.map_or(&*self.flag, |temporary| &temporary.filter),
            "flag": &*self.flag,
            "until": until.and_then(|until| Timestamp::from_second(until.as_second()).ok()).map(|until| until.to_string()),
            "left_ms": left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            "by": temporary.map(|temporary| &temporary.by),
        }))
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogFilter").field("flag", &self.flag).finish_non_exhaustive()
    }
}

impl Admin {
    pub(super) fn log(&self) -> Reply {
        self.options.log.as_ref().map_or_else(no_filter, LogFilter::page)
    }

    pub(super) async fn change_log(self: &Rc<Self>, is_reset: bool, request: AdminRequest) -> AdminAnswer {
        let Some(filter) = &self.options.log else { return no_filter().into() };
        let apply = async |caller: &Caller, body: Incoming| {
            if is_reset {
                self.reset_log(filter, body, caller).await?;
            } else {
                self.set_log(filter, body, caller).await?;
            }
            Ok(filter.page().into())
        };
        self.change(AdminWrite::Log, None, request, apply).await
    }

    async fn reset_log(&self, filter: &LogFilter, body: Incoming, caller: &Caller) -> Result<(), Rejection> {
        read(body, &[], |_| Some(())).await?;
        self.log_reset.take();
        let (by, agent) = (&caller.name, &caller.agent);
        filter.restore(|| tracing::info!(by, agent, filter = &*filter.flag, "the log's filter was reset"));
        Ok(())
    }

    async fn set_log(self: &Rc<Self>, filter: &LogFilter, body: Incoming, caller: &Caller) -> Result<(), Rejection> {
        let read = read(body, &["filter", "for"], |body| {
            body.require("filter", "give a level or directives, as in {\"filter\": \"debug\", \"for\": \"10m\"}");
            let wanted = body.text("filter")?.to_owned();
            let span = match body.get("for") {
                None => DEFAULT_SPAN,
                Some(_) => span(body, LONGEST_SPAN, "for good, start Weir with another `--log`")?,
            };
            Some((wanted, Duration::from_micros(span.0)))
        });
        let (wanted, span) = read.await?;
        let (by, agent) = (&caller.name, &caller.agent);
        let temporary = TemporaryFilter { filter: wanted.clone(), until: Instant::now() + span, by: by.clone() };
        let applied = filter.apply(Some(temporary), || {
            tracing::info!(by, agent, filter = wanted, "the log's filter was changed for {span:?}");
        });
        applied.map_err(|error| Rejection::bad(format!("`filter`: {error}")))?;
        let (listener, filter) = (self.clone(), filter.clone());
        let reset = spawn_local(async move {
            sleep(span).await;
            // Takes the handle of this task, which is about to end.
            let _own = listener.log_reset.take();
            filter.restore(|| tracing::info!(filter = &*filter.flag, "the log's filter expired and was reset"));
        });
        self.log_reset.replace(Some(AbortOnDropHandle::new(reset)));
        Ok(())
    }
}

fn no_filter() -> Reply {
    problem(StatusCode::NOT_FOUND, "the log of this process has no filter that can be changed")
}
