//! The domains of envoyproxy/ratelimit, as plain limits.
//!
//! That service looks up a descriptor in a tree: the entries in their order, at each level the value before patterns and
//! patterns before the key alone, and a limit only where the descriptor ends. A plain limit covers every descriptor that
//! has its entries. Values and patterns beside a key alone become overrides of its limit, and entries that only longer
//! paths have must be absent. A limit that is still wider than before is in shadow mode.

use std::collections::BTreeSet;

use self::tree::{Branch, Rule, Test};
use super::super::print;
use super::amount::{Amount, Fields};
use super::document::{Document, Limit, Override, Subject};
use super::text::{by_entries, map, piece, quoted};
use crate::config::{self, Report, Source, Sources};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::request::glob::Glob;

mod tree;

/// The end of the reason why a limit is in shadow mode.
const SHADOWED: &str = "so it is in shadow mode. `--envoy-ratelimit-config` serves the file unchanged.";

/// One entry on the path to a limit.
#[derive(Clone)]
struct Step {
    key: String,
    test: Test,
    /// True if all matching values share a counter.
    shares: bool,
    /// True if other branches take precedence for some matching values.
    is_second_choice: bool,
}

/// Writes the limits of one domain.
struct DomainWriter<'d> {
    document: &'d mut Document,
    domain: &'d str,
    /// The keys of each path of the tree.
    paths: Vec<Vec<String>>,
    /// The names of limits that others replace.
    replaced: BTreeSet<String>,
}

/// Adds the domains of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    // Checks the files as `--envoy-ratelimit-config` does.
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
        let mut writer = DomainWriter { document, domain: &domain.name, paths: Vec::new(), replaced: BTreeSet::new() };
        writer.look_through(&domain.branches, &[]);
        writer.level(&domain.branches, &[]);
    }
    loaded.report
}

