//! One bucket of an Envoy: its share of the limits that cover it.

use std::rc::Rc;
use std::time::Instant;

use crate::clock::{Clock, micros};
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::descriptors::{DescriptorMode, Hits};
use crate::engine::charging::quota_lease::{FILL, QuotaLease, QuotaShare};
use crate::engine::request::DescriptorEntry;
use crate::limiter::{Limiter, QuotaAnswer, QuotaCall, QuotaMember};
use crate::listeners::grpc::messages::quota::BucketQuotaUsage;
use crate::telemetry::metrics::{QuotaAssignment, QuotaRequest};

/// The life of an assignment. Longer than it takes to open another stream, which it does when it would
/// report, and for a pause of ours.
pub(super) const LIFE: Micros = Micros(15_000_000);

/// Assignments are renewed after this time.
const RENEWAL: Micros = Micros(5_000_000);

/// A bucket without requests for this time is abandoned: each costs a call to the store every second.
const IDLE: Micros = Micros(60_000_000);

/// An Envoy that would have more yields some of its share to those of other processes, after this number of reports.
const YIELDS_AFTER: u8 = 2;

/// The entries of a bucket's id, by key.
pub(super) type BucketEntries = Vec<(String, String)>;

/// The treatment of the requests of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Assignment {
    AllowAll,
    DenyAll,
    Share(QuotaShare),
    Abandon,
}

impl Assignment {
    pub(super) const fn kind(self) -> QuotaAssignment {
        match self {
            Self::AllowAll => QuotaAssignment::AllowAll,
            Self::DenyAll => QuotaAssignment::DenyAll,
            Self::Share(_) => QuotaAssignment::TokenBucket,
            Self::Abandon => QuotaAssignment::Abandon,
        }
    }
}

/// The surroundings of the buckets of a stream.
#[derive(Clone)]
pub(super) struct QuotaContext {
    pub(super) limiter: Rc<Limiter>,
    /// For limits with blocks and windows.
    pub(super) clock: Clock,
    pub(super) start: Instant,
}

impl QuotaContext {
    /// The time of leases, which no step of the wall clock changes.
    pub(super) fn now(&self) -> Micros {
        FILL.after(micros(self.start.elapsed()))
    }
}

pub(super) struct Bucket {
    pub(super) domain: Rc<str>,
    pub(super) entries: BucketEntries,
    member: QuotaMember,
    lease: QuotaLease,
    /// The last assignment that was sent, and its time.
    sent: Option<(Assignment, Micros)>,
    /// The last report of a request.
    used: Micros,
    /// The last answer of the store about a share.
    answered: Micros,
    /// The reports since it last yielded.
    unyielded: u8,
    /// Requests that passed without a lease and are not charged.
    uncharged: u64,
    /// The time of the last decision.
    pub(super) decided: Micros,
}

impl Bucket {
    pub(super) fn new(domain: Rc<str>, entries: BucketEntries, context: &QuotaContext) -> Self {
        let now = context.now();
        let name = format!("{domain:?} {entries:?}");
        Self {
            domain,
            entries,
            member: QuotaMember::join(context.limiter.shared().quota_demands(), name),
            lease: QuotaLease::new(now),
            sent: None,
            used: now,
            answered: now,
            unyielded: 0,
            uncharged: 0,
            decided: now,
        }
    }

    /// Notes what the Envoy has let pass and denied since its last report.
    pub(super) fn report(&mut self, usage: &BucketQuotaUsage, context: &QuotaContext) {
        let now = context.now();
        let (allowed, denied) = (usage.num_requests_allowed, usage.num_requests_denied);
        let counters = &context.limiter.shared().metrics().listeners.quota_requests;
        counters[QuotaRequest::Allowed].inc_by(allowed);
        counters[QuotaRequest::Denied].inc_by(denied);
        if matches!(self.sent, Some((Assignment::AllowAll, _))) {
            self.uncharged = self.uncharged.saturating_add(allowed);
            self.lease.report(0, allowed.saturating_add(denied), now);
        } else {
            self.lease.report(allowed, denied, now);
        }
        self.member.note(self.lease.need());
        self.unyielded = self.unyielded.saturating_add(1);
        if allowed > 0 || denied > 0 {
            self.used = now;
        }
    }

    /// The time of the last report.
    pub(super) const fn reported(&self) -> Micros {
        self.lease.reported()
    }

