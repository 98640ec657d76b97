//! The answers of the check listener.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{CheckAnswer, OPENAPI};
use crate::engine::algorithms::decision::{Detail, Elevation, Outcome};
use crate::engine::algorithms::reservation::Reservation;
use crate::engine::algorithms::script::{ScriptOutput, ScriptValue};
use crate::engine::answer::accepted;
use crate::engine::answer::headers::{Generations, add_headers};
use crate::engine::answer::problem::{RESOURCE_EXHAUSTED, denial, retry_after};
use crate::engine::deciding::verdict::{self, Verdict, VerdictKind};
use crate::engine::limit::rules::Rules;
use crate::limiter::LimiterVerdict;
use crate::listeners::json::{Mistake, milliseconds};
use crate::listeners::replies::method_not_allowed;
use crate::message::headers::Headers;
use crate::message::reply::{Reply, problem};
use crate::message::target;
use crate::telemetry::metrics::CheckResult;

const CONTENT_TYPE: &str = "content-type";

/// The status for the client, where the gateway has another one.
const CLIENT_STATUS: &str = "x-ratelimit-status";

/// The answer to a gateway: 200 with the rate limit headers, or the denial for the client.
pub(super) fn to_gateway(decided: &LimiterVerdict, generations: Generations) -> CheckAnswer {
    let (rules, verdict) = (decided.view.rules(), &decided.verdict);
    if !verdict.is_allowed() {
        // Never gRPC's own denial: its HTTP status is 200.
        return (denial(rules, verdict, generations, false), result(verdict));
    }
    if let Some(accepted) = accepted::accepted(rules, verdict, generations) {
        return (accepted, CheckResult::Allowed);
    }
    let mut headers = Headers::with_capacity(4, 256);
    add_headers(rules, verdict, generations, &mut headers);
    accepted::add_entries(rules, verdict, &mut headers);
    (Reply { status: StatusCode::OK, headers, body: String::new() }, CheckResult::Allowed)
}

/// Adapts a reply to nginx, which passes requests at 2xx, denies them at 403, and takes anything else for a failed check.
pub(super) fn for_nginx(mut reply: Reply) -> Reply {
    if reply.status != StatusCode::OK {
        reply.headers.append(CLIENT_STATUS, reply.status.as_str());
        reply.status = StatusCode::FORBIDDEN;
    }
    reply
}

/// Adapts a denial to `HAProxy`'s script, which takes one for `HAProxy`'s own if it has neither the header nor problem details.
pub(super) fn for_haproxy(mut reply: Reply, is_grpc: bool) -> Reply {
    reply.headers.set(CLIENT_STATUS, reply.status.as_str());
    if is_grpc {
        reply.headers.append("grpc-status", RESOURCE_EXHAUSTED);
    }
    reply
}

/// Adapts a denial to Envoy.
pub(super) fn for_envoy(mut reply: Reply, is_grpc: bool) -> Reply {
    // Envoy takes 5xx for a failed check, and passes the request if its `failure_mode_allow` says so.
    if reply.status.is_server_error() {
        reply.headers.set(CLIENT_STATUS, reply.status.as_str());
        reply.status = StatusCode::TOO_MANY_REQUESTS;
    }
    // Envoy converts the denial to gRPC and keeps a `grpc-status` that it finds; its own would be UNAVAILABLE, after which
    // many clients retry at once.
    if is_grpc {
        reply.headers.append("grpc-status", RESOURCE_EXHAUSTED);
    }
    reply
}

/// The answer to an application: every limit's decision, with the status and headers that a client would get. `waits`: it has to
/// wait by itself for limits with `delay`.
pub(super) fn to_application(
    decided: &LimiterVerdict,
    waits: bool,
    reservation: Option<Reservation>,
    generations: Generations,
) -> CheckAnswer {
    let (mut reply, result) = to_gateway(decided, generations);
    if reply.status == StatusCode::ACCEPTED {
        // The application gets the entry's id in the body.
        reply.status = StatusCode::OK;
    }
    reply.headers.set(CONTENT_TYPE, "application/json");
    if !reply.headers.contains("cache-control") {
        reply.headers.append("cache-control", "no-store");
    }
    let mut json = verdict_json(decided.view.rules(), &decided.verdict);
    if waits {
        json["delay_ms"] = milliseconds(decided.verdict.delay()).into();
    }
    match reservation {
        Some(Reservation::Reserve(id, _)) => {
            json["reservation"] = (decided.has_hold == Some(true)).then(|| id.to_string()).into();
        }
        Some(Reservation::Commit(_)) => json["committed"] = decided.has_hold.into(),
        None => {}
    }
    reply.body = format!("{json}\n");
    (reply, result)
}

