//! From the entry of a line to the charges of its request.

use std::net::IpAddr;
use std::sync::Arc;

use super::calls::entries;
use super::clients;
use super::coverage::{Coverage, Missing, headers_read, need_client, needs};
use super::impact::Seen;
use super::report::LeftOut;
use super::settlements::LoggedResponse;
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::descriptors::ChargedAfterwards;
use crate::engine::charging::plan::{DenialReason, Plan};
use crate::engine::charging::terms::Intent;
use crate::engine::deciding::{Deciding, DecisionSubject, Notices};
use crate::engine::limit::LimitMode;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::rules::Rules;
use crate::engine::request::Request;
use crate::engine::request::incoming::{Incoming, Preparation};
use crate::engine::request::part::Source;
use crate::logs::told::Told;
use crate::logs::{Lack, LogEntry};
use crate::message::client_address::TrustedProxies;
use crate::message::headers::Headers;
use crate::message::path::EscapedSlashes;

/// Rules, and the parts that a log lacks for their limits.
pub(super) struct Side {
    pub(super) rules: Rules,
    pub(super) afterwards: ChargedAfterwards,
    pub(super) coverage: Coverage,
    /// True if some limit is not covered.
    has_gaps: bool,
    has_slots: bool,
    /// What each covered limit reads.
    reads: Vec<(u32, Vec<Arc<Missing>>)>,
    /// Some covered limit reads the client's address.
    pub(super) needs_client: bool,
    /// The headers that covered limits read.
    headers: Vec<String>,
}

/// The request of a line.
pub(super) struct Arrival {
    pub(super) at: Micros,
    /// The end of its response, if the line tells it.
    pub(super) ends: Option<Micros>,
    pub(super) response: LoggedResponse,
    pub(super) asked: Box<Asked>,
    /// Its decision under the other rules.
    pub(super) other: Option<Box<Asked>>,
    /// Set if somebody asks who is denied.
    pub(super) seen: Option<Box<Seen>>,
}

/// The decision of a request under some rules. Boxed: moved from list to list, it would take longer than to parse its line.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) deciding: Deciding,
    /// The ids at limits that decide without a charge: the limit's index, the fingerprint and the readable id.
    pub(super) uncharged: Vec<(u32, u128, String)>,
    /// The limits with `scope: all` that do not cover the request, and the fingerprint of its strikes.
    pub(super) bannable: Vec<(u32, u128)>,
    /// The limits that read a part which the line lacks, and that part.
    pub(super) left_out: Vec<(u32, Arc<Missing>)>,
}

/// The parts that a line lacks, and those that it has beyond the first lines of its log.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    /// The place of its log.
    pub(super) log: usize,
    pub(super) lacks: &'a [Lack<'a>],
    /// The parts that it has, though the first lines of its log have them not.
    pub(super) late: &'a [Source],
}

impl Asked {
    /// The fingerprint of the id at a limit that decides without a charge.
    pub(super) fn uncharged_id(&self, limit: u32) -> Option<u128> {
        self.uncharged.iter().find(|(of, ..)| *of == limit).map(|(_, id, _)| *id)
    }
}

impl Side {
    /// Rules for logs whose first lines have these parts.
    pub(super) fn new(rules: Rules, logs: &[&Told]) -> Self {
        let coverage = Coverage::of(&rules, logs);
        let missing = &coverage.missing;
        let has_gaps = missing.iter().any(|missing| !missing.is_empty());
        let has_slots = rules.limits().iter().any(crate::engine::limit::Limit::counts_in_flight);
        let headers = headers_read(&rules, missing);
        let needs_client = need_client(&rules, missing);
        let afterwards = ChargedAfterwards::new(&rules);
        let limits = (0..).zip(rules.limits()).zip(missing);
        let covered = limits.filter(|((_, limit), missing)| limit.mode != LimitMode::Off && missing.is_empty());
        let reads =
            covered.map(|((index, limit), _)| (index, needs(limit).into_iter().map(Arc::new).collect())).collect();
        Self { rules, afterwards, coverage, has_gaps, has_slots, reads, needs_client, headers }
    }

    /// Returns whether a covered limit reads a header, by its name in lower case.
    pub(super) fn reads_header(&self, name: &str) -> bool {
        self.headers.iter().any(|read| read == name)
    }

    fn is_covered(&self, limit: u32) -> bool {
        self.coverage.missing.get(limit as usize).is_none_or(Vec::is_empty)
    }

    fn ask(&self, request: &Request<'_>, line: Line<'_>, has_end: bool) -> Result<Box<Asked>, LeftOut> {
        self.asked(&DecisionSubject::Request(request), &[*request], line, has_end)
    }

    /// The limits that read a part which a line lacks, and that part. A limit with `missing: deny` or `shared` is not among them for an address,
    /// because a request need not have one.
    fn left_out(&self, line: Line<'_>) -> Vec<(u32, Arc<Missing>)> {
        let mut left_out: Vec<(u32, Arc<Missing>)> = self.coverage.lacking(line.log, line.late).collect();
        if line.lacks.is_empty() {
            return left_out;
        }
        let decides = |limit: u32| {
            let limit = self.rules.limit(limit);
            limit.is_some_and(|limit| limit.missing != Fallback::Skip)
        };
        let first = |limit: u32, reads: &[Arc<Missing>]| {
            let is_lacking = |lack: &Lack<'_>| *lack != Lack::Client || !decides(limit);
            let mut lacks = line.lacks.iter().filter(|lack| is_lacking(lack));
            lacks.find_map(|lack| reads.iter().find(|need| need.is_of(*lack))).cloned()
        };
        for (limit, reads) in &self.reads {
            if left_out.iter().all(|(known, _)| known != limit) {
                left_out.extend(first(*limit, reads).map(|missing| (*limit, missing)));
            }
        }
        left_out
    }

