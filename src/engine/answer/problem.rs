//! The reply to a request that is not allowed: problem details (RFC 9457), or a gRPC status.

use std::fmt::Write;

use http::StatusCode;

use super::headers::{Generations, add_headers};
use super::verdict::{Standing, Verdict};
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::rule_set::Rules;
use crate::message::headers::Headers;
use crate::message::reply::{Reply, begin_problem, problem_reply};

/// The problem types that draft-ietf-httpapi-ratelimit-headers-11 registers, with their titles.
pub(super) const QUOTA_EXCEEDED: (&str, &str) = (
    "https://iana.org/assignments/http-problem-types#quota-exceeded",
    "Request cannot be satisfied as assigned quota has been exceeded",
);
const REDUCED_CAPACITY: (&str, &str) = (
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    "Request cannot be satisfied due to temporary server capacity constraints",
);

/// gRPC's status for a request that a limit denies.
pub const RESOURCE_EXHAUSTED: &str = "8";
/// gRPC's status for a request that cannot be decided.
const UNAVAILABLE: &str = "14";

/// The `Retry-After` while the store is away. A breaker closes within about as long.
const UNAVAILABLE_RETRY_SECONDS: u64 = 1;

/// Returns the `Retry-After` of a denial in seconds; `None` if waiting does not help. It is rounded up and never 0, so that
/// a client that obeys it is not denied again.
pub fn retry_after(verdict: &Verdict) -> Option<u64> {
    match verdict.standing {
        Standing::Allowed => None,
        Standing::Unavailable | Standing::Overloaded => Some(UNAVAILABLE_RETRY_SECONDS),
        Standing::Denied => verdict.binding()?.decision.retry_after.map(|wait| wait.ceil_seconds().max(1)),
    }
}

/// Returns the reply to a request that is not allowed; `is_grpc` if its content type is `application/grpc`.
pub fn denial(rules: &Rules, verdict: &Verdict, generations: Generations, is_grpc: bool) -> Reply {
    let is_denied = verdict.standing == Standing::Denied;
    let mut reply = if is_grpc {
        let code = if is_denied { RESOURCE_EXHAUSTED } else { UNAVAILABLE };
        let mut detail = String::new();
        push_detail(&mut detail, rules, verdict);
        // A response of headers alone: gRPC reads the status from them. The detail is ASCII without `%`, so it is its own
        // percent-encoding (gRPC over HTTP/2, Status-Message).
        let lines = [("content-type", "application/grpc"), ("grpc-status", code), ("grpc-message", &detail)];
        Reply { status: StatusCode::OK, headers: Headers::from_iter(lines), body: String::new() }
    } else {
        problem_details(is_denied, rules, verdict)
    };
    reply.headers.append("cache-control", "no-store");
    if let Some(seconds) = retry_after(verdict) {
        reply.headers.append("retry-after", itoa::Buffer::new().format(seconds));
    }
    if is_denied {
        add_headers(rules, verdict, generations, &mut reply.headers);
    }
    reply
}

/// Drops the parts of a verdict that [`denial`] does not show: fractions of seconds, and fingerprints. Most denials by one
/// limit then have equal verdicts.
pub fn round(verdict: &mut Verdict) {
    let up = |wait: Micros| Micros(wait.ceil_seconds().saturating_mul(1_000_000));
    for answer in &mut verdict.answers {
        answer.fingerprint = None;
        answer.decision.retry_after = answer.decision.retry_after.map(up);
        answer.decision.reset_after = answer.decision.reset_after.map(up);
    }
}

/// A problem with the names of the limits that deny, in the draft's extension `violated-policies`.
fn problem_details(is_denied: bool, rules: &Rules, verdict: &Verdict) -> Reply {
    let (status, (kind, title)) = if is_denied {
        (StatusCode::TOO_MANY_REQUESTS, QUOTA_EXCEEDED)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, REDUCED_CAPACITY)
    };
    let mut body = begin_problem(kind, title, status);
    // Names need no escapes, and the rest is numbers and our own words.
    push_detail(&mut body, rules, verdict);
    body.push_str("\",\"violated-policies\":[");
    let unanswered = verdict.unanswered.iter().filter(|limit| limit.denies).map(|limit| limit.limit);
    let denied = verdict.enforced().filter(|answer| answer.decision.is_denied()).map(|answer| answer.limit);
    let mut last = None;
    for limit in unanswered.chain(denied) {
        if last != Some(limit) {
            body.push_str(if last.is_none() { "\"" } else { ",\"" });
            body.push_str(rules.name(limit));
            body.push('"');
            last = Some(limit);
        }
    }
    body.push_str("]}");
    problem_reply(status, body)
}

/// Writes the message for people: the limit that binds, what it allows, and when to retry.
fn push_detail(text: &mut String, rules: &Rules, verdict: &Verdict) {
    if verdict.standing == Standing::Overloaded {
        return text.push_str("Too many requests are waiting");
    }
    let binding = verdict.binding().filter(|_| verdict.standing == Standing::Denied);
    let Some(answer) = binding else { return text.push_str("The limit cannot be counted at the moment") };
    text.push_str(rules.name(answer.limit));
    let wait = answer.decision.retry_after;
    match (&answer.numbers, wait) {
        (None, None) => return text.push_str(" denies this request"),
        // Only an operator's block denies for a time without numbers. Clients do not see its reason.
        (None, Some(_)) => text.push_str(" is blocked for this id"),
        (Some(numbers), _) => {
            text.push_str(" allows ");
            numbers.describe(text);
            if answer.cost > numbers.burst() {
                let _ = write!(text, "; a cost of {} can never pass", answer.cost);
                return;
            }
        }
    }
    if let Some(wait) = wait {
        text.push_str("; retry after ");
        text.push_str(itoa::Buffer::new().format(wait.ceil_seconds().max(1)));
        text.push_str(" s");
    }
}
