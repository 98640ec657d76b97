//! Tokens for gateways that count requests by themselves, and the gateways that share them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::decision_request::DecisionRequest;
use super::{Limiter, LimiterVerdict};
use crate::clock::micros;
use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::charging::descriptors::{Descriptor, DescriptorMode, DescriptorRequest, Hits};
use crate::engine::charging::quota_lease::{FILL, QuotaLease, QuotaShare};
use crate::engine::charging::quota_pool::{LONGEST_TURN, QuotaCharge, QuotaPool, QuotaState, SHORTEST_TURN};
use crate::engine::deciding::DecisionSubject;
use crate::engine::deciding::verdict::{LimitDecision, VerdictKind};
use crate::engine::request::DescriptorEntry;
use crate::telemetry::metrics::DecisionListener;

/// The time for the turn of a bucket, and for each of its gateways. With more of them, turns are rarer.
const TURN_COST: Micros = Micros(500);
const MEMBER_COST: Micros = Micros(20);

/// A store that does not answer for this time has failed. A late answer is no failure yet.
const UNANSWERED: Micros = Micros(5_000_000);

/// The descriptor of a gateway's bucket, and what is asked of its limits.
#[derive(Clone, Copy, Debug)]
pub struct QuotaCall<'a> {
    pub domain: &'a str,
    /// In any order.
    pub entries: &'a [DescriptorEntry<'a>],
    pub hits: Hits,
    /// [`DescriptorMode::Lease`], or what has been used without a lease.
    pub purpose: DescriptorMode,
    pub now: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaAnswer {
    /// No limit denies anything: none applies, or those in shadow.
    Unlimited,
    /// Everything is denied, whatever the tokens.
    Denied,
    Limited(QuotaState),
    /// The store has not answered in time. The policies of the limits allow or deny requests then.
    Unanswered {
        allows: bool,
    },
}

impl Limiter {
    /// Takes tokens ahead of requests, or gives them back.
    pub async fn lease(&self, call: QuotaCall<'_>) -> QuotaAnswer {
        let ordered = self.view().rules().order(call.domain, call.entries);
        let entries = ordered.as_deref().unwrap_or(call.entries);
        let descriptors = [Descriptor { entries, hits: call.hits, carried: None }];
        let QuotaCall { domain, purpose, now, .. } = call;
        let question = DescriptorRequest { domain, descriptors: &descriptors, purpose, now };
        let subject = DecisionSubject::Descriptors(&question);
        match self.decide(DecisionRequest::new(subject, DecisionListener::RateLimit, Instant::now())).await {
            Ok(decided) => answer(&decided, call.hits),
            // A queue that takes nothing without its fields.
            Err(_) => QuotaAnswer::Denied,
        }
    }

    /// Returns true if other processes may use the same buckets.
    pub fn has_remote_store(&self) -> bool {
        self.store.is_remote()
    }

    /// Runs what remains to be done for a gateway that is gone. The end of the worker waits for it.
    pub fn finish_lease(&self, work: impl Future<Output = ()> + 'static) {
        self.settler.finish(work);
    }
}

fn answer(decided: &LimiterVerdict, hits: Hits) -> QuotaAnswer {
    let verdict = &decided.verdict;
    let hits = match hits {
        Hits::Take(hits) | Hits::TakeOrDrain(hits) | Hits::GiveBack(hits) => hits.max(1),
    };
    let states = verdict.enforced().filter_map(|answer| state(answer, hits, verdict.is_allowed()));
    let state = states.reduce(|one, other| QuotaState {
        is_taken: one.is_taken,
        left: one.left.min(other.left),
        used: one.used.max(other.used),
        burst: one.burst.min(other.burst),
        rate: one.rate.min(other.rate),
        window: one.window.into_iter().chain(other.window).min(),
        refills: one.refills || other.refills,
    });
    let has_tokens_left = || verdict.binding().is_some_and(|binding| binding.counted_numbers().is_some());
    match (verdict.kind, state) {
        (VerdictKind::Overloaded | VerdictKind::Unavailable, _) => QuotaAnswer::Unanswered { allows: false },
        (VerdictKind::Denied, Some(state)) if has_tokens_left() => QuotaAnswer::Limited(state),
        (VerdictKind::Denied, _) => QuotaAnswer::Denied,
        (VerdictKind::Allowed, Some(state)) => QuotaAnswer::Limited(state),
        (VerdictKind::Allowed, None) if verdict.unanswered.is_empty() => QuotaAnswer::Unlimited,
        (VerdictKind::Allowed, None) => QuotaAnswer::Unanswered { allows: true },
    }
}

