//! From a request to its verdict: charges, store, failure policy, metrics. Every listener goes through here.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use arc_swap::{ArcSwap, Cache};
use parking_lot::Mutex;
use prometheus::local::LocalHistogram;
use tokio::task::spawn_local;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::engine::algorithms::charge::{Charge, Decisions, Mode};
use crate::engine::algorithms::numbers::Micros;
use crate::engine::answer::accepted;
use crate::engine::answer::verdict::{Answer, Standing, Unanswered, Verdict};
use crate::engine::rules::blocks::Blocks;
use crate::engine::rules::limit::{Limit, StoreErrorPolicy};
use crate::engine::rules::named::{NamedCharge, NamedChargeError};
use crate::engine::rules::plan::{ChargeOrigin, InvalidInput, Plan};
use crate::engine::rules::request::Request;
use crate::engine::rules::rule_set::Rules;
use crate::store::memory::{MemoryStore, Usage};
use crate::store::{Batch, Store, StoreError};
use crate::telemetry::metrics::{
    DecisionListener, DecisionResult, LimitMetrics, LimitTallies, Metrics, SettlementMetrics, observe,
};

pub mod denials;
mod descriptors;
mod keys;
mod local_store;
pub mod operator;
mod purpose;
mod scripts;
mod settlement;
mod slots;
mod throttle;
mod uncharged;

use denials::{Refusal, RefusalLog, Refusals};
pub use descriptors::JudgedDescriptors;
pub use keys::{DEFAULT_MAX_NEW_KEYS, KeyBounds};
use keys::{NewKeys, Newcomers, Recent, limit_keys};
pub use purpose::{Objection, Purpose};
use settlement::Settler;
pub use settlement::{Settling, Unsettled};
pub use slots::InFlight;
use slots::Slots;
pub use throttle::Throttle;

/// What all workers share: the rules in force, what is blocked, and the memory that stands in for a store that is away.
pub struct Shared {
    snapshot: Arc<ArcSwap<Snapshot>>,
    /// What an operator has blocked, as far as this process knows.
    blocks: Arc<ArcSwap<Blocks>>,
    metrics: Arc<Metrics>,
    refusal_log: Arc<RefusalLog>,
    /// Buckets of limits with `on_store_error: local`. Its own table, so that they begin full when the store goes away.
    local: MemoryStore,
    /// When the store failed last, until `local` is emptied.
    store_failed: Mutex<Option<Instant>>,
    bounds: KeyBounds,
}

/// Rules, and the handles of their limits' metrics in the same order.
struct Snapshot {
    rules: Rules,
    limits: Vec<LimitMetrics>,
    /// What counts the charges to buckets that new ids share.
    limited: Vec<Arc<AtomicU64>>,
    /// Whether a worker has had the scripts of the rules compiled.
    scripts_checked: AtomicBool,
    /// Limits whose scripts give values that are no headers.
    warned_of_values: Mutex<HashSet<u32>>,
    /// Of the limits that settle by responses.
    settlements: Vec<Option<SettlementMetrics>>,
    refusals: Refusals,
}

/// The rules in force, as one worker has them: its requests share them and count without a word to the other workers.
/// The count of an `Arc` would go from core to core with every request.
pub struct View {
    snapshot: Arc<Snapshot>,
    metrics: Arc<Metrics>,
    /// In the order of the rules.
    limits: Vec<LimitTallies>,
    /// In the same order.
    new_keys: Vec<NewKeys>,
    /// Refusals that had no line in the log, in the same order.
    suppressed: Vec<Cell<u64>>,
}

impl View {
    fn new(snapshot: &Arc<Snapshot>, metrics: &Arc<Metrics>) -> Rc<Self> {
        let limits = snapshot.limits.iter().map(|_| LimitTallies::default()).collect();
        let new_keys = snapshot.limits.iter().map(|_| NewKeys::default()).collect();
        let suppressed = snapshot.limits.iter().map(|_| Cell::default()).collect();
        Rc::new(Self { snapshot: snapshot.clone(), metrics: metrics.clone(), limits, new_keys, suppressed })
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.snapshot.rules
    }

    /// What counts the settlements of a limit.
    fn settlements(&self, limit: u32) -> Option<&SettlementMetrics> {
        self.snapshot.settlements.get(limit as usize)?.as_ref()
    }
}

