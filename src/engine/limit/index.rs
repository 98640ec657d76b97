//! Finds the limits that can cover a request without checking the others.
//!
//! Each limit is filed under its most selective condition: descriptor entry, path, host, header value, network or method.
//! A request visits only the tables that it matches, so ten thousand limits on other paths cost it nothing.

use std::collections::{HashMap, HashSet};

use http::header::HeaderName;

use crate::engine::limit::Limit;
use crate::engine::limit::descriptors::Tree;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::matching::{Candidates, Match};
use crate::engine::limit::networks::Networks;
use crate::engine::request::part::Part;
use crate::engine::request::path_condition::PathCondition;
use crate::engine::request::path_pattern::{PathPattern, PathReading, Segment, segments};
use crate::engine::request::{DescriptorEntry, Request};
use crate::message::host_pattern::HostPattern;

/// The tables of limits, by their index in the rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// One tree for each reading of paths.
    paths: Vec<(PathReading, Node)>,
    hosts: HashMap<String, Vec<u32>>,
    /// Keyed by `.example.com`.
    domains: HashMap<String, Vec<u32>>,
    headers: Vec<(HeaderName, HashMap<String, Vec<u32>>)>,
    networks: Networks<Vec<u32>>,
    methods: HashMap<String, Vec<u32>>,
    everywhere: Vec<u32>,
    described: DescriptorIndex,
}

/// Limits with a condition or a part on the domain or descriptor. Requests with neither skip these tables. Requests
/// with a domain have nothing else and use only these.
#[derive(Clone, Debug, Default)]
struct DescriptorIndex {
    /// By key and value.
    entries: HashMap<String, HashMap<String, Vec<u32>>>,
    keys: HashMap<String, Vec<u32>>,
    domains: HashMap<String, Vec<u32>>,
    /// The domains of all limits, wherever these are filed.
    known_domains: HashSet<String>,
    everywhere: Vec<u32>,
    /// By domain.
    trees: HashMap<String, Tree>,
}

/// A node in the tree of path patterns.
#[derive(Clone, Debug, Default)]
struct Node {
    literals: HashMap<String, Node>,
    parameter: Option<Box<Node>>,
    here: Vec<u32>,
    below: Vec<u32>,
}

impl Index {
    /// Sets the limits for whole descriptors, by domain.
    pub(crate) fn set_trees(&mut self, trees: HashMap<String, Tree>) {
        self.described.trees = trees;
    }

    pub(crate) fn knows_domain(&self, domain: &str) -> bool {
        self.described.trees.contains_key(domain) || self.described.known_domains.contains(domain)
    }

