//! The algorithms' keys in the rules file: a file per algorithm, and a line for each in [`REGISTRY`].

mod concurrency;
pub(super) mod elevated;
pub(super) mod fixed_window;
mod gcra;
pub(super) mod queue;
pub(super) mod script;
mod sliding_log;
mod sliding_window;

use std::sync::LazyLock;

use super::mapping::Mapping;
use super::numbers::{Interner, rates};
use super::problem::{Findings, Place, Reported, quoted};
use super::scalars::{text, truth};
use super::suggest::did_you_mean;
use super::yaml::Node;
use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::algorithms::concurrency::DEFAULT_LEASE;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::rules::allowance::Allowance;
use crate::engine::rules::component::ComponentSource;
use crate::engine::rules::limit::{Limit, StoreErrorPolicy};
use crate::engine::rules::matching::DescriptorMatch;

/// What an algorithm adds to the rules file.
struct Entry {
    /// The words of `algorithm:` that select it. `elevated` has none: it is a key of `gcra`.
    words: &'static [&'static str],
    settings: Settings,
    /// The keys of a limit.
    keys: &'static [&'static str],
    /// Those keys that its overrides may have too.
    override_keys: &'static [&'static str],
}

static REGISTRY: [Entry; 8] = [
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

/// The keys of limits beyond those that all algorithms share.
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().flat_map(|entry| entry.keys).copied()
}

/// The keys of overrides beyond those that all algorithms share.
pub(super) fn override_keys() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().flat_map(|entry| entry.override_keys).copied()
}

/// An algorithm with its settings, apart from burst, count and period. Overrides inherit it.
#[derive(Clone, Debug, Default)]
pub(super) enum Settings {
    #[default]
    Gcra,
    FixedWindow(fixed_window::Windows),
    SlidingLog,
    SlidingWindow {
        count_denied: bool,
    },
    Concurrency {
        /// In nanoseconds.
        lease: u64,
    },
    Queue {
        /// In nanoseconds; `None` if entries do not expire.
        max_age: Option<u64>,
    },
    Script {
        /// The number of the arguments, of those that the script has; `None` if they are not set.
        arguments: Option<u64>,
    },
}

impl Settings {
    /// Reads the value of `algorithm`.
    pub(super) fn of_word(node: &Node, findings: &mut Findings) -> Result<Self, Reported> {
        let given = text(node, findings)?;
        let entry = REGISTRY.iter().find(|entry| entry.words.contains(&given));
        entry.map(|entry| entry.settings.clone()).ok_or_else(|| {
            let help = did_you_mean(given, WORDS.iter().copied());
            findings.error(node.place, format!("unknown algorithm {}", quoted(given)), help)
        })
    }

    /// Reads the settings of a limit or an override; what it does not set is inherited.
    pub(super) fn read(&self, map: &Mapping<'_>, findings: &mut Findings) -> Result<Self, Reported> {
        self.reject_other_keys(map, findings)?;
        Ok(match self {
            Self::Gcra | Self::SlidingLog => self.clone(),
            Self::FixedWindow(windows) => Self::FixedWindow(windows.read(map, findings)?),
            Self::SlidingWindow { count_denied } => sliding_window::read(map, *count_denied, findings)?,
            Self::Concurrency { lease } => concurrency::read(map, *lease, findings)?,
            Self::Queue { max_age } => Self::Queue { max_age: queue::max_age(map, findings)?.or(*max_age) },
            Self::Script { .. } => Self::Script { arguments: None },
        })
    }

    /// Rejects keys that belong to other algorithms only.
    fn reject_other_keys(&self, map: &Mapping<'_>, findings: &mut Findings) -> Result<(), Reported> {
        let is_own = |entry: &&Entry| std::mem::discriminant(&entry.settings) == std::mem::discriminant(self);
        for key in keys().filter(|key| !REGISTRY.iter().filter(is_own).any(|entry| entry.keys.contains(key))) {
            // `elevated` checks what it can be combined with.
            let Some((key, _)) = map.get(key).filter(|(key, _)| !elevated::ENTRY.keys.contains(&key.text.as_str()))
            else {
                continue;
            };
            let owners = REGISTRY.iter().filter(|entry| entry.keys.contains(&key.text.as_str()));
            let owners: Vec<String> =
                owners.filter_map(|entry| entry.words.first()).map(|word| format!("`{word}`")).collect();
            let message = format!("`{}` needs `algorithm: {}", key.text, owners.join(" or ").trim_start_matches('`'));
            return Err(findings.error(key.place, message, "add it to the limit or remove this key"));
        }
        Ok(())
    }