impl Shared {
    /// Puts the first rules in force. Refused requests are not logged.
    pub fn new(rules: Rules, metrics: Arc<Metrics>, local: MemoryStore) -> Self {
        Self::logging(rules, metrics, local, RefusalLog::new(None, denials::ShownIds::default()))
    }

    /// As [`Self::new`], and logs refused requests.
    pub fn logging(rules: Rules, metrics: Arc<Metrics>, local: MemoryStore, log: RefusalLog) -> Self {
        let refusal_log = Arc::new(log);
        local.set_limits(&limit_keys(&rules, &metrics), rules.effective_from());
        let snapshot = Arc::new(ArcSwap::from_pointee(snapshot(rules, &metrics, &refusal_log)));
        let store_failed = Mutex::default();
        Self {
            snapshot,
            blocks: Arc::default(),
            metrics,
            refusal_log,
            local,
            store_failed,
            bounds: KeyBounds::default(),
        }
    }

    /// With these bounds on buckets.
    #[must_use]
    pub fn bounded(self, bounds: KeyBounds) -> Self {
        let shared = Self { bounds, ..self };
        shared.divide_keys(&shared.snapshot.load().rules);
        shared
    }

    /// Tells the tables in memory which limits there are.
    fn divide_keys(&self, rules: &Rules) {
        let keys = limit_keys(rules, &self.metrics);
        for table in self.bounds.memory.as_deref().into_iter().chain([&self.local]) {
            table.set_limits(&keys, rules.effective_from());
        }
    }

    /// Puts new rules in force. Requests that have begun keep the old ones.
    pub fn replace(&self, rules: Rules) {
        let mut snapshot = snapshot(rules, &self.metrics, &self.refusal_log);
        self.divide_keys(&snapshot.rules);
        let last = self.snapshot.load();
        snapshot.refusals.take_over(&snapshot.rules, &last.refusals, &last.rules);
        self.snapshot.store(Arc::new(snapshot));
        let current = self.snapshot.load();
        let kept: HashSet<&str> = current.rules.names().collect();
        self.metrics.forget_limits(|name| kept.contains(name));
    }

    /// Blocks these ids from the next request on, and no others.
    fn block(&self, blocks: Blocks) {
        self.metrics.blocks.set(i64::try_from(blocks.list().len()).unwrap_or(i64::MAX));
        self.blocks.store(Arc::new(blocks));
    }

    /// What the memory holds that stands in for a store that is away.
    pub fn local_usage(&self) -> Usage {
        self.local.usage()
    }

    /// How ids are told where requests are logged.
    pub fn shown_ids(&self) -> denials::ShownIds {
        self.refusal_log.ids
    }

