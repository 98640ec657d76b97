//! The parts of requests that rules name, and how a recording keeps each of them.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::pseudonyms::Pseudonyms;
use crate::engine::rules::component::ComponentSource;
use crate::engine::rules::limit::{Cost, Limit, LimitMode};
use crate::engine::rules::matching::ValueTest;
use crate::engine::rules::path_pattern::{PathPattern, PathReading, Segment};
use crate::engine::rules::rule_set::Rules;
use crate::engine::rules::value_type::ValueType;
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
    /// The segments that patterns name, by their places.
    literals: HashSet<(usize, String)>,
}

/// The treatment of the values under a name.
#[derive(Debug, Default)]
pub(super) struct Treatment {
    /// The type, if they are ids.
    id: Option<ValueType>,
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

impl Parts {
    pub(super) fn of(rules: &Rules) -> Self {
        let mut parts = Self::default();
        for limit in rules.limits().iter().filter(|limit| limit.mode != LimitMode::Off) {
            parts.add_ids(limit);
            parts.add_conditions(limit);
            match &limit.cost {
                // A recording has neither tokens nor bodies.
                Cost::Fixed(_) | Cost::Claim(_) | Cost::Body(_) => {}
                Cost::Header(name) => parts.header(name.as_str()).is_cost = true,
                Cost::Bytes { .. } => parts.header(CONTENT_LENGTH.as_str()).is_cost = true,
                Cost::Query(name) => parts.queries.entry(name.to_ascii_lowercase()).or_default().is_cost = true,
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
        for component in &limit.by {
            let form = component.form;
            match &component.source {
                ComponentSource::Header(name) => self.header(name.as_str()).identify(form),
                ComponentSource::Query(name) => {
                    self.queries.entry(name.to_ascii_lowercase()).or_default().identify(form);
                }
                ComponentSource::Cookie(name) => {
                    self.cookies.entry(name.to_ascii_lowercase()).or_default().identify(form);
                }
                ComponentSource::Descriptor(key) | ComponentSource::Entry { key, .. } => {
                    self.entries.entry(key.clone()).or_default().identify(form);
                }
                ComponentSource::Credentials => {
                    self.has_credentials = true;
                    self.header(AUTHORIZATION.as_str()).identify(form);
                }
                ComponentSource::TlsSubject => self.has_tls_subject = true,
                ComponentSource::PathParameter { segment, .. } => self.parameters.push(PathParameter {
                    paths: limit.conditions.paths.clone(),
                    reading: limit.conditions.path_reading,
                    segment: *segment,
                    form,
                }),
                ComponentSource::Ip { .. }
                | ComponentSource::Claim(_)
                | ComponentSource::Host
                | ComponentSource::Method
                | ComponentSource::Body(_)
                | ComponentSource::Path => {}
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
                Segment::Literal(text) => Some((place, text.clone())),
                Segment::Parameter(_) => None,
            });
            self.literals.extend(named);
        }
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
        let mut kept: Option<Vec<Cow<'_, str>>> = None;
        for parameter in &self.parameters {
            let read = parameter.reading.of(path);
            // The first piece is empty, because paths begin with `/`.
            let Some(segment) = path.split('/').nth(parameter.segment + 1) else { continue };
            let is_covered = parameter.paths.iter().any(|pattern| pattern.matches(&read));
            if !is_covered || self.literals.contains(&(parameter.segment, segment.to_owned())) {
                continue;
            }
            let segments = kept.get_or_insert_with(|| path.split('/').map(Cow::Borrowed).collect());
            if let Some(place) = segments.get_mut(parameter.segment + 1) {
                *place = pseudonyms.value(parameter.form, &decode(segment)).into();
            }
        }
        kept.map_or(Cow::Borrowed(path), |segments| segments.join("/").into())
    }
}

impl Treatment {
    fn identify(&mut self, form: ValueType) {
        // Of several types, that with fewer values, which the others can read, too.
        if matches!(self.id, None | Some(ValueType::Text)) {
            self.id = Some(form);
        }
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
        self.id.is_some() || self.is_secret || !is_compared
    }

    /// Returns the value as the recording keeps it. A text of the rules stays as it is.
    pub(super) fn kept<'v>(&self, value: &'v str, pseudonyms: &Pseudonyms) -> Cow<'v, str> {
        if !self.is_hashed() || self.compared.iter().any(|text| text == value) {
            return Cow::Borrowed(value);
        }
        pseudonyms.value(self.id.unwrap_or(ValueType::Text), value).into()
    }
}
