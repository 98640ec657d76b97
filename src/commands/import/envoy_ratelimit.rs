//! The domains of envoyproxy/ratelimit, as plain limits.
//!
//! That service looks up a descriptor in a tree: the entries in their order, at each level the value before patterns and
//! patterns before the key alone, and a limit only where the descriptor ends. A plain limit covers every descriptor that
//! has its entries. Values and patterns beside a key alone become overrides of its limit, and entries that only longer
//! paths have must be absent. A limit that is still wider than before is in shadow mode.

use std::collections::BTreeSet;

use super::super::print;
use super::amount::{Amount, Fields, milliseconds};
use super::document::{Document, Limit, Origin, Override, Subject};
use super::text::{by_entries, map, piece, quoted};
use crate::config::envoy_ratelimit::{self, Descriptor, EntryValue, Level, RateLimit};
use crate::config::foreign::Findings;
use crate::config::{Report, Source};
use crate::engine::limit::descriptors::{PerUnit, RateUnit};

/// The end of the reason why a limit is in shadow mode.
const SHADOWED: &str = "so it is in shadow mode. `--envoy-ratelimit-config` serves the file unchanged.";

/// One entry on the path to a limit.
#[derive(Clone)]
struct Step {
    level: Level,
    /// True if other descriptors take precedence for some matching values.
    is_second_choice: bool,
}

/// A limit to write for a path.
struct Plain {
    origin: Origin,
    /// May be empty.
    name: String,
    amount: Amount,
    is_shadow: bool,
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
    let (domains, report) = envoy_ratelimit::read(sources, Findings::new);
    if report.errors > 0 {
        return report;
    }
    document.head(
        "`weir serve --envoy-ratelimit-config FILE` serves these files unchanged; these limits come close. Differences: \
         a descriptor's entries may come in any order and among others, except those that a limit requires to be \
         absent; an entry with an empty value has no bucket; and requests pass if the store does not answer, unless \
         `on_store_error` is set.",
    );
    for warning in &report.problems {
        let origin = Origin::of(&warning.file, warning.place.unwrap_or_default());
        document.unused(origin.note(format!("{}; left out.", warning.message)));
    }
    let more = report.warnings - report.problems.len();
    if more > 0 {
        document.unused(format!("{more} more keys have no effect; left out."));
    }
    for domain in domains {
        let mut writer = DomainWriter { document, domain: &domain.name, paths: Vec::new(), replaced: BTreeSet::new() };
        writer.look_through(&domain.descriptors, &[]);
        writer.level(&domain.descriptors, &[]);
    }
    report
}