    /// Returns the order of entries in which a limit covers them, if it depends on their order.
    pub(crate) fn order<'e>(&self, domain: &str, entries: &[DescriptorEntry<'e>]) -> Option<Vec<DescriptorEntry<'e>>> {
        self.described.trees.get(domain)?.order(entries.to_vec())
    }

    /// Files the limit at index `place` of the rules.
    pub(crate) fn insert(&mut self, place: u32, limit: &Limit) {
        match self.described.insert(place, limit) {
            Kind::Described => {}
            Kind::Both | Kind::Plain => self.insert_plain(place, &limit.conditions),
        }
    }

    fn insert_plain(&mut self, limit: u32, conditions: &Match) {
        // A path may meet a prefix or a regular expression wherever it is in the tree.
        let patterns: Option<Vec<&PathPattern>> = conditions.paths.iter().map(PathCondition::pattern).collect();
        if let Some(patterns) = patterns.filter(|patterns| !patterns.is_empty()) {
            let tree = entry(&mut self.paths, &conditions.path_reading);
            for pattern in patterns {
                tree.insert(pattern, limit);
            }
        } else if !conditions.hosts.is_empty() {
            for host in &conditions.hosts {
                let (table, name) = match host {
                    HostPattern::Exact(name) => (&mut self.hosts, name),
                    HostPattern::Below(name) => (&mut self.domains, name),
                };
                file(table, name, limit);
            }
        } else if let Some((name, values)) = exact_header(conditions) {
            let table = entry(&mut self.headers, name);
            for value in values {
                file(table, value, limit);
            }
        } else if !conditions.networks.is_empty() {
            for network in &conditions.networks {
                self.networks.entry(*network).or_default().push(limit);
            }
        } else if conditions.methods.is_empty() {
            self.everywhere.push(limit);
        } else {
            for method in &conditions.methods {
                file(&mut self.methods, method, limit);
            }
        }
    }

    /// Adds the limits that may cover `request` to `found`, in the order of the rules and each once. The caller checks their
    /// other conditions.
    pub(crate) fn candidates(&self, request: &Request<'_>, found: &mut Candidates) {
        if request.domain.is_some() || !request.descriptor.is_empty() {
            self.described.candidates(request, found);
        }
        if request.domain.is_none() {
            self.plain_candidates(request, found);
        }
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
    }

    fn plain_candidates(&self, request: &Request<'_>, found: &mut Candidates) {
        add(found, Some(&self.everywhere));
        for (reading, tree) in &self.paths {
            let path = reading.of(request.path);
            let path: Vec<&str> = segments(&path).collect();
            tree.collect(&path, found);
        }
        // The lookup in an empty table does not hash the key.
        add(found, self.hosts.get(request.host));
        if !self.domains.is_empty() {
            for (dot, _) in request.host.match_indices('.').filter(|(dot, _)| *dot > 0) {
                add(found, self.domains.get(&request.host[dot..]));
            }
        }
        for (name, values) in &self.headers {
            for value in request.lines(name.as_str()) {
                add(found, values.get(value.as_ref()));
            }
        }
        if let Some(client) = request.client {
            self.networks.containing(client).for_each(|filed| add(found, Some(filed)));
        }
        add(found, self.methods.get(request.method));
    }
}

/// Adds limits one by one: most lists have none or one, and `extend_from_slice` takes longer than that.
fn add(found: &mut Candidates, filed: Option<&Vec<u32>>) {
    filed.into_iter().flatten().for_each(|place| found.push(*place));
}

/// The requests that a limit may cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Those without a domain: the limit has nothing about descriptors.
    Plain,
    /// Those with a domain or a descriptor.
    Described,
    /// All: the limit also covers requests that lack its entries.
    Both,
}

impl DescriptorIndex {
    /// Files a limit if it has a condition or part on the domain or descriptor.
    fn insert(&mut self, place: u32, limit: &Limit) -> Kind {
        let conditions = &limit.conditions;
        self.known_domains.extend(conditions.domains.iter().cloned());
        if conditions.is_whole {
            // It is in the tree of its domain.
            return Kind::Described;
        }
        let exact = conditions.entries().find_map(|(key, test)| Some((key, test.exact()?)));
        let needed = conditions.entries().find(|(_, test)| test.needs_value()).map(|(key, _)| key);
        let by = limit.by.iter().find_map(|by| by.part.entry_key());
        let needed = needed.or(by.filter(|_| limit.missing == Fallback::Skip));
        if let Some((key, values)) = exact {
            let table = self.entries.entry(key.to_owned()).or_default();
            for value in values {
                file(table, value, place);
            }
        } else if let Some(key) = needed {
            file(&mut self.keys, key, place);
        } else if !conditions.domains.is_empty() {
            for domain in &conditions.domains {
                file(&mut self.domains, domain, place);
            }
        } else if by.is_some() || conditions.entries().next().is_some() {
            self.everywhere.push(place);
            return Kind::Both;
        } else {
            return Kind::Plain;
        }
        Kind::Described
    }

