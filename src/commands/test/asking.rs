//! Puts a step to the limiter, and makes the answer of the proxy.

use std::time::{Duration, Instant};

use crate::config::rule_tests::{Subject, TestCharge, TestDescriptors, TestRequest};
use crate::engine::algorithms::charge::Mode;
use crate::engine::algorithms::delay::LONGEST_DELAY;
use crate::engine::algorithms::micros::Micros;
use crate::engine::answer::accepted;
use crate::engine::answer::headers::{Generations, add_headers};
use crate::engine::answer::problem::denial;
use crate::engine::charging::descriptors::{ChargedAfterwards, Descriptor, DescriptorMode, DescriptorRequest, Hits};
use crate::engine::charging::named::NamedCharge;
use crate::engine::charging::plan::Plan;
use crate::engine::charging::terms::Intent;
use crate::engine::deciding::{DecisionSubject, InvalidSubject};
use crate::engine::limit::rules::Rules;
use crate::engine::request::{Body, DescriptorEntry, Request};
use crate::limiter::{DecisionRequest, HeldSlots, Limiter, LimiterVerdict, Patience};
use crate::message::headers::Headers;
use crate::telemetry::metrics::DecisionListener;

/// No time passes between a decision and its settlement. The time since an instant that is still to come is 0.
const AHEAD: Duration = Duration::from_hours(1);

/// The status for a request that no limit can decide.
const BAD_REQUEST: u16 = 400;

/// The outcome of a step's request.
pub(super) struct Asked {
    /// The error is the reason why the request is rejected.
    pub(super) decided: Result<LimiterVerdict, String>,
    /// The proxy's answer.
    pub(super) status: u16,
    pub(super) headers: Headers,
    /// The slots of a request that lasts, and how long.
    pub(super) slots: Option<(Box<HeldSlots>, Micros)>,
}

impl Asked {
    /// An answer without a status, unless the request is rejected.
    fn of(decided: Result<LimiterVerdict, InvalidSubject>) -> Self {
        let status = if decided.is_ok() { 0 } else { BAD_REQUEST };
        let decided = decided.map_err(|error| error.to_string());
        Self { decided, status, headers: Headers::new(), slots: None }
    }

    /// Returns whether the store has not answered.
    pub(super) fn is_undecided(&self) -> bool {
        self.decided.as_ref().is_ok_and(|decided| !decided.verdict.unanswered.is_empty())
    }
}

/// Asks at `now`, which the store's clock shows as well.
pub(super) async fn ask(limiter: &Limiter, subject: &Subject, now: Micros) -> Asked {
    match subject {
        Subject::Request(given) => ask_request(limiter, given, now).await,
        Subject::Charge(given) => {
            let charges = [named(given)];
            let patient = patient(DecisionSubject::Named { charges: &charges, now }, DecisionListener::Check);
            let intent = Intent { mode: given.mode, ..Intent::SPEND };
            Asked::of(limiter.decide(DecisionRequest { intent, ..patient }).await)
        }
        Subject::Descriptors(given) => {
            let entries: Vec<Vec<_>> = given.descriptors.iter().map(|pairs| entries(pairs)).collect();
            let descriptors = descriptors(given, &entries);
            let request = descriptor_request(given, &descriptors, now);
            let patient = patient(DecisionSubject::Descriptors(&request), DecisionListener::RateLimit);
            Asked::of(limiter.decide(patient).await)
        }
    }
}

async fn ask_request(limiter: &Limiter, given: &TestRequest, now: Micros) -> Asked {
    let descriptor = entries(&given.descriptor);
    let request = request(given, &descriptor, now);
    let patient = patient(DecisionSubject::Request(&request), DecisionListener::Proxy);
    let mut asked = Asked::of(limiter.decide(DecisionRequest { sees_response: true, ..patient }).await);
    let Ok(decided) = &mut asked.decided else { return asked };
    (asked.status, asked.headers) = reply(decided, given);
    if let Some(mut settlement) = decided.settlement.take() {
        settlement.sent();
        settlement.answered(given.status, &given.response, !given.response_body.is_empty());
        settlement.data(given.response_body.as_bytes());
    }
    let delay = decided.verdict.delay();
    asked.slots = decided.slots.take().zip(given.lasts.map(|lasts| lasts.after(delay)));
    asked
}