impl DomainWriter<'_> {
    /// Collects the paths of the tree and the limits that others replace.
    fn look_through(&mut self, descriptors: &[Descriptor], above: &[String]) {
        for descriptor in descriptors {
            let path = [above, std::slice::from_ref(&descriptor.level.key)].concat();
            self.replaced.extend(descriptor.limit.iter().flat_map(|limit| limit.rule.replaces.iter().cloned()));
            self.look_through(&descriptor.below, &path);
            self.paths.push(path);
        }
    }

    /// Writes the limits of one level, grouped by key. The depth of the file bounds the recursion.
    fn level(&mut self, descriptors: &[Descriptor], above: &[Step]) {
        let mut keys: Vec<&str> = Vec::new();
        for descriptor in descriptors {
            if !keys.contains(&descriptor.level.key.as_str()) {
                keys.push(&descriptor.level.key);
            }
        }
        for key in keys {
            let siblings: Vec<&Descriptor> = descriptors.iter().filter(|other| other.level.key == key).collect();
            if siblings.iter().all(|descriptor| matches!(descriptor.level.value, EntryValue::One(_))) {
                for descriptor in &siblings {
                    self.alone(descriptor, &siblings, above);
                }
            } else {
                self.together(&siblings, above);
            }
            for descriptor in &siblings {
                self.level(&descriptor.below, &[above, &[step(descriptor, &siblings)]].concat());
            }
        }
    }

    /// Writes the limit of one descriptor.
    fn alone(&mut self, descriptor: &Descriptor, siblings: &[&Descriptor], above: &[Step]) {
        let path = [above, &[step(descriptor, siblings)]].concat();
        let Some(limit) = &descriptor.limit else { return };
        let plain = Plain {
            origin: origin(descriptor),
            name: limit.rule.name.clone(),
            amount: amount(limit),
            is_shadow: limit.is_shadow,
        };
        self.add(&path, &plain, unequal(descriptor, &path), self.reasons(descriptor));
    }

    /// Writes one limit by a key, with its values and patterns as overrides.
    fn together(&mut self, all: &[&Descriptor], above: &[Step]) {
        let siblings = Siblings::new(all, above);
        if !all.iter().any(|descriptor| descriptor.limit.is_some() && !siblings.is_apart(descriptor)) {
            for descriptor in all {
                self.alone(descriptor, all, above);
            }
            return;
        }
        let limit = self.add_key(&siblings);
        for descriptor in all.iter().filter(|descriptor| siblings.is_apart(descriptor)) {
            self.alone(descriptor, all, above);
        }
        if let Some(limit) = limit {
            self.add_values(limit, &siblings);
        }
    }

    /// Adds the limit for all values that no value and no pattern covers.
    fn add_key(&mut self, siblings: &Siblings<'_>) -> Option<usize> {
        let all = siblings.all.iter().copied();
        let bases: Vec<&Descriptor> = all.clone().filter(|other| other.level.value == EntryValue::Any).collect();
        let first = bases.first().copied().or(all.clone().next())?;
        let limits: Vec<&RateLimit> = bases.iter().filter_map(|base| base.limit.as_ref()).collect();
        let mut notes: Vec<String> = bases.iter().flat_map(|base| unequal(base, &siblings.path)).collect();
        let mut shadows = all.clone().filter_map(|descriptor| Some(descriptor.limit.as_ref()?.is_shadow));
        let is_shadow = limits.first().is_some_and(|limit| limit.is_shadow);
        if shadows.clone().any(|other| other != is_shadow) {
            let note = "`shadow_mode` is set for some of the values; here it applies to all of them.";
            notes.push(own_origin(first).note(note));
        }
        let mut reasons: Vec<String> = all.clone().flat_map(|descriptor| self.reasons(descriptor)).collect();
        if let Some(pattern) = all.clone().find(|other| !siblings.has_regexes && siblings.is_apart(other)) {
            let what = format!("values that match {} would count here too, {SHADOWED}", piece(&pattern.level.shown()));
            reasons.push(own_origin(pattern).note(what));
        }
        let plain = Plain {
            origin: origin(first),
            name: limits.first().map(|limit| limit.rule.name.clone()).unwrap_or_default(),
            amount: joined(limits).unwrap_or_default(),
            is_shadow: shadows.any(|is_shadow| is_shadow),
        };
        self.add(&siblings.path, &plain, notes, reasons)
    }

    /// Adds the values and patterns of a key as overrides of its limit.
    fn add_values(&mut self, limit: usize, siblings: &Siblings<'_>) {
        // Of branches with the same value, one for each unit, one override has all windows.
        let mut done: Vec<&EntryValue> = Vec::new();
        for descriptor in siblings.all {
            let value = &descriptor.level.value;
            if done.contains(&value) {
                continue;
            }
            done.push(value);
            let subject = match value {
                EntryValue::One(value) => Subject::Ids(vec![(as_id(value), None)]),
                EntryValue::Glob(glob) if siblings.has_regexes => Subject::Regex(regex(&glob.to_string())),
                EntryValue::Glob(_) | EntryValue::Any => continue,
            };
            let same = siblings.all.iter().filter(|other| other.level.value == *value);
            let amount = joined(same.filter_map(|other| other.limit.as_ref()));
            // A value without a limit, or with one that counts apart, must not be counted by the key.
            let amount = amount.filter(|_| !siblings.is_apart(descriptor)).unwrap_or(Amount::Unlimited);
            let notes = unequal(descriptor, &siblings.path);
            let mut fields = amount.fields();
            let name = descriptor.limit.as_ref().map(|limit| &limit.rule.name).filter(|name| !name.is_empty());
            fields.extend(name.map(|name| ("comment", quoted(name))));
            let origin = own_origin(descriptor);
            self.document.add_override(Override { limit, origin, notes, subject, fields });
        }
    }

    /// Adds a limit for a path. It is in shadow mode if there are reasons why it is wider than before.
    fn add(&mut self, path: &[Step], limit: &Plain, mut notes: Vec<String>, mut reasons: Vec<String>) -> Option<usize> {
        let keys: Vec<&str> = path.iter().map(|step| step.level.key.as_str()).collect();
        let origin = &limit.origin;
        if let Some(step) = path.iter().find(|step| step.is_second_choice) {
            let what = format!(
                "other entries take precedence over {} for some of its values, which a plain limit cannot exclude, {SHADOWED}",
                piece(&step.level.shown())
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
        let fields = self.fields(path, limit, is_wider);
        // That service counts by the path and the window.
        let path = self.path(path);
        let identity = match &limit.amount {
            Amount::Rate { period, .. } => format!("{path}\n{period}"),
            _ => path.clone(),
        };
        let name = if limit.name.is_empty() { path } else { limit.name.clone() };
        Some(self.document.add_limit(Limit {
            name,
            identity,
            origin: origin.clone(),
            source: None,
            notes,
            fields,
            amount: limit.amount.fields(),
        }))
    }

    fn fields(&self, path: &[Step], limit: &Plain, is_wider: bool) -> Fields {
        let keys: Vec<&str> = path.iter().map(|step| step.level.key.as_str()).collect();
        // Descriptors with more entries belong to the longer path.
        let longer = self.paths.iter().filter(|other| keys.iter().all(|key| other.iter().any(|known| known == key)));
        let absent: BTreeSet<&str> = longer.flatten().map(String::as_str).filter(|key| !keys.contains(key)).collect();
        let tests = path.iter().filter_map(|step| Some((step.level.key.as_str(), quoted(&step.level.value.text()?))));
        let absent = absent.into_iter().map(|key| (key, "{ present: false }".to_owned()));
        let entries: Vec<_> = tests.chain(absent).collect();
        let mut conditions = vec![("domain", quoted(self.domain))];
        if !entries.is_empty() {
            conditions.push(("descriptor", map(&entries)));
        }
        // The last entry comes first: its values have overrides, and an id may consist of only the first components.
        let open = path.iter().rev().filter(|step| step.level.is_open());
        let mut fields =
            vec![("match", map(&conditions)), ("by", by_entries(open.map(|step| step.level.key.as_str())))];
        if limit.is_shadow || is_wider {
            fields.push(("mode", "shadow".to_owned()));
        }
        if !matches!(limit.amount, Amount::Unlimited | Amount::Deny) {
            let window = [("algorithm", "fixed_window"), ("aligned", "clock"), ("drain_over_limit", "true")];
            fields.extend(window.map(|(key, value)| (key, value.to_owned())));
        }
        fields
    }

    /// The reasons why a limit is wider than its rule.
    fn reasons(&self, descriptor: &Descriptor) -> Vec<String> {
        let Some(RateLimit { rule, .. }) = &descriptor.limit else { return Vec::new() };
        let quota = rule.is_quota.then(|| format!("`quota_mode` has no equivalent, {SHADOWED}"));
        let is_replaced = !rule.name.is_empty() && self.replaced.contains(&rule.name);
        let replaced = is_replaced
            .then(|| format!("another limit replaces {}; here both would count, {SHADOWED}", piece(&rule.name)));
        quota.into_iter().chain(replaced).map(|what| origin(descriptor).note(what)).collect()
    }

    fn path(&self, path: &[Step]) -> String {
        format!("{}.{}", self.domain, print::joined(path.iter().map(|step| step.level.shown()), ".")).replace('=', "-")
    }
}

/// The descriptors of one key at one level.
struct Siblings<'t> {
    all: &'t [&'t Descriptor],
    /// The path to the key, whose value is open.
    path: Vec<Step>,
    /// True if a pattern can be an override. Its expression sees the whole id, of which the value is only a part if other
    /// entries are open.
    has_regexes: bool,
}