    /// The metrics.
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

fn snapshot(rules: Rules, metrics: &Metrics, refusal_log: &Arc<RefusalLog>) -> Snapshot {
    let limits = rules.names().map(|name| metrics.limit(name)).collect();
    let settles = |limit: &Limit| limit.response_cost.as_ref().map(|_| metrics.settlements(&limit.name));
    let settlements = rules.limits().iter().map(settles).collect();
    let refusals = Refusals::new(refusal_log, rules.names());
    let (scripts_checked, warned_of_values) = (AtomicBool::new(false), Mutex::default());
    let limited = rules.names().map(|name| metrics.keys_limited(name)).collect();
    Snapshot { rules, limits, limited, scripts_checked, warned_of_values, settlements, refusals }
}

/// A worker's limiter: the shared rules and its own connection to the store.
pub struct Limiter {
    shared: Arc<Shared>,
    store: Store,
    settler: Arc<Settler>,
    view: RefCell<CachedView>,
    blocks: RefCell<Cache<Arc<ArcSwap<Blocks>>, Arc<Blocks>>>,
    slots: Rc<Slots>,
    /// What this worker has charged in Redis.
    recent: Option<Recent>,
    /// Renews slots; it is there from the first request on that could have one.
    keeper: OnceCell<AbortOnDropHandle<()>>,
    /// What this worker has timed since [`Self::flush`]. To add to the histogram that all share takes 40 ns of atomics.
    /// In the order of [`DecisionListener::ALL`].
    seconds: [LocalHistogram; DecisionListener::ALL.len()],
    /// What is logged of the store's errors.
    complaints: Throttle,
    /// Whether the store has answered since [`Self::flush`].
    answered: Cell<bool>,
    /// Limits how often the log says that requests are rejected.
    overloads: Throttle,
}

/// A worker's view, and how it learns that there are other rules.
struct CachedView {
    snapshot: Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>,
    view: Rc<View>,
}

/// A verdict, and the rules that it speaks of.
pub struct Judged {
    /// The rules that were in force.
    pub snapshot: Rc<View>,
    /// The verdict.
    pub verdict: Verdict,
    /// The slots that it holds from here on, if it may pass and was asked about by [`Limiter::judge_in_flight`].
    pub in_flight: Option<Box<InFlight>>,
    /// What the response has to tell; see [`Limiter::settling`].
    pub unsettled: Option<Box<Unsettled>>,
    /// Who has asked.
    pub listener: DecisionListener,
    /// What is to be logged of its refusal.
    refusals: Vec<Refusal>,
}

/// How a plan is decided.
struct Terms {
    /// What its charges do.
    mode: Mode,
    /// Who asks.
    listener: DecisionListener,
    /// The wall clock.
    now: Micros,
    /// When the request had come.
    start: Instant,
    /// When the caller does not wait any longer.
    deadline: Option<Instant>,
    /// Whether the caller sees the request end, and so may hold slots.
    sees_end: bool,
}

impl Limiter {
    /// A limiter to a store.
    pub fn new(shared: Arc<Shared>, store: Store) -> Self {
        let seconds = DecisionListener::ALL.map(|listener| shared.metrics.decision_seconds(listener).local());
        let mut snapshot = Cache::new(shared.snapshot.clone());
        let view = View::new(snapshot.load(), &shared.metrics);
        let slots = Slots::new(shared.clone(), store.clone());
        let view = RefCell::new(CachedView { snapshot, view });
        let settler = Settler::new(shared.clone(), store.clone());
        let (keeper, answered) = (OnceCell::new(), Cell::default());
        let (complaints, overloads) = (Throttle::default(), Throttle::default());
        let blocks = RefCell::new(Cache::new(shared.blocks.clone()));
        let recent = store.is_remote().then(Recent::new);
        Self { shared, store, settler, view, blocks, slots, recent, keeper, seconds, complaints, answered, overloads }
    }

    /// Adds what was timed to the metrics, lets go of rules that are not in force any more, and has scripts of new ones
    /// compiled. To be called about once a second.
    pub fn flush(&self) {
        self.seconds.iter().for_each(LocalHistogram::flush);
        self.note_store();
        let view = self.view();
        view.flush_refusals(false);
        view.snapshot.check_scripts(&self.store);
    }

    /// The rules in force.
    pub fn view(&self) -> Rc<View> {
        let mut cached = self.view.borrow_mut();
        let CachedView { snapshot, view } = &mut *cached;
        let snapshot = snapshot.load();
        if !Arc::ptr_eq(snapshot, &view.snapshot) {
            *view = View::new(snapshot, &self.shared.metrics);
        }
        view.clone()
    }

    /// What is blocked; `None` if nothing is, which is what most requests find.
    fn blocks(&self) -> Option<Arc<Blocks>> {
        let mut cached = self.blocks.borrow_mut();
        let blocks = cached.load();
        (!blocks.is_empty()).then(|| blocks.clone())
    }

    /// What the workers share.
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The store.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Decides a request. Nothing waits longer than the store's own timeout; a store that fails costs the request at
    /// hand what its limits' `on_store_error` says. The error is the client's: it names its own cost and it is none.
    ///
    /// The time that it takes is counted from `start`, when the request had come.
    pub async fn judge(
        &self,
        request: &Request<'_>,
        listener: DecisionListener,
        start: Instant,
    ) -> Result<Judged, InvalidInput> {
        self.judge_until(request, listener, start, None).await
    }

    /// As [`Self::judge`], for a caller who does not wait beyond `deadline`: then the store is given up, whatever its own
    /// timeout, and the answer is that of `on_store_error`.
    pub async fn judge_until(
        &self,
        request: &Request<'_>,
        listener: DecisionListener,
        start: Instant,
        deadline: Option<Instant>,
    ) -> Result<Judged, InvalidInput> {
        let snapshot = self.view();
        let mut plan = snapshot.rules().charges_but(request, self.blocks().as_deref())?;
        let terms = Terms { mode: Mode::Spend, listener, now: request.now, start, deadline, sees_end: false };
        Ok(self.decide(snapshot, &mut plan, &terms).await)
    }

