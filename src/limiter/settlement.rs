//! Settlements: the charge or refund once the response has told the cost.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::decision_request::DecisionRequest;
use super::failure_policy::failure;
use super::remembered_denials::gives_back;
use super::response_body::{ResponseBody, UninspectedLog};
use super::{Limiter, Shared, View};
use crate::clock::micros;
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::engine::answer::accepted;
use crate::engine::charging::current_numbers::renumbered;
use crate::engine::charging::plan::Plan;
use crate::engine::charging::settlement::{PendingSettlement, ResponseReport, SettlementOutcome};
use crate::engine::deciding::verdict::Verdict;
use crate::engine::limit::response_cost::CostSource;
use crate::message::headers::{self, Headers};
use crate::store::{Batch, Store};
use crate::telemetry::metrics::{Count, StoreReport};

/// Calls to the store that a worker may have under way for settlements. Each ends with the store's timeout, so more are due
/// only if over 50,000 requests per second settle while the store does not answer.
const MAX_UNDER_WAY: usize = 1_024;

/// The least time between two log lines on unreadable costs. The upstream is likely to send it with every response, and the metric counts them.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The bytes of an unreadable value that are logged.
const MAX_VALUE: usize = 40;

/// Makes the settlements of a worker.
pub(super) struct Settler {
    shared: Arc<Shared>,
    store: Store,
    /// Runs the calls to the store, which outlive the requests.
    runtime: Option<Handle>,
    calls: TaskTracker,
    /// Requests that are not settled yet.
    open: TaskTracker,
    logged: Mutex<Option<Instant>>,
    uninspected: UninspectedLog,
}

/// A request that passed and whose response has not reported its cost yet. Each limit is settled once. Dropping this settles what
/// is left, by how far the request got.
pub struct Settlement {
    owed: Vec<PendingSettlement>,
    /// The wall clock at `start`, when it was charged.
    now: Micros,
    start: Instant,
    /// The response so far, without its headers.
    progress: ResponseReport<'static>,
    /// The bytes of the request's body that have come.
    uploaded: Rc<Cell<u64>>,
    /// Reads the response's body, if a limit needs it.
    body: Option<Box<ResponseBody>>,
    view: Rc<View>,
    settler: Arc<Settler>,
    /// A drain waits for it.
    _token: TaskTrackerToken,
}

/// The charges of one request on their way to the store.
pub(super) struct Job {
    pub(super) kind: StoreReport,
    pub(super) charges: Vec<Charge>,
    pub(super) effective_from: Micros,
    pub(super) now: Micros,
    /// For each limit, the counters of success and failure.
    pub(super) counters: Vec<(Count, Count)>,
}

impl Limiter {
    /// The settlement that an allowed request owes, if its caller sees the response.
    pub(super) fn settlement(
        &self,
        view: &Rc<View>,
        (plan, decisions): (&Plan, &Decisions),
        verdict: &Verdict,
        asked: &DecisionRequest<'_>,
    ) -> Option<Box<Settlement>> {
        if plan.unsettled.is_empty() || !verdict.is_allowed() {
            return None;
        }
        let is_accepted = accepted::accepted_entry(view.rules(), verdict).is_some();
        if !is_accepted && !asked.sees_response {
            return None;
        }
        let owed = plan.pending_settlements(view.rules(), decisions, |origin| verdict.decision(origin));
        if owed.is_empty() {
            return None;
        }
        let settlement = Box::new(Settlement {
            owed,
            now: asked.now(),
            start: asked.start,
            progress: ResponseReport::Unsent,
            uploaded: Rc::default(),
            body: None,
            view: view.clone(),
            settler: self.settler.clone(),
            _token: self.settler.open.token(),
        });
        // No upstream will see a request that a queue has taken: dropping it gives back what was reserved.
        if is_accepted { None } else { Some(settlement) }
    }

    /// Waits until everything is settled. Must be called when no more requests come.
    pub async fn settled(&self) {
        for tracker in [&self.settler.open, &self.settler.calls] {
            tracker.close();
            tracker.wait().await;
        }
    }
}