/// Returns what a limit has; `None` if it has no tokens.
fn state(answer: &LimitDecision, hits: u64, is_taken: bool) -> Option<QuotaState> {
    let numbers = answer.numbers.as_ref().filter(|numbers| numbers.algorithm().has_tokens())?;
    // A hit may cost several tokens.
    let cost = (answer.cost / hits).max(1);
    let decision = &answer.decision;
    Some(QuotaState {
        is_taken,
        left: decision.remaining / cost,
        used: decision.limit.saturating_sub(decision.remaining) / cost,
        burst: decision.limit / cost,
        rate: per_fill(numbers) / cost,
        window: match numbers.algorithm() {
            Algorithm::Gcra => None,
            Algorithm::FixedWindow(_) => decision.reset_after,
            _ => Some(Micros(numbers.period() / 1_000)),
        },
        refills: !matches!(numbers.algorithm(), Algorithm::FixedWindow(_)),
    })
}

/// The tokens that come back in a [`FILL`].
fn per_fill(numbers: &Numbers) -> u64 {
    let nanos = u128::from(FILL.0) * 1_000 * u128::from(numbers.count());
    nanos.checked_div(numbers.period().into()).and_then(|rate| u64::try_from(rate).ok()).unwrap_or(0)
}

/// The treatment of the requests of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaTreatment {
    AllowAll,
    #[default]
    DenyAll,
    Share(QuotaShare),
}

/// The buckets of gateways, of all workers. Each has a bucket of a stream, which are bounded.
#[derive(Debug)]
pub struct QuotaGroups {
    start: Instant,
    table: Mutex<HashMap<Arc<str>, Arc<QuotaGroup>>>,
    next: AtomicU64,
    members: AtomicU64,
}

/// The gateways that share a bucket.
#[derive(Debug)]
struct QuotaGroup {
    state: Mutex<GroupState>,
    /// A turn is due from this time on, in microseconds of [`QuotaGroups::now`].
    next_turn: AtomicU64,
    /// Other treatments than before have other numbers.
    version: AtomicU64,
}

#[derive(Debug)]
struct GroupState {
    pool: QuotaPool,
    /// The treatment without a share.
    treatment: QuotaTreatment,
    answered: Micros,
    /// The time of the last turn that has set the treatment; `None` before it.
    turned: Option<Micros>,
    has_turn: bool,
}

/// A gateway among those that share a bucket.
#[derive(Debug)]
pub struct QuotaMember {
    groups: Arc<QuotaGroups>,
    group: Arc<QuotaGroup>,
    bucket: Arc<str>,
    id: u64,
    joined: Micros,
}

/// A turn of a group, of which there is one at a time.
#[derive(Debug)]
pub struct QuotaTurn<'a> {
    member: &'a QuotaMember,
    /// The tokens to take now.
    pub due: u64,
}

impl Default for QuotaGroups {
    fn default() -> Self {
        Self { start: Instant::now(), table: Mutex::default(), next: AtomicU64::new(0), members: AtomicU64::new(0) }
    }
}

impl QuotaGroups {
    /// The time of leases, which no step of the wall clock changes.
    pub fn now(&self) -> Micros {
        FILL.after(micros(self.start.elapsed()))
    }

    pub fn join(groups: &Arc<Self>, bucket: String) -> QuotaMember {
        let (now, bucket) = (groups.now(), Arc::from(bucket));
        let id = groups.next.fetch_add(1, Ordering::Relaxed);
        groups.members.fetch_add(1, Ordering::Relaxed);
        let mut table = groups.table.lock();
        let group = table.entry(Arc::clone(&bucket)).or_insert_with(|| Arc::new(QuotaGroup::new(now))).clone();
        group.state.lock().pool.join(id, now);
        QuotaMember { groups: groups.clone(), group, bucket, id, joined: now }
    }
}

impl QuotaGroup {
    fn new(now: Micros) -> Self {
        let (pool, treatment) = (QuotaPool::default(), QuotaTreatment::default());
        let state = GroupState { pool, treatment, answered: now, turned: None, has_turn: false };
        Self { state: Mutex::new(state), next_turn: AtomicU64::new(now.0), version: AtomicU64::new(0) }
    }
}

impl QuotaMember {
    /// Notes what the gateway has let pass and denied since its last report. What it `was_allowed` is charged otherwise.
    pub fn report(&self, passed: u64, denied: u64, was_allowed: bool) {
        let now = self.groups.now();
        let (passed, denied) = if was_allowed { (0, passed.saturating_add(denied)) } else { (passed, denied) };
        self.group.state.lock().pool.report(self.id, passed, denied, now);
    }