    /// As [`Self::judge`], for a caller that sees the request to its end: it keeps [`Judged::in_flight`] until then. For
    /// others a limit of requests in flight only says whether there is room.
    pub async fn judge_in_flight(
        &self,
        request: &Request<'_>,
        listener: DecisionListener,
        start: Instant,
    ) -> Result<Judged, InvalidInput> {
        let snapshot = self.view();
        let mut plan = snapshot.rules().charges_but(request, self.blocks().as_deref())?;
        let terms = Terms { mode: Mode::Spend, listener, now: request.now, start, deadline: None, sees_end: true };
        Ok(self.decide(snapshot, &mut plan, &terms).await)
    }

    /// Gives back all slots of requests in flight, and logs what is left to log. To be called at the end, when what still
    /// runs is about to be dropped.
    pub async fn close(&self) {
        self.view().flush_refusals(true);
        self.slots.close().await;
    }

    /// As [`Self::judge`], for a caller that does something else than to spend, says itself what the request costs, or
    /// cannot give an answer of its own to a request that passes.
    pub async fn judge_as(
        &self,
        request: &Request<'_>,
        Purpose { mode, cost, can_accept }: Purpose,
        listener: DecisionListener,
        start: Instant,
    ) -> Result<Judged, Objection> {
        let snapshot = self.view();
        // What has happened cannot be denied any more: what was taken before a block may come back after it has begun.
        let blocks = self.blocks().filter(|_| mode.can_deny());
        let mut plan = snapshot.rules().charges_but(request, blocks.as_deref())?;
        if !mode.can_deny() {
            plan.denials.clear();
        }
        if let Some(limit) = plan.accepting(snapshot.rules()).filter(|_| !can_accept) {
            return Err(Objection::Accepts(limit.name.clone()));
        }
        snapshot.rules().check_plan(&plan, mode, cost)?;
        plan.adjust(snapshot.rules(), mode, cost);
        let terms = Terms { mode, listener, now: request.now, start, deadline: None, sees_end: false };
        Ok(self.decide(snapshot, &mut plan, &terms).await)
    }

    /// Decides charges that name their limits, as [`Self::judge`] does those of a request. The error is the caller's.
    pub async fn judge_named(
        &self,
        charges: &[NamedCharge],
        mode: Mode,
        listener: DecisionListener,
        now: Micros,
        start: Instant,
    ) -> Result<Judged, NamedChargeError> {
        let snapshot = self.view();
        let mut plan = snapshot.rules().named_but(charges, mode, now, self.blocks().as_deref())?;
        Ok(self
            .decide(snapshot, &mut plan, &Terms { mode, listener, now, start, deadline: None, sees_end: false })
            .await)
    }

