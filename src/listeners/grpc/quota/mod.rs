//! The rate limit quota service: Envoys limit by themselves, report what they have let pass, and get shares of the limits.
//!
//! Each bucket is decided again twice a second at least, so that a reload, an override or a block is known within a second.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::sync::watch::Receiver;
use tokio::time::{Interval, MissedTickBehavior, interval};

use self::bucket::{Assignment, Bucket, BucketEntries, LIFE, QuotaContext};
use super::Envoy;
use super::calls::StreamPermit;
use super::messages::quota::{
    AbandonAction, Action, BlanketRule, BucketAction, BucketId, BucketQuotaUsage, QuotaAssignmentAction,
    RateLimitQuotaResponse, RateLimitQuotaUsageReports, RateLimitStrategy, Strategy, TokenBucket,
};
use super::messages::{Duration as ProtoDuration, MapEntry, Memory, UInt32Value, text};
use super::protocol::{Code, Status, decode, frame, next_message};
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::quota_lease::FILL;
use crate::http::message::{BodyError, BodyStream, Piece, RequestBody};
use crate::limiter::QuotaTreatment;
use crate::listeners::admin::Phase;
use crate::telemetry::metrics::{Metrics, QuotaReport};

mod bucket;

/// Bytes of a message. A report has all buckets of an Envoy.
const MAX_MESSAGE: usize = 512 * 1024;

/// Buckets of a stream. Each costs a call to the store every second.
const MAX_BUCKETS: usize = 1_000;

/// Entries of a bucket's id. Rules search all of them, in all orders that fit.
const MAX_ENTRIES: usize = 16;

/// The time between two looks at all buckets.
const TURN: Duration = Duration::from_millis(100);

/// The time that the decisions of a turn may take. Those that have waited longest come first.
const TURN_TIME: Duration = Duration::from_millis(500);

/// A stream or a bucket without a report for this long ends. Envoy reports every 5 s.
const SILENCE: Micros = Micros(60_000_000);

/// The answers to an Envoy.
pub(super) struct QuotaStream {
    next: Pin<Box<dyn Future<Output = (Option<Piece>, Session)>>>,
}

/// A stream of an Envoy.
struct Session {
    context: QuotaContext,
    body: RequestBody,
    max_message: usize,
    /// The received part of the next message.
    received: BytesMut,
    domain: Option<Rc<str>>,
    buckets: BTreeMap<BucketEntries, Bucket>,
    reported: Micros,
    turns: Interval,
    phases: Receiver<Phase>,
    /// Messages, and the trailers.
    answers: VecDeque<Piece>,
    has_ended: bool,
    /// True if the Envoy has ended the stream or is gone.
    is_gone: bool,
    _permit: StreamPermit,
}

impl Envoy {
    pub(super) fn stream_quotas(&self, body: RequestBody, permit: StreamPermit) -> QuotaStream {
        let (limiter, clock) = (self.front.limiter.clone(), self.front.clock.clone());
        let context = QuotaContext { limiter, clock };
        context.metrics().listeners.quota_streams.inc();
        let mut turns = interval(TURN);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let session = Session {
            body,
            max_message: self.messages.max.min(MAX_MESSAGE),
            received: BytesMut::new(),
            domain: None,
            buckets: BTreeMap::new(),
            reported: context.now(),
            turns,
            phases: self.readiness.phases(),
            answers: VecDeque::new(),
            has_ended: false,
            is_gone: false,
            context,
            _permit: permit,
        };
        QuotaStream { next: Box::pin(session.next()) }
    }
}

impl QuotaContext {
    fn metrics(&self) -> &Metrics {
        self.limiter.shared().metrics()
    }
}

