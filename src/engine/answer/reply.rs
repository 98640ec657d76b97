//! What a client is told: the rate limit headers, and the answer to a request that is refused.

use std::fmt::Write;

use http::StatusCode;

use super::verdict::{Answer, Standing, Verdict};
use crate::engine::algorithms::decision::{Decision, Detail};
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::rule_set::Rules;
use crate::message::headers::{self, Headers};
use crate::message::reply::{begin_problem, problem_reply};

pub use crate::message::reply::{Reply, problem};

const RATELIMIT: &str = "ratelimit";
const RATELIMIT_POLICY: &str = "ratelimit-policy";
const CONTENT_TYPE: &str = "content-type";

/// Limit, remaining and reset of the header families that carry one number each.
const IETF_03: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
const X_RATELIMIT: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

/// The largest integer of a structured header (RFC 9651 section 3.3.1); a larger one would void the whole header.
const LARGEST_INTEGER: u64 = 999_999_999_999_999;

/// The problem types that the draft registers (draft-ietf-httpapi-ratelimit-headers-11).
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// gRPC's status of a request that a limit refuses.
pub const RESOURCE_EXHAUSTED: &str = "8";
/// gRPC's status of a request that nobody can decide.
const UNAVAILABLE: &str = "14";

/// Seconds after which to come back when the store is away: a breaker closes within about as long.
const UNAVAILABLE_RETRY_SECONDS: u64 = 1;