    pub(super) const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Gcra => Algorithm::Gcra,
            Self::FixedWindow(windows) => Algorithm::FixedWindow(windows.aligned),
            Self::SlidingLog => Algorithm::SlidingLog,
            Self::SlidingWindow { count_denied } => Algorithm::SlidingWindow { count_denied: *count_denied },
            Self::Concurrency { .. } => Algorithm::Concurrency,
            Self::Queue { .. } => Algorithm::Queue,
            Self::Script { .. } => Algorithm::Script,
        }
    }

    /// Reads what a limit or an override allows; [`Allowance::Disabled`] if it has no numbers.
    pub(super) fn allowance(
        &self,
        map: &Mapping<'_>,
        interner: &mut Interner,
        findings: &mut Findings,
    ) -> Result<Allowance, Reported> {
        let unlimited = map.read("unlimited", findings, truth);
        let deny = map.read("deny", findings, truth);
        let windows = self.numbers(map, findings);
        let (unlimited, deny, windows) = (unlimited?.unwrap_or(false), deny?.unwrap_or(false), windows?);
        let (flag, allowance) = match (unlimited, deny) {
            (true, true) => return Err(exclusive(map.place, "`unlimited: true` and `deny: true`", findings)),
            (true, false) => ("`unlimited: true`", Allowance::Unlimited),
            (false, true) => ("`deny: true`", Allowance::Deny),
            (false, false) if windows.is_empty() => return Ok(Allowance::Disabled),
            (false, false) => return Ok(Allowance::Windows(interner.share(windows))),
        };
        match map.first(&["burst", "count", "period", "rates", "capacity", "args"]) {
            Some((key, _)) => Err(exclusive(key.place, &format!("{flag} and `{}`", key.text), findings)),
            None => Ok(allowance),
        }
    }

    /// Reads the numbers of a limit or an override: one per window, none if it has none.
    fn numbers(&self, map: &Mapping<'_>, findings: &mut Findings) -> Result<Vec<Numbers>, Reported> {
        match self {
            Self::Gcra => rates(map, true, &gcra::window, findings),
            Self::FixedWindow(windows) => windows.numbers(map, findings),
            Self::SlidingLog => rates(map, false, &sliding_log::window, findings),
            Self::SlidingWindow { count_denied } => {
                rates(map, false, &|rate, findings| sliding_window::window(rate, *count_denied, findings), findings)
            }
            Self::Concurrency { lease } => concurrency::numbers(map, *lease, findings).map(Vec::from_iter),
            Self::Queue { max_age } => queue::numbers(map, *max_age, findings).map(Vec::from_iter),
            Self::Script { arguments } => script::numbers(map, *arguments, findings).map(Vec::from_iter),
        }
    }

    /// The keys that give an override numbers, for help.
    pub(super) const fn number_keys(&self) -> &'static str {
        match self {
            Self::Concurrency { .. } | Self::Queue { .. } => "`capacity`",
            Self::Script { .. } => "`args`",
            _ => "`count` and `period`",
        }
    }

    /// Checks the other keys of a limit once they are read.
    pub(super) fn check(&self, map: &Mapping<'_>, limit: &mut Limit, findings: &mut Findings) {
        match self {
            Self::Concurrency { .. } => concurrency::check(map, limit, findings),
            Self::Queue { .. } => queue::check(map, limit, findings),
            Self::Script { .. } => {
                reject_token_keys(map, limit, "script", (true, "the script decides the cost; remove `cost`"), findings);
                check_redis_only(map, limit, "script", findings);
            }
            _ => {}
        }
    }

    pub(super) const fn needs_redis(&self) -> bool {
        matches!(self, Self::Queue { .. } | Self::Script { .. })
    }
}

fn exclusive(place: Place, what: &str, findings: &mut Findings) -> Reported {
    findings.error(place, format!("{what} cannot be combined"), "remove one of them")
}

/// Rejects the keys of a limit that only algorithms with tokens support.
fn reject_token_keys(
    map: &Mapping<'_>,
    limit: &Limit,
    algorithm: &str,
    (has_cost, cost_help): (bool, &str),
    findings: &mut Findings,
) {
    for (key, is_set, help) in [
        ("cost", has_cost, cost_help),
        ("per_call", limit.per_call, "remove `per_call`"),
        ("drain_over_limit", limit.drain_over_limit, "remove `drain_over_limit`"),
    ] {
        if is_set {
            let (Ok(()) | Err(Reported)) = map.reject(&[key], algorithm, help, findings);
        }
    }
}

/// Rejects what a limit that only Redis can keep does not support.
fn check_redis_only(map: &Mapping<'_>, limit: &Limit, algorithm: &str, findings: &mut Findings) {
    if limit.on_store_error == StoreErrorPolicy::Local {
        let message = format!("`on_store_error: local` does not apply to `algorithm: {algorithm}`");
        findings.error(map.value_place("on_store_error"), message, "write `allow` or `deny`");
    }
    let conditions = &limit.conditions;
    let is_described = !conditions.domains.is_empty() || conditions.descriptor != DescriptorMatch::default();
    let by_entry = limit.by.iter().any(|component| matches!(component.source, ComponentSource::Descriptor(_)));
    if let Some((_, node)) = if is_described { map.get("match") } else { map.get("by").filter(|_| by_entry) } {
        let message = format!("the rate limit service does not support `algorithm: {algorithm}`");
        let help = "descriptors do not stand for single requests; remove `domain` and `descriptor`";
        findings.error(node.place, message, help);
    }
}
