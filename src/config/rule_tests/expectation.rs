//! The expectations of a step. A field that is not given is not compared.

use super::super::mapping::{Mapping, all};
use super::super::node::{Key, Node, Value};
use super::super::problem::{ReadResult, quoted};
use super::super::scalars::one_of;
use super::super::suggest::{did_you_mean, nearest};
use super::subject::status;
use super::{Known, span};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::candidate::Candidate;
use crate::message::headers;

/// The keys of `expect`.
pub(in super::super) const KEYS: [&str; 13] = [
    "verdict",
    "allow",
    "deny",
    "limit",
    "remaining",
    "retry_after",
    "reset_after",
    "delay",
    "status",
    "headers",
    "allowed",
    "denied",
    "limits",
];

/// The verdicts on a request.
pub(in super::super) const VERDICTS: [(&str, bool); 2] = [("allow", true), ("deny", false)];

/// The keys of a limit in `expect`.
pub(in super::super) const LIMIT_KEYS: [&str; 9] =
    ["verdict", "id", "burst", "remaining", "retry_after", "reset_after", "delay", "candidate", "candidates"];

/// The parts that one limit can play in a decision.
pub(in super::super) const LIMIT_VERDICTS: [(&str, LimitVerdict); 5] = [
    ("allow", LimitVerdict::Allow),
    ("deny", LimitVerdict::Deny),
    ("would_deny", LimitVerdict::WouldDeny),
    ("unlimited", LimitVerdict::Unlimited),
    ("none", LimitVerdict::None),
];

/// The parts that a candidate can play in a decision.
pub(in super::super) const CANDIDATE_VERDICTS: [(&str, LimitVerdict); 3] =
    [("allow", LimitVerdict::Allow), ("would_deny", LimitVerdict::WouldDeny), ("none", LimitVerdict::None)];

/// The expected answer to the last request of a step, and the verdicts of all.
#[derive(Clone, Debug, Default)]
pub struct Expectation {
    /// True if each request is to be allowed.
    pub allowed: Option<bool>,
    /// The limit that binds: it denies the request, or has the least left.
    pub limit: Option<String>,
    /// Tokens left of the limit that binds.
    pub remaining: Option<u64>,
    pub retry_after: Option<Wait>,
    pub reset_after: Option<Wait>,
    /// The time that an allowed request waits.
    pub delay: Option<Micros>,
    /// The proxy's answer.
    pub status: Option<u16>,
    /// `None` for a header that must be absent.
    pub headers: Vec<(String, Option<String>)>,
    /// The numbers of the step's requests that pass and that are denied.
    pub counts: (Option<u64>, Option<u64>),
    pub limits: Vec<LimitExpectation>,
}

/// The expected state of one limit.
#[derive(Clone, Debug)]
pub struct LimitExpectation {
    pub name: String,
    pub verdict: Option<LimitVerdict>,
    pub id: Option<String>,
    /// The burst in force, which tells an override.
    pub burst: Option<u64>,
    pub remaining: Option<u64>,
    pub retry_after: Option<Wait>,
    pub reset_after: Option<Wait>,
    pub delay: Option<Micros>,
    /// By the index of the candidate. `None` stands for one that is not decided beside the numbers of the id.
    pub candidates: Vec<(u8, LimitVerdict)>,
}

/// A span, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    For(Micros),
    Never,
}

/// The part of one limit in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitVerdict {
    /// The request fits, whatever other limits say.
    Allow,
    Deny,
    /// In shadow: it would have denied the request.
    WouldDeny,
    /// `unlimited: true`
    Unlimited,
    /// The limit does not apply.
    None,
}

impl LimitVerdict {
    /// The word in the file.
    pub fn word(self) -> &'static str {
        LIMIT_VERDICTS.iter().find(|(_, verdict)| *verdict == self).map_or("", |(word, _)| word)
    }
}

/// Reads `expect`. Counts need a step that is repeated.
pub(super) fn read(node: &Node, limits: Known<'_>, is_repeated: bool) -> ReadResult<Expectation> {
    if let Value::Scalar { .. } = &node.value {
        return Ok(Expectation { allowed: Some(one_of(&VERDICTS)(node)?), ..Expectation::default() });
    }
    let map = Mapping::of(node, "`expect`", &KEYS)?;
    check_compares("`expect`", node, "write `expect: allow`, `expect: deny` or a map such as `{ remaining: 3 }`")?;
    let verdict = verdict(&map, limits);
    let (allowed, denied) = (map.read("allowed", Node::whole), map.read("denied", Node::whole));
    let remaining = map.read("remaining", Node::whole);
    let (retry_after, reset_after) = (map.read("retry_after", wait), map.read("reset_after", wait));
    let delay = map.read("delay", span);
    let status = map.read("status", status);
    let headers = map.read("headers", header_values);
    let limits = map.read("limits", |node| {
        let entries = node.map("`limits`", "write `limits: { NAME: allow }`")?;
        check_compares("`limits`", node, "write `limits: { NAME: allow }`")?;
        all(entries.iter().map(|(name, node)| limit(name, node, limits)))
    });
    let (allowed_all, limit) = verdict?;
    let counts = (allowed?, denied?);
    if let Some((key, _)) = map.first(&["allowed", "denied"]).filter(|_| !is_repeated) {
        let help = "for one request write `expect: allow` or `expect: deny`";
        return Err(key.error(format!("{} counts the requests of `repeat`", quoted(&key.text)), help));
    }
    Ok(Expectation {
        allowed: allowed_all,
        limit,
        remaining: remaining?,
        retry_after: retry_after?,
        reset_after: reset_after?,
        delay: delay?,
        status: status?,
        headers: headers?.unwrap_or_default(),
        counts,
        limits: limits?.unwrap_or_default(),
    })
}

