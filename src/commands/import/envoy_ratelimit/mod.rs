//! The domains of envoyproxy/ratelimit, as plain limits.
//!
//! That service looks a descriptor up in a tree: the entries in their order, at each level the value before patterns and
//! patterns before the key alone, and a limit only where the descriptor ends. A plain limit of ours covers every
//! descriptor with its entries. What stands beside a key alone becomes an override of its limit, and an entry that only
//! longer paths have must be absent. What is still wider than it was is written in shadow.

use std::collections::BTreeSet;

use self::tree::{Branch, Rule, Test};
use super::amount::{Amount, milliseconds};
use super::document::{Document, Limit, Override, Subject};
use super::text::{Value, piece};
use crate::config::{self, Report, Source, Sources};
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::engine::rules::glob::Glob;

mod tree;

/// Why a limit that is wider than it was is in shadow.
const SHADOWED: &str = "so it is in shadow mode. `--envoy-ratelimit-config` serves the file unchanged.";

/// One entry on the way to a limit.
#[derive(Clone)]
struct Step {
    key: String,
    test: Test,
    /// Whether all values that fit share a counter.
    shares: bool,
    /// Whether the service would try something else first for some of the values that fit.
    is_second_choice: bool,
}

/// Writes the limits of one domain.
struct Writing<'d> {
    document: &'d mut Document,
    domain: &'d str,
    /// The keys of each path of the tree.
    paths: Vec<Vec<String>>,
    /// The names of limits that others replace.
    replaced: BTreeSet<String>,
}

/// Adds the domains of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    // They are checked as files that are served as they are.
    let all = Sources { envoy_ratelimit: sources.to_vec(), ..Sources::default() };
    let loaded = config::load(&all, Fingerprinter::new((0, 0)), Micros(0));
    if loaded.rules.is_none() {
        return loaded.report;
    }
    document.head(
        "`weir serve --envoy-ratelimit-config FILE` serves these files unchanged; these limits come close. Differences: \
         a descriptor's entries may come in any order and among others, except those that a limit requires to be \
         absent; an entry with an empty value has no bucket; and requests pass if the store does not answer, unless \
         `on_store_error` is set.",
    );
    for domain in tree::read(sources) {
        let mut writing = Writing { document, domain: &domain.name, paths: Vec::new(), replaced: BTreeSet::new() };
        writing.look_through(&domain.branches, &[]);
        writing.level(&domain.branches, &[]);
    }
    loaded.report
}

