//! What is logged of refused requests: a few lines for each limit, each with the number of those before it that have none.
//!
//! A flood of refusals is what a limiter is there for, and must cost neither the disk nor the time of the requests. So a
//! refusal that gets no line costs a comparison and a count of the worker's own; what the workers have counted comes together
//! once a second. Lines and counts add up to the refusals of each limit.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Judged, JudgedDescriptors, View};
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::numbers::Micros;
use crate::engine::answer::verdict::{Answer, Verdict};
use crate::engine::rules::quote::shown as cut;
use crate::engine::rules::request::Request;
use crate::engine::rules::rule_set::Rules;
use crate::message::trace_context::TraceContext;
use crate::telemetry::metrics::{DecisionListener, DecisionResult};

/// Methods that are logged; another one may be any text of the client's.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Of what a client has chosen, in characters.
const LONGEST_SHOWN: usize = 200;

/// What stands for all others, in logs and traces.
pub const OTHER_METHOD: &str = "_OTHER";

/// How ids are told where requests are logged or traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShownIds {
    /// By a hash that is keyed with a secret of the process: the same id of a limit has the same hash until it ends.
    #[default]
    Hash,
    /// As they are, and the path, the host and the client's address with them.
    Clear,
    /// Not at all.
    None,
}

/// How often refusals by one limit are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRate {
    /// So many lines; at least 1.
    pub lines: u32,
    /// In so much time; at least so many nanoseconds as there are lines.
    pub period: Duration,
}

/// How refused requests are logged.
#[derive(Clone, Copy, Debug)]
pub struct RefusalLog {
    /// How often; `None` if they are not.
    pace: Option<Pace>,
    /// How their ids are told.
    pub(super) ids: ShownIds,
    began: Instant,
}

/// A rate, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// From a line to the next.
    interval: u64,
    /// By how much lines may come before their time, so that all of a period may come at once.
    tolerance: u64,
}

impl RefusalLog {
    /// A log of refusals, or of none without a rate.
    pub fn new(rate: Option<LineRate>, ids: ShownIds) -> Self {
        Self { pace: rate.map(Pace::of), ids, began: Instant::now() }
    }
}

impl Pace {
    fn of(rate: LineRate) -> Self {
        let period = nanoseconds(rate.period);
        let interval = period / u64::from(rate.lines.max(1));
        Self { interval, tolerance: period - interval }
    }
}

/// What all workers know of the lines of one limit.
#[derive(Debug, Default)]
struct Sampling {
    /// When the lines that were written are paid for, in nanoseconds since the log began: their theoretical arrival time.
    paid: AtomicU64,
    /// Refusals that had no line, as far as workers have said so.
    suppressed: AtomicU64,
}

impl Sampling {
    /// Whether a line may be written now; only one of several workers that ask at once may write it.
    fn pass(&self, now: u64, pace: Pace) -> bool {
        let paid = self.paid.load(Ordering::Relaxed);
        if now.saturating_add(pace.tolerance) < paid {
            return false;
        }
        let next = paid.max(now).saturating_add(pace.interval);
        self.paid.compare_exchange(paid, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The lines of all limits, in the order of the rules.
#[derive(Debug)]
pub(super) struct Refusals {
    log: Arc<RefusalLog>,
    limits: Vec<Arc<Sampling>>,
}

impl Refusals {
    /// Those of limits by these names.
    pub(super) fn new<'a>(log: &Arc<RefusalLog>, names: impl Iterator<Item = &'a str>) -> Self {
        Self { log: log.clone(), limits: names.map(|_| Arc::default()).collect() }
    }

    /// Goes on with the counts of limits that other rules had by the same names.
    pub(super) fn take_over(&mut self, rules: &Rules, other: &Self, other_rules: &Rules) {
        let known: HashMap<&str, &Arc<Sampling>> = other_rules.names().zip(&other.limits).collect();
        for (name, sampling) in rules.names().zip(&mut self.limits) {
            if let Some(known) = known.get(name) {
                sampling.clone_from(known);
            }
        }
    }
}

/// A refusal that gets a line.
#[derive(Debug)]
pub(super) struct Refusal {
    limit: u32,
    result: DecisionResult,
    /// How many before it had none.
    suppressed: u64,
    /// As the bucket's key has it, if ids are told in clear and a bucket was asked.
    id: Option<String>,
}

/// Where a refused request came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The request, unless only its ids are known.
    pub request: Option<&'a Request<'a>>,
    /// Its trace, if it is known otherwise than by its headers.
    pub trace_id: Option<u128>,
}

impl View {
    /// Counts a refusal that came at `start`. If it is to have a line, it is among `lines` afterwards.
    pub(super) fn refused(&self, limit: u32, result: DecisionResult, start: Instant, lines: &mut Vec<Refusal>) {
        let Refusals { log, limits } = &self.snapshot.refusals;
        let (Some(pace), Some(sampling), Some(counted)) =
            (log.pace, limits.get(limit as usize), self.suppressed.get(limit as usize))
        else {
            return;
        };
        if !sampling.pass(nanoseconds(start.saturating_duration_since(log.began)), pace) {
            return counted.set(counted.get() + 1);
        }
        let suppressed = counted.take() + sampling.suppressed.swap(0, Ordering::Relaxed);
        // What was not logged because nobody wants to know is not told when somebody does.
        if tracing::enabled!(tracing::Level::INFO) {
            lines.push(Refusal { limit, result, suppressed, id: None });
        }
    }

