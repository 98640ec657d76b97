//! The limits that a log can be simulated for: those that need nothing that the log does not tell.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use http::header::{AUTHORIZATION, CONTENT_LENGTH};

use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::matching::ValueTest;
use crate::engine::limit::response_cost::ResponseCost;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Cost, Limit, LimitMode, WHOLE_SHARE};
use crate::engine::request::component::ComponentSource;
use crate::logs::Lack;
use crate::logs::told::Told;

/// A reason why a log does not cover a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    Method,
    Host,
    Path,
    Query,
    Client,
    Certificate,
    /// The verified claims of tokens.
    Claims,
    /// The bodies of requests.
    Body,
    /// In lower case.
    Header(String),
    Duration,
    /// The costs that responses report for `cost_from_response`.
    ResponseCost,
    /// The descriptors of the rate limit service.
    Descriptor,
    /// In a recording, the values of a header that the limit compares. In lower case.
    HashedHeader(String),
    /// In a recording, the values of a descriptor entry that the limit compares.
    HashedEntry(String),
    /// The limit is decided by Redis.
    Redis(Algorithm),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Method => f.write_str("the method"),
            Self::Host => f.write_str("the host"),
            Self::Path => f.write_str("the path"),
            Self::Query => f.write_str("the query"),
            Self::Client => f.write_str("the client's address"),
            Self::Certificate => f.write_str("the client's certificate"),
            Self::Claims => f.write_str("the verified claims of tokens"),
            Self::Body => f.write_str("the bodies of requests"),
            Self::Header(name) => write!(f, "the header `{name}`"),
            Self::Duration => f.write_str("how long requests take"),
            Self::ResponseCost => f.write_str("what responses report for `cost_from_response`"),
            Self::Descriptor => f.write_str("the descriptors of the rate limit service"),
            Self::HashedHeader(name) => write!(f, "the values of the header `{name}`, which are hashed"),
            Self::HashedEntry(key) => write!(f, "the values of the descriptor entry `{key}`, which are hashed"),
            Self::Redis(algorithm) => write!(f, "the state of Redis, which `{}` needs", algorithm.name()),
        }
    }
}

impl Missing {
    /// Returns true if a line that lacks this part of a request does not tell what to decide by.
    pub(super) fn is_of(&self, lack: Lack<'_>) -> bool {
        match (self, lack) {
            (Self::Method, Lack::Method)
            | (Self::Host, Lack::Host)
            | (Self::Path, Lack::Path)
            | (Self::Query, Lack::Query)
            | (Self::Client, Lack::Client)
            | (Self::Certificate, Lack::Certificate)
            | (Self::Duration, Lack::Duration)
            | (Self::Header(_), Lack::Headers) => true,
            (Self::Header(name), Lack::Header(lacking)) => name == lacking,
            _ => false,
        }
    }

    /// Returns true for what each request has: a line without it was not written for the request as a whole.
    pub const fn is_of_each_request(&self) -> bool {
        matches!(self, Self::Method | Self::Path | Self::Duration)
    }
}

/// Returns the parts that a log lacks for each limit, in the order of the rules. Nothing is missing for a limit that is off.
pub fn missing(rules: &Rules, told: &Told) -> Vec<Vec<Missing>> {
    rules.limits().iter().map(|limit| missing_for(limit, told)).collect()
}

fn missing_for(limit: &Limit, told: &Told) -> Vec<Missing> {
    if limit.mode == LimitMode::Off {
        return Vec::new();
    }
    let mut needed = needs(limit);
    needed.retain(|need| match need {
        Missing::Method => !told.method,
        Missing::Host => !told.host,
        Missing::Path => !told.path,
        Missing::Query => !told.query,
        Missing::Client => !told.client,
        Missing::Certificate => !told.tls_subject,
        Missing::Header(name) => !told.header(name),
        Missing::Duration => !told.took,
        Missing::Descriptor => told.descriptors.is_none(),
        Missing::Claims
        | Missing::Body
        | Missing::ResponseCost
        | Missing::HashedHeader(_)
        | Missing::HashedEntry(_)
        | Missing::Redis(_) => true,
    });
    needed.extend(hashed(limit, told));
    needed.sort();
    needed.dedup();
    needed
}

/// Returns the values that a limit compares and that a recording has only as stand-ins.
fn hashed(limit: &Limit, told: &Told) -> Vec<Missing> {
    let mut hashed = Vec::new();
    for header in &limit.conditions.headers {
        let name = header.name.as_str();
        if told.stand_ins.headers.get(name).is_some_and(|kept| !can_compare(&header.test, kept)) {
            hashed.push(Missing::HashedHeader(name.to_owned()));
        }
    }
    let Some(keys) = &told.descriptors else { return hashed };
    let none = BTreeSet::new();
    for entry in limit.conditions.descriptor.entries() {
        // The values of keys that the recorded rules did not name are hashed, too.
        let kept = told.stand_ins.descriptors.get(&entry.key).or((!keys.contains(&entry.key)).then_some(&none));
        if kept.is_some_and(|kept| !can_compare(&entry.test, kept)) {
            hashed.push(Missing::HashedEntry(entry.key.clone()));
        }
    }
    hashed
}

