//! The parts of requests that rules name, and how a recording keeps each of them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use http::header::AUTHORIZATION;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::line::encoded;
use super::pseudonyms::Pseudonyms;
use crate::engine::limit::matching::{Match, ValueTest};
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode};
use crate::engine::request::part::{Part, TypedPart, is_secret};
use crate::engine::request::path_condition::PathCondition;
use crate::engine::request::path_pattern::{PathReading, Segment, segments};
use crate::engine::request::trimmed_text;
use crate::engine::request::value_type::{ValueType, lenient};
use crate::engine::telling::coverage::path_is_within;
use crate::message::percent::decode;

/// The parts that the rules name.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// By word and name, as [`key`] has them.
    named: BTreeMap<&'static str, BTreeMap<String, Treatment>>,
    pub(super) has_tls_subject: bool,
    /// They are kept as the header, in their canonical text.
    pub(super) has_credentials: bool,
    /// The networks of `match` and of overrides.
    pub(super) networks: Vec<IpNet>,
    parameters: Vec<PathParameter>,
    literals: Vec<PathLiteral>,
    /// All that the reading of some limit ignores.
    reading: PathReading,
    /// The conditions on paths that are no patterns.
    path_searches: Vec<PathCondition>,
}

/// The treatment of the values under a name.
#[derive(Debug, Default)]
pub(super) struct Treatment {
    /// The types that limits read them as, if they are ids.
    forms: BTreeSet<ValueType>,
    pub(super) is_secret: bool,
    /// They are costs.
    is_cost: bool,
    /// Texts in the rules that they are compared with.
    compared: Vec<String>,
    /// They are compared by more than equality.
    is_searched: bool,
}

#[derive(Debug)]
struct PathParameter {
    paths: Vec<PathCondition>,
    reading: PathReading,
    segment: usize,
    form: ValueType,
}

/// A segment that a pattern names.
#[derive(Debug, PartialEq)]
struct PathLiteral {
    reading: PathReading,
    segment: usize,
    text: String,
}

/// The word of a part and its name, which is in lower case for query parameters and cookies; `None` for what a recording has as a
/// whole, or not at all.
pub(super) fn key(part: &Part) -> Option<(&'static str, String)> {
    let name = match part {
        Part::Query(name) | Part::Cookie(name) => name.to_ascii_lowercase(),
        Part::Header(_) | Part::Descriptor(_) | Part::Entry { .. } => part.name()?.to_owned(),
        Part::Credentials => return Some(("header", AUTHORIZATION.as_str().to_owned())),
        _ => return None,
    };
    Some((part.word(), name))
}

impl Parts {
    pub(super) fn of(rules: &Rules) -> Self {
        let mut parts = Self::default();
        for limit in rules.limits().iter().filter(|limit| limit.mode != LimitMode::Off) {
            for by in &limit.by {
                parts.add_id(limit, by);
            }
            if let Some(part) = limit.cost.part() {
                parts.treat(part, |treatment| treatment.is_cost = true);
            }
            parts.add_conditions(&limit.conditions);
            parts.networks.extend(limit.overrides.networks());
        }
        rules.exemptions().for_each(|one| parts.add_conditions(&one.conditions));
        parts
    }

    /// The parts with this word, by name.
    pub(super) fn named(&self, word: &str) -> impl Iterator<Item = (&String, &Treatment)> {
        self.named.get(word).into_iter().flatten()
    }

    pub(super) fn entry(&self, key: &str) -> Option<&Treatment> {
        self.named.get("descriptor")?.get(key)
    }

    fn treat(&mut self, part: &Part, change: impl FnOnce(&mut Treatment)) {
        let Some((word, name)) = key(part) else { return };
        let is_hidden = word == "header" && is_secret(&name);
        let treatment = self.named.entry(word).or_default().entry(name).or_default();
        treatment.is_secret = is_hidden;
        change(treatment);
    }

    fn add_id(&mut self, limit: &Limit, by: &TypedPart) {
        self.treat(&by.part, |treatment| treatment.forms.extend([by.form]));
        match by.part {
            Part::Credentials => self.has_credentials = true,
            Part::TlsSubject => self.has_tls_subject = true,
            Part::PathParameter { segment, .. } => self.parameters.push(PathParameter {
                paths: limit.conditions.paths.clone(),
                reading: limit.conditions.path_reading,
                segment,
                form: by.form,
            }),
            _ => {}
        }
    }

    fn add_conditions(&mut self, conditions: &Match) {
        for wanted in &conditions.parts {
            self.treat(&wanted.part, |treatment| treatment.compare(&wanted.test));
        }
        self.networks.extend(conditions.networks.iter().chain(&conditions.other_networks));
        let paths = || conditions.paths.iter().chain(&conditions.other_paths);
        self.path_searches.extend(paths().filter(|condition| condition.pattern().is_none()).cloned());
        for pattern in paths().filter_map(PathCondition::pattern) {
            let named = pattern.segments.iter().enumerate().filter_map(|(place, segment)| match segment {
                Segment::Literal(text) => {
                    Some(PathLiteral { reading: conditions.path_reading, segment: place, text: text.clone() })
                }
                Segment::Parameter(_) => None,
            });
            for literal in named {
                if !self.literals.contains(&literal) {
                    self.literals.push(literal);
                }
            }
        }
        self.reading.strips_parameters |= conditions.path_reading.strips_parameters;
        self.reading.ignores_case |= conditions.path_reading.ignores_case;
    }

