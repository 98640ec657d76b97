//! The rate limit service, for Envoy and for Kuadrant's gateways: descriptors and their statuses.
//!
//! A limit of `limits.yaml` whose period is not one of the service's units has the unit `UNKNOWN`. Envoy then names no
//! window in `X-RateLimit-Limit`.

use bytes::Bytes;
use smallvec::SmallVec;

use super::messages::rate_limit::{
    self as messages, DescriptorStatus, RateLimit, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use super::messages::{Duration, HeaderValue, Kind, ListValue, MapEntry, Memory, Struct, text};
use super::protocol::{Code, Status, decode};
use super::{Answers, CallContext, Envoy};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::reservation::Reservation;
use crate::engine::answer::headers::{Generations, add_headers};
use crate::engine::answer::problem::denial;
use crate::engine::charging::descriptors::{Descriptor, DescriptorMode, DescriptorRequest, Hits};
use crate::engine::deciding::DecisionSubject;
use crate::engine::deciding::descriptors::DescriptorVerdict;
use crate::engine::deciding::verdict::{LimitDecision, VerdictKind};
use crate::engine::limit::LimitMode;
use crate::engine::limit::deny_with::Visibility;
use crate::engine::limit::descriptors::{Metadata, PerUnit, RateUnit};
use crate::engine::limit::rules::Rules;
use crate::engine::request::DescriptorEntry;
use crate::limiter::{DecisionRequest, LimiterVerdict, Patience};
use crate::listeners::http::ActiveRequest;
use crate::telemetry::metrics::{DecisionListener, RateLimitAnswer};

/// Descriptors in one request. The store decides a bucket for each in one call; Envoy sends one per rate limit of a route,
/// which has a few.
const MAX_DESCRIPTORS: usize = 100;

/// Entries of one descriptor. Envoy makes one per action, and rules search all of them.
const MAX_ENTRIES: usize = 100;

/// The units of the service and the engine.
const UNITS: [(messages::Unit, RateUnit); 7] = [
    (messages::Unit::Second, RateUnit::Second),
    (messages::Unit::Minute, RateUnit::Minute),
    (messages::Unit::Hour, RateUnit::Hour),
    (messages::Unit::Day, RateUnit::Day),
    (messages::Unit::Week, RateUnit::Week),
    (messages::Unit::Month, RateUnit::Month),
    (messages::Unit::Year, RateUnit::Year),
];

impl Envoy {
    /// Answers `ShouldRateLimit`, `CheckRateLimit` or `Report`.
    pub(super) async fn rate_limit(
        &self,
        mode: DescriptorMode,
        message: Bytes,
        call: &CallContext<'_>,
        active: &mut ActiveRequest,
    ) -> Result<Bytes, Status> {
        let mut request: RateLimitRequest = decode(message)?;
        request.make_text();
        let answered = self.decide_descriptors(mode, &request, call, active).await;
        self.counted(answered)
    }

    /// Counts an answer.
    pub(super) fn counted(&self, answered: Result<(RateLimitAnswer, Bytes), Status>) -> Result<Bytes, Status> {
        let counted = match &answered {
            Ok((answer, _)) => *answer,
            Err(Status { code: Code::Unavailable, .. }) => RateLimitAnswer::Unavailable,
            Err(_) => RateLimitAnswer::Invalid,
        };
        self.front.limiter.shared().metrics().listeners.rate_limit_answers[counted].inc();
        answered.map(|(_, frame)| frame)
    }

    async fn decide_descriptors(
        &self,
        mode: DescriptorMode,
        request: &RateLimitRequest,
        call: &CallContext<'_>,
        active: &mut ActiveRequest,
    ) -> Result<(RateLimitAnswer, Bytes), Status> {
        check(request)?;
        let entries: SmallVec<[SmallVec<[DescriptorEntry<'_>; 4]>; 2]> =
            request.descriptors.iter().map(|descriptor| descriptor.entries.iter().map(entry).collect()).collect();
        let hits = match u64::from(request.hits_addend) {
            // Not set, or 1, which many callers always send.
            0 | 1 if mode != DescriptorMode::Report => Hits::Take(1),
            hits => Hits::TakeOrDrain(hits.max(1)),
        };
        let descriptors: SmallVec<[Descriptor<'_>; 2]> =
            request.descriptors.iter().zip(&entries).map(|(given, entries)| descriptor(given, entries, hits)).collect();
        let now = self.front.clock.now();
        let question =
            DescriptorRequest { domain: text(&request.domain), descriptors: &descriptors, purpose: mode, now };
        let decided = self.ask(&question, None, call, active).await?;
        let mut answers = self.answers.borrow_mut();
        answers.clear();
        respond(request, &decided, &descriptors, self.front.generations, &mut answers)?;
        if mode == DescriptorMode::Report {
            // Only the statuses, which tell what is left.
            let statuses = std::mem::take(&mut answers.rate_limit.statuses);
            let overall_code = messages::Code::Ok.into();
            answers.rate_limit = RateLimitResponse { overall_code, statuses, ..RateLimitResponse::default() };
        }
        let frame = answers.rate_limit();
        if mode == DescriptorMode::Report {
            return Ok((RateLimitAnswer::Ok, frame));
        }
        let answer = match decided.verdict.kind {
            VerdictKind::Allowed if !decided.view.rules().knows_domain(question.domain) => {
                RateLimitAnswer::UnknownDomain
            }
            VerdictKind::Allowed => RateLimitAnswer::Ok,
            VerdictKind::Overloaded => RateLimitAnswer::Unavailable,
            _ => RateLimitAnswer::OverLimit,
        };
        Ok((answer, frame))
    }

    /// Asks the limiter.
    pub(super) async fn ask(
        &self,
        question: &DescriptorRequest<'_>,
        reservation: Option<Reservation>,
        call: &CallContext<'_>,
        active: &mut ActiveRequest,
    ) -> Result<LimiterVerdict, Status> {
        if self.readiness.awaits_configuration() {
            let why = "no configuration has come from the management server yet";
            return Err(Status::new(Code::Unavailable, why));
        }
        let asked =
            DecisionRequest::new(DecisionSubject::Descriptors(question), DecisionListener::RateLimit, call.start);
        let patience = match question.purpose {
            DescriptorMode::Decide if reservation.is_none() => self.front.limiter.patience(call.deadline),
            _ => Patience::None,
        };
        let asked = DecisionRequest { deadline: call.deadline, patience, reservation, ..asked };
        let decided = active.decide(&self.front.limiter, asked, call.context).await;
        decided.map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))
    }
}

pub(super) fn check(request: &RateLimitRequest) -> Result<(), Status> {
    let invalid = |message: String| Err(Status::new(Code::InvalidArgument, message));
    if request.domain.is_empty() {
        return invalid("the domain is empty; give the filter a `domain`".into());
    }
    if request.descriptors.is_empty() {
        return invalid("there are no descriptors; give the route `rate_limits` whose actions yield a value".into());
    }
    if request.descriptors.len() > MAX_DESCRIPTORS {
        return invalid(format!("there are {} descriptors, more than {MAX_DESCRIPTORS}", request.descriptors.len()));
    }
    match request.descriptors.iter().map(|descriptor| descriptor.entries.len()).max() {
        Some(longest) if longest > MAX_ENTRIES => {
            invalid(format!("a descriptor has {longest} entries, more than {MAX_ENTRIES}"))
        }
        _ => Ok(()),
    }
}

pub(super) fn entry(entry: &MapEntry) -> DescriptorEntry<'_> {
    DescriptorEntry { key: text(&entry.key), value: text(&entry.value) }
}

/// `hits` are those of the request.
fn descriptor<'a>(given: &RateLimitDescriptor, entries: &'a [DescriptorEntry<'a>], hits: Hits) -> Descriptor<'a> {
    let hits = match given.hits_addend.as_ref().map(|hits| hits.value) {
        None => hits,
        Some(0) => Hits::Take(0),
        Some(more) => Hits::TakeOrDrain(more),
    };
    let hits = match hits {
        Hits::Take(hits) | Hits::TakeOrDrain(hits) if given.is_negative_hits => Hits::GiveBack(hits),
        hits => hits,
    };
    let carried = given.limit.as_ref().and_then(|limit| {
        // A unit that this version does not know neither denies everything nor lifts the limits of the rules.
        Some(PerUnit { requests: limit.requests_per_unit, unit: unit(limit.unit)? })
    });
    Descriptor { entries, hits, carried }
}

pub(super) fn unit(number: i32) -> Option<RateUnit> {
    UNITS.iter().find(|(known, _)| i32::from(*known) == number).map(|(_, unit)| *unit)
}

pub(super) fn unit_number(unit: Option<RateUnit>) -> i32 {
    let found = UNITS.iter().find(|(_, known)| Some(*known) == unit);
    found.map_or(messages::Unit::Unknown, |(number, _)| *number).into()
}

pub(super) fn unavailable() -> Status {
    Status::new(Code::Unavailable, "the limits cannot be counted now")
}

fn respond(
    request: &RateLimitRequest,
    decided: &LimiterVerdict,
    descriptors: &[Descriptor<'_>],
    generations: Generations,
    answers: &mut Answers,
) -> Result<(), Status> {
    let (rules, whole) = (decided.view.rules(), &decided.verdict);
    let Answers { rate_limit: response, headers, memory } = answers;
    let mut metadata: Option<Metadata> = None;
    for (given, descriptor) in decided.descriptors.iter().zip(descriptors) {
        let status = status(rules, given, descriptor, memory);
        if status.code == i32::from(messages::Code::Ok) {
            for given in metadata_of(rules, given) {
                match &mut metadata {
                    Some(known) => known.merge(given),
                    None => metadata = Some(given.clone()),
                }
            }
        }
        response.statuses.push(status);
    }
    match whole.kind {
        // Envoy's `failure_mode_deny` decides.
        VerdictKind::Unavailable => return Err(unavailable()),
        VerdictKind::Allowed => {
            response.overall_code = messages::Code::Ok.into();
            add_headers(rules, whole, generations, headers);
            response.response_headers_to_add.extend(HeaderValue::list(headers, memory));
        }
        // Not an error for overload, because Envoy passes requests on errors by default: a flood must not switch limits off.
        VerdictKind::Denied | VerdictKind::Overloaded => {
            response.overall_code = messages::Code::OverLimit.into();
            let denial = denial(rules, whole, generations, false);
            response.response_headers_to_add.extend(HeaderValue::list(&denial.headers, memory));
            response.raw_body = Bytes::from(denial.body);
        }
    }
    response.dynamic_metadata = metadata.map(|metadata| dynamic_metadata(request, metadata));
    Ok(())
}

fn status(
    rules: &Rules,
    given: &DescriptorVerdict,
    descriptor: &Descriptor<'_>,
    memory: &mut Memory,
) -> DescriptorStatus {
    // The answer that determines the code comes first, then an enforced one.
    let chosen = given.verdict.answers.iter().max_by(|a, b| {
        let rank = |answer: &LimitDecision| (is_over(rules, answer), answer.is_enforced());
        rank(a).cmp(&rank(b)).then_with(|| a.decision.strictness(&b.decision))
    });
    let Some(answer) = chosen else {
        let limit_remaining = if given.unlimited.is_empty() { 0 } else { u32::MAX };
        return DescriptorStatus { code: messages::Code::Ok.into(), limit_remaining, ..DescriptorStatus::default() };
    };
    let is_short = answer.is_short();
    let decision = &answer.decision;
    // Until the quota is whole again or, if nothing is left, until something is.
    let until = if is_short { decision.retry_after.or(decision.reset_after) } else { decision.reset_after };
    let code = if is_over(rules, answer) { messages::Code::OverLimit } else { messages::Code::Ok };
    DescriptorStatus {
        code: code.into(),
        current_limit: current_limit(rules, answer, descriptor, memory),
        // Envoy advertises the status with the least left. That must be the one that denies, even if a smaller cost fits.
        limit_remaining: if is_short { 0 } else { u32::try_from(decision.remaining).unwrap_or(u32::MAX) },
        duration_until_reset: until.map(duration),
    }
}

/// Returns whether the status of a limit is "over limit". One in shadow mode hides that. One that denies nothing because
/// no limit does, or because another quota is left, shows it: only the overall code decides.
fn is_over(rules: &Rules, answer: &LimitDecision) -> bool {
    let Some(limit) = rules.limit(answer.limit).filter(|_| answer.is_short()) else { return false };
    let is_quota = limit.rule.as_deref().is_some_and(|rule| rule.is_quota);
    answer.is_enforced() || limit.mode == LimitMode::Enforce && (is_quota || limit.is_shadowed)
}

fn current_limit(
    rules: &Rules,
    answer: &LimitDecision,
    descriptor: &Descriptor<'_>,
    memory: &mut Memory,
) -> Option<RateLimit> {
    // Envoy advertises a limit only if it gets its numbers.
    let limit = rules.limit(answer.limit).filter(|limit| limit.visibility == Visibility::Shown)?;
    if let Some(rule) = limit.rule.as_deref() {
        return Some(rate_limit(rule.per_unit?, memory.text(&rule.name)));
    }
    match (rules.is_carried(answer.limit), descriptor.carried) {
        (true, Some(carried)) => Some(rate_limit(carried, Bytes::new())),
        _ => answer.numbers.as_ref().map(|numbers| rate(numbers, memory.text(&limit.name))),
    }
}

fn rate_limit(per_unit: PerUnit, name: Bytes) -> RateLimit {
    RateLimit { name, requests_per_unit: per_unit.requests, unit: unit_number(Some(per_unit.unit)) }
}

/// The rate of a limit of `limits.yaml`: its count, or the burst of one that never refills.
fn rate(numbers: &Numbers, name: Bytes) -> RateLimit {
    let requests = if numbers.count() == 0 { numbers.burst() } else { numbers.count() };
    RateLimit {
        name,
        requests_per_unit: u32::try_from(requests).unwrap_or(u32::MAX),
        unit: unit_number(RateUnit::of(numbers)),
    }
}

fn duration(span: Micros) -> Duration {
    let nanos = i32::try_from(span.0 % 1_000_000 * 1_000).unwrap_or(0);
    Duration { seconds: i64::try_from(span.0 / 1_000_000).unwrap_or(i64::MAX), nanos }
}

/// The metadata of a descriptor's limits, in the order of the rules.
fn metadata_of<'a>(rules: &'a Rules, given: &'a DescriptorVerdict) -> impl Iterator<Item = &'a Metadata> {
    let mut limits: SmallVec<[u32; 4]> = given.verdict.answers.iter().map(|answer| answer.limit).collect();
    limits.extend_from_slice(&given.unlimited);
    limits.sort_unstable();
    limits.dedup();
    limits.into_iter().filter_map(|limit| rules.limit(limit)?.rule.as_deref()?.metadata.as_ref())
}

/// The metadata of the limits that allow the request, as envoyproxy/ratelimit has it: below `metadata`, beside the request.
fn dynamic_metadata(request: &RateLimitRequest, metadata: Metadata) -> Struct {
    #[expect(clippy::cast_precision_loss, reason = "JSON has no other numbers")]
    let number = |number: u64| Metadata::Number(number as f64);
    let descriptor = |descriptor: &RateLimitDescriptor| {
        let entry = |entry: &MapEntry| Metadata::Text(format!("{}={}", text(&entry.key), text(&entry.value)));
        let mut members = vec![("entries".to_owned(), Metadata::List(descriptor.entries.iter().map(entry).collect()))];
        if let Some(limit) = &descriptor.limit {
            let unit = unit(limit.unit).map_or("unknown", RateUnit::name).to_ascii_uppercase();
            let limit = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
            members.push(("limit".to_owned(), Metadata::Text(limit)));
        }
        members.extend(descriptor.hits_addend.as_ref().map(|hits| ("hitsAddend".to_owned(), number(hits.value))));
        Metadata::Map(members)
    };
    let descriptors = request.descriptors.iter().map(descriptor).collect();
    let mut members = vec![
        ("domain".to_owned(), Metadata::Text(text(&request.domain).to_owned())),
        ("descriptors".to_owned(), Metadata::List(descriptors)),
    ];
    if request.hits_addend > 0 {
        members.push(("hitsAddend".to_owned(), number(request.hits_addend.into())));
    }
    members.push(("metadata".to_owned(), metadata));
    members.into_iter().map(|(key, value)| (key, kind(value))).collect()
}

fn kind(value: Metadata) -> Kind {
    match value {
        Metadata::Null => Kind::Null(0),
        Metadata::Bool(truth) => Kind::Bool(truth),
        Metadata::Number(number) => Kind::Number(number),
        Metadata::Text(text) => Kind::Text(text.into()),
        Metadata::List(values) => {
            Kind::List(ListValue { values: values.into_iter().map(|value| kind(value).into()).collect() })
        }
        Metadata::Map(members) => Kind::Struct(members.into_iter().map(|(key, value)| (key, kind(value))).collect()),
    }
}