impl Writing<'_> {
    /// Collects what must be known of the whole tree before anything is written.
    fn look_through(&mut self, branches: &[Branch], above: &[String]) {
        for branch in branches {
            let path = [above, std::slice::from_ref(&branch.key)].concat();
            let replaced = branch.rule.iter().flat_map(|rule| rule.replaces.iter().cloned());
            self.replaced.extend(replaced);
            self.look_through(&branch.below, &path);
            self.paths.push(path);
        }
    }

    /// Writes the limits of one level, those of a key together. The depth of the file bounds the recursion.
    fn level(&mut self, branches: &[Branch], above: &[Step]) {
        let mut keys: Vec<&str> = Vec::new();
        for branch in branches {
            if !keys.contains(&branch.key.as_str()) {
                keys.push(&branch.key);
            }
        }
        for key in keys {
            let siblings: Vec<&Branch> = branches.iter().filter(|branch| branch.key == key).collect();
            if siblings.iter().all(|branch| matches!(branch.test, Test::Value(_))) {
                for branch in &siblings {
                    self.alone(branch, &siblings, above);
                }
            } else {
                self.together(&siblings, above);
            }
            for branch in &siblings {
                self.level(&branch.below, &[above, &[step(branch, &siblings)]].concat());
            }
        }
    }

    /// Writes the limit of one branch.
    fn alone(&mut self, branch: &Branch, siblings: &[&Branch], above: &[Step]) {
        let path = [above, &[step(branch, siblings)]].concat();
        let Some(rule) = &branch.rule else { return };
        let notes = unequal(branch, rule, &path);
        self.add(&path, rule, notes, self.reasons(rule));
    }

    /// Writes one limit by a key, the values and patterns of it as overrides.
    fn together(&mut self, siblings: &[&Branch], above: &[Step]) {
        let is_base = |branch: &&&Branch| branch.test == Test::Any;
        let bases: Vec<&Branch> = siblings.iter().filter(is_base).copied().collect();
        let key = siblings.first().map(|branch| branch.key.clone()).unwrap_or_default();
        let Some(first) = bases.first().or(siblings.first()) else { return };
        // The limit itself is for what no value and no pattern is there for.
        let own = Step { key, test: Test::Any, shares: false, is_second_choice: false };
        let path = [above, &[own]].concat();
        let rules: Vec<&Rule> = bases.iter().filter_map(|branch| branch.rule.as_ref()).collect();
        let (amount, mut notes) = match rules.as_slice() {
            [] => (Amount::Unsaid, Vec::new()),
            [first, rest @ ..] => {
                let notes = bases.iter().filter_map(|branch| Some(unequal(branch, branch.rule.as_ref()?, &path)));
                let notes = notes.flatten().collect();
                (rest.iter().fold(first.amount.clone(), |amount, rule| joined(amount, &rule.amount)), notes)
            }
        };
        // An expression for an override sees the whole id, in which the value is only a part if other entries are open.
        let has_expressions = path.iter().filter(|step| step.is_open()).count() == 1;
        let is_apart = |branch: &Branch| match &branch.test {
            Test::Glob(_) => branch.shares || !has_expressions,
            _ => false,
        };
        if !siblings.iter().any(|branch| branch.rule.is_some() && !is_apart(branch)) {
            for branch in siblings {
                self.alone(branch, siblings, above);
            }
            return;
        }
        let all: Vec<&Rule> = siblings.iter().filter_map(|branch| branch.rule.as_ref()).collect();
        let is_shadow = rules.first().is_some_and(|rule| rule.is_shadow);
        if all.iter().any(|rule| rule.is_shadow != is_shadow) {
            notes.push(
                first.origin.note("`shadow_mode` is set for some of the values; here it applies to all of them."),
            );
        }
        let values: Vec<&Branch> = siblings.iter().filter(|branch| branch.test != Test::Any).copied().collect();
        let mut reasons: Vec<String> = all.iter().flat_map(|rule| self.reasons(rule)).collect();
        if let Some(pattern) = values.iter().find(|branch| !has_expressions && is_apart(branch)) {
            let shown = step(pattern, siblings).shown();
            let what = format!("values that match {} would count here too, {SHADOWED}", piece(&shown));
            reasons.push(pattern.origin.note(what));
        }
        let rule = Rule {
            name: rules.first().map(|rule| rule.name.clone()).unwrap_or_default(),
            amount,
            is_shadow: all.iter().any(|rule| rule.is_shadow),
            ..Rule::at(first.rule.as_ref().map_or_else(|| first.origin.clone(), |rule| rule.origin.clone()))
        };
        let limit = self.add(&path, &rule, notes, reasons);
        for branch in values.iter().filter(|branch| is_apart(branch)) {
            self.alone(branch, siblings, above);
        }
        let Some(limit) = limit else { return };
        // Of branches that say the same value, one for each unit, one override has all windows.
        let mut done: Vec<&Test> = Vec::new();
        for branch in values {
            if done.contains(&&branch.test) {
                continue;
            }
            done.push(&branch.test);
            let same = siblings.iter().filter(|other| other.test == branch.test);
            let amounts = same.filter_map(|other| Some(other.rule.as_ref()?.amount.clone()));
            let amount = amounts.reduce(|first, next| joined(first, &next));
            // What has no limit of its own, or one that counts apart, must not be counted by the key.
            let amount = amount.filter(|_| !is_apart(branch)).unwrap_or(Amount::Unlimited);
            let mut notes = Vec::new();
            if let Some(rule) = &branch.rule {
                notes = unequal(branch, rule, &path);
            }
            let subject = match &branch.test {
                Test::Value(value) => Subject::Ids(vec![(as_id(value), None)]),
                Test::Glob(glob) if has_expressions => Subject::Regex(regex(glob)),
                Test::Glob(_) | Test::Any => continue,
            };
            let origin = branch.origin.clone();
            let comment = branch.rule.as_ref().map(|rule| rule.name.clone()).filter(|name| !name.is_empty());
            self.document.add_override(Override {
                limit,
                origin,
                notes,
                subject,
                amount,
                elevated: None,
                until: None,
                comment,
            });
        }
    }

    /// Adds a limit for a path. It is in shadow if there are reasons why it is wider than it was.
    fn add(&mut self, path: &[Step], rule: &Rule, mut notes: Vec<String>, mut reasons: Vec<String>) -> Option<usize> {
        let keys: Vec<&str> = path.iter().map(|step| step.key.as_str()).collect();
        let origin = &rule.origin;
        if let Some(step) = path.iter().find(|step| step.is_second_choice) {
            let what = format!(
                "other entries take precedence over {} for some of its values, which a plain limit cannot exclude, {SHADOWED}",
                piece(&step.shown())
            );
            reasons.push(origin.note(what));
        }
        let twice = keys.iter().enumerate().find(|(place, key)| keys.iter().take(*place).any(|other| other == *key));
        if let Some((_, key)) = twice {
            let what = format!(
                "{} occurs twice in the path, which a `match` cannot express: the limit is left out. \
                 `--envoy-ratelimit-config` serves the file unchanged.",
                piece(key)
            );
            self.document.head(origin.note(what));
            return None;
        }
        let has = |path: &[String], key: &str| path.iter().any(|known| known == key);
        let of_same_keys = |other: &&Vec<String>| {
            let is_itself = other.iter().map(String::as_str).eq(keys.iter().copied());
            !is_itself && keys.iter().all(|key| has(other, key)) && other.iter().all(|key| keys.contains(&key.as_str()))
        };
        if let Some(other) = self.paths.iter().find(of_same_keys) {
            let what = format!(
                "the path {} has the same keys, and a plain limit ignores their order and repetition, {SHADOWED}",
                piece(&other.join(" > "))
            );
            reasons.push(origin.note(what));
        }
        let is_wider = !reasons.is_empty();
        notes.append(&mut reasons);
        let limit = Limit {
            name: self.name(path, rule),
            identity: self.identity(path, rule),
            origin: origin.clone(),
            notes,
            fields: self.fields(path, rule, is_wider),
            amount: rule.amount.clone(),
            elevated: None,
        };
        Some(self.document.add_limit(limit))
    }

    fn fields(&self, path: &[Step], rule: &Rule, is_wider: bool) -> Vec<(&'static str, Value)> {
        let keys: Vec<&str> = path.iter().map(|step| step.key.as_str()).collect();
        // Descriptors that go further along another path belong to that one.
        let longer = self.paths.iter().filter(|other| keys.iter().all(|key| other.iter().any(|known| known == key)));
        let absent: BTreeSet<&str> = longer.flatten().map(String::as_str).filter(|key| !keys.contains(key)).collect();
        let tests = path.iter().filter_map(|step| Some((step.key.clone(), step.test.value()?)));
        let absent = absent.into_iter().map(|key| (key.to_owned(), Value::map([("present", Value::word(&false))])));
        let entries: Vec<_> = tests.chain(absent).collect();
        let mut of_request = vec![("domain".to_owned(), Value::Text(self.domain.to_owned()))];
        if !entries.is_empty() {
            of_request.push(("descriptor".to_owned(), Value::Map(entries)));
        }
        // The last entry stands first: its values have overrides, and an id may give its first components alone.
        let open = path.iter().rev().filter(|step| step.is_open());
        let components: Vec<Value> =
            open.map(|step| Value::map([("descriptor", Value::Text(step.key.clone()))])).collect();
        let by = match components.as_slice() {
            [] => Value::word("global"),
            [only] => only.clone(),
            _ => Value::List(components),
        };
        let mut fields = vec![("match", Value::Map(of_request)), ("by", by)];
        if rule.is_shadow || is_wider {
            fields.push(("mode", Value::word("shadow")));
        }
        if !matches!(rule.amount, Amount::Unlimited | Amount::Deny) {
            fields.push(("algorithm", Value::word("fixed_window")));
            fields.push(("aligned", Value::word("clock")));
            fields.push(("drain_over_limit", Value::word(&true)));
        }
        fields
    }

    /// Why a limit is wider than its rule.
    fn reasons(&self, rule: &Rule) -> Vec<String> {
        let quota = rule.is_quota.then(|| format!("`quota_mode` has no equivalent, {SHADOWED}"));
        let is_replaced = !rule.name.is_empty() && self.replaced.contains(&rule.name);
        let replaced = is_replaced
            .then(|| format!("another limit replaces {}; here both would count, {SHADOWED}", piece(&rule.name)));
        quota.into_iter().chain(replaced).map(|what| rule.origin.note(what)).collect()
    }

    fn name(&self, path: &[Step], rule: &Rule) -> String {
        if rule.name.is_empty() { self.path(path) } else { rule.name.clone() }
    }

    /// That service counts by the path and the window.
    fn identity(&self, path: &[Step], rule: &Rule) -> String {
        let path = self.path(path);
        match &rule.amount {
            Amount::Rate { period, .. } => format!("{path}\n{period}"),
            _ => path,
        }
    }

    fn path(&self, path: &[Step]) -> String {
        let steps: Vec<String> = path.iter().map(Step::shown).collect();
        format!("{}.{}", self.domain, steps.join(".")).replace('=', "-")
    }
}

