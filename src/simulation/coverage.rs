//! The limits that a log can be simulated for: those that need nothing that the log does not tell.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::matching::ValueTest;
use crate::engine::limit::parts::PartUse;
use crate::engine::limit::response_cost::CostSource;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode, WHOLE_SHARE};
use crate::engine::request::part::{Part, Source, TypedPart, is_secret};
use crate::engine::request::value_type::ValueType;
use crate::logs::Lack;
use crate::logs::told::Told;

/// A reason why a log does not cover a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    Of(Source),
    Duration,
    Status,
    /// Of the body.
    ResponseBytes,
    /// The costs that responses report for `cost_from_response`.
    ResponseCost,
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
            Self::Of(source) => source.fmt(f),
            Self::Duration => f.write_str("how long requests take"),
            Self::Status => f.write_str("the status of responses"),
            Self::ResponseBytes => f.write_str("the bytes of responses"),
            Self::ResponseCost => f.write_str("what responses report for `cost_from_response`"),
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
            (Self::Of(Source::Method), Lack::Method)
            | (Self::Of(Source::Host), Lack::Host)
            | (Self::Of(Source::Path), Lack::Path)
            | (Self::Of(Source::Query), Lack::Query)
            | (Self::Of(Source::Client), Lack::Client)
            | (Self::Of(Source::Certificate), Lack::Certificate)
            | (Self::Of(Source::Header(_)), Lack::Headers)
            | (Self::Status, Lack::Status)
            | (Self::ResponseBytes, Lack::Bytes)
            | (Self::Duration, Lack::Duration) => true,
            (Self::Of(Source::Header(name)), Lack::Header(lacking)) => name == lacking,
            _ => false,
        }
    }

    /// Returns true if later lines of a log may have it, though the first ones have not.
    const fn may_come(&self) -> bool {
        !matches!(self, Self::Of(Source::Claims | Source::Body | Source::Descriptor)) && matches!(self, Self::Of(_))
    }

    /// Returns true for what each request has: a line without it was not written for the request as a whole.
    pub const fn is_of_each_request(&self) -> bool {
        matches!(self, Self::Of(Source::Method | Source::Path) | Self::Duration)
    }
}

/// The limits that logs suffice for. The first lines of a log show what it has; its later lines may have more, and other logs something
/// else, so each line is looked at that has too little.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// By limit, in the order of the rules: its parts that no line of the logs has. Nothing is missing for a limit that is off.
    pub(super) missing: Vec<Vec<Missing>>,
    /// By limit: its parts that the first lines of the logs lack, though later lines may have them.
    absent: Vec<Vec<Missing>>,
    /// By log: the limits that its first lines do not suffice for, though other lines may, and what they lack.
    lacking: Vec<Vec<(u32, Vec<Arc<Missing>>)>>,
}

impl Coverage {
    pub(super) fn of(rules: &Rules, logs: &[&Told]) -> Self {
        let mut coverage = Self { lacking: vec![Vec::new(); logs.len()], ..Self::default() };
        for (index, limit) in (0..).zip(rules.limits()) {
            let of_each: Vec<Vec<Missing>> = logs.iter().map(|told| missing_for(limit, told)).collect();
            let is_told = of_each.iter().any(Vec::is_empty);
            let mut of_all = logs.iter().zip(&of_each);
            let may_come = of_all.any(|(told, missing)| told.may_tell_more && missing.iter().all(Missing::may_come));
            let mut all: Vec<Missing> = of_each.iter().flatten().cloned().collect();
            all.sort();
            all.dedup();
            if is_told || may_come {
                for (lacking, missing) in
                    coverage.lacking.iter_mut().zip(of_each).filter(|(_, missing)| !missing.is_empty())
                {
                    lacking.push((index, missing.into_iter().map(Arc::new).collect()));
                }
            }
            let (missing, absent) = match (is_told, may_come) {
                (true, _) => (Vec::new(), Vec::new()),
                (false, true) => (Vec::new(), all),
                (false, false) => (all, Vec::new()),
            };
            coverage.missing.push(missing);
            coverage.absent.push(absent);
        }
        coverage
    }