    fn candidates(&self, request: &Request<'_>, found: &mut Candidates) {
        found.extend_from_slice(&self.everywhere);
        if let Some(domain) = request.domain {
            found.extend_from_slice(self.domains.get(domain).map_or(&[], Vec::as_slice));
            if let Some(tree) = self.trees.get(domain) {
                tree.find(request.descriptor, found);
            }
        }
        let mut add = |filed: Option<&Vec<u32>>| found.extend_from_slice(filed.map_or(&[], Vec::as_slice));
        for entry in request.descriptor {
            add(self.entries.get(entry.key).and_then(|values| values.get(entry.value)));
            add(self.keys.get(entry.key));
        }
    }
}

impl Node {
    fn insert(&mut self, pattern: &PathPattern, limit: u32) {
        let mut node = self;
        for segment in &pattern.segments {
            node = match segment {
                Segment::Literal(literal) => node.literals.entry(literal.clone()).or_default(),
                Segment::Parameter(_) => node.parameter.get_or_insert_default(),
            };
        }
        let list = if pattern.is_open { &mut node.below } else { &mut node.here };
        list.push(limit);
    }

    /// Visits each node of the tree at most once.
    fn collect(&self, path: &[&str], found: &mut Candidates) {
        found.extend_from_slice(&self.below);
        let Some((first, rest)) = path.split_first() else {
            found.extend_from_slice(&self.here);
            return;
        };
        if let Some(node) = self.literals.get(*first) {
            node.collect(rest, found);
        }
        if let Some(node) = &self.parameter {
            node.collect(rest, found);
        }
    }
}

fn exact_header(conditions: &Match) -> Option<(&HeaderName, Vec<&str>)> {
    conditions.parts.iter().find_map(|wanted| match &wanted.part {
        Part::Header(name) => Some((name, wanted.test.exact()?)),
        _ => None,
    })
}

fn file(table: &mut HashMap<String, Vec<u32>>, key: &str, limit: u32) {
    table.entry(key.to_owned()).or_default().push(limit);
}