/// A caller that waits as long as a limit delays. No time passes while it does.
fn patient(subject: DecisionSubject<'_>, listener: DecisionListener) -> DecisionRequest<'_> {
    let request = DecisionRequest::new(subject, listener, Instant::now() + AHEAD);
    DecisionRequest { patience: Patience::Caller(Micros(LONGEST_DELAY)), ..request }
}

/// The proxy's status and headers.
fn reply(decided: &LimiterVerdict, given: &TestRequest) -> (u16, Headers) {
    let (rules, verdict, generations) = (decided.view.rules(), &decided.verdict, Generations::default());
    if !verdict.is_allowed() {
        let reply = denial(rules, verdict, generations, given.headers.is_grpc());
        return (reply.status.as_u16(), reply.headers);
    }
    if let Some(reply) = accepted::accepted(rules, verdict, generations) {
        return (reply.status.as_u16(), reply.headers);
    }
    let mut headers = given.response.clone();
    add_headers(rules, verdict, generations, &mut headers);
    (given.status, headers)
}

/// The charges of a step, without asking a store.
pub(super) fn charges(rules: &Rules, subject: &Subject, now: Micros) -> Option<Plan> {
    match subject {
        Subject::Request(given) => {
            let descriptor = entries(&given.descriptor);
            Plan::of_request(rules, &request(given, &descriptor, now), None).ok()
        }
        Subject::Charge(given) => Plan::of_named(rules, &[named(given)], Mode::Check, now, None).ok(),
        Subject::Descriptors(given) => {
            let entries: Vec<Vec<_>> = given.descriptors.iter().map(|pairs| entries(pairs)).collect();
            let afterwards = ChargedAfterwards::new(rules);
            Plan::of_descriptors(
                rules,
                &descriptor_request(given, &descriptors(given, &entries), now),
                None,
                &afterwards,
            )
            .ok()
        }
    }
}

/// The readable id of a request for the limit at this index.
pub(super) fn id_of(rules: &Rules, limit: u32, subject: &Subject, now: Micros) -> Option<String> {
    let Subject::Request(given) = subject else { return None };
    let descriptor = entries(&given.descriptor);
    rules.id_of(limit, &request(given, &descriptor, now)).map(|(id, _)| id)
}

fn request<'a>(given: &'a TestRequest, descriptor: &'a [DescriptorEntry<'a>], now: Micros) -> Request<'a> {
    Request {
        method: &given.method,
        host: &given.host,
        path: &given.path,
        query: given.query.as_deref(),
        headers: &given.headers,
        client: Some(given.client),
        tls_subject: given.tls_subject.as_deref(),
        claims: &given.claims,
        body: Body::inspected(
            given.body.as_deref().unwrap_or_default().as_bytes(),
            &given.headers,
            given.inspected_bytes,
        ),
        domain: None,
        descriptor,
        now,
    }
}

fn named(given: &TestCharge) -> NamedCharge {
    let TestCharge { limit, id, cost, .. } = given.clone();
    NamedCharge { limit, id, cost, numbers: None, fields: Vec::new(), entry: None }
}

fn entries(pairs: &[(String, String)]) -> Vec<DescriptorEntry<'_>> {
    pairs.iter().map(|(key, value)| DescriptorEntry { key, value }).collect()
}

fn descriptors<'a>(given: &TestDescriptors, entries: &'a [Vec<DescriptorEntry<'a>>]) -> Vec<Descriptor<'a>> {
    let hits = match given.hits {
        0 | 1 => Hits::Take(given.hits),
        more => Hits::TakeOrDrain(more),
    };
    entries.iter().map(|entries| Descriptor { entries, hits, carried: None }).collect()
}

fn descriptor_request<'a>(
    given: &'a TestDescriptors,
    descriptors: &'a [Descriptor<'a>],
    now: Micros,
) -> DescriptorRequest<'a> {
    DescriptorRequest { domain: &given.domain, descriptors, purpose: DescriptorMode::Decide, now }
}