impl Step {
    /// Whether the path leaves its value open, so that each has a bucket of its own.
    fn is_open(&self) -> bool {
        match self.test {
            Test::Any => true,
            Test::Glob(_) => !self.shares,
            Test::Value(_) => false,
        }
    }

    fn shown(&self) -> String {
        match &self.test {
            Test::Any => self.key.clone(),
            Test::Value(value) | Test::Glob(value) => format!("{}={value}", self.key),
        }
    }
}

/// What has no equal in a rule, except what makes the limit wider.
fn unequal(branch: &Branch, rule: &Rule, path: &[Step]) -> Vec<String> {
    let mut notes = Vec::new();
    for key in &branch.unused {
        let what = match key.as_str() {
            "metadata" => "`metadata` has no equivalent in a plain limit; left out.".to_owned(),
            key => format!("`{key}` has no equivalent: metrics count decisions per limit, not per value."),
        };
        notes.push(branch.origin.note(what));
    }
    if !rule.replaces.is_empty() {
        let names: Vec<String> = rule.replaces.iter().map(|name| piece(name)).collect();
        let what = format!("`replaces` has no equivalent: {} would count as well.", names.join(", "));
        notes.push(rule.origin.note(what));
    }
    if let Some(unit) = rule.unit {
        notes.push(
            rule.origin.note(format!("that service counts fixed {unit}s; `period: {unit}` would follow the calendar.")),
        );
    }
    if path.iter().any(|step| step.shares && step.test != Test::Any) && !branch.shares {
        notes.push(branch.origin.note("with `share_threshold` above, the values of that entry share a bucket."));
    }
    notes
}