impl<'t> Siblings<'t> {
    fn new(all: &'t [&'t Descriptor], above: &[Step]) -> Self {
        let key = all.first().map(|descriptor| descriptor.level.key.clone()).unwrap_or_default();
        let own = Step { level: Level { key, value: EntryValue::Any, shares: false }, is_second_choice: false };
        let path = [above, &[own]].concat();
        let has_regexes = path.iter().filter(|step| step.level.is_open()).count() == 1;
        Self { all, path, has_regexes }
    }

    /// True for a pattern that needs a limit of its own.
    fn is_apart(&self, descriptor: &Descriptor) -> bool {
        let Level { value, shares, .. } = &descriptor.level;
        matches!(value, EntryValue::Glob(_)) && (*shares || !self.has_regexes)
    }
}

fn own_origin(descriptor: &Descriptor) -> Origin {
    Origin::of(descriptor.findings.file(), descriptor.place)
}

/// The place of a descriptor's limit, or of the descriptor if it has none.
fn origin(descriptor: &Descriptor) -> Origin {
    let place = descriptor.limit.as_ref().map_or(descriptor.place, |limit| limit.place);
    Origin::of(descriptor.findings.file(), place)
}

/// Notes on what cannot be expressed of a limit, except what makes it wider.
fn unequal(descriptor: &Descriptor, path: &[Step]) -> Vec<String> {
    let Some(RateLimit { rule, .. }) = &descriptor.limit else { return Vec::new() };
    let (mut notes, origin, limit_origin) = (Vec::new(), own_origin(descriptor), origin(descriptor));
    if rule.metadata.is_some() {
        notes.push(origin.note("`metadata` has no equivalent in a plain limit; left out."));
    }
    if !rule.replaces.is_empty() {
        let names = print::joined(rule.replaces.iter().map(|name| piece(name)), ", ");
        let what = format!("`replaces` has no equivalent: {names} would count as well.");
        notes.push(limit_origin.note(what));
    }
    let calendar = rule.per_unit.filter(|per_unit| per_unit.requests > 0).map(|per_unit| per_unit.unit);
    if let Some(unit @ (RateUnit::Month | RateUnit::Year)) = calendar {
        let unit = unit.name();
        let what = format!("that service counts fixed {unit}s; `period: {unit}` would follow the calendar.");
        notes.push(limit_origin.note(what));
    }
    if path.iter().any(|step| step.level.shares) && !descriptor.level.shares {
        notes.push(origin.note("with `share_threshold` above, the values of that entry share a bucket."));
    }
    notes
}