/// Rejects a map without entries, which passes whatever is answered.
fn check_compares(what: &str, node: &Node, help: &str) -> ReadResult<()> {
    match &node.value {
        Value::Map(entries) if entries.is_empty() => {
            Err(node.error(format!("{what} is empty, so it cannot fail"), help))
        }
        _ => Ok(()),
    }
}

/// Reads the verdict and the limit that binds: `verdict` and `limit`, or both in `allow: NAME` or `deny: NAME`.
fn verdict(map: &Mapping<'_>, limits: Known<'_>) -> ReadResult<(Option<bool>, Option<String>)> {
    match map.all(&["verdict", "allow", "deny"])[..] {
        [] => Ok((None, map.read("limit", |node| limits.name(node))?)),
        [(key, node)] if key.text == "verdict" => {
            let (allowed, limit) = (one_of(&VERDICTS)(node), map.read("limit", |node| limits.name(node)));
            Ok((Some(allowed?), limit?))
        }
        [(key, node)] => {
            let limit = limits.name(node);
            if let Some((other, _)) = map.get("limit") {
                let message = format!("{} names the limit already", quoted(&key.text));
                return Err(other.error(message, "remove `limit`"));
            }
            Ok((Some(key.text == "allow"), Some(limit?)))
        }
        [_, (key, _), ..] => {
            Err(key.error("a step has one verdict", "write one of `allow: NAME`, `deny: NAME` and `verdict`"))
        }
    }
}

fn limit(name: &Key, node: &Node, limits: Known<'_>) -> ReadResult<LimitExpectation> {
    let known = limits.find(&name.text).map_err(|(message, help)| name.error(message, help));
    let word = |node: &Node| match &node.value {
        Value::Scalar { .. } => one_of(&LIMIT_VERDICTS)(node),
        _ => Err(node.error("expected a word", did_you_mean("", LIMIT_VERDICTS.map(|(word, _)| word)))),
    };
    let mut limit = LimitExpectation {
        name: known.map_or_else(|_| name.text.clone(), |known| known.name.clone()),
        verdict: None,
        id: None,
        burst: None,
        remaining: None,
        retry_after: None,
        reset_after: None,
        delay: None,
        candidates: Vec::new(),
    };
    if !matches!(node.value, Value::Map(_)) {
        limit.verdict = Some(word(node)?);
        return known.map(|_| limit);
    }
    let map = Mapping::of(node, "a limit in `expect`", &LIMIT_KEYS)?;
    check_compares(&quoted(&name.text), node, "write `allow`, or a map such as `{ remaining: 3 }`")?;
    let (verdict, id) = (map.read("verdict", word), map.read("id", |node| node.text().map(str::to_owned)));
    let (burst, remaining) = (map.read("burst", Node::whole), map.read("remaining", Node::whole));
    let (retry_after, reset_after) = (map.read("retry_after", wait), map.read("reset_after", wait));
    let delay = map.read("delay", span);
    let candidates = candidates(&map, &known?.candidates);
    (limit.verdict, limit.id, limit.burst, limit.remaining) = (verdict?, id?, burst?, remaining?);
    (limit.retry_after, limit.reset_after, limit.delay) = (retry_after?, reset_after?, delay?);
    limit.candidates = candidates?;
    Ok(limit)
}

/// Reads `candidate` and `candidates`, by the index among `known`.
fn candidates(map: &Mapping<'_>, known: &[Candidate]) -> ReadResult<Vec<(u8, LimitVerdict)>> {
    let verdict = |key: &Key, node: &Node, name: Option<&str>| {
        let Some((place, _)) = (0..).zip(known).find(|(_, candidate)| candidate.name.as_deref() == name) else {
            let names = known.iter().filter_map(|candidate| candidate.name.as_deref());
            let help = nearest(&key.text, names)
                .map_or_else(|| "add it to the limit".to_owned(), |near| format!("did you mean `{near}`?"));
            let named = if name.is_some() { "candidate " } else { "" };
            return Err(key.error(format!("the limit has no {named}{}", quoted(&key.text)), help));
        };
        Ok((place, one_of(&CANDIDATE_VERDICTS)(node)?))
    };
    let one = map.get("candidate").map(|(key, node)| verdict(key, node, None)).transpose();
    let several = map.read("candidates", |node| {
        let help = "write `candidates: { NAME: would_deny }`";
        let entries = node.map("`candidates`", help)?;
        check_compares("`candidates`", node, help)?;
        all(entries.iter().map(|(key, node)| verdict(key, node, Some(&key.text))))
    });
    Ok(one?.into_iter().chain(several?.unwrap_or_default()).collect())
}

fn wait(node: &Node) -> ReadResult<Wait> {
    if matches!(&node.value, Value::Scalar { text, .. } if text == "never") {
        return Ok(Wait::Never);
    }
    span(node).map(Wait::For)
}

/// Reads the headers of the answer; one without a value must be absent.
fn header_values(node: &Node) -> ReadResult<Vec<(String, Option<String>)>> {
    const HELP: &str = "write `headers: { retry-after: 1 }`; `~` is a header that must be absent";
    let entries = node.map("`headers`", HELP)?;
    check_compares("`headers`", node, HELP)?;
    all(entries.iter().map(|(name, value)| {
        if !headers::is_name(name.text.as_bytes()) {
            return Err(
                name.error(format!("invalid header name {}", quoted(&name.text)), "use a name such as retry-after")
            );
        }
        let text = if value.is_null() { None } else { Some(value.text()?.to_owned()) };
        Ok((name.text.clone(), text))
    }))
}