/// Returns the value of a key in a list that is searched from its start, and adds the key if it is new.
fn entry<'l, K: PartialEq + Clone, V: Default>(list: &'l mut Vec<(K, V)>, key: &K) -> &'l mut V {
    let place = list.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
        list.push((key.clone(), V::default()));
        list.len() - 1
    });
    &mut list[place].1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;
    use crate::engine::limit::matching::{PartMatch, ValueTest};
    use crate::engine::request::glob::Glob;
    use crate::engine::request::part::TypedPart;
    use crate::engine::request::path_condition::samples::{conditions, paths};
    use crate::engine::request::sample;
    use crate::engine::request::value_type::ValueType;
    use crate::message::headers::Headers;

    /// Files limits by these conditions and asks for the candidates of one request.
    #[track_caller]
    fn check(conditions: &[Match], method: &str, host: &str, path: &str, expected: &[u32]) {
        let mut index = Index::default();
        for (place, conditions) in (0..).zip(conditions) {
            index.insert(place, &Limit { conditions: conditions.clone(), ..Limit::new("L") });
        }
        let headers = Headers::from_iter([("x-plan", "free")]);
        let client = "10.1.2.3".parse().ok();
        let request = Request { method, host, path, client, ..sample(&headers) };
        let mut found = Candidates::new();
        index.candidates(&request, &mut found);
        assert_eq!(found.as_slice(), expected);
        // Whatever meets its conditions must be among the candidates: the index may only ever leave out mismatches.
        for (limit, conditions) in conditions.iter().enumerate() {
            let limit = u32::try_from(limit).unwrap();
            assert!(conditions.check(&request).is_err() || found.contains(&limit), "limit {limit} was lost");
        }
    }

    fn path(patterns: &[&str]) -> Match {
        let paths = patterns.iter().map(|text| PathPattern::parse(text).unwrap());
        Match { paths: paths.map(PathCondition::Pattern).collect(), ..Match::default() }
    }

    #[test]
    fn all_patterns_that_match_are_found() {
        let limits = [
            path(&["/v1/**"]),
            path(&["/v1/orders"]),
            path(&["/v1/{x}"]),
            path(&["/{a}/{b}", "/v1/orders"]),
            path(&["/v2"]),
        ];
        check(&limits, "GET", "a", "/v1/orders", &[0, 1, 2, 3]);
        check(&limits, "GET", "a", "/v1", &[0]);
        check(&limits, "GET", "a", "/", &[]);
        let reading = PathReading { ignores_case: true, strips_parameters: true };
        let folded = Match { path_reading: reading, ..path(&["/v1/orders"]) };
        check(&[path(&["/v1/orders"]), folded], "GET", "a", "/V1;x/orders", &[1]);
    }

    #[test]
    fn prefixes_and_regular_expressions_are_filed_under_other_conditions() {
        let prefix = || PathCondition::prefix("/v1/or", PathReading::default()).unwrap();
        let regex = || PathCondition::Regex(Regex::new("ders$").unwrap());
        let limits = [
            Match { paths: vec![prefix()], ..Match::default() },
            Match { paths: [path(&["/v2"]).paths, vec![prefix()]].concat(), ..Match::default() },
            Match { paths: vec![regex()], hosts: vec![HostPattern::Exact("a".into())], ..Match::default() },
            Match { paths: vec![regex()], methods: vec!["PUT".into()], ..Match::default() },
            Match { other_paths: path(&["/v1/**"]).paths, ..path(&["/v2"]) },
            Match { other_paths: vec![prefix()], ..Match::default() },
        ];
        check(&limits, "GET", "a", "/v1/orders", &[0, 1, 2, 5]);
        check(&limits, "PUT", "b", "/v2", &[0, 1, 3, 4, 5]);
    }

    proptest! {
        /// Whichever conditions there are, the index only leaves out mismatches.
        #[test]
        fn no_limit_is_lost(
            limits in prop::collection::vec((conditions(), conditions(), any::<bool>(), any::<bool>()), 6),
            given in prop::collection::vec(paths(), 5),
        ) {
            let mut index = Index::default();
            let limits: Vec<Limit> = limits.into_iter().map(|(paths, other_paths, has_host, has_method)| {
                let hosts = has_host.then(|| HostPattern::Below(".example".into())).into_iter().collect();
                let methods = has_method.then(|| "GET".to_owned()).into_iter().collect();
                let conditions = Match { methods, hosts, paths, other_paths, ..Match::default() };
                Limit { conditions, ..Limit::new("L") }
            }).collect();
            (0..).zip(&limits).for_each(|(place, limit)| index.insert(place, limit));
            let headers = Headers::new();
            for (path, method, host) in given.iter().flat_map(|path| [(path, "GET", "a"), (path, "PUT", "a.example")]) {
                let request = Request { method, host, path, ..sample(&headers) };
                let mut found = Candidates::new();
                index.candidates(&request, &mut found);
                for (place, limit) in (0..).zip(&limits) {
                    let covers = limit.conditions.check(&request).is_ok();
                    prop_assert!(!covers || found.contains(&place), "{path} {:?}", limit.conditions);
                }
            }
        }
    }

    #[test]
    fn other_conditions_are_files_too() {
        let header = |value: &str| PartMatch {
            part: Part::Header(HeaderName::from_static("x-plan")),
            test: ValueTest::Value(value.into()),
        };
        let one_of = |value: &str| PartMatch {
            test: ValueTest::OneOf([value, "gold"].map(|value| ValueTest::Value(value.into())).into()),
            ..header("")
        };
        let limits = [
            Match { hosts: vec![HostPattern::Exact("api.example.com".into())], ..Match::default() },
            Match { hosts: vec![HostPattern::Below(".example.com".into())], ..Match::default() },
            Match { parts: vec![header("free")], ..Match::default() },
            Match { parts: vec![header("paid")], ..Match::default() },
            Match { parts: vec![one_of("free")], ..Match::default() },
            Match { parts: vec![one_of("trial")], ..Match::default() },
            Match { networks: vec!["10.0.0.0/8".parse().unwrap(), "10.1.0.0/16".parse().unwrap()], ..Match::default() },
            Match { networks: vec!["192.168.0.0/16".parse().unwrap()], ..Match::default() },
            Match { methods: vec!["POST".into(), "GET".into()], ..Match::default() },
            Match::default(),
        ];
        check(&limits, "GET", "api.example.com", "/", &[0, 1, 2, 4, 6, 8, 9]);
        check(&limits, "PUT", "example.com", "/", &[2, 4, 6, 9]);
    }

    /// A limit with these conditions on entries, in these domains, by these entries.
    fn described(domains: &[&str], entries: &[(&str, ValueTest)], by: &[&str], missing: Fallback) -> Limit {
        let wanted =
            |(key, test): &(&str, ValueTest)| PartMatch { part: Part::Descriptor((*key).into()), test: test.clone() };
        let parts = entries.iter().map(wanted).collect();
        let domains = domains.iter().map(|domain| (*domain).to_owned()).collect();
        let conditions = Match { domains, parts, ..Match::default() };
        let by = by.iter().map(|key| TypedPart::new(Part::Descriptor((*key).into()), ValueType::Text)).collect();
        Limit { conditions, by, missing, ..Limit::new("L") }
    }

    #[test]
    fn limits_that_speak_of_descriptors_are_filed_apart() {
        let value = |value: &str| ValueTest::Value(value.into());
        let glob = || ValueTest::Glob(Glob::parse("a*").unwrap());
        let limits = [
            described(&[], &[], &[], Fallback::Skip),
            described(&[], &[("k", value("v"))], &[], Fallback::Skip),
            described(&["d"], &[("k", value("w"))], &[], Fallback::Skip),
            described(&[], &[("k", glob())], &[], Fallback::Skip),
            described(&["d"], &[], &["k"], Fallback::Skip),
            described(&["d", "e"], &[], &[], Fallback::Skip),
            described(&[], &[], &["k"], Fallback::Skip),
            described(&[], &[], &["k"], Fallback::Deny),
            described(&[], &[("k", ValueTest::Present(false))], &[], Fallback::Skip),
            described(&[], &[("k", ValueTest::Present(true))], &[], Fallback::Skip),
            described(&[], &[("k", ValueTest::OneOf(vec![value("v"), value("x")]))], &[], Fallback::Skip),
            described(&[], &[("k", ValueTest::OneOf(vec![value("v"), glob()]))], &[], Fallback::Skip),
        ];
        let mut index = Index::default();
        for (place, limit) in (0..).zip(&limits) {
            index.insert(place, limit);
        }
        let headers = Headers::new();
        for (domain, descriptor, expected) in [
            (None, &[][..], &[0, 7, 8][..]),
            (None, &[("k", "v")], &[0, 1, 3, 4, 6, 7, 8, 9, 10, 11]),
            (Some("d"), &[("k", "w")], &[2, 3, 4, 5, 6, 7, 8, 9, 11]),
            (Some("e"), &[("x", "v")], &[5, 7, 8]),
            (Some("f"), &[], &[7, 8]),
        ] {
            let entries: Vec<DescriptorEntry<'_>> =
                descriptor.iter().map(|(key, value)| DescriptorEntry { key, value }).collect();
            let request = Request { domain, descriptor: &entries, ..sample(&headers) };
            let mut found = Candidates::new();
            index.candidates(&request, &mut found);
            assert_eq!(found.as_slice(), expected, "{domain:?} {descriptor:?}");
            assert_eq!(domain.is_some_and(|domain| index.knows_domain(domain)), matches!(domain, Some("d" | "e")));
        }
    }
}