    async fn decide(&self, snapshot: Rc<View>, plan: &mut Plan, terms: &Terms) -> Judged {
        // What asks or gives back is no decision about a request, and is not counted as one.
        let is_counted = matches!(terms.mode, Mode::Spend | Mode::SpendOnly);
        for limit in plan.unlimited.iter().filter(|_| is_counted) {
            snapshot.count(*limit, DecisionResult::Unlimited);
        }
        let mut in_flight = None;
        let mut is_local = false;
        let verdict = if plan.is_denied() {
            self.count_denied(&snapshot, plan.charges.iter(), terms.now, false);
            Verdict::refused(plan)
        } else if plan.charges.is_empty() {
            Verdict::refused(plan)
        } else {
            let effective_from = snapshot.rules().effective_from();
            if let Some(recent) = &self.recent {
                for (place, origin) in plan.origins.iter().enumerate() {
                    self.bound_new(recent, &snapshot, &mut plan.charges, (place, origin.limit), terms.now);
                }
            }
            if terms.sees_end {
                in_flight = self.slots.name(&mut plan.charges, effective_from, terms.now, terms.start);
            }
            if in_flight.is_some() {
                self.keeper.get_or_init(|| AbortOnDropHandle::new(spawn_local(self.slots.clone().keep())));
            }
            let batch = Batch { charges: &plan.charges, effective_from, now: terms.now };
            match self.ask(&batch, terms.deadline).await {
                Ok(mut decisions) => {
                    in_flight = in_flight.and_then(|slots| slots.decided(&plan.charges, &decisions));
                    plan.correct(&mut decisions);
                    Verdict::decided(plan, &decisions)
                }
                Err(error) => {
                    is_local = true;
                    self.without_store(&snapshot, plan, terms.now, &error, in_flight.as_deref_mut())
                }
            }
        };
        let mut refusals = Vec::new();
        if is_counted {
            snapshot.count_verdict(&verdict, terms.start, &mut refusals);
            snapshot.count_uncharged(&verdict, plan.origins.iter().map(|origin| origin.limit));
            snapshot.name(&mut refusals, &verdict, &plan.charges);
        }
        snapshot.snapshot.warn_of_values(&verdict);
        let settles = !plan.reservations.is_empty() && verdict.is_allowed();
        let owed = settles
            .then(|| plan.pending_settlements(snapshot.rules(), |origin| verdict.decision(origin)))
            .filter(|owed| !owed.is_empty());
        let unsettled = owed.map(|owed| Box::new(Unsettled::new(owed, is_local, terms.now, terms.start)));
        self.took(terms.listener, terms.start);
        let in_flight = in_flight.filter(|_| verdict.is_allowed());
        let goes_on = unsettled.is_none() || !accepted::is_accepted(snapshot.rules(), &verdict);
        let mut judged = Judged { snapshot, verdict, in_flight, unsettled, listener: terms.listener, refusals };
        if !goes_on {
            // No upstream will see the request, so what was reserved is given back.
            drop(self.settling(&mut judged));
        }
        judged
    }

    /// Times a verdict.
    fn took(&self, listener: DecisionListener, start: Instant) {
        self.seconds[listener as usize].observe(start.elapsed().as_secs_f64());
    }

    /// Lets new ids of a limit share a bucket in Redis if there are more of them than there may be.
    fn bound_new(
        &self,
        recent: &Recent,
        snapshot: &View,
        charges: &mut [Charge],
        (place, limit): (usize, u32),
        now: Micros,
    ) {
        let rules = snapshot.rules();
        let newcomers = || {
            let (new_keys, limited) =
                (snapshot.new_keys.get(limit as usize)?, snapshot.snapshot.limited.get(limit as usize)?);
            Some(Newcomers { limit: rules.limit(limit)?, new_keys, limited })
        };
        recent.bound(charges, place, newcomers, (now, self.shared.bounds.max_new_keys, rules.fingerprinter()));
    }

    async fn ask(&self, batch: &Batch<'_>, deadline: Option<Instant>) -> Result<Decisions, StoreError> {
        // A decision in memory takes less time than to read the clock twice; the verdict's own time covers it.
        if let Some(store) = self.store.as_memory() {
            return store.decide(batch);
        }
        self.wait(self.store.decide(batch), deadline).await
    }

