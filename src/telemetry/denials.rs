//! The log of denied requests: a few lines per limit and period, each with the number of denials skipped before it.
//!
//! A flood of denials must not cost disk space or request time. A denial without a line costs a comparison and a worker's own
//! count; workers' counts are added up once per second. Lines and skipped denials add up to all denials.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::metrics::{DecisionListener, DecisionResult};
use crate::engine::request::Request;
use crate::engine::text::quote::shown as cut;

/// Methods that are logged as they are. Any other could be arbitrary text from the client.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Any other method in logs and traces.
pub const OTHER_METHOD: &str = "_OTHER";

/// The maximum length of what a client has chosen, in characters.
const MAX_TEXT: usize = 200;

/// How ids appear in logs and traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdFormat {
    /// A hash keyed with a secret of the process: stable per limit and id until the process ends.
    #[default]
    Hash,
    /// Unchanged, with the path, the host and the client's address.
    Clear,
    None,
}

impl IdFormat {
    /// Returns an id in this format, from its text and fingerprint if the request has it. A hash needs only `fingerprint`.
    pub(crate) fn id(self, id: impl FnOnce() -> Option<(String, u128)>, fingerprint: Option<u128>) -> Option<String> {
        match self {
            Self::None => None,
            Self::Clear => id().map(|(text, _)| text),
            Self::Hash => id().map(|(_, fingerprint)| fingerprint).or(fingerprint).map(hash),
        }
    }
}

/// The number of lines per limit and period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRate {
    /// At least 1.
    pub lines: u32,
    /// At least as many nanoseconds as lines.
    pub period: Duration,
}

/// The settings of the log.
#[derive(Debug)]
pub struct DenialLog {
    pace: Option<Pace>,
    pub ids: IdFormat,
    began: Instant,
    /// True once the log has said that its ids are hashes.
    has_told_of_hashes: AtomicBool,
}

/// A [`LineRate`] as a token bucket, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// From one line to the next.
    interval: u64,
    /// How early a line may come, so that all lines of a period may come at once.
    tolerance: u64,
}

impl DenialLog {
    /// Without a rate, nothing is logged.
    pub fn new(rate: Option<LineRate>, ids: IdFormat) -> Self {
        Self { pace: rate.map(Pace::of), ids, began: Instant::now(), has_told_of_hashes: AtomicBool::new(false) }
    }
}

impl Pace {
    fn of(rate: LineRate) -> Self {
        let period = nanoseconds(rate.period);
        let interval = period / u64::from(rate.lines.max(1));
        Self { interval, tolerance: period - interval }
    }
}

/// The lines of one limit, shared by all workers.
#[derive(Debug, Default)]
struct Sampler {
    /// The theoretical arrival time of the next line, in nanoseconds since the log began.
    paid: AtomicU64,
    /// Denials without a line that workers have added.
    suppressed: AtomicU64,
}

impl Sampler {
    /// Returns whether a line may be written now. If several workers ask at once, one may.
    fn pass(&self, now: u64, pace: Pace) -> bool {
        let paid = self.paid.load(Ordering::Relaxed);
        if now.saturating_add(pace.tolerance) < paid {
            return false;
        }
        let next = paid.max(now).saturating_add(pace.interval);
        self.paid.compare_exchange(paid, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Samples the denials of all limits, by their place in the rules.
#[derive(Debug)]
pub struct DenialSampler {
    log: Arc<DenialLog>,
    limits: Vec<Arc<Sampler>>,
}

impl DenialSampler {
    pub fn new(log: &Arc<DenialLog>, limits: usize) -> Self {
        Self { log: log.clone(), limits: (0..limits).map(|_| Arc::default()).collect() }
    }

    /// Continues the counts of limits that an earlier sampler has by the same names.
    pub fn take_over<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        earlier: &Self,
        earlier_names: impl Iterator<Item = &'a str>,
    ) {
        let known: HashMap<&str, &Arc<Sampler>> = earlier_names.zip(&earlier.limits).collect();
        for (name, sampler) in names.zip(&mut self.limits) {
            if let Some(known) = known.get(name) {
                sampler.clone_from(known);
            }
        }
    }

    pub fn ids(&self) -> IdFormat {
        self.log.ids
    }

    /// Writes a line. The process's first line with a hash says how to see ids.
    pub fn write(&self, line: &DenialLine<'_>) {
        let has_hash = self.log.ids == IdFormat::Hash && line.id.is_some();
        if has_hash && !self.log.has_told_of_hashes.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "ids in the log are hashes; `--log-ids clear` shows them, and each request's path, host and client"
            );
        }
        line.write(self.log.ids);
    }

    /// Returns the number of denials skipped before this one if it may have a line. Otherwise counts it among them, in
    /// `suppressed`, which is the worker's.
    pub fn pass(&self, limit: u32, at: Instant, suppressed: &Cell<u64>) -> Option<u64> {
        let sampler = self.limits.get(limit as usize)?;
        if !sampler.pass(nanoseconds(at.saturating_duration_since(self.log.began)), self.log.pace?) {
            suppressed.set(suppressed.get() + 1);
            return None;
        }
        let suppressed = suppressed.take() + sampler.suppressed.swap(0, Ordering::Relaxed);
        // If the level is off, they are not reported later, either.
        tracing::enabled!(tracing::Level::INFO).then_some(suppressed)
    }