/// Which generations of the rate limit headers are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generations {
    /// `RateLimit-Policy` and `RateLimit` as structured lists (draft -11).
    pub ietf_11: bool,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset` (drafts -00 to -06), reset in seconds from now.
    pub ietf_03: bool,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, the first with quota policies and the reset in seconds from now.
    pub x_ratelimit: bool,
}

impl Default for Generations {
    fn default() -> Self {
        Self { ietf_11: true, ietf_03: false, x_ratelimit: false }
    }
}

impl Generations {
    /// Parses a list of names; `none` stands alone.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut generations = Self { ietf_11: false, ietf_03: false, x_ratelimit: false };
        let (mut any, mut none) = (false, false);
        for name in names {
            match name {
                "ietf-11" => generations.ietf_11 = true,
                "ietf-03" => generations.ietf_03 = true,
                "x-ratelimit" => generations.x_ratelimit = true,
                "none" => none = true,
                _ => {
                    return Err(format!(
                        "unknown generation `{name}`; there are ietf-11, ietf-03, x-ratelimit and none"
                    ));
                }
            }
            any |= name != "none";
        }
        if any && none { Err("`none` stands alone".into()) } else { Ok(generations) }
    }
}

/// Adds what the verdict says to the headers of a response, the upstream's or our own.
///
/// The lists of the current draft are appended to the upstream's, as lists may be; a policy of ours that has the name
/// of one of the upstream's is prefixed with `weir.`. The older headers hold one number, so the stricter party keeps
/// them: an intermediary must not make them more permissive.
pub fn add_headers(rules: &Rules, verdict: &Verdict, generations: Generations, headers: &mut Headers) {
    let Some(binding) = verdict.binding() else { return };
    if generations.ietf_11 {
        let taken = taken(rules, verdict, headers);
        headers.append_with(RATELIMIT_POLICY, |list| policies(rules, verdict, &taken, list));
        headers.append_with(RATELIMIT, |list| states(rules, verdict, &taken, list));
    }
    // A script sets headers of its own.
    let is_counted = binding.counted_numbers().is_some();
    if is_counted && generations.ietf_03 {
        set_stricter(&IETF_03, &binding.decision, headers, |_| ());
    }
    if is_counted && generations.x_ratelimit {
        set_stricter(&X_RATELIMIT, &binding.decision, headers, |value| push_policies(verdict, value));
    }
    for (limit, detail) in &verdict.details {
        if let Detail::Script(said) = detail
            && verdict.answers.iter().any(|answer| answer.limit == *limit && answer.enforced)
            && let Some(script) = rules.limit(*limit).and_then(|limit| limit.script.as_deref())
        {
            for (name, value) in script.headers(said).flatten() {
                headers.set(name, value);
            }
        }
    }
}

/// Whether a header of ours, its name in lower case, is a list that may go on in another line.
pub fn is_list(name: &[u8]) -> bool {
    name == RATELIMIT.as_bytes() || name == RATELIMIT_POLICY.as_bytes()
}

/// Limits whose names the upstream's lists have already, by their index in the rules.
fn taken(rules: &Rules, verdict: &Verdict, upstream: &Headers) -> Vec<u32> {
    if !upstream.contains(RATELIMIT_POLICY) && !upstream.contains(RATELIMIT) {
        return Vec::new();
    }
    let limits = verdict.answers.iter().map(|answer| answer.limit);
    limits.filter(|limit| rules.limit(*limit).is_some_and(|limit| is_taken(upstream, &limit.name))).collect()
}

/// The value of `RateLimit-Policy`. Limits in shadow are not the client's business.
fn policies(rules: &Rules, verdict: &Verdict, taken: &[u32], list: &mut Vec<u8>) {
    let start = list.len();
    for answer in verdict.answers.iter().filter(|answer| answer.enforced) {
        let Some(numbers) = answer.counted_numbers() else { continue };
        member(rules, answer, taken, start, list);
        parameter(list, b'q', numbers.burst());
        if let Some(seconds) = numbers.window_seconds() {
            parameter(list, b'w', seconds);
        }
    }
}

/// The value of `RateLimit`. `Retry-After` should not end before `t` does, so a refusal lists the limits that refuse and
/// no others.
fn states(rules: &Rules, verdict: &Verdict, taken: &[u32], list: &mut Vec<u8>) {
    let start = list.len();
    let is_told = |answer: &&Answer| answer.enforced && answer.counted_numbers().is_some();
    for answer in verdict.answers.iter().filter(is_told) {
        if verdict.is_allowed() || answer.decision.is_denied() {
            member(rules, answer, taken, start, list);
            parameter(list, b'r', answer.decision.remaining);
            if let Some(span) = effective_window(&answer.decision) {
                parameter(list, b't', span.ceil_seconds());
            }
        }
    }
}

/// Begins a member of a list that begins at `start`.
fn member(rules: &Rules, answer: &Answer, taken: &[u32], start: usize, list: &mut Vec<u8>) {
    list.extend_from_slice(if list.len() == start { b"\"" } else { b", \"" });
    list.extend_from_slice(if taken.contains(&answer.limit) { b"weir." } else { b"" });
    list.extend_from_slice(rules.limit(answer.limit).map_or("", |limit| limit.name.as_str()).as_bytes());
    if answer.window > 0 {
        list.push(b'#');
        list.extend_from_slice(itoa::Buffer::new().format(answer.window + 1).as_bytes());
    }
    list.push(b'"');
}

/// The `t` of `RateLimit`: until the bucket is full while something is left, until it fits again when nothing is.
fn effective_window(decision: &Decision) -> Option<Micros> {
    if decision.is_denied() || decision.remaining == 0 { decision.retry_after } else { decision.reset_after }
}

fn parameter(list: &mut Vec<u8>, name: u8, value: u64) {
    list.extend_from_slice(&[b';', name, b'=']);
    list.extend_from_slice(itoa::Buffer::new().format(value.min(LARGEST_INTEGER)).as_bytes());
}

/// Whether a member of the upstream's lists has this name.
fn is_taken(upstream: &Headers, name: &str) -> bool {
    let lines = upstream.all(RATELIMIT_POLICY).chain(upstream.all(RATELIMIT));
    lines.filter_map(headers::text).any(|line| {
        let quoted = line.match_indices('"').collect::<Vec<_>>();
        quoted.windows(2).any(|pair| line[pair[0].0 + 1..pair[1].0].eq_ignore_ascii_case(name))
    })
}

/// Adds the quota policy of each limit to `X-RateLimit-Limit`, as Envoy's `DRAFT_VERSION_03` writes them: `1, 1;w=60`.
/// Readers that want a number alone take what stands before the comma.
fn push_policies(verdict: &Verdict, value: &mut Vec<u8>) {
    for answer in verdict.answers.iter().filter(|answer| answer.enforced) {
        let Some(numbers) = answer.counted_numbers() else { continue };
        if let Some(seconds) = numbers.window_seconds() {
            value.extend_from_slice(b", ");
            value.extend_from_slice(itoa::Buffer::new().format(numbers.burst()).as_bytes());
            parameter(value, b'w', seconds);
        }
    }
}

/// Sets the headers of the limit, what remains and the reset, unless those of the upstream are stricter. `add_policies`
/// writes what follows the limit.
fn set_stricter(
    names: &[&str; 3],
    decision: &Decision,
    headers: &mut Headers,
    add_policies: impl FnOnce(&mut Vec<u8>),
) {
    let theirs = headers.text(names[1]).and_then(|value| value.trim().parse::<u64>().ok());
    if theirs.is_some_and(|theirs| theirs < decision.remaining) {
        return;
    }
    for name in names {
        headers.remove(name);
    }
    let [limit, remaining, reset] = names;
    headers.append_with(limit, |value| {
        value.extend_from_slice(itoa::Buffer::new().format(decision.limit).as_bytes());
        add_policies(value);
    });
    headers.append(remaining, itoa::Buffer::new().format(decision.remaining));
    if let Some(window) = effective_window(decision) {
        headers.append(reset, itoa::Buffer::new().format(window.ceil_seconds()));
    }
}

/// The `Retry-After` of a refusal, in seconds: rounded up and never 0, so that a client which obeys it is not refused
/// again. `None` if no waiting helps.
pub fn retry_after(verdict: &Verdict) -> Option<u64> {
    match verdict.standing {
        Standing::Allowed => None,
        Standing::Unavailable | Standing::Overloaded => Some(UNAVAILABLE_RETRY_SECONDS),
        Standing::Denied => verdict.binding()?.decision.retry_after.map(|wait| wait.ceil_seconds().max(1)),
    }
}

/// The whole answer to a request that is refused; `is_grpc` if its content type is `application/grpc`.
pub fn refusal(rules: &Rules, verdict: &Verdict, generations: Generations, is_grpc: bool) -> Reply {
    let unavailable = matches!(verdict.standing, Standing::Unavailable | Standing::Overloaded);
    let mut reply = match (is_grpc, unavailable) {
        (true, true) => grpc_refusal(UNAVAILABLE, &detail(rules, verdict)),
        (true, false) => grpc_refusal(RESOURCE_EXHAUSTED, &detail(rules, verdict)),
        (false, true) => {
            let title = "Request cannot be satisfied due to temporary server capacity constraints";
            refusal_problem(StatusCode::SERVICE_UNAVAILABLE, REDUCED_CAPACITY, title, rules, verdict)
        }
        (false, false) => {
            let title = "Request cannot be satisfied as assigned quota has been exceeded";
            refusal_problem(StatusCode::TOO_MANY_REQUESTS, QUOTA_EXCEEDED, title, rules, verdict)
        }
    };
    reply.headers.append("cache-control", "no-store");
    if let Some(seconds) = retry_after(verdict) {
        reply.headers.append("retry-after", itoa::Buffer::new().format(seconds));
    }
    if !unavailable {
        add_headers(rules, verdict, generations, &mut reply.headers);
    }
    reply
}

/// Takes away what no refusal says: fractions of seconds, and whose buckets were asked. Most refusals of one limit are by
/// the same verdict then.
pub fn round(verdict: &mut Verdict) {
    let up = |wait: Micros| Micros(wait.ceil_seconds().saturating_mul(1_000_000));
    for answer in &mut verdict.answers {
        answer.fingerprint = None;
        answer.decision.retry_after = answer.decision.retry_after.map(up);
        answer.decision.reset_after = answer.decision.reset_after.map(up);
    }
}

/// A problem that names the limits that refuse (RFC 9457, with the draft's extension `violated-policies`).
fn refusal_problem(status: StatusCode, kind: &str, title: &str, rules: &Rules, verdict: &Verdict) -> Reply {
    let mut body = begin_problem(kind, title, status);
    // Names need no escape, and there is nothing else in it but numbers and words of ours.
    push_detail(&mut body, rules, verdict);
    body.push_str("\",\"violated-policies\":[");
    let mut last = None;
    let unanswered = verdict.unanswered.iter().filter(|limit| limit.refuses).map(|limit| limit.limit);
    for limit in unanswered.chain(verdict.violated().map(|answer| answer.limit)) {
        if let Some(found) = rules.limit(limit)
            && last != Some(limit)
        {
            body.push_str(if last.is_none() { "\"" } else { ",\"" });
            body.push_str(&found.name);
            body.push('"');
            last = Some(limit);
        }
    }
    body.push_str("]}");
    problem_reply(status, body)
}

/// A trailers-only answer: gRPC reads the status from the first and only block of headers.
fn grpc_refusal(code: &'static str, detail: &str) -> Reply {
    // The detail is ASCII without `%`, so it is its own percent-encoding (gRPC over HTTP/2, Status-Message).
    let lines = [(CONTENT_TYPE, "application/grpc"), ("grpc-status", code), ("grpc-message", detail)];
    Reply { status: StatusCode::OK, headers: Headers::from_iter(lines), body: String::new() }
}

fn detail(rules: &Rules, verdict: &Verdict) -> String {
    let mut text = String::new();
    push_detail(&mut text, rules, verdict);
    text
}

/// What a refusal says to people: the limit that binds, what it allows and when to come back.
fn push_detail(text: &mut String, rules: &Rules, verdict: &Verdict) {
    if verdict.standing == Standing::Overloaded {
        return text.push_str("Too many requests are waiting");
    }
    let binding = verdict.binding().filter(|_| verdict.standing == Standing::Denied);
    let Some(answer) = binding else { return text.push_str("The limit cannot be counted at the moment") };
    text.push_str(rules.limit(answer.limit).map_or("", |limit| limit.name.as_str()));
    let wait = answer.decision.retry_after;
    match (&answer.numbers, wait) {
        (None, None) => return text.push_str(" refuses this request"),
        // What refuses by itself and for a time only is an operator's block; the reason is not for the client.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::verdict::Unanswered;
    use super::*;
    use crate::engine::algorithms::charge::{Bucket, Charge, Mode};
    use crate::engine::algorithms::decision::Outcome;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::rules::fingerprint::Fingerprinter;
    use crate::engine::rules::limit::Limit;
    use crate::engine::rules::plan::{ChargeOrigin, DenialReason, LimitDenial, Plan};

    const ALL: Generations = Generations { ietf_11: true, ietf_03: true, x_ratelimit: true };

    /// Two limits, `Burst` with two windows and `Daily`.
    fn rules() -> Rules {
        let limits = ["Burst", "Daily"].map(Limit::new).into();
        Rules::new(limits, Fingerprinter::new((1, 2)), Micros(0), Vec::new())
    }

    /// A verdict of one answer for each (limit, window, burst, seconds of the period, outcome, remaining, retry ms,
    /// reset ms).
    type Row = (u32, u32, u64, u64, Outcome, u64, Option<u64>, Option<u64>);

    fn verdict(rows: &[Row]) -> Verdict {
        let mut plan = Plan::default();
        let mut decisions = Vec::new();
        for &(limit, window, burst, seconds, outcome, remaining, retry, reset) in rows {
            let numbers = match seconds {
                0 => Numbers::fixed(burst).unwrap(),
                seconds => Numbers::new(burst, burst.min(1_000), seconds * 1_000_000_000).unwrap(),
            };
            let bucket = Bucket { key: String::new(), fingerprint: u128::from(limit) };
            plan.charges.push(Charge::new(bucket, numbers, 1, Mode::Spend));
            plan.origins.push(ChargeOrigin { limit, window, enforced: true });
            let (retry_after, reset_after) = (retry.map(Micros::from_millis), reset.map(Micros::from_millis));
            decisions.push(Decision { outcome, limit: burst, remaining, retry_after, reset_after });
        }
        Verdict::decided(&plan, &decisions.into_iter().collect())
    }

    /// A structured list, read by an independent parser: member by member the name and its parameters.
    fn list(headers: &Headers, name: &str) -> Vec<(String, BTreeMap<String, i64>)> {
        let lines: Vec<_> = headers.all(name).map(|line| headers::text(line).unwrap()).collect();
        let parsed = sfv::Parser::new(&lines.join(", ")).parse::<sfv::List>().unwrap();
        let members = parsed.iter().map(|entry| {
            let sfv::ListEntry::Item(item) = entry else { panic!("an inner list") };
            let parameters = item
                .params
                .iter()
                .map(|(key, value)| (key.as_str().to_owned(), i64::from(value.as_integer().unwrap())));
            (item.bare_item.as_string().unwrap().as_str().to_owned(), parameters.collect())
        });
        members.collect()
    }

    #[track_caller]
    fn check(headers: &Headers, name: &str, expected: &[(&str, &[(&str, i64)])]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(member, parameters)| {
                ((*member).to_owned(), parameters.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect())
            })
            .collect();
        assert_eq!(list(headers, name), expected);
    }

    #[test]
    fn an_allowed_request_hears_of_every_limit() {
        let verdict = verdict(&[
            (0, 0, 20, 1, Outcome::Allowed, 19, Some(0), Some(50)),
            (0, 1, 100, 60, Outcome::Allowed, 0, Some(600), Some(60_000)),
            (1, 0, 5, 0, Outcome::Allowed, 4, Some(0), None),
        ]);
        let mut headers = Headers::new();
        add_headers(&rules(), &verdict, ALL, &mut headers);
        check(
            &headers,
            "ratelimit-policy",
            &[("Burst", &[("q", 20), ("w", 1)]), ("Burst#2", &[("q", 100), ("w", 60)]), ("Daily", &[("q", 5)])],
        );
        check(
            &headers,
            "ratelimit",
            &[("Burst", &[("r", 19), ("t", 1)]), ("Burst#2", &[("r", 0), ("t", 1)]), ("Daily", &[("r", 4)])],
        );
        for (family, limit) in [("ratelimit", "100"), ("x-ratelimit", "100, 20;w=1, 100;w=60")] {
            let value = |part: &str| headers.text(&format!("{family}-{part}")).unwrap().to_owned();
            assert_eq!((value("limit"), value("remaining"), value("reset")), (limit.into(), "0".into(), "1".into()));
        }
    }

    #[test]
    fn a_refusal_says_who_refuses_and_when_to_come_back() {
        let verdict = verdict(&[
            (0, 0, 20, 1, Outcome::Denied, 0, Some(1), Some(1_000)),
            (1, 0, 1_000, 86_400, Outcome::Unchanged, 700, Some(0), Some(40_000)),
        ]);
        let response = refusal(&rules(), &verdict, ALL, false);
        assert_eq!(response.status, 429);
        assert_eq!(response.headers.text("retry-after"), Some("1"));
        assert_eq!(response.headers.text("content-type"), Some("application/problem+json"));
        // `Retry-After` must not end before any `t` does, so the limit that has something left is not listed.
        check(&response.headers, "ratelimit", &[("Burst", &[("r", 0), ("t", 1)])]);
        let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(body["type"], QUOTA_EXCEEDED);
        assert_eq!(body["status"], 429);
        assert_eq!(body["violated-policies"], serde_json::json!(["Burst"]));
        assert_eq!(body["detail"], "Burst allows burst 20, 20 per 1s; retry after 1 s");
    }

    #[test]
    fn a_block_says_how_long_it_lasts_and_not_why() {
        let refused =
            |reason| Plan { denials: vec![LimitDenial { limit: 1, enforced: true, reason }], ..Plan::default() };
        let blocked = Verdict::refused(&refused(DenialReason::Blocked(Micros::from_millis(3_599_001))));
        let response = refusal(&rules(), &blocked, ALL, false);
        assert_eq!((response.status.as_u16(), response.headers.text("retry-after")), (429, Some("3600")));
        let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(body["detail"], "Daily is blocked for this id; retry after 3600 s");
        assert_eq!(body["violated-policies"], serde_json::json!(["Daily"]));
        assert!(!response.headers.contains("ratelimit") && !response.headers.contains("x-ratelimit-limit"));
        let never = refusal(&rules(), &Verdict::refused(&refused(DenialReason::Deny)), ALL, false);
        assert!(never.body.contains("Daily refuses this request\"") && !never.headers.contains("retry-after"));
    }

    #[test]
    fn waiting_is_rounded_up_and_never_is_not_announced() {
        let wait = |retry| retry_after(&verdict(&[(0, 0, 20, 1, Outcome::Denied, 0, retry, Some(1))]));
        assert_eq!(
            (wait(Some(1_400)), wait(Some(2_000)), wait(Some(0)), wait(None)),
            (Some(2), Some(2), Some(1), None)
        );
    }

    #[test]
    fn a_rounded_verdict_is_refused_in_the_same_words() {
        let check = |rows: &[Row]| {
            let (given, mut rounded) = (verdict(rows), verdict(rows));
            round(&mut rounded);
            assert_ne!(given, rounded);
            for is_grpc in [false, true] {
                let [given, rounded] = [&given, &rounded].map(|verdict| refusal(&rules(), verdict, ALL, is_grpc));
                assert_eq!(given.body, rounded.body);
                assert!(given.headers.iter().eq(rounded.headers.iter()), "{:?} {:?}", given.headers, rounded.headers);
            }
        };
        for millis in [0, 1, 999, 1_000, 1_001, 86_400_500] {
            check(&[
                (0, 0, 20, 1, Outcome::Denied, 0, Some(millis), Some(2 * millis)),
                (0, 1, 20, 1, Outcome::Denied, 3, None, None),
                (1, 0, 1_000, 86_400, Outcome::Unchanged, 700, Some(0), Some(40_000)),
            ]);
        }
    }

    #[test]
    fn grpc_gets_trailers_only() {
        let verdict = verdict(&[(0, 0, 20, 1, Outcome::Denied, 0, Some(1_400), Some(1_000))]);
        let response = refusal(&rules(), &verdict, Generations::default(), true);
        assert_eq!((response.status.as_u16(), response.body.as_str()), (200, ""));
        assert_eq!(response.headers.text("grpc-status"), Some("8"));
        assert_eq!(response.headers.text("content-type"), Some("application/grpc"));
    }

    #[test]
    fn a_limit_that_fails_closed_is_503() {
        let verdict = verdict(&[]).unanswered(vec![Unanswered { limit: 1, refuses: true }]);
        let response = refusal(&rules(), &verdict, ALL, false);
        assert_eq!((response.status.as_u16(), response.headers.text("retry-after")), (503, Some("1")));
        let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(body["violated-policies"], serde_json::json!(["Daily"]));
        assert!(!response.headers.contains("ratelimit"));
    }

    #[test]
    fn our_headers_join_the_upstreams() {
        let verdict = verdict(&[(0, 0, 20, 1, Outcome::Allowed, 19, Some(0), Some(50))]);
        let mut headers = Headers::from_iter([
            ("RateLimit-Policy", "\"burst\";q=7;w=9"),
            ("RateLimit", "\"burst\";r=3;t=9"),
            ("X-RateLimit-Limit", "7"),
            ("X-RateLimit-Remaining", "3"),
            ("RateLimit-Remaining", "99"),
        ]);
        add_headers(&rules(), &verdict, ALL, &mut headers);
        check(
            &headers,
            "ratelimit-policy",
            &[("burst", &[("q", 7), ("w", 9)]), ("weir.Burst", &[("q", 20), ("w", 1)])],
        );
        check(&headers, "ratelimit", &[("burst", &[("r", 3), ("t", 9)]), ("weir.Burst", &[("r", 19), ("t", 1)])]);
        for (name, value) in [("x-ratelimit-limit", "7"), ("x-ratelimit-remaining", "3"), ("ratelimit-remaining", "19")]
        {
            assert_eq!(headers.all(name).collect::<Vec<_>>(), [value.as_bytes()]);
        }
    }

    #[test]
    fn numbers_beyond_structured_headers_are_cut() {
        let most = (1 << 53) - 1;
        let verdict = verdict(&[(0, 0, most, 0, Outcome::Allowed, most - 1, Some(0), None)]);
        let mut headers = Headers::new();
        add_headers(&rules(), &verdict, ALL, &mut headers);
        check(&headers, "ratelimit", &[("Burst", &[("r", 999_999_999_999_999)])]);
    }

    #[test]
    fn generations_are_named() {
        assert_eq!(Generations::parse(["ietf-11"]), Ok(Generations::default()));
        assert_eq!(Generations::parse(["ietf-11", "ietf-03", "x-ratelimit"]), Ok(ALL));
        assert!(Generations::parse(["none"]).is_ok_and(|found| !found.ietf_11));
        assert!(Generations::parse(["none", "ietf-11"]).is_err() && Generations::parse(["draft-9"]).is_err());
    }

    #[test]
    fn details_are_escaped() {
        let response = problem(StatusCode::BAD_REQUEST, "a \"b\" \\ \n c");
        let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(body["detail"], "a \"b\" \\ \n c");
    }
}