impl Settlement {
    /// The upstream may have received some of the request: without a response, its cost stays unknown.
    pub fn sent(&mut self) {
        self.progress = ResponseReport::Nothing(None);
    }

    /// Returns true if a cost is in the response's body, which must not be compressed then.
    pub fn reads_body(&self) -> bool {
        self.owed.iter().any(|owed| owed.cost.in_body().is_some())
    }

    /// Returns the counter of the request's bytes, for the reader of its body; `None` if no limit needs them.
    pub fn uploaded(&self) -> Option<Rc<Cell<u64>>> {
        self.owed.iter().any(|owed| owed.cost.is_of_request()).then(|| self.uploaded.clone())
    }

    /// The response has come. `may_come`: a body or trailers may follow.
    pub fn answered(&mut self, status: u16, headers: &Headers, may_come: bool) {
        self.progress = ResponseReport::Response(status, None);
        let of_nothing = |owed: &PendingSettlement| if may_come { None } else { bytes_of_none(owed) };
        self.settle(|owed| ResponseReport::Response(status, value(owed, headers).or(of_nothing(owed))), may_come);
        if may_come {
            let sources = self.owed.iter().filter_map(|owed| owed.cost.source.as_ref());
            self.body = ResponseBody::new(sources, headers, &self.settler.shared.metrics, &self.settler.uninspected);
        }
    }

    /// More of the response's body has come.
    pub fn data(&mut self, bytes: &[u8]) {
        if let Some(body) = &mut self.body {
            body.push(bytes);
        }
    }

    /// The trailers of the response have come.
    pub fn trailers(&mut self, trailers: &Headers) {
        let ResponseReport::Response(status, _) = self.progress else { return };
        self.end_body(status);
        self.settle(|owed| ResponseReport::Response(status, value(owed, trailers)), false);
    }

    /// Settles by what the body has told so far.
    fn end_body(&mut self, status: u16) {
        let Some(mut body) = self.body.take() else { return };
        body.finish();
        self.settle(|owed| ResponseReport::Response(status, body.cost(owed.cost.source.as_ref())), true);
    }

    /// Returns true once all limits are settled.
    pub const fn is_done(&self) -> bool {
        self.owed.is_empty()
    }

    fn settle<'f>(&mut self, report: impl Fn(&PendingSettlement) -> ResponseReport<'f>, may_come: bool) {
        let now = self.now.after(micros(self.start.elapsed()));
        let (view, settler) = (&self.view, &self.settler);
        // The rules may have changed: charges under older numbers would cut the bucket to their burst.
        let current = settler.shared.snapshot.load();
        let has_changed = !Arc::ptr_eq(&current, &view.snapshot);
        let effective_from = current.rules.effective_from;
        let kind = StoreReport::Settlement;
        let mut job = Job { kind, charges: Vec::new(), effective_from, now, counters: Vec::new() };
        self.owed.retain(|owed| {
            let report = report(owed);
            // The request's body may go on until the response has ended.
            let may_come = may_come || owed.cost.is_of_request();
            let Some((outcome, charges)) = owed.settle(report, may_come) else { return true };
            if outcome == SettlementOutcome::Unreadable {
                settler.log_unreadable(view, owed, report);
            }
            let Some(counters) = view.settlements(owed.limit) else { return false };
            let Some(limit) = view.rules().limit(owed.limit) else { return false };
            if charges.is_empty() {
                counters.of(outcome).inc();
            } else {
                job.counters.push((counters.of(outcome).clone(), counters.of(SettlementOutcome::Failed).clone()));
                let renumbered =
                    |charge| if has_changed { renumbered(&current.rules, charge, limit, now) } else { charge };
                job.charges.extend(charges.into_iter().map(renumbered));
            }
            false
        });
        if !job.charges.is_empty() {
            settler.run(job);
        }
    }
}

impl std::fmt::Debug for Settlement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.owed).finish()
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        if let ResponseReport::Response(status, _) = self.progress {
            self.end_body(status);
        }
        if !self.is_done() {
            let (progress, uploaded) = (self.progress, self.uploaded.get());
            let text = uploaded.to_string();
            let report = |owed: &PendingSettlement| match progress {
                ResponseReport::Response(status, None) if owed.cost.is_of_request() => {
                    ResponseReport::Response(status, Some(text.as_bytes()))
                }
                ResponseReport::Nothing(None) if owed.cost.is_of_request() => ResponseReport::Nothing(Some(uploaded)),
                progress => progress,
            };
            self.settle(report, false);
        }
    }
}