impl DomainWriter<'_> {
    /// Collects the paths of the tree and the limits that others replace.
    fn look_through(&mut self, branches: &[Branch], above: &[String]) {
        for branch in branches {
            let path = [above, std::slice::from_ref(&branch.key)].concat();
            if let [first, ..] = branch.without_effect[..] {
                let names = print::joined(branch.without_effect.iter().map(|name| piece(name)), ", ");
                let verb = if branch.without_effect == [first] { "has" } else { "have" };
                let what = format!("{names} {verb} no effect without `rate_limit`; left out.");
                self.document.unused(branch.origin.note(what));
            }
            let replaced = branch.rule.iter().flat_map(|rule| rule.replaces.iter().cloned());
            self.replaced.extend(replaced);
            self.look_through(&branch.below, &path);
            self.paths.push(path);
        }
    }

    /// Writes the limits of one level, grouped by key. The depth of the file bounds the recursion.
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
        self.add(&path, rule, unequal(branch, &path), self.reasons(rule));
    }

    /// Writes one limit by a key, with its values and patterns as overrides.
    fn together(&mut self, all: &[&Branch], above: &[Step]) {
        let siblings = Siblings::new(all, above);
        if !all.iter().any(|branch| branch.rule.is_some() && !siblings.is_apart(branch)) {
            for branch in all {
                self.alone(branch, all, above);
            }
            return;
        }
        let limit = self.add_key(&siblings);
        for branch in all.iter().filter(|branch| siblings.is_apart(branch)) {
            self.alone(branch, all, above);
        }
        if let Some(limit) = limit {
            self.add_values(limit, &siblings);
        }
    }

    /// Adds the limit for all values that no value and no pattern covers.
    fn add_key(&mut self, siblings: &Siblings<'_>) -> Option<usize> {
        let bases: Vec<&Branch> = siblings.all.iter().filter(|branch| branch.test == Test::Any).copied().collect();
        let first = bases.first().or(siblings.all.first())?;
        let rules: Vec<&Rule> = bases.iter().filter_map(|branch| branch.rule.as_ref()).collect();
        let mut notes: Vec<String> = bases.iter().flat_map(|branch| unequal(branch, &siblings.path)).collect();
        let all: Vec<&Rule> = siblings.all.iter().filter_map(|branch| branch.rule.as_ref()).collect();
        let is_shadow = rules.first().is_some_and(|rule| rule.is_shadow);
        if all.iter().any(|rule| rule.is_shadow != is_shadow) {
            let note = "`shadow_mode` is set for some of the values; here it applies to all of them.";
            notes.push(first.origin.note(note));
        }
        let mut reasons: Vec<String> = all.iter().flat_map(|rule| self.reasons(rule)).collect();
        if let Some(pattern) = siblings.all.iter().find(|branch| !siblings.has_regexes && siblings.is_apart(branch)) {
            let shown = piece(&step(pattern, siblings.all).shown());
            let what = format!("values that match {shown} would count here too, {SHADOWED}");
            reasons.push(pattern.origin.note(what));
        }
        let rule = Rule {
            origin: first.rule.as_ref().map_or(&first.origin, |rule| &rule.origin).clone(),
            name: rules.first().map(|rule| rule.name.clone()).unwrap_or_default(),
            amount: joined(rules).unwrap_or_default(),
            is_shadow: all.iter().any(|rule| rule.is_shadow),
            ..Rule::default()
        };
        self.add(&siblings.path, &rule, notes, reasons)
    }

    /// Adds the values and patterns of a key as overrides of its limit.
    fn add_values(&mut self, limit: usize, siblings: &Siblings<'_>) {
        // Of branches with the same value, one for each unit, one override has all windows.
        let mut done: Vec<&Test> = Vec::new();
        for branch in siblings.all {
            if done.contains(&&branch.test) {
                continue;
            }
            done.push(&branch.test);
            let subject = match &branch.test {
                Test::Value(value) => Subject::Ids(vec![(as_id(value), None)]),
                Test::Glob(glob) if siblings.has_regexes => Subject::Regex(regex(glob)),
                Test::Glob(_) | Test::Any => continue,
            };
            let same = siblings.all.iter().filter(|other| other.test == branch.test);
            let amount = joined(same.filter_map(|other| other.rule.as_ref()));
            // A value without a limit, or with one that counts apart, must not be counted by the key.
            let amount = amount.filter(|_| !siblings.is_apart(branch)).unwrap_or(Amount::Unlimited);
            let notes = unequal(branch, &siblings.path);
            let mut fields = amount.fields();
            let name = branch.rule.as_ref().map(|rule| &rule.name).filter(|name| !name.is_empty());
            fields.extend(name.map(|name| ("comment", quoted(name))));
            self.document.add_override(Override { limit, origin: branch.origin.clone(), notes, subject, fields });
        }
    }

    /// Adds a limit for a path. It is in shadow mode if there are reasons why it is wider than before.
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
            self.document.unused(origin.note(what));
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
        let fields = self.fields(path, rule, is_wider);
        // That service counts by the path and the window.
        let path = self.path(path);
        let identity = match &rule.amount {
            Amount::Rate { period, .. } => format!("{path}\n{period}"),
            _ => path.clone(),
        };
        let name = if rule.name.is_empty() { path } else { rule.name.clone() };
        Some(self.document.add_limit(Limit {
            name,
            identity,
            origin: origin.clone(),
            notes,
            fields,
            amount: rule.amount.fields(),
        }))
    }

    fn fields(&self, path: &[Step], rule: &Rule, is_wider: bool) -> Fields {
        let keys: Vec<&str> = path.iter().map(|step| step.key.as_str()).collect();
        // Descriptors with more entries belong to the longer path.
        let longer = self.paths.iter().filter(|other| keys.iter().all(|key| other.iter().any(|known| known == key)));
        let absent: BTreeSet<&str> = longer.flatten().map(String::as_str).filter(|key| !keys.contains(key)).collect();
        let tests = path.iter().filter_map(|step| Some((step.key.as_str(), step.test.value()?)));
        let absent = absent.into_iter().map(|key| (key, "{ present: false }".to_owned()));
        let entries: Vec<_> = tests.chain(absent).collect();
        let mut conditions = vec![("domain", quoted(self.domain))];
        if !entries.is_empty() {
            conditions.push(("descriptor", map(&entries)));
        }
        // The last entry comes first: its values have overrides, and an id may consist of only the first components.
        let open = path.iter().rev().filter(|step| step.is_open());
        let mut fields = vec![("match", map(&conditions)), ("by", by_entries(open.map(|step| step.key.as_str())))];
        if rule.is_shadow || is_wider {
            fields.push(("mode", "shadow".to_owned()));
        }
        if !matches!(rule.amount, Amount::Unlimited | Amount::Deny) {
            let window = [("algorithm", "fixed_window"), ("aligned", "clock"), ("drain_over_limit", "true")];
            fields.extend(window.map(|(key, value)| (key, value.to_owned())));
        }
        fields
    }

    /// The reasons why a limit is wider than its rule.
    fn reasons(&self, rule: &Rule) -> Vec<String> {
        let quota = rule.is_quota.then(|| format!("`quota_mode` has no equivalent, {SHADOWED}"));
        let is_replaced = !rule.name.is_empty() && self.replaced.contains(&rule.name);
        let replaced = is_replaced
            .then(|| format!("another limit replaces {}; here both would count, {SHADOWED}", piece(&rule.name)));
        quota.into_iter().chain(replaced).map(|what| rule.origin.note(what)).collect()
    }

    fn path(&self, path: &[Step]) -> String {
        format!("{}.{}", self.domain, print::joined(path.iter().map(Step::shown), ".")).replace('=', "-")
    }
}