    /// Asks for several requests one after the other, as [`Self::ask`] does for one.
    async fn ask_in_turn(
        &self,
        batches: &[Batch<'_>],
        deadline: Option<Instant>,
    ) -> Result<Vec<Decisions>, StoreError> {
        self.wait(self.store.decide_in_turn(batches), deadline).await
    }

    /// Waits for an answer of the store, and times it.
    async fn wait<T>(
        &self,
        answer: impl Future<Output = Result<T, StoreError>>,
        deadline: Option<Instant>,
    ) -> Result<T, StoreError> {
        let asked = Instant::now();
        let patience = deadline.map(|deadline| deadline.saturating_duration_since(asked));
        // Most callers wait longer than the store takes at most, and need no timer of their own.
        let decided = match patience.filter(|patience| *patience < self.store.timeout()) {
            Some(patience) => timeout(patience, answer).await.unwrap_or(Err(StoreError::Late(patience))),
            None => answer.await,
        };
        observe(&self.shared.metrics.store_seconds, asked.elapsed());
        if decided.is_ok() {
            self.answered.set(true);
        }
        decided
    }

    /// Tells the operator of a store that answers wrongly, or late. That it is away, its own task says.
    fn complain(&self, error: &StoreError) {
        if matches!(error, StoreError::Refused(_) | StoreError::Late(_))
            && let Some(suppressed) = self.complaints.pass()
        {
            tracing::error!(suppressed, "no decision: {error}");
        }
        if matches!(error, StoreError::Busy { .. })
            && let Some(suppressed) = self.overloads.pass()
        {
            tracing::warn!(suppressed, "rejecting requests: {error}");
        }
    }

    /// The verdict by each limit's `on_store_error`.
    fn without_store(
        &self,
        snapshot: &View,
        plan: &mut Plan,
        now: Micros,
        error: &StoreError,
        mut in_flight: Option<&mut InFlight>,
    ) -> Verdict {
        self.failed(error);
        if let Some(slots) = &mut in_flight {
            slots.unanswered(error);
        }
        if matches!(error, StoreError::Busy { .. }) && plan.origins.iter().any(|origin| origin.enforced) {
            return overloaded(plan);
        }
        let policy =
            |limit: u32| snapshot.rules().limit(limit).map_or(StoreErrorPolicy::Allow, |limit| limit.on_store_error);
        let mut unanswered: Vec<Unanswered> = Vec::new();
        for origin in &plan.origins {
            let policy = policy(origin.limit);
            if policy != StoreErrorPolicy::Local && unanswered.last().is_none_or(|last| last.limit != origin.limit) {
                let refuses = origin.enforced && policy == StoreErrorPolicy::Deny;
                unanswered.push(Unanswered { limit: origin.limit, refuses });
            }
        }
        let is_local = |origin: &ChargeOrigin| policy(origin.limit) == StoreErrorPolicy::Local;
        if unanswered.iter().any(|limit| limit.refuses) {
            // A request that is denied anyway must not be charged locally.
            let pairs = plan.origins.iter().zip(&plan.charges);
            let charges = pairs.filter_map(|(origin, charge)| is_local(origin).then_some(charge));
            self.count_denied(snapshot, charges, now, true);
            return Verdict::refused(plan).unanswered(unanswered);
        }
        let mut keep = plan.origins.iter().map(is_local);
        plan.charges.retain(|_| keep.next().unwrap_or(false));
        plan.origins.retain(|origin| is_local(origin));
        let effective_from = snapshot.rules().effective_from();
        let batch = Batch { charges: &plan.charges, effective_from, now };
        let mut decisions = self.shared.local.decide(&batch).unwrap_or_default();
        if let Some(slots) = in_flight {
            slots.decided_locally(&plan.charges, &decisions, effective_from);
        }
        plan.correct(&mut decisions);
        Verdict::decided(plan, &decisions).unanswered(unanswered)
    }
}

/// The verdict when too many requests are waiting for the store. `on_store_error` does not apply, or a flood could switch
/// limits off.
fn overloaded(plan: &mut Plan) -> Verdict {
    let mut unanswered: Vec<Unanswered> = Vec::new();
    for ChargeOrigin { limit, enforced, .. } in plan.origins.drain(..) {
        if unanswered.last().is_none_or(|last| last.limit != limit) {
            unanswered.push(Unanswered { limit, refuses: enforced });
        }
    }
    plan.charges.clear();
    Verdict::decided(plan, &Decisions::default()).overloaded(unanswered)
}

impl View {
    fn count(&self, limit: u32, result: DecisionResult) {
        let place = limit as usize;
        if let (Some(tallies), Some(limit)) = (self.limits.get(place), self.snapshot.limits.get(place)) {
            tallies.count(&self.metrics, limit, result);
        }
    }