/// Returns true if a test has the same result for stand-ins, of which these texts have none.
fn can_compare(test: &ValueTest, kept: &BTreeSet<String>) -> bool {
    match test {
        ValueTest::Present(_) => true,
        ValueTest::Glob(glob) => glob.to_string() == "*",
        ValueTest::Value(value) => value.is_empty() || kept.contains(value),
        ValueTest::Prefix(_) | ValueTest::Regex(_) => false,
        ValueTest::Not(excluded) => excluded.tests.iter().all(|test| can_compare(test, kept)),
    }
}

/// Returns everything that a limit reads.
pub(super) fn needs(limit: &Limit) -> Vec<Missing> {
    let conditions = &limit.conditions;
    let mut needs = Vec::new();
    let mut need = |condition: bool, missing: Missing| {
        if condition {
            needs.push(missing);
        }
    };
    need(matches!(limit.algorithm, Algorithm::Queue | Algorithm::Script), Missing::Redis(limit.algorithm));
    need(limit.algorithm == Algorithm::Concurrency, Missing::Duration);
    let by_response = |cost: &Arc<ResponseCost>| !cost.is_of_request() || cost.when.is_some();
    need(limit.response_cost.as_ref().is_some_and(by_response), Missing::ResponseCost);
    need(!conditions.methods.is_empty(), Missing::Method);
    need(!conditions.hosts.is_empty() || !conditions.other_hosts.is_empty(), Missing::Host);
    need(!conditions.paths.is_empty(), Missing::Path);
    let has_networks = !conditions.networks.is_empty() || !conditions.other_networks.is_empty();
    need(has_networks || limit.overrides.has_networks(), Missing::Client);
    // The share of requests without an id is one of addresses.
    let denies = limit.missing == Fallback::Deny || limit.malformed == Fallback::Deny;
    need(denies && limit.enforce_for < WHOLE_SHARE, Missing::Client);
    need(conditions.needs_descriptor(), Missing::Descriptor);
    for header in &conditions.headers {
        need(true, Missing::Header(header.name.as_str().to_owned()));
    }
    need(!conditions.claims.is_empty(), Missing::Claims);
    for component in &limit.by {
        need(true, of_source(&component.source));
    }
    match &limit.cost {
        Cost::Fixed(_) => {}
        Cost::Header(name) => need(true, Missing::Header(name.as_str().to_owned())),
        Cost::Query(_) => need(true, Missing::Query),
        Cost::Claim(_) => need(true, Missing::Claims),
        Cost::Body(_) => need(true, Missing::Body),
        Cost::Bytes { .. } => need(true, Missing::Header(CONTENT_LENGTH.as_str().to_owned())),
    }
    needs
}

fn of_source(source: &ComponentSource) -> Missing {
    match source {
        ComponentSource::Ip { .. } => Missing::Client,
        ComponentSource::Host => Missing::Host,
        ComponentSource::Method => Missing::Method,
        ComponentSource::Path | ComponentSource::PathParameter { .. } => Missing::Path,
        ComponentSource::Header(name) => Missing::Header(name.as_str().to_owned()),
        ComponentSource::Credentials => Missing::Header(AUTHORIZATION.as_str().to_owned()),
        ComponentSource::Query(_) => Missing::Query,
        ComponentSource::Cookie(_) => Missing::Header("cookie".to_owned()),
        ComponentSource::TlsSubject => Missing::Certificate,
        ComponentSource::Claim(_) => Missing::Claims,
        ComponentSource::Body(_) => Missing::Body,
        ComponentSource::Descriptor(_) | ComponentSource::Entry { .. } => Missing::Descriptor,
    }
}

/// Everything that covered limits read.
fn read_by_covered(rules: &Rules, missing: &[Vec<Missing>]) -> impl Iterator<Item = Missing> {
    let covered = rules.limits().iter().zip(missing).filter(|(_, missing)| missing.is_empty());
    covered.filter(|(limit, _)| limit.mode != LimitMode::Off).flat_map(|(limit, _)| needs(limit))
}

/// Returns true if a covered limit reads the client's address.
pub(super) fn need_client(rules: &Rules, missing: &[Vec<Missing>]) -> bool {
    read_by_covered(rules, missing).any(|need| need == Missing::Client)
}

/// The headers that covered limits read, in lower case.
pub(super) fn headers_read(rules: &Rules, missing: &[Vec<Missing>]) -> Vec<String> {
    let names = read_by_covered(rules, missing).filter_map(|need| match need {
        Missing::Header(name) => Some(name),
        _ => None,
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}
