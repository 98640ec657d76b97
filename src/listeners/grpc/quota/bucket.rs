//! One bucket of an Envoy: its share of the limits that cover it.

use std::rc::Rc;

use crate::clock::Clock;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::descriptors::{DescriptorMode, Hits};
use crate::engine::charging::quota_pool::QuotaCharge;
use crate::engine::request::DescriptorEntry;
use crate::limiter::{Limiter, QuotaAnswer, QuotaCall, QuotaGroups, QuotaMember, QuotaTreatment};
use crate::listeners::grpc::messages::quota::BucketQuotaUsage;
use crate::telemetry::metrics::{QuotaAssignment, QuotaRequest};

/// The life of an assignment. Longer than it takes to open another stream, which it does when it would
/// report, and for a pause of ours.
pub(super) const LIFE: Micros = Micros(15_000_000);

/// Assignments are renewed after this time.
const RENEWAL: Micros = Micros(5_000_000);

/// A bucket without requests for this time is abandoned: each costs a call to the store every second.
const IDLE: Micros = Micros(60_000_000);

/// The entries of a bucket's id, by key.
pub(super) type BucketEntries = Vec<(String, String)>;

/// The message to an Envoy about a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Assignment {
    Treat(QuotaTreatment),
    Abandon,
}

impl Assignment {
    pub(super) const fn kind(self) -> QuotaAssignment {
        match self {
            Self::Treat(QuotaTreatment::AllowAll) => QuotaAssignment::AllowAll,
            Self::Treat(QuotaTreatment::DenyAll) => QuotaAssignment::DenyAll,
            Self::Treat(QuotaTreatment::Share(_)) => QuotaAssignment::TokenBucket,
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
}

impl QuotaContext {
    pub(super) fn now(&self) -> Micros {
        self.limiter.shared().quota_groups().now()
    }
}

pub(super) struct Bucket {
    pub(super) domain: Rc<str>,
    pub(super) entries: BucketEntries,
    member: QuotaMember,
    /// The last assignment that was sent, and its time.
    sent: Option<(Assignment, Micros)>,
    /// Its version.
    version: u64,
    /// The last report of a request.
    used: Micros,
    /// Requests that passed without a share and are not charged.
    uncharged: u64,
    /// The time of the last decision.
    pub(super) decided: Micros,
}

impl Bucket {
    pub(super) fn new(domain: Rc<str>, entries: BucketEntries, context: &QuotaContext) -> Self {
        let now = context.now();
        let name = format!("{domain:?} {entries:?}");
        let member = QuotaGroups::join(context.limiter.shared().quota_groups(), name);
        Self { domain, entries, member, sent: None, version: 0, used: now, uncharged: 0, decided: now }
    }

    /// Notes what the Envoy has let pass and denied since its last report.
    pub(super) fn report(&mut self, usage: &BucketQuotaUsage, context: &QuotaContext) {
        let (allowed, denied) = (usage.num_requests_allowed, usage.num_requests_denied);
        let counters = &context.limiter.shared().metrics().listeners.quota_requests;
        counters[QuotaRequest::Allowed].inc_by(allowed);
        counters[QuotaRequest::Denied].inc_by(denied);
        let was_allowed = matches!(self.sent, Some((Assignment::Treat(QuotaTreatment::AllowAll), _)));
        if was_allowed {
            self.uncharged = self.uncharged.saturating_add(allowed);
        }
        self.member.report(allowed, denied, was_allowed);
        if allowed > 0 || denied > 0 {
            self.used = context.now();
        }
    }

    /// The time of the last report.
    pub(super) fn reported(&self) -> Micros {
        self.member.reported()
    }

    /// Returns what the Envoy must be told, after the turn of its group if it is time.
    pub(super) async fn decide(&mut self, context: &QuotaContext) -> Option<Assignment> {
        let now = context.now();
        self.decided = now;
        if now.since(self.used) >= IDLE {
            return Some(Assignment::Abandon);
        }
        let is_fresh = self.sent.is_some_and(|(_, at)| now.since(at) < RENEWAL);
        if is_fresh && self.uncharged == 0 && self.member.is_settled(self.version, now) {
            return None;
        }
        let uncharged = std::mem::take(&mut self.uncharged);
        if uncharged > 0 {
            self.ask(context, DescriptorMode::Decide, Hits::Take(uncharged)).await;
        }
        self.turn(context).await;
        let (treatment, version) = self.member.treatment()?;
        let assignment = Assignment::Treat(treatment);
        self.version = version;
        if is_fresh && self.sent.is_some_and(|(sent, _)| sent == assignment) {
            return None;
        }
        self.sent = Some((assignment, now));
        Some(assignment)
    }

    /// Takes the tokens that are due for all Envoys with this bucket, and divides them.
    async fn turn(&self, context: &QuotaContext) {
        let Some(turn) = self.member.turn(self.sent.is_none()) else { return };
        let answer = self.ask(context, DescriptorMode::Lease, Hits::Take(turn.due)).await;
        let Some(charge) = turn.plan(answer, context.limiter.has_remote_store()) else { return };
        let hits = match charge {
            QuotaCharge::Take(tokens) => Hits::Take(tokens),
            QuotaCharge::GiveBack(tokens) => Hits::GiveBack(tokens),
        };
        let answer = self.ask(context, DescriptorMode::Lease, hits).await;
        let is_charged = match answer {
            QuotaAnswer::Limited(state) => state.is_taken || matches!(charge, QuotaCharge::GiveBack(_)),
            _ => false,
        };
        turn.confirm(is_charged);
    }

    /// Gives back what is left of an Envoy that `is_gone`. Otherwise it goes on with its share for a while, which is charged.
    pub(super) async fn end(self, context: &QuotaContext, is_gone: bool) {
        let end = self.sent.map_or(context.now(), |(_, sent)| sent.after(LIFE));
        match self.member.leave((!is_gone).then_some(end)) {
            Some(QuotaCharge::Take(tokens)) => {
                self.ask(context, DescriptorMode::Report, Hits::TakeOrDrain(tokens)).await
            }
            Some(QuotaCharge::GiveBack(tokens)) => {
                self.ask(context, DescriptorMode::Lease, Hits::GiveBack(tokens)).await
            }
            None => return,
        };
    }

    async fn ask(&self, context: &QuotaContext, purpose: DescriptorMode, hits: Hits) -> QuotaAnswer {
        let entries = self.entries.iter().map(|(key, value)| DescriptorEntry { key, value });
        let entries: Vec<DescriptorEntry<'_>> = entries.collect();
        let call = QuotaCall { domain: &self.domain, entries: &entries, hits, purpose, now: context.clock.now() };
        context.limiter.lease(call).await
    }
}