/// The step that a branch is, as those below it and a limit of its own see it.
fn step(branch: &Branch, siblings: &[&Branch]) -> Step {
    let goes_before = |other: &&Branch| match (&branch.test, &other.test) {
        (Test::Value(_), _) | (_, Test::Any) => false,
        (Test::Any, _) => true,
        (Test::Glob(glob), Test::Value(value)) => Glob::parse(glob).is_some_and(|glob| glob.matches(value)),
        // Whether some value fits both is not worked out.
        (Test::Glob(glob), Test::Glob(other)) => glob != other,
    };
    let is_second_choice = siblings.iter().any(goes_before);
    Step { key: branch.key.clone(), test: branch.test.clone(), shares: branch.shares, is_second_choice }
}

/// Both windows at once.
fn joined(first: Amount, next: &Amount) -> Amount {
    let windows = |amount: &Amount| match amount {
        Amount::Rate { count, period, .. } => vec![(*count, period.clone())],
        Amount::Rates(windows) => windows.clone(),
        _ => Vec::new(),
    };
    match (&first, next) {
        (Amount::Deny, _) | (_, Amount::Unlimited) => first,
        (_, Amount::Deny) | (Amount::Unlimited, _) => next.clone(),
        _ => Amount::Rates([windows(&first), windows(next)].concat()),
    }
}

/// A value as the first component of an id, whose separator is the colon.
fn as_id(value: &str) -> String {
    value.replace('%', "%25").replace(':', "%3A")
}

/// A pattern with `*` as a regular expression.
fn regex(glob: &str) -> String {
    let parts: Vec<String> = glob.split('*').map(regex::escape).collect();
    format!("(?s)^{}$", parts.join(".*"))
}

/// The length of a unit of that service, and whether the calendar has one of this name that is another.
fn period(seconds: u64) -> String {
    milliseconds(seconds * 1_000)
}
