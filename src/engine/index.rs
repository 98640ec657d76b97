//! Which limits can cover a request at all, found without looking at the others.
//!
//! Each limit is filed under its most telling condition: path, host, field value, network or method. A request walks
//! the few files that it falls into, so ten thousand limits on other paths cost it nothing.

use std::collections::HashMap;
use std::net::IpAddr;

use http::header::HeaderName;
use ipnet::IpNet;
use smallvec::SmallVec;

use super::matching::{HeaderTest, HostPattern, Match};
use super::path::{Pattern, Segment, segments};
use super::request::Request;

/// Limits that may cover a request: few as a rule.
pub type Candidates = SmallVec<[u32; 16]>;

/// Where limits are filed. Limits are named by their index in the rules.
#[derive(Debug, Default)]
pub struct Index {
    paths: Node,
    has_paths: bool,
    hosts: HashMap<String, Vec<u32>>,
    /// Keyed by `.example.com`.
    domains: HashMap<String, Vec<u32>>,
    headers: Vec<(HeaderName, HashMap<String, Vec<u32>>)>,
    /// One table a prefix length, so a lookup asks as many tables as there are lengths.
    networks: Vec<(u8, HashMap<IpNet, Vec<u32>>)>,
    methods: HashMap<String, Vec<u32>>,
    everywhere: Vec<u32>,
}

/// A place in the tree of path patterns.
#[derive(Debug, Default)]
struct Node {
    literals: HashMap<String, Node>,
    parameter: Option<Box<Node>>,
    here: Vec<u32>,
    below: Vec<u32>,
}

impl Index {
    /// Files limit `limit` under its conditions.
    pub fn insert(&mut self, limit: u32, conditions: &Match) {
        if !conditions.paths.is_empty() {
            self.has_paths = true;
            for pattern in &conditions.paths {
                self.paths.insert(pattern, limit);
            }
        } else if !conditions.hosts.is_empty() {
            for host in &conditions.hosts {
                let (table, name) = match host {
                    HostPattern::Exact(name) => (&mut self.hosts, name),
                    HostPattern::Below(name) => (&mut self.domains, name),
                };
                file(table, name.clone(), limit);
            }
        } else if let Some((name, value)) = exact_header(conditions) {
            let place = self.headers.iter().position(|(given, _)| given == name).unwrap_or_else(|| {
                self.headers.push((name.clone(), HashMap::new()));
                self.headers.len() - 1
            });
            file(&mut self.headers[place].1, value.clone(), limit);
        } else if !conditions.networks.is_empty() {
            for network in &conditions.networks {
                file_network(&mut self.networks, *network, limit);
            }
        } else if conditions.methods.is_empty() {
            self.everywhere.push(limit);
        } else {
            for method in &conditions.methods {
                file(&mut self.methods, method.clone(), limit);
            }
        }
    }

    /// The limits that may cover `request`, in the order of the rules and each once, added to `found`. Their other
    /// conditions are still to be checked.
    pub fn candidates(&self, request: &Request<'_>, found: &mut Candidates) {
        found.extend_from_slice(&self.everywhere);
        if self.has_paths {
            let path: Vec<&str> = segments(request.path).collect();
            self.paths.collect(&path, found);
        }
        let mut add = |filed: Option<&Vec<u32>>| found.extend_from_slice(filed.map_or(&[], Vec::as_slice));
        if !self.hosts.is_empty() {
            add(self.hosts.get(request.host));
        }
        if !self.domains.is_empty() {
            for (dot, _) in request.host.match_indices('.').filter(|(dot, _)| *dot > 0) {
                add(self.domains.get(&request.host[dot..]));
            }
        }
        for (name, values) in &self.headers {
            if let Some(value) = request.header(name.as_str()) {
                add(values.get(value));
            }
        }
        for (prefix, networks) in &self.networks {
            if let Ok(network) = IpNet::new(request.client, *prefix) {
                add(networks.get(&network.trunc()));
            }
        }
        if !self.methods.is_empty() {
            add(self.methods.get(request.method));
        }
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
    }
}