impl Session {
    async fn next(mut self) -> (Option<Piece>, Self) {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return (Some(answer), self);
            }
            if self.has_ended {
                return (None, self);
            }
            if *self.phases.borrow_and_update() == Phase::Draining {
                self.end(&Status::ending());
                continue;
            }
            tokio::select! {
                // The sender is dropped at the end of the process.
                changed = self.phases.changed() => if changed.is_err() {
                    self.end(&Status::ending());
                },
                piece = self.body.piece() => match piece {
                    Some(Ok(Piece::Data(data))) => self.receive(&data).await,
                    Some(Ok(Piece::Trailers(_))) => {}
                    Some(Err(_)) | None => {
                        self.is_gone = true;
                        self.end(&Status::new(Code::Ok, ""));
                    }
                },
                _ = self.turns.tick() => self.turn().await,
            }
        }
    }

    fn end(&mut self, status: &Status) {
        self.has_ended = true;
        self.answers.push_back(Piece::Trailers(status.headers()));
    }

    /// Reads the reports that have come.
    async fn receive(&mut self, data: &Bytes) {
        self.received.extend_from_slice(data);
        loop {
            let read = match next_message(&mut self.received, self.max_message) {
                Ok(Some(message)) => self.report(message).await,
                Ok(None) => return,
                Err(status) => Err(status),
            };
            let result = if read.is_ok() { QuotaReport::Ok } else { QuotaReport::Invalid };
            self.context.metrics().listeners.quota_reports[result].inc();
            if let Err(status) = read {
                return self.end(&status);
            }
        }
    }

    async fn report(&mut self, message: Bytes) -> Result<(), Status> {
        let mut reports: RateLimitQuotaUsageReports = decode(message)?;
        reports.make_text();
        self.reported = self.context.now();
        let domain = self.domain(text(&reports.domain))?;
        let mut actions = Vec::new();
        for usage in &reports.bucket_quota_usages {
            let entries = entries(usage)?;
            let room = self.buckets.len() < MAX_BUCKETS;
            let (bucket, is_new) = match self.buckets.entry(entries) {
                Entry::Occupied(known) => (known.into_mut(), false),
                Entry::Vacant(place) if room => {
                    let bucket = Bucket::new(domain.clone(), place.key().clone(), &self.context);
                    (place.insert(bucket), true)
                }
                Entry::Vacant(place) => {
                    actions.push(self.context.action(place.key(), Assignment::Abandon));
                    continue;
                }
            };
            bucket.report(usage, &self.context);
            // The others have their turn.
            if is_new && let Some(assignment) = bucket.decide(&self.context).await {
                actions.push(self.context.action(&bucket.entries, assignment));
            }
        }
        self.answer(actions);
        Ok(())
    }

    /// Returns the domain, which the first message tells.
    fn domain(&mut self, told: &str) -> Result<Rc<str>, Status> {
        let domain = self.domain.get_or_insert_with(|| told.into());
        let problem = match &**domain {
            "" => "the domain is empty; give the filter a `domain`",
            known if !told.is_empty() && known != told => "a stream has one domain",
            _ => return Ok(domain.clone()),
        };
        Err(Status::new(Code::InvalidArgument, problem))
    }

    /// Decides the buckets again.
    async fn turn(&mut self) {
        let now = self.context.now();
        if now.since(self.reported) >= SILENCE {
            return self.end(&Status::new(Code::DeadlineExceeded, "no report came for a minute"));
        }
        let began = Instant::now();
        let mut ended = Vec::new();
        let mut actions = Vec::new();
        let mut buckets: Vec<&mut Bucket> = self.buckets.values_mut().collect();
        buckets.sort_by_key(|bucket| bucket.decided);
        for bucket in buckets.into_iter().take_while(|_| began.elapsed() < TURN_TIME) {
            let assignment = bucket.decide(&self.context).await;
            actions.extend(assignment.map(|assignment| self.context.action(&bucket.entries, assignment)));
            if assignment == Some(Assignment::Abandon) || now.since(bucket.reported()) >= SILENCE {
                ended.push(bucket.entries.clone());
            }
        }
        for bucket in ended.iter().filter_map(|entries| self.buckets.remove(entries)).collect::<Vec<_>>() {
            bucket.end(&self.context, true).await;
        }
        self.answer(actions);
    }

    fn answer(&mut self, bucket_action: Vec<BucketAction>) {
        if !bucket_action.is_empty() {
            let response = RateLimitQuotaResponse { bucket_action };
            self.answers.push_back(Piece::Data(frame(&response, &mut Memory::default())));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.context.metrics().listeners.quota_streams.dec();
        // A client's reset ends the answers before the reports are read.
        let end = self.body.poll_piece(&mut Context::from_waker(Waker::noop()));
        let is_gone = self.is_gone || !self.has_ended && matches!(end, Poll::Ready(Some(Err(_)) | None));
        let context = self.context.clone();
        let buckets = std::mem::take(&mut self.buckets);
        if !buckets.is_empty() {
            self.context.limiter.finish_lease(async move {
                for (_, bucket) in buckets {
                    bucket.end(&context, is_gone).await;
                }
            });
        }
    }
}

impl QuotaContext {
    /// Returns the message about a bucket, and counts it.
    fn action(&self, entries: &BucketEntries, assignment: Assignment) -> BucketAction {
        self.metrics().listeners.quota_assignments[assignment.kind()].inc();
        let text = |text: &String| Bytes::copy_from_slice(text.as_bytes());
        let bucket = entries.iter().map(|(key, value)| MapEntry { key: text(key), value: text(value) }).collect();
        let assigned = |strategy| {
            Action::QuotaAssignmentAction(QuotaAssignmentAction {
                assignment_time_to_live: Some(seconds(LIFE)),
                rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
            })
        };
        let action = match assignment {
            Assignment::Treat(QuotaTreatment::AllowAll) => {
                assigned(Strategy::BlanketRule(BlanketRule::AllowAll.into()))
            }
            Assignment::Treat(QuotaTreatment::DenyAll) => assigned(Strategy::BlanketRule(BlanketRule::DenyAll.into())),
            Assignment::Treat(QuotaTreatment::Share(share)) => assigned(Strategy::TokenBucket(TokenBucket {
                max_tokens: share.max_tokens,
                tokens_per_fill: Some(UInt32Value { value: share.tokens_per_fill }),
                fill_interval: Some(seconds(FILL)),
            })),
            Assignment::Abandon => Action::AbandonAction(AbandonAction {}),
        };
        BucketAction { bucket_id: Some(BucketId { bucket }), bucket_action: Some(action) }
    }
}

/// Returns the entries of a bucket's id, by key.
fn entries(usage: &BucketQuotaUsage) -> Result<BucketEntries, Status> {
    let id = usage.bucket_id.as_ref().map_or(&[][..], |id| &id.bucket);
    if id.is_empty() || id.len() > MAX_ENTRIES {
        let problem = format!("a bucket's id has {} entries, not 1 to {MAX_ENTRIES}", id.len());
        return Err(Status::new(Code::InvalidArgument, problem));
    }
    // Of entries with the same key, a map has the last.
    let entries = id.iter().map(|entry| (text(&entry.key).to_owned(), text(&entry.value).to_owned()));
    Ok(entries.collect::<BTreeMap<_, _>>().into_iter().collect())
}

fn seconds(span: Micros) -> ProtoDuration {
    ProtoDuration { seconds: i64::try_from(span.0 / 1_000_000).unwrap_or(i64::MAX), nanos: 0 }
}

impl BodyStream for QuotaStream {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        let (piece, session) = ready!(self.next.as_mut().poll(cx));
        self.next = Box::pin(session.next());
        Poll::Ready(piece.map(Ok))
    }
}

impl std::fmt::Debug for QuotaStream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("QuotaStream").finish_non_exhaustive()
    }
}