fn result(verdict: &Verdict) -> CheckResult {
    match verdict.kind {
        VerdictKind::Allowed => CheckResult::Allowed,
        VerdictKind::Denied => CheckResult::Denied,
        VerdictKind::Unavailable | VerdictKind::Overloaded => CheckResult::Unavailable,
    }
}

/// A verdict as JSON. Times are whole milliseconds, rounded up; null means never.
fn verdict_json(rules: &Rules, verdict: &Verdict) -> Value {
    let name = |limit: u32| rules.name(limit);
    let unanswered = verdict.unanswered.iter();
    json!({
        "allowed": verdict.is_allowed(),
        "binding": verdict.binding().map(|answer| name(answer.limit)),
        "retry_after_ms": match verdict.kind {
            VerdictKind::Allowed => Some(0),
            VerdictKind::Denied => verdict.wait().map(milliseconds),
            _ => retry_after(verdict).map(|seconds| seconds * 1_000),
        },
        "limits": verdict.answers.iter().map(|answer| limit(rules, verdict, answer)).collect::<Vec<_>>(),
        "unanswered": unanswered
            .map(|limit| json!({ "name": name(limit.limit), "denied": limit.denies }))
            .collect::<Vec<_>>(),
    })
}

fn limit(rules: &Rules, verdict: &Verdict, answer: &verdict::LimitDecision) -> Value {
    let decision = &answer.decision;
    // Only the script knows its numbers.
    let known = |number: u64| Some(number).filter(|_| !answer.is_script());
    let mut json = json!({
        "name": rules.name(answer.limit),
        "window": answer.window,
        "outcome": match decision.outcome {
            Outcome::Allowed => "allowed",
            Outcome::Denied => "denied",
            Outcome::Short => "short",
            Outcome::Unchanged => "unchanged",
        },
        "enforced": answer.is_enforced(),
        "cost": answer.cost,
        "limit": known(decision.limit),
        "remaining": known(decision.remaining),
        "retry_after_ms": decision.retry_after.map(milliseconds),
        "reset_after_ms": decision.reset_after.map(milliseconds),
    });
    let detail = verdict.details.iter().find(|(limit, _)| *limit == answer.limit).map(|(_, detail)| detail);
    match (detail, json.as_object_mut()) {
        (Some(Detail::Entry(id)), Some(members)) => drop(members.insert("entry".into(), id.as_str().into())),
        (Some(Detail::Script(output)), Some(members)) => drop(members.insert("script".into(), script(output))),
        (Some(Detail::Elevated(elevation)), Some(members)) => {
            let Elevation { triggered, active, activations_left } = elevation;
            let elevated = json!({ "triggered": triggered, "active": active, "activations_left": activations_left });
            members.insert("elevated".to_owned(), elevated);
        }
        _ => {}
    }
    json
}

fn script(output: &ScriptOutput) -> Value {
    let value = |value: &ScriptValue| match &value.name {
        Some(name) => json!([name, value.text]),
        None => json!(value.text),
    };
    json!({ "values": output.values.iter().map(value).collect::<Vec<_>>(), "extras": output.extras })
}

/// The answer to an invalid call: a problem (RFC 9457) that lists the mistakes.
pub(super) fn mistaken(mistakes: &[Mistake]) -> Reply {
    let errors: Vec<Value> = mistakes
        .iter()
        .map(|mistake| json!({ "pointer": format!("#{}", mistake.pointer), "detail": mistake.detail }))
        .collect();
    let first = mistakes.first().map_or("", |mistake| mistake.detail.as_str());
    let body = json!({
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": first,
        "errors": errors,
    });
    let headers = Headers::from_iter([(CONTENT_TYPE, "application/problem+json")]);
    Reply { status: StatusCode::BAD_REQUEST, headers, body: format!("{body}\n") }
}

/// The answer to a request that is not a check.
pub(super) fn page(target: &str, method: &Method) -> Reply {
    if target::split(target).0 != "/openapi.json" {
        let detail = "there are /envoy, /nginx, /forward, /haproxy, /json and /openapi.json";
        return problem(StatusCode::NOT_FOUND, detail);
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        return method_not_allowed(method, "GET, HEAD");
    }
    let headers = Headers::from_iter([(CONTENT_TYPE, "application/json")]);
    Reply { status: StatusCode::OK, headers, body: OPENAPI.to_owned() }
}

/// Returns whether the content type is JSON. A web page can post text to any address without a preflight (Fetch,
/// CORS-safelisted request headers); requiring JSON keeps it from charging and resetting buckets.
pub(super) fn is_json(headers: &Headers) -> bool {
    let kind = headers.text(CONTENT_TYPE).and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}