    /// Gives the lines what their ids are, where these are told.
    pub(super) fn name(&self, lines: &mut [Refusal], verdict: &Verdict, charges: &[Charge]) {
        if self.snapshot.refusals.log.ids != ShownIds::Clear {
            return;
        }
        for line in lines {
            let fingerprint = answer(verdict, line).and_then(|answer| answer.fingerprint);
            let charge = charges.iter().find(|charge| Some(charge.bucket.fingerprint) == fingerprint);
            let id = |charge: &Charge| {
                let short = &self.rules().limit(line.limit)?.short;
                Some(charge.bucket.key.strip_prefix(short)?.strip_prefix(':')?.to_owned())
            };
            line.id = charge.and_then(id);
        }
    }

    /// Tells the other workers what this one has counted, and the log what was counted of limits that have refused nothing
    /// for a while or, `at_end`, of all.
    pub(super) fn flush_refusals(&self, at_end: bool) {
        let Refusals { log, limits } = &self.snapshot.refusals;
        let Some(pace) = log.pace else { return };
        let mut now = None;
        for ((name, sampling), counted) in self.rules().names().zip(limits).zip(&self.suppressed) {
            let counted = counted.take();
            if counted > 0 {
                sampling.suppressed.fetch_add(counted, Ordering::Relaxed);
            }
            if sampling.suppressed.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // As long as refusals go on, the next one of them has the line: it has more to tell.
            let now = *now.get_or_insert_with(|| nanoseconds(log.began.elapsed()));
            let is_over = now.saturating_sub(pace.interval) > sampling.paid.load(Ordering::Relaxed);
            if at_end || (is_over && sampling.pass(now, pace)) {
                let suppressed = sampling.suppressed.swap(0, Ordering::Relaxed);
                if suppressed > 0 {
                    tracing::info!(limit = name, suppressed, "more requests were refused");
                }
            }
        }
    }

    /// Writes the lines of a request.
    #[cold]
    fn log_refusals(&self, lines: &[Refusal], verdict: &Verdict, listener: DecisionListener, origin: &Origin<'_>) {
        let ids = self.snapshot.refusals.log.ids;
        let trace_id = origin.trace_id.or_else(|| Some(TraceContext::of(origin.request?.headers)?.trace_id));
        let trace_id = trace_id.map(|id| format!("{id:032x}"));
        let shown = origin.request.filter(|_| ids == ShownIds::Clear);
        for line in lines {
            let Some(limit) = self.rules().limit(line.limit) else { continue };
            let answer = answer(verdict, line);
            let id = self.id(ids, line, answer, origin.request);
            let wait = answer.and_then(|answer| answer.decision.retry_after);
            tracing::info!(
                limit = limit.name,
                result = line.result.label(),
                listener = listener.label(),
                method = origin.request.map(|request| method(request.method)),
                host = shown.map(|request| cut(request.host, LONGEST_SHOWN)),
                path = shown.map(|request| cut(request.path, LONGEST_SHOWN)),
                client = shown.and_then(|request| request.client).map(|client| client.to_string()),
                id,
                retry_after = wait.map(Micros::ceil_seconds),
                suppressed = line.suppressed,
                trace_id,
                "{}",
                match line.result {
                    DecisionResult::ShadowDenied => "a request would have been refused",
                    _ => "a request was refused",
                }
            );
        }
    }

