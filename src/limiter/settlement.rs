//! What a response makes of what its request was charged: a reserve is corrected, a failure is counted.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Judged, Limiter, Shared, View};
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::numbers::Micros;
use crate::engine::rules::settlement::{PendingSettlement, ResponseReport, SettlementOutcome};
use crate::message::headers::{self, Headers};
use crate::store::{Batch, Store};
use crate::telemetry::metrics::{Count, SettlementResult};

/// Calls to the store that a worker may have under way for settlements. Each ends with the store's timeout, so there are
/// more only if more than 50,000 requests per second settle while Redis does not answer.
const MAX_UNDER_WAY: usize = 1_024;

/// How often trouble is logged. A response that says no cost is the upstream's way with all of its responses, and the
/// metric counts them.
const SAID_EVERY: Duration = Duration::from_mins(1);

/// How much of a value that is no number is logged.
const SHOWN: usize = 40;

/// What settles, for all requests of a worker.
pub(super) struct Settler {
    shared: Arc<Shared>,
    store: Store,
    /// Where calls to the store run: whoever settles does not wait, and may be dropped.
    runtime: Option<Handle>,
    calls: TaskTracker,
    /// Requests whose responses have not told all yet.
    open: TaskTracker,
    said: Mutex<Option<Instant>>,
}

/// What is left to settle of a request that passed.
pub struct Unsettled {
    owed: Vec<PendingSettlement>,
    /// Whether it was charged in this process' memory because the store gave no answer.
    is_local: bool,
    /// The wall clock when it was charged.
    now: Micros,
    /// The same instant.
    start: Instant,
}

/// A request that passed and whose response has not told its cost yet. Each limit is settled once; what is not when this
/// is dropped is settled by how far the request has come.
pub struct Settling {
    settler: Arc<Settler>,
    view: Rc<View>,
    unsettled: Box<Unsettled>,
    progress: Progress,
    /// Whom a drain waits for.
    _token: TaskTrackerToken,
}

/// The progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// No upstream has seen any of it.
    Unsent,
    /// An upstream may have seen some of it.
    Sent,
    /// Its response has come, with this status.
    Answered(u16),
}

/// Changes of one request, on their way to the store.
pub(super) struct Job {
    pub(super) charges: Vec<Charge>,
    pub(super) effective_from: Micros,
    pub(super) now: Micros,
    /// What each of its limits counts if they are made, and if not.
    pub(super) counters: Vec<(Count, Count)>,
}

impl Unsettled {
    pub(super) const fn new(owed: Vec<PendingSettlement>, is_local: bool, now: Micros, start: Instant) -> Self {
        Self { owed, is_local, now, start }
    }
}

impl Limiter {
    /// Takes over what is left to settle of a request that passed; `None` if that is nothing. Until [`Settling::sent`],
    /// dropping it gives back what was reserved. A listener that sees no response leaves it where it is, and what was
    /// reserved stays.
    pub fn settling(&self, judged: &mut Judged) -> Option<Settling> {
        let unsettled = judged.unsettled.take()?;
        let settler = self.settler.clone();
        let token = settler.open.token();
        let (view, progress) = (judged.snapshot.clone(), Progress::Unsent);
        Some(Settling { settler, view, unsettled, progress, _token: token })
    }

    /// Waits until everything is settled: to be called when no more requests come.
    pub async fn settled(&self) {
        for tracker in [&self.settler.open, &self.settler.calls] {
            tracker.close();
            tracker.wait().await;
        }
    }
}

impl Settling {
    /// Some of the request may have reached an upstream: without a response nobody can know what it cost.
    pub fn sent(&mut self) {
        self.progress = Progress::Sent;
    }

    /// A response has come. `may_come` is whether trailers may follow.
    pub fn answered(&mut self, status: u16, headers: &Headers, may_come: bool) {
        self.progress = Progress::Answered(status);
        self.settle(|owed| ResponseReport::Response(status, value(owed, headers)), may_come);
    }

    /// The trailers of the response have come.
    pub fn trailers(&mut self, trailers: &Headers) {
        let Progress::Answered(status) = self.progress else { return };
        self.settle(|owed| ResponseReport::Response(status, value(owed, trailers)), false);
    }

    /// Whether nothing is left that a trailer could tell.
    pub const fn is_done(&self) -> bool {
        self.unsettled.owed.is_empty()
    }

