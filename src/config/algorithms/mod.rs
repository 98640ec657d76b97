//! The algorithms' keys in the rules file: a file per algorithm, and a line for each in [`REGISTRY`].

mod concurrency;
pub(super) mod elevated;
pub(super) mod fixed_window;
mod gcra;
pub(super) mod queue;
mod script;
mod sliding_log;
mod sliding_window;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use fixed_window::FixedWindow;

use super::deny_with;
use super::mapping::Mapping;
use super::named_files::NamedFile;
use super::node::Node;
use super::numbers::Interner;
use super::problem::{ReadResult, ReportedError, quoted};
use super::suggest::did_you_mean;
use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::{Limit, StoreErrorPolicy};
use crate::engine::request::path_condition::PathCondition;

/// The part of the rules file that belongs to an algorithm.
struct AlgorithmEntry {
    /// The words of `algorithm:` that select it. `elevated` has none: it is a key of `gcra`.
    words: &'static [&'static str],
    settings: fn() -> Box<dyn Settings>,
    /// The keys of a limit.
    keys: &'static [&'static str],
    /// The keys of its overrides.
    override_keys: &'static [&'static str],
}

static REGISTRY: [AlgorithmEntry; 8] = [
    gcra::ENTRY,
    fixed_window::ENTRY,
    sliding_log::ENTRY,
    sliding_window::ENTRY,
    concurrency::ENTRY,
    queue::ENTRY,
    script::ENTRY,
    elevated::ENTRY,
];

/// The words of `algorithm:`.
pub(super) static WORDS: LazyLock<Vec<&str>> =
    LazyLock::new(|| REGISTRY.iter().flat_map(|entry| entry.words).copied().collect());