impl Node {
    fn insert(&mut self, pattern: &Pattern, limit: u32) {
        let mut node = self;
        for segment in pattern.segments() {
            node = match segment {
                Segment::Literal(literal) => node.literals.entry(literal.clone()).or_default(),
                Segment::Parameter(_) => node.parameter.get_or_insert_default(),
            };
        }
        let list = if pattern.is_open() { &mut node.below } else { &mut node.here };
        list.push(limit);
    }

    /// Visits each node of the tree at most once, however deep the path.
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

fn exact_header(conditions: &Match) -> Option<(&HeaderName, &String)> {
    conditions.headers.iter().find_map(|header| match &header.test {
        HeaderTest::Value(value) => Some((&header.name, value)),
        _ => None,
    })
}

fn file<K: std::hash::Hash + Eq>(table: &mut HashMap<K, Vec<u32>>, key: K, limit: u32) {
    table.entry(key).or_default().push(limit);
}

fn file_network(tables: &mut Vec<(u8, HashMap<IpNet, Vec<u32>>)>, network: IpNet, limit: u32) {
    let prefix = network.prefix_len();
    let place = tables.iter().position(|(given, _)| *given == prefix).unwrap_or_else(|| {
        tables.push((prefix, HashMap::new()));
        tables.len() - 1
    });
    file(&mut tables[place].1, network.trunc(), limit);
}

/// The networks of `tables` that contain `address`, longest prefix first.
pub(super) fn longest_first<T>(tables: &[(u8, HashMap<IpNet, T>)], address: IpAddr) -> impl Iterator<Item = &T> {
    tables.iter().filter_map(move |(prefix, networks)| {
        let network = IpNet::new(address, *prefix).ok()?;
        networks.get(&network.trunc())
    })
}

#[cfg(test)]
mod tests {
    use super::super::fields::Fields;
    use super::super::matching::HeaderMatch;
    use super::super::numbers::Micros;
    use super::*;

    /// Files limits by these conditions and asks for the candidates of one request.
    #[track_caller]
    fn check(conditions: &[Match], method: &str, host: &str, path: &str, expected: &[u32]) {
        let mut index = Index::default();
        for (limit, conditions) in conditions.iter().enumerate() {
            index.insert(u32::try_from(limit).unwrap(), conditions);
        }
        let headers = Fields::from_iter([("x-plan", "free")]);
        let client = "10.1.2.3".parse().unwrap();
        let (query, tls_subject, now) = (None, None, Micros(0));
        let request = Request { method, host, path, query, headers: &headers, client, tls_subject, now };
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
        Match { paths: patterns.iter().map(|text| Pattern::parse(text).unwrap()).collect(), ..Match::default() }
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
    }

    #[test]
    fn other_conditions_are_files_too() {
        let header = |value: &str| HeaderMatch {
            name: HeaderName::from_static("x-plan"),
            test: HeaderTest::Value(value.into()),
        };
        let limits = [
            Match { hosts: vec![HostPattern::Exact("api.example.com".into())], ..Match::default() },
            Match { hosts: vec![HostPattern::Below(".example.com".into())], ..Match::default() },
            Match { headers: vec![header("free")], ..Match::default() },
            Match { headers: vec![header("paid")], ..Match::default() },
            Match { networks: vec!["10.0.0.0/8".parse().unwrap(), "10.1.0.0/16".parse().unwrap()], ..Match::default() },
            Match { networks: vec!["192.168.0.0/16".parse().unwrap()], ..Match::default() },
            Match { methods: vec!["POST".into(), "GET".into()], ..Match::default() },
            Match::default(),
        ];
        check(&limits, "GET", "api.example.com", "/", &[0, 1, 2, 4, 6, 7]);
        check(&limits, "PUT", "example.com", "/", &[2, 4, 7]);
    }
}