    fn settle<'f>(&mut self, heard: impl Fn(&PendingSettlement) -> ResponseReport<'f>, may_come: bool) {
        let elapsed = micros(self.unsettled.start.elapsed());
        let now = Micros(self.unsettled.now.0.saturating_add(elapsed.0));
        let (view, settler) = (&self.view, &self.settler);
        // The rules may have changed since: written under older ones, a bucket would be cut to their burst.
        let current = settler.shared.snapshot.load();
        let has_changed = !Arc::ptr_eq(&current, &view.snapshot);
        let effective_from = current.rules.effective_from();
        let mut job = Job { charges: Vec::new(), effective_from, now, counters: Vec::new() };
        self.unsettled.owed.retain(|owed| {
            let heard = heard(owed);
            let Some((settled, charges)) = owed.settle(heard, may_come, elapsed) else { return true };
            if settled == SettlementOutcome::Unreadable {
                settler.say(view, owed, heard);
            }
            let Some(counters) = view.settlements(owed.limit) else { return false };
            let Some(limit) = view.rules().limit(owed.limit) else { return false };
            let result = result(settled);
            if charges.is_empty() {
                counters.of(result).inc();
            } else {
                job.counters.push((counters.of(result).clone(), counters.of(SettlementResult::Failed).clone()));
                job.charges.extend(
                    charges
                        .into_iter()
                        .map(|charge| if has_changed { current.rules.renumbered(charge, limit, now) } else { charge }),
                );
            }
            false
        });
        if !job.charges.is_empty() {
            settler.run(job, self.unsettled.is_local);
        }
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        if !self.is_done() {
            let heard = match self.progress {
                Progress::Unsent => ResponseReport::Unsent,
                Progress::Sent => ResponseReport::Nothing,
                Progress::Answered(status) => ResponseReport::Response(status, None),
            };
            self.settle(|_| heard, false);
        }
    }
}

impl std::fmt::Debug for Settling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settling").field("owed", &self.unsettled.owed.len()).finish_non_exhaustive()
    }
}

impl Settler {
    pub(super) fn new(shared: Arc<Shared>, store: Store) -> Arc<Self> {
        let runtime = Handle::try_current().ok();
        let (calls, open) = (TaskTracker::new(), TaskTracker::new());
        Arc::new(Self { shared, store, runtime, calls, open, said: Mutex::default() })
    }

    /// Makes changes where their request was charged. Memory answers at once, and Redis is not waited for.
    pub(super) fn run(self: &Arc<Self>, job: Job, is_local: bool) {
        if is_local {
            return job.count(self.shared.local.decide(&job.batch()).is_ok());
        }
        if let Some(store) = self.store.as_memory() {
            return job.count(store.decide(&job.batch()).is_ok());
        }
        let Some(runtime) = self.runtime.as_ref().filter(|_| self.calls.len() < MAX_UNDER_WAY) else {
            return job.count(false);
        };
        let settler = Arc::clone(self);
        self.calls.spawn_on(
            async move {
                let decided = settler.store.decide(&job.batch()).await;
                if let Err(error) = &decided {
                    settler.shared.metrics.store_error(error.kind());
                }
                job.count(decided.is_ok());
            },
            runtime,
        );
    }

    /// Says that a response has a header that tells no cost.
    fn say(&self, view: &View, owed: &PendingSettlement, heard: ResponseReport<'_>) {
        let mut said = self.said.lock();
        if said.is_some_and(|said| said.elapsed() < SAID_EVERY) {
            return;
        }
        *said = Some(Instant::now());
        let limit = view.rules().limit(owed.limit).map_or("", |limit| limit.name.as_str());
        let ResponseReport::Response(_, Some(value)) = heard else { return };
        let shown = headers::text(value.get(..SHOWN).unwrap_or(value)).unwrap_or("no text");
        let header = owed.cost.header.as_ref().map(http::HeaderName::as_str);
        tracing::warn!(limit, header, value = shown, "a response tells its cost, and that is no whole number");
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

/// What a limit's header says. One that comes several times is a list (RFC 9110 section 5.3), which is no number.
fn value<'f>(owed: &PendingSettlement, headers: &'f Headers) -> Option<&'f [u8]> {
    let name = owed.cost.header.as_ref()?.as_str();
    let first = headers.get(name)?;
    Some(if headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name.as_bytes())).count() > 1 {
        b"a list"
    } else {
        first
    })
}

const fn result(settled: SettlementOutcome) -> SettlementResult {
    match settled {
        SettlementOutcome::Charged => SettlementResult::Charged,
        SettlementOutcome::Refunded => SettlementResult::Refunded,
        SettlementOutcome::Unchanged => SettlementResult::Unchanged,
        SettlementOutcome::Absent => SettlementResult::Absent,
        SettlementOutcome::Unreadable => SettlementResult::Unreadable,
        SettlementOutcome::Unanswered => SettlementResult::Unanswered,
    }
}

fn micros(span: Duration) -> Micros {
    Micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}