/// Returns the keys of a limit, without duplicates. `common` are those that do not depend on the algorithm.
pub(super) fn limit_keys(common: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let keys = REGISTRY.iter().flat_map(|entry| entry.keys).copied();
    common.chain(keys).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the keys of an override, without duplicates. `common` are those that do not depend on the algorithm.
pub(super) fn override_keys(common: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let keys = REGISTRY.iter().flat_map(|entry| entry.override_keys).copied();
    common.chain(keys).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The parts of a limit and of the file that its keys refer to.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// The path patterns of its `match`; `None` if they have a mistake.
    pub(super) paths: Option<&'a [PathCondition]>,
    pub(super) files: &'a [NamedFile],
}

/// An algorithm with its settings, apart from burst, count and period.
pub(super) trait Settings {
    fn algorithm(&self) -> Algorithm;

    /// Reads the settings of a limit, or of an override, which inherits the limit's.
    fn read(&self, map: &Mapping<'_>) -> ReadResult<Box<dyn Settings>>;

    /// Reads the numbers of a limit or an override: one per window, or none.
    fn numbers(&self, map: &Mapping<'_>) -> ReadResult<Vec<Numbers>>;

    /// The keys that give an override numbers, for help.
    fn number_keys(&self) -> &'static str {
        "`count` and `period`"
    }

    /// Reads the keys that only limits have.
    fn read_limit(&mut self, _map: &Mapping<'_>, _context: Context<'_>, _limit: &mut Limit) {}

    /// Reads the keys of an override that its limit must know.
    fn read_override(&mut self, _map: &Mapping<'_>, _limit: &mut Limit) -> ReadResult<()> {
        Ok(())
    }

    /// Checks the other keys of a limit once they are read.
    fn check(&self, _map: &Mapping<'_>, _limit: &mut Limit) {}

    fn needs_redis(&self) -> bool {
        false
    }
}

/// The settings of a limit without `algorithm`.
pub(super) fn default() -> Box<dyn Settings> {
    (gcra::ENTRY.settings)()
}

/// Reads the value of `algorithm`.
pub(super) fn of_word(node: &Node) -> ReadResult<Box<dyn Settings>> {
    let given = node.text()?;
    let entry = REGISTRY.iter().find(|entry| entry.words.contains(&given));
    entry.map(|entry| (entry.settings)()).ok_or_else(|| {
        let help = match given {
            "leaky_bucket" => "`gcra`, the default, is a leaky bucket".to_owned(),
            given => did_you_mean(given, WORDS.iter().copied()),
        };
        node.error(format!("unknown algorithm {}", quoted(given)), help)
    })
}

/// Reads the settings of a limit or an override, which may have the keys of this algorithm only.
pub(super) fn settings(inherited: &dyn Settings, map: &Mapping<'_>) -> ReadResult<Box<dyn Settings>> {
    let algorithm = inherited.algorithm().name();
    for key in map.keys().filter(|key| !(key.text == "headers" && deny_with::is_none(map.value("headers")))) {
        let has =
            |entry: &&AlgorithmEntry| entry.keys.iter().chain(entry.override_keys).any(|known| *known == key.text);
        let owners = || REGISTRY.iter().filter(has);
        // `elevated` checks what it can be combined with.
        let is_own = |entry: &AlgorithmEntry| entry.words.is_empty() || entry.words.contains(&algorithm);
        if owners().next().is_some() && !owners().any(is_own) {
            let words: Vec<&str> = owners().map(|entry| entry.words[0]).collect();
            let message = format!("`{}` needs `algorithm: {}`", key.text, words.join("` or `"));
            return Err(map.lacks_at(key.place, message, "add it to the limit or remove this key"));
        }
    }
    inherited.read(map)
}

/// Reads what a limit or an override allows; [`Allowance::Disabled`] if it has no numbers. `settings` is `None` if they are
/// unknown.
pub(super) fn allowance(
    settings: Option<&dyn Settings>,
    map: &Mapping<'_>,
    interner: &mut Interner,
) -> ReadResult<Allowance> {
    let unlimited = map.read("unlimited", Node::truth);
    let deny = map.read("deny", Node::truth);
    // Fixed windows accept the most numbers.
    let windows = settings.unwrap_or(&FixedWindow::default()).numbers(map);
    let (unlimited, deny, windows) = (unlimited?.unwrap_or(false), deny?.unwrap_or(false), windows?);
    let (flag, allowance) = match (unlimited, deny) {
        (true, true) => {
            let message = "`unlimited: true` and `deny: true` cannot be combined";
            return Err(map.node.error(message, "remove one of them"));
        }
        (true, false) => ("unlimited", Allowance::Unlimited),
        (false, true) => ("deny", Allowance::Deny),
        (false, false) if windows.is_empty() => return Ok(Allowance::Disabled),
        (false, false) => return Ok(Allowance::Windows(interner.share(windows))),
    };
    let Some((key, _)) = map.first(&["burst", "count", "period", "rates", "capacity", "args"]) else {
        return Ok(allowance);
    };
    Err(key.error(format!("`{flag}: true` and `{}` cannot be combined", key.text), "remove one of them"))
}

/// Rejects the keys of a limit that only algorithms with tokens support.
fn reject_token_keys(map: &Mapping<'_>, limit: &Limit, (has_cost, cost_help): (bool, &str)) {
    for (key, is_set, help) in [
        ("cost", has_cost, cost_help),
        ("per_call", limit.per_call, "remove `per_call`"),
        ("drain_over_limit", limit.drain_over_limit, "remove `drain_over_limit`"),
    ] {
        if is_set {
            let (Ok(()) | Err(ReportedError)) = map.reject(&[key], limit.algorithm.name(), help);
        }
    }
}

/// Rejects what limits that need Redis do not support.
fn check_redis_only(map: &Mapping<'_>, limit: &Limit) {
    let algorithm = limit.algorithm.name();
    if limit.on_store_error == StoreErrorPolicy::Local {
        let message = format!("`on_store_error: local` does not apply to `algorithm: {algorithm}`");
        map.value("on_store_error").error(message, "write `allow` or `deny`");
    }
    let conditions = &limit.conditions;
    let is_described = !conditions.domains.is_empty() || conditions.entries().next().is_some();
    if let Some((_, node)) = if is_described { map.get("match") } else { map.get("by").filter(|_| limit.is_by_entry()) }
    {
        let message = format!("the rate limit service does not support `algorithm: {algorithm}`");
        node.error(message, "descriptors do not stand for single requests; remove `domain` and `descriptor`");
    }
}