    /// `requests` have the ids of the subject.
    pub(super) fn asked(
        &self,
        subject: &DecisionSubject<'_>,
        requests: &[Request<'_>],
        line: Line<'_>,
        has_end: bool,
    ) -> Result<Box<Asked>, LeftOut> {
        let mut asked = Box::<Asked>::default();
        let Asked { deciding, uncharged, bannable, left_out } = &mut *asked;
        let notices = Notices { blocks: None, afterwards: &self.afterwards, can_accept: true };
        deciding.begin(&self.rules, subject, &Intent::SPEND, &notices).map_err(|_| LeftOut::InvalidEntry)?;
        for request in requests {
            let elsewhere = self.rules.strikes_elsewhere(request).into_iter();
            bannable.extend(elsewhere.filter(|(limit, _)| self.is_covered(*limit)));
        }
        let plan = &mut deciding.plan;
        *left_out = self.left_out(line);
        if self.has_gaps || !left_out.is_empty() || (self.has_slots && !has_end) {
            keep(plan, |limit, charge| {
                self.is_covered(limit)
                    && left_out.iter().all(|(other, _)| *other != limit)
                    && (has_end || charge.is_none_or(|charge| !charge.numbers.is_slots()))
            });
        }
        let denied = plan.denials.iter().filter(|denial| denial.reason == DenialReason::Deny);
        for limit in denied.map(|denial| denial.limit).chain(plan.unlimited.iter().copied()) {
            let mut ids = requests.iter().filter_map(|request| self.rules.id_of(limit, request));
            if let Some((id, fingerprint)) = ids.next() {
                uncharged.push((limit, fingerprint, id));
            }
        }
        Ok(asked)
    }
}

/// Keeps what belongs to some limits. A limit that decides without a charge has none.
fn keep(plan: &mut Plan, is_kept: impl Fn(u32, Option<&Charge>) -> bool) {
    if let Some(joint) = &mut plan.joint {
        for member in &mut joint.members {
            member.denials.retain(|denial| is_kept(denial.limit, None));
            member.unlimited.retain(|limit| is_kept(*limit, None));
        }
    }
    plan.retain(|charge| is_kept(charge.origin.limit, Some(charge)));
    plan.denials.retain(|denial| is_kept(denial.limit, None));
    plan.unlimited.retain(|limit| is_kept(*limit, None));
    plan.exempt.retain(|limit| is_kept(*limit, None));
    plan.unsettled.retain(|limit| is_kept(*limit, None));
}

/// Reads the entry of a line as a listener reads a request.
pub(super) fn arrival(
    entry: &LogEntry<'_>,
    (log, told): (usize, &Told),
    trusted: &TrustedProxies,
    side: &Side,
    other: Option<&Side>,
) -> Result<Arrival, LeftOut> {
    if entry.carries_limits {
        return Err(LeftOut::CarriesLimits);
    }
    if entry.is_rejected {
        return Err(LeftOut::Rejected);
    }
    let needs_client = side.needs_client || other.is_some_and(|other| other.needs_client);
    let client = clients::client(entry, told, trusted);
    if needs_client && client.is_err() {
        return Err(LeftOut::NoClient);
    }
    let took = entry.took.unwrap_or_default();
    let at = if told.is_arrival { entry.at } else { entry.at.before(took) };
    let response = LoggedResponse { status: entry.status, bytes: entry.bytes };
    let descriptors = entry.descriptors.as_deref();
    if let Some((call, domain)) = descriptors.and_then(|call| Some((call, call.domain.as_deref()?))) {
        let asked = side.ask_call(call, domain, at, log)?;
        let other = other.map(|other| other.ask_call(call, domain, at, log)).transpose()?;
        return Ok(Arrival { at, ends: None, response, asked, other, seen: None });
    }
    let descriptor = descriptors.and_then(|given| given.each.first()).map(entries).unwrap_or_default();
    let incoming = Incoming {
        method: entry.method.as_deref(),
        target: entry.target.as_deref().unwrap_or("/"),
        query: None,
        authority: entry.host.as_deref(),
        headers: &mut headers(entry, side, other),
        preparation: Preparation::None,
        slashes: EscapedSlashes::Keep,
    };
    let received = incoming.read().map_err(|_| LeftOut::Rejected)?;
    let request = Request {
        client: client.ok().flatten().as_ref().map(IpAddr::to_canonical),
        tls_subject: entry.tls_subject.as_deref(),
        descriptor: &descriptor,
        now: at,
        ..received.request()
    };
    let ends = entry.took.map(|took| at.after(took));
    let line = Line { log, lacks: &entry.lacks, late: &entry.late };
    let asked = side.ask(&request, line, ends.is_some())?;
    let other = other.map(|other| other.ask(&request, line, ends.is_some())).transpose()?;
    Ok(Arrival { at, ends, response, asked, other, seen: None })
}

/// The headers of an entry that limits read.
fn headers(entry: &LogEntry<'_>, side: &Side, other: Option<&Side>) -> Headers {
    let mut headers = Headers::new();
    if side.headers.is_empty() && other.is_none_or(|other| other.headers.is_empty()) {
        return headers;
    }
    for (name, value) in &entry.headers {
        let is_read = |side: &Side| side.reads_header(name);
        if is_read(side) || other.is_some_and(is_read) {
            headers.append(name.as_bytes(), value);
        }
    }
    headers
}