    /// The id of a request for the limit of a line, told as it may be.
    fn id(
        &self,
        ids: ShownIds,
        line: &Refusal,
        answer: Option<&Answer>,
        request: Option<&Request<'_>>,
    ) -> Option<String> {
        let identified = || self.rules().id_of(line.limit, request?);
        match ids {
            ShownIds::None => None,
            ShownIds::Clear => {
                let id = identified().map(|(text, _)| text).or_else(|| line.id.clone());
                id.map(|id| cut(&id, LONGEST_SHOWN))
            }
            ShownIds::Hash => {
                let fingerprint = identified().map(|(_, fingerprint)| fingerprint).or(answer?.fingerprint);
                fingerprint.map(hash)
            }
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        for (sampling, counted) in self.snapshot.refusals.limits.iter().zip(&self.suppressed) {
            let counted = counted.take();
            if counted > 0 {
                sampling.suppressed.fetch_add(counted, Ordering::Relaxed);
            }
        }
    }
}

impl Judged {
    /// Logs that the request was refused, if it was and it is time for a line.
    pub fn log_refusals(&self, origin: &Origin<'_>) {
        if !self.refusals.is_empty() {
            self.snapshot.log_refusals(&self.refusals, &self.verdict, self.listener, origin);
        }
    }
}

impl JudgedDescriptors {
    /// As [`Judged::log_refusals`].
    pub fn log_refusals(&self, origin: &Origin<'_>) {
        if !self.refusals.is_empty() {
            self.snapshot.log_refusals(&self.refusals, &self.verdicts.whole, DecisionListener::RateLimit, origin);
        }
    }
}

/// The answer that a line is about.
fn answer<'a>(verdict: &'a Verdict, line: &Refusal) -> Option<&'a Answer> {
    let mut answers = verdict.answers.iter().filter(|answer| answer.limit == line.limit);
    let first = answers.clone().next();
    answers.find(|answer| answer.is_short()).or(first)
}

/// An id that tells ids apart and tells none.
pub fn hash(fingerprint: u128) -> String {
    format!("{:016x}", fingerprint >> 64)
}

/// A method as it is logged and traced.
pub fn method(method: &str) -> &'static str {
    METHODS.into_iter().find(|known| *known == method).unwrap_or(OTHER_METHOD)
}

/// Good for 584 years.
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
        let (sampling, pace) = (Sampling::default(), Pace::of(rate));
        let pass = |ms: &u64| if sampling.pass(ms * 1_000_000, pace) { '+' } else { '-' };
        assert_eq!(asked_ms.iter().map(pass).collect::<String>(), expected);
    }

    #[test]
    fn there_are_so_many_lines_in_a_period() {
        check(1, 1_000, &[5, 5, 6, 1_004, 1_005, 1_006, 9_000, 9_500, 10_000], "+---+-+-+");
        check(3, 1_000, &[5, 5, 6, 7, 300, 340, 341, 9_000, 9_000, 9_000, 9_000], "+++--+-+++-");
    }

    #[test]
    fn workers_that_ask_at_once_get_one_line() {
        let pace = Pace::of(LineRate { lines: 1, period: Duration::from_secs(1) });
        let sampling = Sampling::default();
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for now in 0..1_000 {
                        passed.fetch_add(u64::from(sampling.pass(now, pace)), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 1);
    }

    #[test]
    fn a_method_of_a_clients_own_is_not_told() {
        assert_eq!((method("PATCH"), method("patch"), method("secret")), ("PATCH", OTHER_METHOD, OTHER_METHOD));
    }
}
