//! The reply to a request that is not allowed: problem details (RFC 9457), or a gRPC status.

use std::fmt::Write;

use http::StatusCode;

use super::headers::{Generations, add_headers};
use super::told;
use crate::engine::algorithms::decision::Detail;
use crate::engine::algorithms::micros::Micros;
use crate::engine::deciding::verdict::{Verdict, VerdictKind};
use crate::engine::limit::deny_with::{DenyWith, Template};
use crate::engine::limit::rules::Rules;
use crate::message::headers::Headers;
use crate::message::reply::{Reply, begin_problem, problem, problem_reply};

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

/// The detail of a denial by a limit that clients are not told of.
const HIDDEN: &str = "Too many requests";

/// The `Retry-After` while the store is away. A breaker closes within about as long.
const UNAVAILABLE_RETRY_SECONDS: u64 = 1;

/// Returns the `Retry-After` of a denial in seconds; `None` if waiting does not help. It is rounded up and never 0, so that
/// a client that obeys it is not denied again.
pub fn retry_after(verdict: &Verdict) -> Option<u64> {
    match verdict.kind {
        VerdictKind::Allowed => None,
        VerdictKind::Unavailable | VerdictKind::Overloaded => Some(UNAVAILABLE_RETRY_SECONDS),
        VerdictKind::Denied => verdict.wait().map(|wait| wait.ceil_seconds().max(1)),
    }
}

/// Returns the reply to a request that is not allowed; `is_grpc` if its content type is `application/grpc`.
pub fn denial(rules: &Rules, verdict: &Verdict, generations: Generations, is_grpc: bool) -> Reply {
    let is_denied = verdict.kind == VerdictKind::Denied;
    let limit = verdict.binding().filter(|_| is_denied).and_then(|answer| rules.limit(answer.limit));
    let with = limit.and_then(|limit| limit.deny_with.as_deref());
    let fill =
        |template: &Template| template.fill(limit.map_or("", |limit| &limit.name), retry_after(verdict).unwrap_or(0));
    let mut reply = match with.and_then(|with| with.body.as_ref()) {
        _ if is_grpc => grpc_status(is_denied, rules, verdict),
        None => problem_details(status(verdict, with), rules, verdict),
        Some(body) => {
            let text = fill(&body.text);
            let content_type = Some(("content-type", &body.content_type[..])).filter(|_| !text.is_empty());
            Reply { status: status(verdict, with), headers: Headers::from_iter(content_type), body: text }
        }
    };
    reply.headers.append("cache-control", "no-store");
    if let Some(seconds) = told_retry_after(rules, verdict) {
        reply.headers.append("retry-after", itoa::Buffer::new().format(seconds));
    }
    if is_denied {
        add_headers(rules, verdict, generations, &mut reply.headers);
    }
    for (name, value) in with.into_iter().flat_map(|with| &with.headers) {
        reply.headers.set(name.as_str(), fill(value));
    }
    reply
}

/// The status for clients that do not speak gRPC.
fn status(verdict: &Verdict, with: Option<&DenyWith>) -> StatusCode {
    match verdict.kind {
        VerdictKind::Denied => with.and_then(|with| with.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Returns the `Retry-After` of a reply; `None` if only limits deny that clients are not told of. Beside a limit that they are
/// told of, a hidden one that denies for longer counts: a client that obeys the header must not be denied again.
fn told_retry_after(rules: &Rules, verdict: &Verdict) -> Option<u64> {
    let is_hidden = verdict.kind == VerdictKind::Denied && told::denial(rules, verdict).is_none();
    if is_hidden { None } else { retry_after(verdict) }
}

/// A response of headers alone: gRPC reads the status from them.
fn grpc_status(is_denied: bool, rules: &Rules, verdict: &Verdict) -> Reply {
    let code = if is_denied { RESOURCE_EXHAUSTED } else { UNAVAILABLE };
    let mut detail = String::new();
    push_detail(&mut detail, rules, verdict);
    // The detail is ASCII without `%`, so it is its own percent-encoding (gRPC over HTTP/2, Status-Message).
    let lines = [("content-type", "application/grpc"), ("grpc-status", code), ("grpc-message", &detail)];
    Reply { status: StatusCode::OK, headers: Headers::from_iter(lines), body: String::new() }
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
    for (_, detail) in &mut verdict.details {
        if let Detail::Counted(wait) = detail {
            *wait = up(*wait);
        }
    }
}

/// A problem with the names of the limits that deny, in the draft's extension `violated-policies`.
fn problem_details(status: StatusCode, rules: &Rules, verdict: &Verdict) -> Reply {
    let is_denied = verdict.kind == VerdictKind::Denied;
    if is_denied && told::denial(rules, verdict).is_none() {
        return problem(status, HIDDEN);
    }
    let (kind, title) = if is_denied { QUOTA_EXCEEDED } else { REDUCED_CAPACITY };
    let mut body = begin_problem(kind, title, status);
    // Names need no escapes, and the rest is numbers and our own words.
    push_detail(&mut body, rules, verdict);
    body.push_str("\",\"violated-policies\":[");
    let unanswered = verdict.unanswered.iter().filter(|limit| limit.denies).map(|limit| limit.limit);
    let denied = verdict.enforced().filter(|answer| answer.decision.is_denied()).map(|answer| answer.limit);
    let mut last = None;
    for limit in unanswered.chain(denied).filter(|limit| told::is_told(rules, *limit)) {
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
    match verdict.kind {
        VerdictKind::Overloaded => return text.push_str("Too many requests are waiting"),
        VerdictKind::Unavailable => return text.push_str("The limit cannot be counted at the moment"),
        VerdictKind::Denied | VerdictKind::Allowed => {}
    }
    let Some(answer) = told::denial(rules, verdict) else { return text.push_str(HIDDEN) };
    text.push_str(rules.name(answer.limit));
    match (&answer.numbers, answer.decision.retry_after) {
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
    if let Some(seconds) = retry_after(verdict) {
        text.push_str("; retry after ");
        text.push_str(itoa::Buffer::new().format(seconds));
        text.push_str(" s");
    }
}
