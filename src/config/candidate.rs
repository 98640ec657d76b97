//! Reads `candidate` and `candidates`: other numbers of a limit, which are decided beside its own.

use super::algorithms::Settings;
use super::limit::burst_below_cost;
use super::lints::Lint;
use super::mapping::{Mapping, all};
use super::node::{Key, Node};
use super::numbers::Interner;
use super::problem::{ReadResult, ReportedError, quoted};
use super::request_numbers;
use super::scalars::{is_name, share};
use crate::engine::limit::Limit;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::candidate::{Candidate, MOST_CANDIDATES};

/// The keys of a limit that have its candidates: one without a name, or several by name.
const WORDS: [&str; 2] = ["candidate", "candidates"];

pub(super) const KEYS: [&str; 5] = ["burst", "count", "period", "rates", "enforce_for"];

const LONGEST_NAME: usize = 32;

/// A candidate in the file.
#[derive(Clone, Copy)]
struct Entry<'n> {
    /// In `candidates`.
    name: Option<&'n Key>,
    node: &'n Node,
}

impl Entry<'_> {
    /// The key that it has.
    fn key(&self) -> &str {
        self.name.map_or("candidate", |name| &name.text)
    }
}

/// Reads the `candidate` or `candidates` of a limit whose other keys are read. `settings` are those of its algorithm, and
/// `numbers_are_known` says whether its own numbers have no mistakes.
pub(super) fn read(
    map: &Mapping<'_>,
    settings: &dyn Settings,
    numbers_are_known: bool,
    limit: &mut Limit,
    interner: &mut Interner,
) {
    let Some((key, _)) = map.first(&WORDS) else { return };
    let beside = if numbers_are_known { check_limit(map, key, limit) } else { Err(ReportedError) };
    let Ok(entries) = entries(map) else { return };
    let candidates: Vec<_> = entries.iter().map(|entry| candidate(*entry, settings, interner)).collect();
    check_shares(&entries, &candidates);
    let (Ok(()), Ok(candidates)) = (beside, all(candidates.into_iter())) else { return };
    for (place, (entry, candidate)) in entries.iter().zip(&candidates).enumerate() {
        warn(entry.node, limit, &candidates[..place], candidate);
    }
    limit.candidates = candidates;
}

fn entries<'n>(map: &Mapping<'n>) -> ReadResult<Vec<Entry<'n>>> {
    let (one, several) = (map.get("candidate"), map.get("candidates"));
    let Some((key, node)) = several else {
        return Ok(one.map(|(_, node)| Entry { name: None, node }).into_iter().collect());
    };
    if one.is_some() {
        return Err(
            key.error("`candidate` and `candidates` cannot be combined", "move the one into the other, with a name")
        );
    }
    let entries = node.map("`candidates`", "write `candidates: { slow: { count: 5, period: 1s } }`")?;
    node.check_count("`candidates`", entries.len(), "entries", MOST_CANDIDATES)?;
    let name = |(key, node): &'n (Key, Node)| {
        if is_name(&key.text, LONGEST_NAME) {
            return Ok(Entry { name: Some(key), node });
        }
        let help = format!("use 1 to {LONGEST_NAME} letters, digits, `_`, `.` and `-`");
        Err(key.error(format!("invalid name of a candidate {}", quoted(&key.text)), help))
    };
    all(entries.iter().map(name))
}

fn candidate(entry: Entry<'_>, settings: &dyn Settings, interner: &mut Interner) -> ReadResult<Candidate> {
    let what = format!("`{}`", entry.key());
    let map = Mapping::of(entry.node, &what, &KEYS)?;
    request_numbers::reject(&map, &what)?;
    let windows = if settings.algorithm().has_tokens() { settings.numbers(&map) } else { Err(ReportedError) };
    let enforce_for = map.read("enforce_for", share);
    let (windows, enforce_for) = (windows?, enforce_for?.unwrap_or(0));
    if windows.is_empty() {
        let help = format!("write `{}: {{ count: 5, period: 1s }}`", entry.key());
        return Err(map.lacks(format!("{what} has no numbers"), help));
    }
    let name = entry.name.map(|name| name.text.as_str().into());
    Ok(Candidate { name, allowance: Allowance::Windows(interner.share(windows)), enforce_for })
}

/// Rejects a second candidate with a share of the ids.
fn check_shares(entries: &[Entry<'_>], candidates: &[ReadResult<Candidate>]) {
    let shares = entries.iter().zip(candidates);
    let mut enforced =
        shares.filter(|(_, candidate)| candidate.as_ref().is_ok_and(|candidate| candidate.enforce_for > 0));
    let Some((first, _)) = enforced.next() else { return };
    for (other, _) in enforced {
        let help = format!("{} has it, too; remove one of them", quoted(first.key()));
        other.node.error("only one candidate can have `enforce_for`", help);
    }
}

/// Rejects limits that cannot have candidates. These are compared with their own numbers, in tokens: requests in flight, queues and
/// scripts have none. `key` is that of the candidates.
fn check_limit(map: &Mapping<'_>, key: &Key, limit: &Limit) -> ReadResult<()> {
    let word = &key.text;
    if !limit.algorithm.has_tokens() {
        return map.reject(&[word], limit.algorithm.name(), &format!("remove `{word}`"));
    }
    let shadow = "write these numbers as the limit's, with `mode: shadow`";
    let (message, help) = match &limit.allowance {
        Allowance::Windows(_) => return Ok(()),
        Allowance::Disabled => (format!("a limit with `{word}` needs numbers of its own"), shadow),
        Allowance::Unlimited => (format!("`unlimited: true` and `{word}` cannot be combined"), shadow),
        Allowance::Deny => (format!("`deny: true` and `{word}` cannot be combined"), shadow),
        Allowance::Elevated(_) => (format!("`elevated` and `{word}` cannot be combined"), "remove one of them"),
    };
    Err(map.value(word).error(message, help))
}

/// Warns of a candidate that has no effect, or denies everything. `others` are those before it.
fn warn(node: &Node, limit: &Limit, others: &[Candidate], candidate: &Candidate) {
    let remove = if candidate.name.is_some() {
        "change them, or remove the candidate"
    } else {
        "change them, or remove `candidate`"
    };
    let twin = others.iter().find(|other| other.allowance == candidate.allowance).and_then(|twin| twin.name.as_deref());
    if candidate.allowance == limit.allowance {
        node.warning(Lint::NoEffect, "the candidate has the numbers of the limit", remove);
    } else if let Some(twin) = twin {
        node.warning(Lint::NoEffect, format!("the candidate has the numbers of {}", quoted(twin)), remove);
    } else if let Some(burst) = burst_below_cost(&limit.cost, &candidate.allowance) {
        let message = format!("the cost exceeds the candidate's burst of {burst}: it would deny every request");
        node.warning(Lint::CostAboveBurst, message, "raise its `burst`");
    }
}
