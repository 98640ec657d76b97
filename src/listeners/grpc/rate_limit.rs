//! The rate limit service: what Envoy and Kuadrant's gateways ask about descriptors, and what they are told.
//!
//! A limit of `limits.yaml` whose period is none of the service's units is told in the unit `UNKNOWN`, which keeps Envoy
//! from naming a window in `X-RateLimit-Limit`.

use std::time::Instant;

use bytes::Bytes;
use smallvec::SmallVec;

use super::messages::rate_limit::{
    self as messages, DescriptorStatus, RateLimit, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use super::messages::{Duration, HeaderValue, Kind, ListValue, Struct, StructField, text};
use super::protocol::{Code, Status, decode, frame};
use super::{Caller, Envoy};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::answer::descriptors::DescriptorVerdict;
use crate::engine::answer::headers::{Generations, add_headers};
use crate::engine::answer::problem::denial;
use crate::engine::answer::verdict::{Answer, Standing};
use crate::engine::rules::descriptors::{
    Descriptor, DescriptorMode, DescriptorRequest, Hits, Metadata, PerUnit, RateUnit,
};
use crate::engine::rules::limit::LimitMode;
use crate::engine::rules::request::DescriptorEntry;
use crate::engine::rules::rule_set::Rules;
use crate::limiter::{Ask, AskSubject, Limiter, Ruling};
use crate::listeners::http::Passage;
use crate::message::headers::Headers;
use crate::telemetry::metrics::{DecisionListener, RateLimitAnswer};

/// Descriptors in one request. Each is a bucket that the store decides in the same call; Envoy sends one for each rate
/// limit of a route, of which nobody has a dozen.
const MOST_DESCRIPTORS: usize = 100;

/// Entries of one descriptor: Envoy makes one for each action, and rules look through all of them.
const MOST_ENTRIES: usize = 100;

/// When a request came, and until when its answer is of use.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// The wall clock.
    now: Micros,
    /// From when on the time that the answer takes is counted.
    start: Instant,
    /// When the store must have answered.
    deadline: Option<Instant>,
}

impl Envoy {
    /// A call of the rate limit service: `ShouldRateLimit`, `CheckRateLimit` or `Report`.
    pub(super) async fn rate_limit(
        &self,
        purpose: DescriptorMode,
        message: Bytes,
        caller: &Caller<'_>,
        passage: &mut Passage,
    ) -> Result<Bytes, Status> {
        let mut request: RateLimitRequest = decode(message)?;
        request.make_text();
        let moment = Moment { now: self.front.clock.now(), start: caller.start, deadline: caller.deadline };
        let asked = Asked { request: &request, purpose, moment };
        let response = rate_limit(&self.limiter, self.generations, asked, Some(passage)).await;
        caller.context.ready_to_answer().await;
        Ok(frame(&response?))
    }
}

/// A request, and what it is for.
#[derive(Clone, Copy, Debug)]
struct Asked<'r> {
    request: &'r RateLimitRequest,
    purpose: DescriptorMode,
    moment: Moment,
}

/// Answers one request; `generations` are those of the headers for the client.
async fn rate_limit(
    limiter: &Limiter,
    generations: Generations,
    asked: Asked<'_>,
    passage: Option<&mut Passage>,
) -> Result<RateLimitResponse, Status> {
    let outcome = answer(limiter, generations, asked, passage).await;
    let counted = match &outcome {
        Ok((answer, _)) => *answer,
        Err(Status { code: Code::Unavailable, .. }) => RateLimitAnswer::Unavailable,
        Err(_) => RateLimitAnswer::Invalid,
    };
    limiter.shared().metrics().listeners.rate_limit_answers[counted as usize].inc();
    outcome.map(|(_, response)| response)
}

