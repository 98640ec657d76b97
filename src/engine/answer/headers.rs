//! The rate limit headers of a response.

use super::told::{binding, told};
use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::algorithms::decision::{Decision, Detail};
use crate::engine::algorithms::micros::Micros;
use crate::engine::deciding::verdict::{LimitDecision, Verdict};
use crate::engine::limit::response_cost::CostSource;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Cost, Limit};
use crate::message::headers::{self, Headers};

const RATELIMIT: &str = "ratelimit";
const RATELIMIT_POLICY: &str = "ratelimit-policy";

/// Limit, remaining and reset of the older generations, whose headers hold one number each.
const IETF_03: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
const X_RATELIMIT: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

/// The largest integer in a structured header (RFC 9651 section 3.3.1). A larger one makes the whole header invalid.
const LARGEST_INTEGER: u64 = 999_999_999_999_999;

/// The generations of rate limit headers to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generations {
    /// `RateLimit-Policy` and `RateLimit` as structured lists (draft-ietf-httpapi-ratelimit-headers-11).
    pub ietf_11: bool,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset` (drafts -00 to -06). The reset is in seconds from now.
    pub ietf_03: bool,
    /// `X-RateLimit-Limit` with quota policies, `-Remaining` and `-Reset`. The reset is in seconds from now.
    pub x_ratelimit: bool,
}

impl Default for Generations {
    fn default() -> Self {
        Self { ietf_11: true, ietf_03: false, x_ratelimit: false }
    }
}

impl Generations {
    /// Parses a list of names. `none` must be the only one.
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
                    return Err(format!("unknown generation `{name}`; expected ietf-11, ietf-03, x-ratelimit or none"));
                }
            }
            any |= name != "none";
        }
        if any && none { Err("`none` must be the only generation".into()) } else { Ok(generations) }
    }
}

/// Adds the rate limit headers to a response, whether it is the upstream's or our own.
///
/// The lists of the current draft are appended to the upstream's. If the upstream has a policy of the same name, ours gets
/// the prefix `weir.`. Each of the older headers holds one number, so the stricter party's headers stay: an intermediary
/// must not make them more permissive.
pub fn add_headers(rules: &Rules, verdict: &Verdict, generations: Generations, headers: &mut Headers) {
    let Some(binding) = binding(rules, verdict) else { return };
    if generations.ietf_11 {
        let taken = taken(rules, verdict, headers);
        headers.append_with(RATELIMIT_POLICY, |list| push_policies(rules, verdict, &taken, list));
        headers.append_with(RATELIMIT, |list| push_states(rules, verdict, &taken, list));
    }
    // A script sets its own headers.
    let is_counted = binding.counted_numbers().is_some();
    if is_counted && generations.ietf_03 {
        set_stricter(&IETF_03, &binding.decision, headers, |_| ());
    }
    if is_counted && generations.x_ratelimit {
        set_stricter(&X_RATELIMIT, &binding.decision, headers, |value| push_quotas(rules, verdict, value));
    }
    for (limit, detail) in &verdict.details {
        if let Detail::Script(output) = detail
            && told(rules, verdict).any(|answer| answer.limit == *limit)
            && let Some(script) = rules.limit(*limit).and_then(|limit| limit.script.as_deref())
        {
            for (name, value) in script.headers(output).flatten() {
                headers.set(name, value);
            }
        }
    }
}

/// Returns true if one of our headers, its name in lower case, is a list that may continue in another line.
pub fn is_list(name: &[u8]) -> bool {
    name == RATELIMIT.as_bytes() || name == RATELIMIT_POLICY.as_bytes()
}

/// Returns the limits whose names are already in the upstream's lists.
fn taken(rules: &Rules, verdict: &Verdict, upstream: &Headers) -> Vec<u32> {
    if !upstream.contains(RATELIMIT_POLICY) && !upstream.contains(RATELIMIT) {
        return Vec::new();
    }
    let limits = verdict.answers.iter().map(|answer| answer.limit);
    limits.filter(|limit| rules.limit(*limit).is_some_and(|limit| is_taken(upstream, &limit.name))).collect()
}

/// Returns true if the upstream's lists have a member with this name.
fn is_taken(upstream: &Headers, name: &str) -> bool {
    let lines = upstream.all(RATELIMIT_POLICY).chain(upstream.all(RATELIMIT));
    lines.filter_map(headers::text).any(|line| {
        let quotes: Vec<usize> = line.match_indices('"').map(|(place, _)| place).collect();
        quotes.windows(2).any(|pair| line[pair[0] + 1..pair[1]].eq_ignore_ascii_case(name))
    })
}

/// Writes the value of `RateLimit-Policy`. Clients see neither limits in shadow nor hidden ones.
fn push_policies(rules: &Rules, verdict: &Verdict, taken: &[u32], list: &mut Vec<u8>) {
    let start = list.len();
    for answer in told(rules, verdict) {
        let Some(numbers) = answer.counted_numbers() else { continue };
        push_member(rules, answer, taken, start, list);
        push_parameter(list, b'q', numbers.burst());
        if let Some(unit) = rules.limit(answer.limit).and_then(quota_unit) {
            list.extend_from_slice(b";qu=\"");
            list.extend_from_slice(unit.as_bytes());
            list.push(b'"');
        }
        if let Some(seconds) = numbers.window_seconds() {
            push_parameter(list, b'w', seconds);
        }
    }
}

/// Returns the `qu` of a limit that counts bytes or requests in flight (draft-ietf-httpapi-ratelimit-headers-11 section 3.1.2). The
/// draft has no unit for other tokens, such as those of a language model.
fn quota_unit(limit: &Limit) -> Option<&'static str> {
    let reported = limit.response_cost.as_ref().and_then(|cost| cost.source.as_ref());
    match (limit.algorithm, &limit.cost, reported) {
        (Algorithm::Concurrency, ..) => Some("concurrent-requests"),
        (_, Cost::Bytes { .. }, _) | (.., Some(CostSource::Bytes)) => Some("content-bytes"),
        _ => None,
    }
}

/// Writes the value of `RateLimit`. `Retry-After` should not end before `t` does, so a denial lists only the limits that
/// deny.
fn push_states(rules: &Rules, verdict: &Verdict, taken: &[u32], list: &mut Vec<u8>) {
    let start = list.len();
    for answer in told(rules, verdict).filter(|answer| answer.counted_numbers().is_some()) {
        if verdict.is_allowed() || answer.decision.is_denied() {
            push_member(rules, answer, taken, start, list);
            push_parameter(list, b'r', answer.decision.remaining);
            if let Some(span) = effective_window(&answer.decision) {
                push_parameter(list, b't', span.ceil_seconds());
            }
        }
    }
}

/// Begins a member of the list that begins at `start`.
fn push_member(rules: &Rules, answer: &LimitDecision, taken: &[u32], start: usize, list: &mut Vec<u8>) {
    list.extend_from_slice(if list.len() == start { b"\"" } else { b", \"" });
    list.extend_from_slice(if taken.contains(&answer.limit) { b"weir." } else { b"" });
    list.extend_from_slice(rules.name(answer.limit).as_bytes());
    if answer.window > 0 {
        list.push(b'#');
        push_number(list, u64::from(answer.window) + 1);
    }
    list.push(b'"');
}

fn push_parameter(list: &mut Vec<u8>, name: u8, value: u64) {
    list.extend_from_slice(&[b';', name, b'=']);
    push_number(list, value.min(LARGEST_INTEGER));
}

fn push_number(value: &mut Vec<u8>, number: u64) {
    value.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Returns the `t` of `RateLimit`: the time until the bucket is full while tokens are left, or until the request fits again
/// if none are.
fn effective_window(decision: &Decision) -> Option<Micros> {
    if decision.is_denied() || decision.remaining == 0 { decision.retry_after } else { decision.reset_after }
}

/// Adds the quota policy of each limit to `X-RateLimit-Limit`, in the form of Envoy's `DRAFT_VERSION_03`: `1, 1;w=60`.
/// Readers that expect a single number stop at the comma.
fn push_quotas(rules: &Rules, verdict: &Verdict, value: &mut Vec<u8>) {
    for numbers in told(rules, verdict).filter_map(LimitDecision::counted_numbers) {
        if let Some(seconds) = numbers.window_seconds() {
            value.extend_from_slice(b", ");
            push_number(value, numbers.burst());
            push_parameter(value, b'w', seconds);
        }
    }
}

/// Sets the headers for the limit, the tokens left and the reset, unless the upstream's are stricter. `add_quotas` extends
/// the value of the first.
fn set_stricter(names: &[&str; 3], decision: &Decision, headers: &mut Headers, add_quotas: impl FnOnce(&mut Vec<u8>)) {
    let [limit, remaining, reset] = names;
    let upstream = headers.text(remaining).and_then(|value| value.trim().parse::<u64>().ok());
    if upstream.is_some_and(|upstream| upstream < decision.remaining) {
        return;
    }
    for name in names {
        headers.remove(name);
    }
    headers.append_with(limit, |value| {
        push_number(value, decision.limit);
        add_quotas(value);
    });
    headers.append(remaining, itoa::Buffer::new().format(decision.remaining));
    if let Some(window) = effective_window(decision) {
        headers.append(reset, itoa::Buffer::new().format(window.ceil_seconds()));
    }
}