/// The step of a descriptor, for those below it and a limit of its own.
fn step(descriptor: &Descriptor, siblings: &[&Descriptor]) -> Step {
    let goes_before = |other: &&Descriptor| match (&descriptor.level.value, &other.level.value) {
        (EntryValue::One(_), _) | (_, EntryValue::Any) => false,
        (EntryValue::Any, _) => true,
        (EntryValue::Glob(glob), EntryValue::One(value)) => glob.matches(value),
        // Assumes that some value matches both.
        (EntryValue::Glob(glob), EntryValue::Glob(other)) => glob != other,
    };
    Step { level: descriptor.level.clone(), is_second_choice: siblings.iter().any(goes_before) }
}

fn amount(limit: &RateLimit) -> Amount {
    match limit.rule.per_unit {
        None => Amount::Unlimited,
        Some(PerUnit { requests: 0, .. }) => Amount::Deny,
        Some(PerUnit { requests, unit }) => {
            Amount::Rate { burst: None, count: requests.into(), period: milliseconds(unit.seconds() * 1_000) }
        }
    }
}

/// All windows of these limits at once; `None` without limits.
fn joined<'l>(limits: impl IntoIterator<Item = &'l RateLimit>) -> Option<Amount> {
    let windows = |amount: &Amount| match amount {
        Amount::Rate { count, period, .. } => vec![(*count, period.clone())],
        Amount::Rates(windows) => windows.clone(),
        _ => Vec::new(),
    };
    limits.into_iter().map(amount).reduce(|first, next| match (&first, &next) {
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