    /// The names of headers and descriptor entries whose values are hashed, each with the texts that stay as they are.
    pub(super) fn stand_ins(&self) -> Value {
        let texts = |word| {
            let hashed = self.named(word).filter(|(_, treatment)| treatment.is_hashed());
            hashed.map(|(name, treatment)| (name.clone(), json!(treatment.compared))).collect::<Map<_, _>>()
        };
        json!({ "headers": texts("header"), "descriptors": texts("descriptor") })
    }

    /// The names whose hashed values rules search, and `path`: limits that do so are not simulated rightly.
    pub(super) fn uncertain(&self) -> Vec<&str> {
        let all = self.named("header").chain(self.named("descriptor"));
        all.filter(|(_, treatment)| treatment.is_hashed() && treatment.is_searched)
            .map(|(name, _)| name.as_str())
            .chain(self.searches_parameters().then_some("path"))
            .collect()
    }

    /// Returns true if a stand-in may decide whether a condition on the path holds.
    fn searches_parameters(&self) -> bool {
        let mut paths = self.parameters.iter().flat_map(|parameter| &parameter.paths);
        paths.any(|path| self.path_searches.iter().any(|test| test.overlaps(path) && !path_is_within(path, test)))
    }

    /// Returns the path with stand-ins for the parameters that are ids.
    pub(super) fn path<'p>(&self, path: &'p str, pseudonyms: &Pseudonyms) -> Cow<'p, str> {
        let place = |parameter: &PathParameter| parameter.reading.places(path).get(parameter.segment).copied();
        let is_covered = |parameter: &&PathParameter| {
            let read = parameter.reading.of(path);
            parameter.paths.iter().any(|pattern| pattern.matches(&read))
        };
        let ids: BTreeSet<usize> = self.parameters.iter().filter(is_covered).filter_map(place).collect();
        if ids.is_empty() {
            return Cow::Borrowed(path);
        }
        let mut kept = String::new();
        for (at, segment) in segments(path).enumerate() {
            kept.push('/');
            if ids.contains(&at) {
                // Of all limits, so that a path that only some of them cover has the same stand-in.
                let here = self.parameters.iter().filter(|parameter| place(parameter) == Some(at));
                let forms = here.map(|parameter| parameter.form).collect();
                kept.push_str(&self.segment(segment, &self.literals_at(path, at), &forms, pseudonyms));
            } else {
                kept.push_str(segment);
            }
        }
        kept.into()
    }

    /// The segments of patterns at this place of a path.
    fn literals_at(&self, path: &str, at: usize) -> Vec<&str> {
        let is_there = |literal: &PathLiteral| literal.reading.places(path).get(literal.segment) == Some(&at);
        self.literals.iter().filter(|literal| is_there(literal)).map(|literal| literal.text.as_str()).collect()
    }

    /// The stand-in of a segment. It has parameters where the segment has some, so that limits find the same id without them.
    fn segment(
        &self,
        segment: &str,
        literals: &[&str],
        forms: &BTreeSet<ValueType>,
        pseudonyms: &Pseudonyms,
    ) -> String {
        let is_literal = |text: &str| {
            let same =
                |literal: &&str| *literal == text || self.reading.ignores_case && literal.eq_ignore_ascii_case(text);
            literals.iter().any(same)
        };
        if is_literal(segment) {
            return segment.to_owned();
        }
        let stripped = segment.split_once(';').filter(|_| self.reading.strips_parameters);
        let base = stripped.map_or(segment, |(base, _)| base);
        // Without its parameters it is a dot segment, which removes others.
        let is_kept = matches!(base, "." | "..") || is_literal(base);
        let value = || encoded(&pseudonyms.value(forms, &trimmed_text(decode(base))));
        let mut kept = if is_kept { base.to_owned() } else { value() };
        if stripped.is_some() {
            kept.push(';');
            kept.push_str(&pseudonyms.text("parameters", &trimmed_text(decode(segment))));
        }
        kept
    }
}

impl Treatment {
    fn compare(&mut self, test: &ValueTest) {
        match test {
            ValueTest::Present(_) => {}
            ValueTest::Glob(any) if any.to_string() == "*" => {}
            ValueTest::Value(value) => self.compared.push(value.clone()),
            ValueTest::Prefix(_) | ValueTest::Regex(_) | ValueTest::Glob(_) => self.is_searched = true,
            ValueTest::OneOf(tests) => tests.iter().for_each(|test| self.compare(test)),
            ValueTest::Not(excluded) => excluded.tests.iter().for_each(|test| self.compare(test)),
        }
    }

    fn is_hashed(&self) -> bool {
        let is_compared = self.is_cost || self.is_searched || !self.compared.is_empty();
        !self.forms.is_empty() || self.is_secret || !is_compared
    }

    /// Returns the value as the recording keeps it. A text of the rules stays as it is, and so does another spelling of its id.
    pub(super) fn kept<'v>(&self, value: &'v str, pseudonyms: &Pseudonyms) -> Cow<'v, str> {
        let is_same = |text: &str, form: &ValueType| match form {
            ValueType::Text => false,
            // Another name of its registered domain is not in the rules.
            ValueType::RegisteredDomain => same_id(ValueType::Hostname, text, value),
            form => same_id(*form, text, value),
        };
        let is_compared = |text: &String| text == value || self.forms.iter().any(|form| is_same(text, form));
        if !self.is_hashed() || self.compared.iter().any(is_compared) {
            return Cow::Borrowed(value);
        }
        pseudonyms.value(&self.forms, value).into()
    }
}

fn same_id(form: ValueType, one: &str, other: &str) -> bool {
    lenient(form, one).is_some_and(|id| lenient(form, other) == Some(id))
}