    /// Counts each limit once, however many windows it has. What is to be logged goes to `refusals`.
    fn count_verdict(&self, verdict: &Verdict, start: Instant, refusals: &mut Vec<Refusal>) {
        for windows in verdict.answers.chunk_by(|a, b| a.limit == b.limit) {
            let Some(first) = windows.first() else { continue };
            let result = if windows.iter().any(Answer::would_deny) {
                DecisionResult::ShadowDenied
            } else if windows.iter().any(|answer| answer.decision.is_denied()) {
                DecisionResult::Denied
            } else if verdict.is_allowed() {
                DecisionResult::Allowed
            } else {
                DecisionResult::Uncharged
            };
            self.count(first.limit, result);
            if matches!(result, DecisionResult::Denied | DecisionResult::ShadowDenied) {
                self.refused(first.limit, result, start, refusals);
            }
        }
        for limit in &verdict.unanswered {
            let refused = limit.refuses;
            if verdict.standing == Standing::Overloaded {
                self.count(limit.limit, DecisionResult::Rejected);
                continue;
            }
            self.count(limit.limit, if refused { DecisionResult::ErrorDenied } else { DecisionResult::ErrorAllowed });
            if refused {
                self.refused(limit.limit, DecisionResult::ErrorDenied, start, refusals);
            }
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::engine::algorithms::numbers::{Allowance, Numbers};
    use crate::engine::rules::component::{Component, ComponentSource};
    use crate::engine::rules::fingerprint::Fingerprinter;
    use crate::engine::rules::identity::Fallback;
    use crate::engine::rules::limit::{Limit, LimitMode};
    use crate::engine::rules::request::sample;
    use crate::engine::rules::value_type::ValueType;
    use crate::message::headers::Headers;

    /// A limit that allows `burst` and never refills.
    fn limit(name: &str, burst: u64) -> Limit {
        let windows = [Numbers::fixed(burst).unwrap()].into();
        let by = vec![Component::new(ComponentSource::Method, ValueType::Text)];
        Limit { by, allowance: Allowance::Windows(windows), ..Limit::new(name) }
    }

    fn limiter(limits: Vec<Limit>) -> Limiter {
        let rules = Rules::new(limits, Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let store = || MemoryStore::new(1_000);
        let shared = Shared::new(rules, Arc::new(Metrics::new().unwrap()), store());
        Limiter::new(Arc::new(shared), Store::Memory(Arc::new(store())))
    }

    fn request<'a>(method: &'a str, headers: &'a Headers) -> Request<'a> {
        Request { method, ..sample(headers) }
    }

    async fn ask(limiter: &Limiter, method: &str) -> Verdict {
        limiter.judge(&request(method, &Headers::new()), DecisionListener::Proxy, Instant::now()).await.unwrap().verdict
    }

    /// Asks `times` times and counts: allowed, denied, unavailable.
    async fn count(limiter: &Limiter, times: usize) -> [usize; 3] {
        let mut counts = [0; 3];
        for _ in 0..times {
            counts[ask(limiter, "GET").await.standing as usize] += 1;
        }
        counts
    }

    fn metric(limiter: &Limiter, line: &str) -> String {
        let text = String::from_utf8(limiter.shared.metrics.render().unwrap()).unwrap();
        text.lines().find_map(|found| found.strip_prefix(line)).unwrap_or("absent").trim().to_owned()
    }

    #[tokio::test]
    async fn a_denied_request_costs_no_other_limit() {
        let limiter = limiter(vec![limit("Wide", 100), limit("Narrow", 3)]);
        assert_eq!(count(&limiter, 10).await, [3, 7, 0]);
        let left = ask(&limiter, "GET").await;
        assert_eq!(left.answers[0].decision.remaining, 97);
        assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Wide\",result=\"uncharged\"}"), "8");
        assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Narrow\",result=\"denied\"}"), "8");
    }