    /// Adds a worker's count for each limit.
    pub fn add(&self, suppressed: &[Cell<u64>]) {
        for (sampler, counted) in self.limits.iter().zip(suppressed) {
            let counted = counted.take();
            if counted > 0 {
                sampler.suppressed.fetch_add(counted, Ordering::Relaxed);
            }
        }
    }

    /// Logs the skipped denials of limits that have denied nothing for a while, or of all `at_end`.
    pub fn flush<'a>(&self, names: impl Iterator<Item = &'a str>, at_end: bool) {
        let Some(pace) = self.log.pace else { return };
        let mut now = None;
        for (name, sampler) in names.zip(&self.limits) {
            if sampler.suppressed.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // While denials go on, the next one gets a line, which has more detail.
            let now = *now.get_or_insert_with(|| nanoseconds(self.log.began.elapsed()));
            let is_over = now.saturating_sub(pace.interval) > sampler.paid.load(Ordering::Relaxed);
            if at_end || (is_over && sampler.pass(now, pace)) {
                let suppressed = sampler.suppressed.swap(0, Ordering::Relaxed);
                if suppressed > 0 {
                    tracing::info!(limit = name, suppressed, "more requests denied");
                }
            }
        }
    }
}

/// One line of the log.
#[derive(Clone, Debug)]
pub struct DenialLine<'a> {
    pub limit: &'a str,
    pub result: DecisionResult,
    pub listener: DecisionListener,
    pub request: Option<&'a Request<'a>>,
    pub id: Option<String>,
    /// In seconds.
    pub retry_after: Option<u64>,
    pub suppressed: u64,
    pub trace_id: Option<&'a str>,
}

impl DenialLine<'_> {
    /// With [`IdFormat::Clear`], the line has the request's host, path and client.
    fn write(&self, ids: IdFormat) {
        let clear = self.request.filter(|_| ids == IdFormat::Clear);
        let message = match self.result {
            DecisionResult::ShadowDenied => "request would have been denied",
            _ => "request denied",
        };
        tracing::info!(
            limit = self.limit,
            result = self.result.label(),
            listener = self.listener.label(),
            method = self.request.map(|request| method(request.method)),
            host = clear.map(|request| cut(request.host, MAX_TEXT)),
            path = clear.map(|request| cut(request.path, MAX_TEXT)),
            client = clear.and_then(|request| request.client).as_ref().map(IpAddr::to_string),
            id = self.id.as_deref().map(|id| if ids == IdFormat::Clear { cut(id, MAX_TEXT) } else { id.to_owned() }),
            retry_after = self.retry_after,
            suppressed = self.suppressed,
            trace_id = self.trace_id,
            "{message}"
        );
    }
}

/// Formats a fingerprint as the hash of an id.
pub fn hash(fingerprint: u128) -> String {
    format!("{:016x}", half(fingerprint))
}

/// Returns the half of a fingerprint that logs show.
pub const fn half(fingerprint: u128) -> u64 {
    (fingerprint >> 64) as u64
}

/// Returns a method for logs and traces.
pub fn method(method: &str) -> &'static str {
    METHODS.into_iter().find(|known| *known == method).unwrap_or(OTHER_METHOD)
}

/// Saturates after 584 years.
fn nanoseconds(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000_000).saturating_add(span.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the lines that are asked for at these milliseconds are written.
    #[track_caller]
    fn check(lines: u32, period_ms: u64, asked_ms: &[u64], expected: &str) {
        let rate = LineRate { lines, period: Duration::from_millis(period_ms) };
        let (sampler, pace) = (Sampler::default(), Pace::of(rate));
        let pass = |ms: &u64| if sampler.pass(ms * 1_000_000, pace) { '+' } else { '-' };
        assert_eq!(asked_ms.iter().map(pass).collect::<String>(), expected);
    }

    #[test]
    fn lines_per_period_are_limited() {
        check(1, 1_000, &[5, 5, 6, 1_004, 1_005, 1_006, 9_000, 9_500, 10_000], "+---+-+-+");
        check(3, 1_000, &[5, 5, 6, 7, 300, 340, 341, 9_000, 9_000, 9_000, 9_000], "+++--+-+++-");
    }

    #[test]
    fn workers_that_ask_at_once_get_one_line() {
        let pace = Pace::of(LineRate { lines: 1, period: Duration::from_secs(1) });
        let sampler = Sampler::default();
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for now in 0..1_000 {
                        passed.fetch_add(u64::from(sampler.pass(now, pace)), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 1);
    }

    #[test]
    fn an_unknown_method_is_not_logged() {
        assert_eq!((method("PATCH"), method("patch"), method("secret")), ("PATCH", OTHER_METHOD, OTHER_METHOD));
    }
}
