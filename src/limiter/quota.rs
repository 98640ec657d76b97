//! Tokens for gateways that count requests by themselves, and what each of them needs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::decision_request::DecisionRequest;
use super::{Limiter, LimiterVerdict};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::charging::descriptors::{Descriptor, DescriptorMode, DescriptorRequest, Hits};
use crate::engine::charging::quota_lease::{FILL, FairShare, QuotaNeed, fair_share};
use crate::engine::deciding::DecisionSubject;
use crate::engine::deciding::verdict::VerdictKind;
use crate::engine::request::DescriptorEntry;
use crate::telemetry::metrics::DecisionListener;

/// The time in which gateways may use up what a limit has saved. Their reports come every 5 s.
const BURST_FILLS: u64 = 6;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaState {
    pub is_taken: bool,
    /// The hits that are left.
    pub left: u64,
    /// The hits that come back in a [`FILL`].
    pub rate: u64,
}

impl QuotaState {
    /// The hits that all gateways together may get in a [`FILL`]. What comes back within two seconds goes on with their shares.
    pub const fn capacity(&self) -> u64 {
        let saved = self.left.saturating_sub(self.rate / 30);
        self.rate.saturating_add(saved.saturating_mul(BURST_FILLS))
    }
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
    let mut state: Option<QuotaState> = None;
    for answer in verdict.enforced() {
        let Some(numbers) = answer.numbers.as_ref().filter(|numbers| numbers.algorithm().has_tokens()) else {
            continue;
        };
        // A hit may cost several tokens.
        let cost = (answer.cost / hits).max(1);
        let (left, rate) = (answer.decision.remaining / cost, per_fill(numbers) / cost);
        let known = state.get_or_insert(QuotaState { is_taken: verdict.is_allowed(), left, rate });
        (known.left, known.rate) = (known.left.min(left), known.rate.min(rate));
    }
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

/// The tokens that come back in a [`FILL`].
fn per_fill(numbers: &Numbers) -> u64 {
    let nanos = u128::from(FILL.0) * 1_000 * u128::from(numbers.count());
    nanos.checked_div(numbers.period().into()).and_then(|rate| u64::try_from(rate).ok()).unwrap_or(0)
}

/// The time that tokens of one gateway wait for another one. Those that can use them have their turn within a second.
const POOLED: Duration = Duration::from_secs(2);

/// The gateways of all workers, by bucket. Each has a bucket of a stream, which are bounded.
#[derive(Debug, Default)]
pub struct QuotaDemands {
    table: Mutex<HashMap<Arc<str>, QuotaGroup>>,
    next: AtomicU64,
}

/// The gateways that share a bucket.
#[derive(Debug, Default)]
struct QuotaGroup {
    needs: HashMap<u64, QuotaNeed>,
    /// Tokens that were taken from the limits and that no gateway has. The limits' bucket could be too full to take them back.
    pool: u64,
    pooled: Option<Instant>,
}

/// A gateway among those that share a bucket, until it is dropped.
#[derive(Debug)]
pub struct QuotaMember {
    demands: Arc<QuotaDemands>,
    bucket: Arc<str>,
    id: u64,
}

impl QuotaMember {
    pub fn join(demands: &Arc<QuotaDemands>, bucket: String) -> Self {
        let member =
            Self { demands: demands.clone(), bucket: bucket.into(), id: demands.next.fetch_add(1, Ordering::Relaxed) };
        member
            .demands
            .table
            .lock()
            .entry(member.bucket.clone())
            .or_default()
            .needs
            .insert(member.id, QuotaNeed::default());
        member
    }

    /// Notes what it needs and has.
    pub fn note(&self, need: QuotaNeed) {
        self.with(|group| group.needs.insert(self.id, need));
    }

    /// Returns its share of what all may get.
    pub fn share(&self, capacity: u64) -> FairShare {
        self.with(|group| {
            let all: Vec<QuotaNeed> = group.needs.values().copied().collect();
            fair_share(&all, group.needs.get(&self.id).copied().unwrap_or_default(), capacity)
        })
    }

    /// Takes tokens that others have left, as far as there are as many.
    pub fn draw(&self, tokens: u64) -> u64 {
        self.with(|group| {
            let drawn = group.pool.min(tokens);
            group.pool -= drawn;
            drawn
        })
    }

    /// Leaves tokens for others. Returns all that there are.
    pub fn leave(&self, tokens: u64) -> u64 {
        self.with(|group| {
            if tokens > 0 {
                (group.pool, group.pooled) = (group.pool.saturating_add(tokens), Some(Instant::now()));
            }
            group.pool
        })
    }

    /// Takes out the tokens that no gateway has taken in time, or `all`, for the limits.
    pub fn unwanted(&self, all: bool) -> u64 {
        self.with(|group| {
            let is_old = group.pooled.is_none_or(|pooled| pooled.elapsed() >= POOLED);
            if is_old || all { std::mem::take(&mut group.pool) } else { 0 }
        })
    }

    /// Returns true if no other gateway could take what it leaves.
    pub fn is_last(&self) -> bool {
        self.with(|group| group.needs.len() == 1)
    }

    fn with<T>(&self, change: impl FnOnce(&mut QuotaGroup) -> T) -> T {
        change(self.demands.table.lock().entry(self.bucket.clone()).or_default())
    }
}

impl Drop for QuotaMember {
    fn drop(&mut self) {
        let mut table = self.demands.table.lock();
        if let Some(group) = table.get_mut(&self.bucket) {
            group.needs.remove(&self.id);
            if group.needs.is_empty() {
                table.remove(&self.bucket);
            }
        }
    }
}