    /// envoyproxy/envoy#46390: an exhausted shadow limit must not keep the enforced one beside it from counting.
    #[tokio::test]
    async fn shadow_reports_and_hides_nothing() {
        let shadow = Limit { mode: LimitMode::Shadow, ..limit("Shadow", 2) };
        let limiter = limiter(vec![shadow, limit("Enforced", 5)]);
        assert_eq!(count(&limiter, 10).await, [5, 5, 0]);
        assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Shadow\",result=\"allowed\"}"), "2");
        assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Enforced\",result=\"allowed\"}"), "5");
        assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Shadow\",result=\"shadow_denied\"}"), "8");
    }

    #[tokio::test]
    async fn limits_that_need_no_store_answer_by_themselves() {
        let unlimited = Limit { allowance: Allowance::Unlimited, ..limit("Free", 1) };
        let refusing = Limit { allowance: Allowance::Deny, ..limit("Closed", 1) };
        let limiter = limiter(vec![unlimited, refusing, limit("Counted", 5)]);
        let verdict = ask(&limiter, "GET").await;
        assert_eq!((verdict.standing, verdict.answers.len()), (Standing::Denied, 1));
        assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Free\",result=\"unlimited\"}"), "1");
        assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Counted\",result=\"uncharged\"}"), "1");
    }

    #[tokio::test]
    async fn what_has_happened_is_counted_beside_a_limit_that_denies_by_itself() {
        let closed = Limit { allowance: Allowance::Deny, ..limit("Closed", 1) };
        let limiter = limiter(vec![closed, limit("Counted", 5)]);
        let headers = Headers::new();
        for (mode, allowed, left) in [
            (Mode::Spend, false, None),
            (Mode::Check, false, None),
            (Mode::SpendOnly, true, Some(4)),
            (Mode::SpendUpTo, true, Some(3)),
            (Mode::Refund, true, Some(4)),
            (Mode::Reset, true, Some(5)),
        ] {
            let purpose = Purpose { mode, cost: None, can_accept: true };
            let asked = request("GET", &headers);
            let judged = limiter.judge_as(&asked, purpose, DecisionListener::Check, Instant::now()).await.unwrap();
            let verdict = judged.verdict;
            let counted = verdict.answers.iter().find(|answer| answer.limit == 1);
            let found = counted.map(|answer| answer.decision.remaining);
            assert_eq!((verdict.is_allowed(), found), (allowed, left), "{mode:?}");
        }
    }

    #[tokio::test]
    async fn a_limit_that_counts_denied_requests_counts_those_that_another_denies_by_itself() {
        let numbers = Numbers::sliding_window(5, 3_600_000_000_000, true).unwrap();
        let counting = Limit { allowance: Allowance::Windows([numbers].into()), ..limit("Counting", 1) };
        let header = Component::new(ComponentSource::Header(http::HeaderName::from_static("x-id")), ValueType::Text);
        let named = Limit { by: vec![header], missing: Fallback::Deny, ..limit("Named", 9) };
        let limiter = limiter(vec![named, counting]);
        for _ in 0..3 {
            assert!(!ask(&limiter, "GET").await.is_allowed());
        }
        let headers = Headers::from_iter([("x-id", "1")]);
        let verdict =
            limiter.judge(&request("GET", &headers), DecisionListener::Proxy, Instant::now()).await.unwrap().verdict;
        assert_eq!((verdict.is_allowed(), verdict.answers[1].decision.remaining), (true, 1));
        assert_eq!(metric(&limiter, "weir_decisions_total{limit=\"Counting\",result=\"uncharged\"}"), "3");
    }

    /// What becomes of ten requests to a limit of 3 while the store is down.
    fn without_store(policies: &[StoreErrorPolicy]) -> [usize; 3] {
        let limits = (0..)
            .zip(policies)
            .map(|(place, policy)| Limit { on_store_error: *policy, ..limit(&format!("L{place}"), 3) });
        let limiter = limiter(limits.collect());
        let mut counts = [0; 3];
        for _ in 0..10 {
            let snapshot = limiter.view();
            let mut plan = snapshot.rules().charges(&request("GET", &Headers::new())).unwrap();
            counts
                [limiter.without_store(&snapshot, &mut plan, Micros(0), &StoreError::Down, None).standing as usize] +=
                1;
        }
        assert_eq!(metric(&limiter, "weir_store_errors_total{kind=\"down\"}"), "10");
        counts
    }

    #[test]
    fn each_limit_has_its_own_policy_when_the_store_is_down() {
        use StoreErrorPolicy::{Allow, Deny, Local};
        assert_eq!(without_store(&[Allow]), [10, 0, 0]);
        assert_eq!(without_store(&[Deny]), [0, 0, 10]);
        assert_eq!(without_store(&[Local]), [3, 7, 0]);
        assert_eq!(without_store(&[Allow, Local]), [3, 7, 0]);
        assert_eq!(without_store(&[Local, Deny]), [0, 0, 10]);
    }

    #[tokio::test]
    async fn new_rules_hold_from_the_next_request_on() {
        let limiter = limiter(vec![limit("L", 3)]);
        assert_eq!(count(&limiter, 5).await, [3, 2, 0]);
        let rules = Rules::new(vec![limit("L", 5)], Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        limiter.shared.replace(rules);
        // Three were used and stay used.
        assert_eq!(count(&limiter, 5).await, [2, 3, 0]);
    }
}