async fn answer(
    limiter: &Limiter,
    generations: Generations,
    Asked { request, purpose, moment }: Asked<'_>,
    passage: Option<&mut Passage>,
) -> Result<(RateLimitAnswer, RateLimitResponse), Status> {
    check(request)?;
    let entries: SmallVec<[SmallVec<[DescriptorEntry<'_>; 4]>; 2]> =
        request.descriptors.iter().map(|descriptor| descriptor.entries.iter().map(entry).collect()).collect();
    let hits = match u64::from(request.hits_addend) {
        // Nothing is said, or what many say of every request.
        0 | 1 if purpose != DescriptorMode::Report => Hits::Take(1),
        hits => Hits::TakeOrDrain(hits.max(1)),
    };
    let descriptors: SmallVec<[Descriptor<'_>; 2]> =
        request.descriptors.iter().zip(&entries).map(|(asked, entries)| descriptor(asked, entries, hits)).collect();
    let question =
        DescriptorRequest { domain: text(&request.domain), descriptors: &descriptors, purpose, now: moment.now };
    let ask = Ask::new(AskSubject::Descriptors(&question), DecisionListener::RateLimit, moment.start);
    let ruling = limiter.decide(Ask { deadline: moment.deadline, ..ask }).await;
    let ruling = ruling.map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
    if let Some(passage) = passage {
        passage.decided(&ruling, moment.start, None);
    }
    let mut response = respond(request, &ruling, &descriptors, generations)?;
    if purpose == DescriptorMode::Report {
        // The statuses tell what is left.
        response = RateLimitResponse {
            overall_code: messages::Code::Ok.into(),
            statuses: response.statuses,
            ..RateLimitResponse::default()
        };
        return Ok((RateLimitAnswer::Ok, response));
    }
    let answer = match ruling.verdict.standing {
        Standing::Allowed if !ruling.view.rules().knows_domain(question.domain) => RateLimitAnswer::UnknownDomain,
        Standing::Allowed => RateLimitAnswer::Ok,
        Standing::Overloaded => RateLimitAnswer::Unavailable,
        _ => RateLimitAnswer::OverLimit,
    };
    Ok((answer, response))
}

fn check(request: &RateLimitRequest) -> Result<(), Status> {
    let invalid = |message: String| Err(Status::new(Code::InvalidArgument, message));
    if request.domain.is_empty() {
        return invalid("the domain is empty; give the filter a `domain`".into());
    }
    if request.descriptors.is_empty() {
        return invalid("there are no descriptors; give the route a `rate_limits` whose actions find a value".into());
    }
    if request.descriptors.len() > MOST_DESCRIPTORS {
        return invalid(format!("there are {} descriptors, more than {MOST_DESCRIPTORS}", request.descriptors.len()));
    }
    match request.descriptors.iter().map(|descriptor| descriptor.entries.len()).max() {
        Some(longest) if longest > MOST_ENTRIES => {
            invalid(format!("a descriptor has {longest} entries, more than {MOST_ENTRIES}"))
        }
        _ => Ok(()),
    }
}

fn entry(entry: &messages::Entry) -> DescriptorEntry<'_> {
    DescriptorEntry { key: text(&entry.key), value: text(&entry.value) }
}

/// `hits` is what the request says of all its descriptors.
fn descriptor<'a>(asked: &RateLimitDescriptor, entries: &'a [DescriptorEntry<'a>], hits: Hits) -> Descriptor<'a> {
    let hits = match asked.hits_addend.as_ref().map(|hits| hits.value) {
        None => hits,
        Some(0) => Hits::Take(0),
        Some(more) => Hits::TakeOrDrain(more),
    };
    let hits = match hits {
        Hits::Take(hits) | Hits::TakeOrDrain(hits) if asked.is_negative_hits => Hits::GiveBack(hits),
        hits => hits,
    };
    let carried = asked.limit.as_ref().and_then(|limit| {
        // A unit that this version does not know must neither deny everything nor lift the limits of the rules.
        Some(PerUnit { requests: limit.requests_per_unit, unit: unit(limit.unit)? })
    });
    Descriptor { entries, hits, carried }
}

fn unit(number: i32) -> Option<RateUnit> {
    Some(match messages::Unit::try_from(number).ok()? {
        messages::Unit::Unknown => return None,
        messages::Unit::Second => RateUnit::Second,
        messages::Unit::Minute => RateUnit::Minute,
        messages::Unit::Hour => RateUnit::Hour,
        messages::Unit::Day => RateUnit::Day,
        messages::Unit::Week => RateUnit::Week,
        messages::Unit::Month => RateUnit::Month,
        messages::Unit::Year => RateUnit::Year,
    })
}

const fn number(unit: Option<RateUnit>) -> messages::Unit {
    match unit {
        None => messages::Unit::Unknown,
        Some(RateUnit::Second) => messages::Unit::Second,
        Some(RateUnit::Minute) => messages::Unit::Minute,
        Some(RateUnit::Hour) => messages::Unit::Hour,
        Some(RateUnit::Day) => messages::Unit::Day,
        Some(RateUnit::Week) => messages::Unit::Week,
        Some(RateUnit::Month) => messages::Unit::Month,
        Some(RateUnit::Year) => messages::Unit::Year,
    }
}

fn respond(
    request: &RateLimitRequest,
    ruling: &Ruling,
    descriptors: &[Descriptor<'_>],
    generations: Generations,
) -> Result<RateLimitResponse, Status> {
    let (rules, whole) = (ruling.view.rules(), &ruling.verdict);
    let mut response = RateLimitResponse {
        statuses: Vec::with_capacity(descriptors.len()),
        overall_code: messages::Code::Ok.into(),
        ..RateLimitResponse::default()
    };
    let mut metadata: Option<Metadata> = None;
    for (given, descriptor) in ruling.descriptors.iter().zip(descriptors) {
        let status = status(rules, given, descriptor);
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
    match whole.standing {
        // Envoy goes by its `failure_mode_deny` then.
        Standing::Unavailable => {
            return Err(Status::new(Code::Unavailable, "the limits cannot be counted at the moment"));
        }
        Standing::Allowed => {
            let mut headers = Headers::new();
            add_headers(rules, whole, generations, &mut headers);
            response.response_headers_to_add = HeaderValue::list(&headers).collect();
        }
        // Envoy lets pass what gets an error, unless it says `failure_mode_deny`: a flood must not switch limits off.
        Standing::Denied | Standing::Overloaded => {
            let denial = denial(rules, whole, generations, false);
            response.overall_code = messages::Code::OverLimit.into();
            response.response_headers_to_add = HeaderValue::list(&denial.headers).collect();
            response.raw_body = Bytes::from(denial.body);
        }
    }
    response.dynamic_metadata = metadata.map(|metadata| dynamic_metadata(request, metadata));
    Ok(response)
}

/// What Envoy is told of one descriptor.
fn status(rules: &Rules, given: &DescriptorVerdict, descriptor: &Descriptor<'_>) -> DescriptorStatus {
    // The answer that makes the code comes first, then one that a client may be told of.
    let telling = given.verdict.answers.iter().max_by(|a, b| {
        let rank = |answer: &Answer| (is_over(rules, answer), answer.enforced);
        rank(a).cmp(&rank(b)).then_with(|| a.decision.strictness(&b.decision))
    });
    let Some(answer) = telling else {
        let limit_remaining = if given.unlimited.is_empty() { 0 } else { u32::MAX };
        return DescriptorStatus { code: messages::Code::Ok.into(), limit_remaining, ..DescriptorStatus::default() };
    };
    let is_short = answer.is_short();
    let decision = &answer.decision;
    // While something is left it is of interest when all is there again; when nothing is, when something is.
    let until = if is_short { decision.retry_after.or(decision.reset_after) } else { decision.reset_after };
    let code = if is_over(rules, answer) { messages::Code::OverLimit } else { messages::Code::Ok };
    DescriptorStatus {
        code: code.into(),
        current_limit: current_limit(rules, answer, descriptor),
        // Envoy advertises the status with the least left: the one that denies must be it, whatever is left for
        // requests that ask for less.
        limit_remaining: if is_short { 0 } else { u32::try_from(decision.remaining).unwrap_or(u32::MAX) },
        duration_until_reset: until.map(duration),
    }
}

/// Whether a limit is exceeded, as its status tells. One in shadow tells nothing of it, but one that denies nothing
/// because none does, or because another quota is left, does: the overall code alone decides.
fn is_over(rules: &Rules, answer: &Answer) -> bool {
    let Some(limit) = rules.limit(answer.limit).filter(|_| answer.is_short()) else { return false };
    let is_quota = limit.rule.as_deref().is_some_and(|rule| rule.is_quota);
    answer.enforced || limit.mode == LimitMode::Enforce && (is_quota || limit.is_shadowed)
}

fn current_limit(rules: &Rules, answer: &Answer, descriptor: &Descriptor<'_>) -> Option<RateLimit> {
    let limit = rules.limit(answer.limit)?;
    if let Some(rule) = limit.rule.as_deref() {
        return Some(told(rule.per_unit?, rule.name.clone()));
    }
    match (rules.is_carried(answer.limit), descriptor.carried) {
        (true, Some(carried)) => Some(told(carried, String::new())),
        _ => answer.numbers.as_ref().map(|numbers| rate(numbers, &limit.name)),
    }
}

fn told(per_unit: PerUnit, name: String) -> RateLimit {
    RateLimit { name, requests_per_unit: per_unit.requests, unit: number(Some(per_unit.unit)).into() }
}

/// A limit of `limits.yaml`: its count, which is what comes back in a period, or the burst of one that never refills.
fn rate(numbers: &Numbers, name: &str) -> RateLimit {
    let requests = if numbers.count() == 0 { numbers.burst() } else { numbers.count() };
    RateLimit {
        name: name.to_owned(),
        requests_per_unit: u32::try_from(requests).unwrap_or(u32::MAX),
        unit: number(RateUnit::of(numbers)).into(),
    }
}

fn duration(span: Micros) -> Duration {
    let nanos = i32::try_from(span.0 % 1_000_000 * 1_000).unwrap_or(0);
    Duration { seconds: i64::try_from(span.0 / 1_000_000).unwrap_or(i64::MAX), nanos }
}

/// The metadata of all limits that a descriptor touches, in the order of the rules.
fn metadata_of<'a>(rules: &'a Rules, given: &'a DescriptorVerdict) -> impl Iterator<Item = &'a Metadata> {
    let mut limits: SmallVec<[u32; 4]> = given.verdict.answers.iter().map(|answer| answer.limit).collect();
    limits.extend_from_slice(&given.unlimited);
    limits.sort_unstable();
    limits.dedup();
    limits.into_iter().filter_map(|limit| rules.limit(limit)?.rule.as_deref()?.metadata.as_ref())
}

/// The metadata of the limits that let the request pass, in the shape that envoyproxy/ratelimit gives it: below `metadata`,
/// beside what was asked.
fn dynamic_metadata(request: &RateLimitRequest, metadata: Metadata) -> Struct {
    #[expect(clippy::cast_precision_loss, reason = "JSON has no other numbers")]
    let number = |number: u64| Metadata::Number(number as f64);
    let descriptor = |descriptor: &RateLimitDescriptor| {
        let entry = |entry: &messages::Entry| Metadata::Text(format!("{}={}", text(&entry.key), text(&entry.value)));
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
    structure(members)
}

fn structure(members: Vec<(String, Metadata)>) -> Struct {
    let header = |(key, value)| StructField { key, value: Some(kind(value).into()) };
    Struct { fields: members.into_iter().map(header).collect() }
}

fn kind(value: Metadata) -> Kind {
    match value {
        Metadata::Null => Kind::Null(0),
        Metadata::Bool(truth) => Kind::Bool(truth),
        Metadata::Number(number) => Kind::Number(number),
        Metadata::Text(text) => Kind::Text(text),
        Metadata::List(values) => {
            Kind::List(ListValue { values: values.into_iter().map(|value| kind(value).into()).collect() })
        }
        Metadata::Map(members) => Kind::Struct(structure(members)),
    }
}