impl Settler {
    pub(super) fn new(shared: Arc<Shared>, store: Store) -> Arc<Self> {
        let runtime = Handle::try_current().ok();
        let (calls, open) = (TaskTracker::new(), TaskTracker::new());
        Arc::new(Self {
            shared,
            store,
            runtime,
            calls,
            open,
            logged: Mutex::default(),
            uninspected: UninspectedLog::default(),
        })
    }

    /// Does work that outlives its caller, and that the end of the worker waits for.
    pub(super) fn finish(&self, work: impl Future<Output = ()> + 'static) {
        if Handle::try_current().is_ok() && self.calls.len() < MAX_UNDER_WAY {
            self.calls.spawn_local(work);
        }
    }

    /// Makes charges where their request was charged. Does not wait for a remote store.
    pub(super) fn run(self: &Arc<Self>, mut job: Job) {
        if let Some(memory) = self.store.as_memory() {
            return job.count(memory.decide(&job.batch()).is_ok());
        }
        let (local, remote) = std::mem::take(&mut job.charges).into_iter().partition(|charge| charge.origin.is_local);
        job.charges = local;
        let is_made = job.charges.is_empty() || self.shared.local.decide(&job.batch()).is_ok();
        job.charges = remote;
        if job.charges.is_empty() {
            return job.count(is_made);
        }
        let Some(runtime) = self.runtime.as_ref().filter(|_| self.calls.len() < MAX_UNDER_WAY) else {
            self.shared.metrics.store.reports_dropped[job.kind].inc();
            return job.count(false);
        };
        let settler = Arc::clone(self);
        self.calls.spawn_on(
            async move {
                let decided = settler.store.decide(&job.batch()).await;
                if job.charges.iter().any(gives_back) {
                    settler.shared.give_back();
                }
                if let Err(error) = &decided {
                    settler.shared.metrics.store.errors[failure(error)].inc();
                    settler.shared.metrics.store.reports_dropped[job.kind].inc();
                }
                job.count(decided.is_ok());
            },
            runtime,
        );
    }

    /// Logs a response whose cost cannot be read.
    fn log_unreadable(&self, view: &View, owed: &PendingSettlement, report: ResponseReport<'_>) {
        let mut logged = self.logged.lock();
        if logged.is_some_and(|logged| logged.elapsed() < LOG_INTERVAL) {
            return;
        }
        *logged = Some(Instant::now());
        let limit = view.rules().name(owed.limit);
        let ResponseReport::Response(_, Some(value)) = report else { return };
        let shown = headers::text(value.get(..MAX_VALUE).unwrap_or(value)).unwrap_or("binary");
        let source = owed.cost.source.as_ref().map(tracing::field::display);
        tracing::warn!(limit, source, value = shown, "the cost in a response is not a whole number");
    }
}

impl Job {
    fn batch(&self) -> Batch<'_> {
        Batch { charges: &self.charges, effective_from: self.effective_from, now: self.now }
    }

    fn count(&self, is_made: bool) {
        for (made, failed) in &self.counters {
            if is_made { made.inc() } else { failed.inc() }
        }
    }
}

/// The bytes of a body that does not come, for a limit that counts them.
fn bytes_of_none(owed: &PendingSettlement) -> Option<&'static [u8]> {
    matches!(owed.cost.source, Some(CostSource::Bytes)).then_some(b"0")
}

/// The value of a limit's header. Repeated headers are a list (RFC 9110 section 5.3), which is not a number.
fn value<'f>(owed: &PendingSettlement, headers: &'f Headers) -> Option<&'f [u8]> {
    let Some(CostSource::Header(name)) = &owed.cost.source else { return None };
    let name = name.as_str();
    let first = headers.get(name)?;
    Some(if headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name.as_bytes())).count() > 1 {
        b"a list"
    } else {
        first
    })
}