    /// The parts that the logs lack for a limit; those that only later lines may have are lacking unless some line `sufficed`.
    pub(super) fn missing_for(&self, limit: usize, sufficed: bool) -> &[Missing] {
        let missing = self.missing.get(limit).map_or(&[][..], Vec::as_slice);
        let absent = self.absent.get(limit).filter(|_| !sufficed).map_or(&[][..], Vec::as_slice);
        if missing.is_empty() { absent } else { missing }
    }

    /// The limits that the first lines of a log do not suffice for, and what a line with some more parts lacks.
    pub(super) fn lacking<'a>(
        &'a self,
        log: usize,
        late: &'a [Source],
    ) -> impl Iterator<Item = (u32, Arc<Missing>)> + 'a {
        let is_there = |missing: &Missing| matches!(missing, Missing::Of(source) if late.contains(source));
        self.lacking.get(log).into_iter().flatten().filter_map(move |(limit, missing)| {
            Some((*limit, missing.iter().find(|missing| !is_there(missing))?.clone()))
        })
    }
}

fn missing_for(limit: &Limit, told: &Told) -> Vec<Missing> {
    if limit.mode == LimitMode::Off {
        return Vec::new();
    }
    let mut needed = needs(limit);
    needed.retain(|need| match need {
        Missing::Of(source) => !tells(told, source),
        Missing::Duration => !told.took,
        Missing::Status => !told.status,
        Missing::ResponseBytes => !told.bytes,
        Missing::ResponseCost | Missing::HashedHeader(_) | Missing::HashedEntry(_) | Missing::Redis(_) => true,
    });
    needed.extend(hashed(limit, told));
    needed.sort();
    needed.dedup();
    needed
}

fn tells(told: &Told, source: &Source) -> bool {
    match source {
        Source::Method => told.method,
        Source::Host => told.host,
        Source::Path => told.path,
        Source::Query => told.query,
        Source::Client => told.client,
        Source::Certificate => told.tls_subject,
        Source::Header(name) => told.header(name),
        Source::Descriptor => told.descriptors.is_some(),
        Source::Claims | Source::Body => false,
    }
}

/// Returns the values that a limit compares and that a recording has only as stand-ins.
fn hashed(limit: &Limit, told: &Told) -> Vec<Missing> {
    let mut hashed = Vec::new();
    if told.has_hashed_secrets {
        hashed.extend(compared_secret(limit));
    }
    for wanted in &limit.conditions.parts {
        if let Part::Header(name) = &wanted.part
            && told.stand_ins.headers.get(name.as_str()).is_some_and(|kept| !can_compare(&wanted.test, kept))
        {
            hashed.push(Missing::HashedHeader(name.as_str().to_owned()));
        }
    }
    // A header may be an id of one limit and the cost of another.
    if let Some(Part::Header(name)) = limit.cost.part()
        && told.stand_ins.headers.contains_key(name.as_str())
    {
        hashed.push(Missing::HashedHeader(name.as_str().to_owned()));
    }
    let Some(keys) = &told.descriptors else { return hashed };
    let none = BTreeSet::new();
    for (key, test) in limit.conditions.entries() {
        // The values of keys that the recorded rules did not name are hashed, too.
        let kept = told.stand_ins.descriptors.get(key).or((!keys.contains(key)).then_some(&none));
        if kept.is_some_and(|kept| !can_compare(test, kept)) {
            hashed.push(Missing::HashedEntry(key.to_owned()));
        }
    }
    hashed
}

