//! The parts of requests that rules name, and how a recording keeps each of them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use http::header::AUTHORIZATION;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::line::encoded;
use super::pseudonyms::Pseudonyms;
use crate::engine::limit::matching::ValueTest;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode};
use crate::engine::request::part::Part;
use crate::engine::request::path_pattern::{PathPattern, PathReading, Segment, segments};
use crate::engine::request::trimmed_text;
use crate::engine::request::value_type::{ValueType, lenient};
use crate::message::percent::decode;

/// Headers whose values are secrets, whatever rules do with them.
const SECRET: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

/// The parts that the rules name. Names of headers, query parameters and cookies are in lower case.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) headers: BTreeMap<String, Treatment>,
    pub(super) queries: BTreeMap<String, Treatment>,
    pub(super) cookies: BTreeMap<String, Treatment>,
    pub(super) entries: BTreeMap<String, Treatment>,
    pub(super) has_tls_subject: bool,
    /// They are kept as the header, in their canonical text.
    pub(super) has_credentials: bool,
    /// The networks of `match` and of overrides.
    pub(super) networks: Vec<IpNet>,
    parameters: Vec<PathParameter>,
    literals: Vec<PathLiteral>,
    /// All that the reading of some limit ignores.
    reading: PathReading,
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
    paths: Vec<PathPattern>,
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

impl Parts {
    pub(super) fn of(rules: &Rules) -> Self {
        let mut parts = Self::default();
        for limit in rules.limits().iter().filter(|limit| limit.mode != LimitMode::Off) {
            parts.add_ids(limit);
            parts.add_conditions(limit);
            match limit.cost.part() {
                Some(Part::Header(name)) => parts.header(name.as_str()).is_cost = true,
                Some(Part::Query(name)) => {
                    parts.queries.entry(name.to_ascii_lowercase()).or_default().is_cost = true;
                }
                // A recording has neither tokens nor bodies.
                _ => {}
            }
        }
        parts
    }

    fn header(&mut self, name: &str) -> &mut Treatment {
        let treatment = self.headers.entry(name.to_owned()).or_default();
        treatment.is_secret = SECRET.contains(&name);
        treatment
    }

    fn add_ids(&mut self, limit: &Limit) {
        for part in &limit.by {
            let form = part.form;
            match &part.part {
                Part::Header(name) => self.header(name.as_str()).identify(form),
                Part::Query(name) => {
                    self.queries.entry(name.to_ascii_lowercase()).or_default().identify(form);
                }
                Part::Cookie(name) => {
                    self.cookies.entry(name.to_ascii_lowercase()).or_default().identify(form);
                }
                Part::Descriptor(key) | Part::Entry { key, .. } => {
                    self.entries.entry(key.clone()).or_default().identify(form);
                }
                Part::Credentials => {
                    self.has_credentials = true;
                    self.header(AUTHORIZATION.as_str()).identify(form);
                }
                Part::TlsSubject => self.has_tls_subject = true,
                Part::PathParameter { segment, .. } => self.parameters.push(PathParameter {
                    paths: limit.conditions.paths.clone(),
                    reading: limit.conditions.path_reading,
                    segment: *segment,
                    form,
                }),
                Part::Ip { .. } | Part::Claim(_) | Part::Host | Part::Method | Part::Body(_) | Part::Path => {}
            }
        }
    }

    fn add_conditions(&mut self, limit: &Limit) {
        let conditions = &limit.conditions;
        for header in &conditions.headers {
            self.header(header.name.as_str()).compare(&header.test);
        }
        for entry in conditions.descriptor.entries() {
            self.entries.entry(entry.key.clone()).or_default().compare(&entry.test);
        }
        self.networks.extend(conditions.networks.iter().chain(&conditions.other_networks));
        self.networks.extend(limit.overrides.networks());
        for pattern in &conditions.paths {
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
        let texts = |parts: &BTreeMap<String, Treatment>| {
            let hashed = parts.iter().filter(|(_, treatment)| treatment.is_hashed());
            hashed.map(|(name, treatment)| (name.clone(), json!(treatment.compared))).collect::<Map<_, _>>()
        };
        json!({ "headers": texts(&self.headers), "descriptors": texts(&self.entries) })
    }

    /// The names whose hashed values rules search: limits that do so are not simulated rightly.
    pub(super) fn uncertain(&self) -> Vec<&str> {
        let all = [&self.headers, &self.entries].into_iter().flatten();
        let is_uncertain = |treatment: &Treatment| treatment.is_hashed() && treatment.is_searched;
        all.filter(|(_, treatment)| is_uncertain(treatment)).map(|(name, _)| name.as_str()).collect()
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
    fn identify(&mut self, form: ValueType) {
        self.forms.insert(form);
    }

    fn compare(&mut self, test: &ValueTest) {
        match test {
            ValueTest::Present(_) => {}
            ValueTest::Glob(any) if any.to_string() == "*" => {}
            ValueTest::Value(value) => self.compared.push(value.clone()),
            ValueTest::Prefix(_) | ValueTest::Regex(_) | ValueTest::Glob(_) => self.is_searched = true,
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