    /// Takes the tokens that are due, and returns what the Envoy must be told.
    pub(super) async fn decide(&mut self, context: &QuotaContext) -> Option<Assignment> {
        let now = context.now();
        self.decided = now;
        if now.since(self.used) >= IDLE {
            self.lease.assign(QuotaShare::default(), now);
            return Some(Assignment::Abandon);
        }
        let uncharged = std::mem::take(&mut self.uncharged);
        if uncharged > 0 {
            self.ask(context, DescriptorMode::Decide, Hits::Take(uncharged)).await;
        }
        let due = self.lease.due(now);
        let mut yields = false;
        let assignment = match self.take(context, due).await {
            // A late answer is not yet a store that failed.
            QuotaAnswer::Unanswered { .. } if self.sent.is_some() && now.since(self.answered) < RENEWAL => return None,
            QuotaAnswer::Unlimited | QuotaAnswer::Unanswered { allows: true } => {
                self.without_share(Assignment::AllowAll, now)
            }
            QuotaAnswer::Denied | QuotaAnswer::Unanswered { allows: false } => {
                self.without_share(Assignment::DenyAll, now)
            }
            QuotaAnswer::Limited(state) => {
                self.answered = now;
                let mut fair = self.member.share(state.capacity());
                yields = self.yields(context, state.left, fair.target);
                if yields {
                    fair.target = u64::from(self.lease.share().tokens_per_fill) * 3 / 4;
                }
                let change = self.lease.answered(state.is_taken.then_some(due), state.left, fair, now);
                if let Some((share, cost)) = change {
                    self.change(context, share, cost).await;
                }
                self.member.note(self.lease.need());
                match self.lease.share() {
                    QuotaShare { max_tokens: 0, .. } => Assignment::DenyAll,
                    share => Assignment::Share(share),
                }
            }
        };
        self.member.leave(self.lease.take_spare(now));
        self.give_back(context, yields).await;
        let is_known = self.sent.is_some_and(|(sent, at)| sent == assignment && now.since(at) < RENEWAL);
        if is_known {
            return None;
        }
        self.sent = Some((assignment, now));
        Some(assignment)
    }

    /// Returns true if it is time to yield: other processes at the store may have Envoys without a share, which nobody here knows.
    fn yields(&mut self, context: &QuotaContext, left: u64, target: u64) -> bool {
        let rate = u64::from(self.lease.share().tokens_per_fill);
        let is_scarce = target >= rate && left < rate / 60;
        let yields = is_scarce && self.unyielded >= YIELDS_AFTER && context.limiter.has_remote_store();
        if yields {
            self.unyielded = 0;
        }
        yields
    }

    fn without_share(&mut self, assignment: Assignment, now: Micros) -> Assignment {
        if self.lease.share() != QuotaShare::default() {
            self.lease.assign(QuotaShare::default(), now);
        }
        assignment
    }

    /// Changes the share if the tokens for it can be taken. One that cannot go on ends.
    async fn change(&mut self, context: &QuotaContext, share: QuotaShare, cost: u64) {
        let is_taken =
            cost == 0 || matches!(self.take(context, cost).await, QuotaAnswer::Limited(state) if state.is_taken);
        let now = context.now();
        if is_taken {
            self.lease.granted(share, cost, now);
        } else {
            self.lease.refused(now);
        }
    }

    /// Gives back what the Envoy leaves if it `is_gone`. Otherwise it goes on with its share for a while, which is charged.
    pub(super) async fn end(mut self, context: &QuotaContext, is_gone: bool) {
        let now = context.now();
        if is_gone {
            self.member.leave(self.lease.left(now));
        } else {
            let end = self.sent.map_or(now, |(_, sent)| sent.after(LIFE));
            let missing = self.lease.missing(now, end);
            if missing > 0 {
                self.ask(context, DescriptorMode::Report, Hits::TakeOrDrain(missing)).await;
            }
        }
        self.give_back(context, self.member.is_last()).await;
    }

    /// Takes tokens that others have left, and the rest from the limits.
    async fn take(&self, context: &QuotaContext, tokens: u64) -> QuotaAnswer {
        let drawn = self.member.draw(tokens);
        let mut answer = self.ask(context, DescriptorMode::Lease, Hits::Take(tokens - drawn)).await;
        let mut is_taken = false;
        if let QuotaAnswer::Limited(state) = &mut answer {
            state.is_taken |= tokens == drawn;
            is_taken = state.is_taken;
        }
        let pool = self.member.leave(if is_taken { 0 } else { drawn });
        if let QuotaAnswer::Limited(state) = &mut answer {
            state.left = state.left.saturating_add(pool);
        }
        answer
    }

    /// Gives back what nobody here has taken in time, or all of it.
    async fn give_back(&self, context: &QuotaContext, all: bool) {
        let unwanted = self.member.unwanted(all);
        if unwanted > 0 {
            self.ask(context, DescriptorMode::Lease, Hits::GiveBack(unwanted)).await;
        }
    }

    async fn ask(&self, context: &QuotaContext, purpose: DescriptorMode, hits: Hits) -> QuotaAnswer {
        let entries = self.entries.iter().map(|(key, value)| DescriptorEntry { key, value });
        let entries: Vec<DescriptorEntry<'_>> = entries.collect();
        let call = QuotaCall { domain: &self.domain, entries: &entries, hits, purpose, now: context.clock.now() };
        context.limiter.lease(call).await
    }
}