/// Returns a secret that a limit needs to know: it compares it, reads it as another type, or has other numbers for some of its ids.
fn compared_secret(limit: &Limit) -> Option<Missing> {
    let secret = |part: &Part| match part.source() {
        Source::Header(name) if is_secret(&name) => Some(Missing::HashedHeader(name)),
        _ => None,
    };
    let is_compared = |test: &ValueTest| !matches!(test, ValueTest::Present(_));
    let compared = limit.conditions.parts.iter().filter(|wanted| is_compared(&wanted.test)).map(|wanted| &wanted.part);
    let is_read = |by: &&TypedPart| by.form != ValueType::Text || !limit.overrides.is_empty();
    let read = limit.by.iter().filter(is_read).map(|by| &by.part);
    compared.chain(read).chain(limit.cost.part()).find_map(secret)
}

/// Returns true if a test has the same result for stand-ins, of which these texts have none.
fn can_compare(test: &ValueTest, kept: &BTreeSet<String>) -> bool {
    match test {
        ValueTest::Present(_) => true,
        ValueTest::Glob(glob) => glob.to_string() == "*",
        ValueTest::Value(value) => value.is_empty() || kept.contains(value),
        ValueTest::Prefix(_) | ValueTest::Regex(_) => false,
        ValueTest::OneOf(tests) => tests.iter().all(|test| can_compare(test, kept)),
        ValueTest::Not(excluded) => excluded.tests.iter().all(|test| can_compare(test, kept)),
    }
}

/// Returns everything that a limit reads.
pub(super) fn needs(limit: &Limit) -> Vec<Missing> {
    let mut needs = Vec::new();
    let mut need = |condition: bool, missing: Missing| {
        if condition {
            needs.push(missing);
        }
    };
    need(limit.algorithm.is_final(), Missing::Redis(limit.algorithm));
    need(limit.algorithm == Algorithm::Concurrency, Missing::Duration);
    let by_response = limit.response_cost.as_deref();
    let source = by_response.and_then(|cost| cost.source.as_ref());
    need(by_response.is_some_and(|cost| cost.when.is_some()), Missing::Status);
    need(matches!(source, Some(CostSource::Bytes)), Missing::ResponseBytes);
    need(matches!(source, Some(CostSource::Header(_) | CostSource::Body(_))), Missing::ResponseCost);
    // The share of requests without an id is one of addresses.
    let denies = limit.missing == Fallback::Deny || limit.malformed == Fallback::Deny;
    need(denies && limit.enforce_for < WHOLE_SHARE, Missing::Of(Source::Client));
    need(limit.conditions.needs_descriptor(), Missing::Of(Source::Descriptor));
    for (used, part) in limit.parts() {
        // Requests of a log without descriptors have none.
        let is_needed = used != PartUse::Field && !(used == PartUse::Condition && part.entry_key().is_some());
        need(is_needed, Missing::Of(part.source()));
    }
    needs
}

/// Everything that covered limits and exemptions read.
fn read_by_covered(rules: &Rules, missing: &[Vec<Missing>]) -> impl Iterator<Item = Missing> {
    let by_exemptions = rules.exemptions().flat_map(|one| one.conditions.parts_read());
    let covered = rules.limits().iter().zip(missing).filter(|(_, missing)| missing.is_empty());
    let by_limits = covered.filter(|(limit, _)| limit.mode != LimitMode::Off).flat_map(|(limit, _)| needs(limit));
    by_limits.chain(by_exemptions.map(|part| Missing::Of(part.source())))
}

/// Returns true if a covered limit reads the client's address.
pub(super) fn need_client(rules: &Rules, missing: &[Vec<Missing>]) -> bool {
    read_by_covered(rules, missing).any(|need| need == Missing::Of(Source::Client))
}

/// The headers that covered limits read, in lower case.
pub(super) fn headers_read(rules: &Rules, missing: &[Vec<Missing>]) -> Vec<String> {
    let names = read_by_covered(rules, missing).filter_map(|need| match need {
        Missing::Of(Source::Header(name)) => Some(name),
        _ => None,
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}