/// The branches of one key at one level.
struct Siblings<'t> {
    all: &'t [&'t Branch],
    /// The path to the key, whose value is open.
    path: Vec<Step>,
    /// True if a pattern can be an override. Its expression sees the whole id, of which the value is only a part if other
    /// entries are open.
    has_regexes: bool,
}

impl<'t> Siblings<'t> {
    fn new(all: &'t [&'t Branch], above: &[Step]) -> Self {
        let key = all.first().map(|branch| branch.key.clone()).unwrap_or_default();
        let own = Step { key, test: Test::Any, shares: false, is_second_choice: false };
        let path = [above, &[own]].concat();
        let has_regexes = path.iter().filter(|step| step.is_open()).count() == 1;
        Self { all, path, has_regexes }
    }

    /// True for a pattern that needs a limit of its own.
    fn is_apart(&self, branch: &Branch) -> bool {
        matches!(branch.test, Test::Glob(_)) && (branch.shares || !self.has_regexes)
    }
}

impl Step {
    /// True if each value has a bucket of its own.
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

/// Notes on what cannot be expressed of a rule, except what makes the limit wider.
fn unequal(branch: &Branch, path: &[Step]) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(rule) = &branch.rule else { return notes };
    for key in &branch.unused {
        let what = match key.as_str() {
            "metadata" => "`metadata` has no equivalent in a plain limit; left out.".to_owned(),
            key => format!("`{key}` has no equivalent: metrics count decisions per limit, not per value."),
        };
        notes.push(branch.origin.note(what));
    }
    if !rule.replaces.is_empty() {
        let names = print::joined(rule.replaces.iter().map(|name| piece(name)), ", ");
        let what = format!("`replaces` has no equivalent: {names} would count as well.");
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

/// The step of a branch, for the branches below it and a limit of its own.
fn step(branch: &Branch, siblings: &[&Branch]) -> Step {
    let goes_before = |other: &&Branch| match (&branch.test, &other.test) {
        (Test::Value(_), _) | (_, Test::Any) => false,
        (Test::Any, _) => true,
        (Test::Glob(glob), Test::Value(value)) => Glob::parse(glob).is_some_and(|glob| glob.matches(value)),
        // Assumes that some value matches both.
        (Test::Glob(glob), Test::Glob(other)) => glob != other,
    };
    let is_second_choice = siblings.iter().any(goes_before);
    Step { key: branch.key.clone(), test: branch.test.clone(), shares: branch.shares, is_second_choice }
}

/// All windows of these rules at once; `None` without rules.
fn joined<'r>(rules: impl IntoIterator<Item = &'r Rule>) -> Option<Amount> {
    let windows = |amount: &Amount| match amount {
        Amount::Rate { count, period, .. } => vec![(*count, period.clone())],
        Amount::Rates(windows) => windows.clone(),
        _ => Vec::new(),
    };
    let amounts = rules.into_iter().map(|rule| rule.amount.clone());
    amounts.reduce(|first, next| match (&first, &next) {
        (Amount::Deny, _) | (_, Amount::Unlimited) => first,
        (_, Amount::Deny) | (Amount::Unlimited, _) => next,
        _ => Amount::Rates([windows(&first), windows(&next)].concat()),
    })
}

/// A value as the first component of an id, whose separator is the colon.
fn as_id(value: &str) -> String {
    value.replace('%', "%25").replace(':', "%3A")
}

/// A pattern with `*` as a regular expression.
fn regex(glob: &str) -> String {
    format!("(?s)^{}$", print::joined(glob.split('*').map(regex::escape), ".*"))
}