    /// The time of the last report.
    pub fn reported(&self) -> Micros {
        self.group.state.lock().pool.lease(self.id).map_or(Micros(0), QuotaLease::reported)
    }

    /// Returns the treatment of the gateway's requests, and its version; `None` before the first turn with this gateway.
    pub fn treatment(&self) -> Option<(QuotaTreatment, u64)> {
        let state = self.group.state.lock();
        state.turned.filter(|turned| *turned >= self.joined)?;
        let share = state.pool.lease(self.id).map(QuotaLease::share).filter(|share| *share != QuotaShare::NONE);
        Some((share.map_or(state.treatment, QuotaTreatment::Share), self.group.version.load(Ordering::Relaxed)))
    }

    /// Returns true if the treatment has this version still, and no turn is due.
    pub fn is_settled(&self, version: u64, now: Micros) -> bool {
        now.0 < self.group.next_turn.load(Ordering::Relaxed) && version == self.group.version.load(Ordering::Relaxed)
    }

    /// Begins a turn if one is due, or soon after the last one if the gateway `is_new`. There is one turn at a time.
    pub fn turn(&self, is_new: bool) -> Option<QuotaTurn<'_>> {
        let now = self.groups.now();
        let mut state = self.group.state.lock();
        let is_early = now.0 < self.group.next_turn.load(Ordering::Relaxed);
        let is_too_early = !is_new || state.turned.is_some_and(|turned| now.since(turned) < SHORTEST_TURN);
        if state.has_turn || is_early && is_too_early {
            return None;
        }
        state.has_turn = true;
        Some(QuotaTurn { member: self, due: state.pool.due(now) })
    }

    /// Leaves the group. A gateway that goes on with its share until an `end` cannot be told otherwise. Returns the charge that is
    /// left to make.
    pub fn leave(&self, end: Option<Micros>) -> Option<QuotaCharge> {
        let now = self.groups.now();
        let mut table = self.groups.table.lock();
        let mut state = self.group.state.lock();
        let charge = state.pool.leave(self.id, end, now);
        if state.pool.is_empty() && table.get(&self.bucket).is_some_and(|group| Arc::ptr_eq(group, &self.group)) {
            table.remove(&self.bucket);
        }
        charge
    }
}

impl Drop for QuotaMember {
    fn drop(&mut self) {
        self.leave(None);
        self.groups.members.fetch_sub(1, Ordering::Relaxed);
    }
}

impl QuotaTurn<'_> {
    /// Takes the answer about what was due. Returns the charge for new shares, which [`Self::confirm`] sets.
    pub fn plan(&self, answer: QuotaAnswer, others: bool) -> Option<QuotaCharge> {
        let now = self.member.groups.now();
        let groups = &self.member.groups;
        let least_turn = TURN_COST.0 * groups.table.lock().len() as u64;
        let least_turn = Micros(least_turn + MEMBER_COST.0 * groups.members.load(Ordering::Relaxed));
        let group = &self.member.group;
        let mut state = group.state.lock();
        let mut next_turn = least_turn.max(LONGEST_TURN);
        let mut charge = None;
        let treatment = match answer {
            QuotaAnswer::Unanswered { .. } if now.since(state.answered) < UNANSWERED => None,
            QuotaAnswer::Unlimited | QuotaAnswer::Unanswered { allows: true } => Some(QuotaTreatment::AllowAll),
            QuotaAnswer::Limited(limits) => {
                state.answered = now;
                charge = state.pool.plan(self.due, limits, others, least_turn, now);
                next_turn = state.pool.next_turn(now);
                Some(QuotaTreatment::DenyAll)
            }
            QuotaAnswer::Denied | QuotaAnswer::Unanswered { allows: false } => Some(QuotaTreatment::DenyAll),
        };
        group.next_turn.store(now.after(next_turn).0, Ordering::Relaxed);
        if let Some(treatment) = treatment {
            if !matches!(answer, QuotaAnswer::Limited(_)) {
                state.pool.clear(now);
            }
            (state.treatment, state.turned) = (treatment, Some(now));
        }
        charge
    }

    pub fn confirm(&self, is_charged: bool) {
        let now = self.member.groups.now();
        self.member.group.state.lock().pool.confirm(is_charged, now);
    }
}

impl Drop for QuotaTurn<'_> {
    fn drop(&mut self) {
        let group = &self.member.group;
        let mut state = group.state.lock();
        state.has_turn = false;
        let is_allowed = u64::from(state.treatment == QuotaTreatment::AllowAll);
        group.version.store(2 * state.pool.changes() + is_allowed, Ordering::Relaxed);
    }
}
