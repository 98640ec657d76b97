//! Whom limits deny: how often and when, what for, and facts that tell a program from a person.

use std::sync::Arc;

use smallvec::SmallVec;

use super::replay::LimitOutcome;
use super::requests::{Asked, Side};
use super::tally::{id_parts, period};
use crate::engine::algorithms::by_fingerprint::ByFingerprint;
use crate::engine::algorithms::micros::Micros;
use crate::engine::frequent_ids::FrequentIds;
use crate::engine::limit::candidate::MOST_CANDIDATES;
use crate::engine::stable_hash::stable;
use crate::logs::LogEntry;
use crate::message::lossless::{self, shown};

/// The most denied ids that are listed with what they asked for, of all limits together. Beyond, only their requests are counted.
pub const MOST_DETAILED: usize = 50_000;

/// The most different agents of an id that are told apart.
pub const MOST_AGENTS: usize = 16;

/// The header that names the agent.
pub const AGENT: &str = "user-agent";

/// The most bytes of a path or an agent that counts keep.
const MOST_BYTES: usize = 256;

/// What the line of a request says beyond what limits read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub method: Option<String>,
    /// Without the query.
    pub path: Option<String>,
    pub status: Option<u16>,
    pub agent: Option<String>,
}

/// What denies a request, or would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeniedBy {
    Limit,
    /// The limit is in shadow for this id.
    Shadow,
    /// With its name, if it has one.
    Candidate(Option<Arc<str>>),
}

/// A request that a limit denies.
#[derive(Debug)]
pub struct DeniedRequest<'a> {
    pub at: Micros,
    pub limit: &'a str,
    pub by: DeniedBy,
    /// The parts of its id, empty for `by: global`; `None` if it has no id.
    pub id: Option<Vec<String>>,
    pub seen: &'a Seen,
}

/// Takes each denied request in the order of the log.
pub type DeniedSink<'a> = dyn FnMut(&DeniedRequest<'_>) + 'a;

/// The values of denied requests with how often each occurs at least. They are exact for fewer than 14 different values; beyond, rare ones
/// are missing.
#[derive(Debug, Default)]
pub struct Breakdown {
    pub paths: Values,
    pub methods: Values,
    pub statuses: Values,
    pub agents: Values,
}

#[derive(Debug, Default)]
pub struct Values(FrequentIds<u64, String, 8>);

/// An id that a limit or its candidate denies.
#[derive(Debug)]
pub struct IdImpact {
    pub by: DeniedBy,
    pub id: Vec<String>,
    pub requests: u64,
    pub denied: u64,
    /// The first and the last denied request.
    pub first: Micros,
    pub last: Micros,
    /// The most requests in one period of the limit, and the start of that period.
    pub peak: u32,
    pub peak_at: Micros,
    /// Of all its requests.
    pub unauthorized: u64,
    pub not_found: u64,
    /// Different agents among all its requests, at most [`MOST_AGENTS`].
    pub agents: usize,
    pub pace: Option<Pace>,
    /// Of its denied requests.
    pub breakdown: Breakdown,
}

/// The gaps between the requests of an id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// In seconds.
    pub mean: f64,
    /// The standard deviation divided by the mean: 0 for a clock, about 1 for independent requests.
    pub variation: f64,
}

/// The ids that a limit denies, those denied most first.
#[derive(Debug, Default)]
pub struct LimitImpact {
    pub ids: Vec<IdImpact>,
    /// Of the requests that the limit denies, without those that only its candidate would.
    pub breakdown: Breakdown,
    /// Denied requests of ids that are not listed, because there are too many.
    pub unlisted: u64,
    /// Denied requests without an id.
    pub without_id: u64,
}

/// Follows the ids of all limits of one side.
pub(super) struct Impact {
    limits: Vec<LimitIds>,
    /// The number of ids that may still be followed, and of those that may be listed.
    room: usize,
    detail_room: usize,
}

#[derive(Default)]
struct LimitIds {
    /// In microseconds; 0 stands for the whole log.
    period: u64,
    ids: ByFingerprint<u128, IdUse>,
    breakdown: Breakdown,
    unlisted: u64,
    without_id: u64,
}

struct IdUse {
    requests: u64,
    first: Micros,
    last: Micros,
    /// Of the gaps, in seconds.
    squares: f64,
    period: u64,
    in_period: u32,
    peak: u32,
    peak_period: u64,
    unauthorized: u64,
    not_found: u64,
    /// Their hashes.
    agents: SmallVec<[u64; 2]>,
    /// By the limit, and by each of its candidates.
    denied: [Option<Box<Denied>>; 1 + MOST_CANDIDATES],
}

struct Denied {
    by: DeniedBy,
    id: Vec<String>,
    requests: u64,
    first: Micros,
    last: Micros,
    breakdown: Breakdown,
}

impl Seen {
    pub(super) fn of(entry: &LogEntry<'_>) -> Self {
        let agent = entry.headers.iter().find(|(name, _)| name == AGENT);
        let path = entry.target.as_deref().map(|target| target.split('?').next().unwrap_or_default().to_owned());
        Self {
            method: entry.method.as_deref().map(|method| shown(method).into_owned()),
            path: path.map(|path| shown(&path).into_owned()),
            status: entry.status,
            agent: agent.map(|(_, value)| shown(&lossless::text(value)).into_owned()),
        }
    }
}

impl Breakdown {
    fn add(&mut self, seen: &Seen) {
        self.paths.add(seen.path.as_deref());
        self.methods.add(seen.method.as_deref());
        self.agents.add(seen.agent.as_deref());
        if let Some(status) = seen.status {
            self.statuses.0.add(status.into(), || status.to_string());
        }
    }
}

impl Values {
    fn add(&mut self, value: Option<&str>) {
        if let Some(value) = value {
            let value = &value[..value.floor_char_boundary(MOST_BYTES)];
            self.0.add(stable(value.as_bytes()), || value.to_owned());
        }
    }

    /// The values with the most requests, the most frequent first, and how many they have at least.
    pub fn top(&self, most: usize) -> Vec<(&str, u64)> {
        let counters = self.0.counters();
        let mut all: Vec<(&str, u64)> =
            counters.map(|(_, counter)| (counter.text.as_str(), counter.count - counter.error)).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        all.truncate(most);
        all
    }
}

impl Impact {
    pub(super) fn new(side: &Side, max_ids: usize) -> Self {
        let limits = side.rules.limits().iter();
        let limits = limits.map(|limit| LimitIds { period: period(limit), ..LimitIds::default() }).collect();
        Self { limits, room: max_ids, detail_room: MOST_DETAILED }
    }

    /// Counts a request that was decided at `now`.
    pub(super) fn count(&mut self, side: &Side, now: Micros, asked: &Asked, outcomes: &[LimitOutcome], seen: &Seen) {
        for outcome in outcomes {
            let Some(limit) = self.limits.get_mut(outcome.limit as usize) else { continue };
            let denied = denied_by(side, outcome);
            if outcome.is_denied {
                limit.breakdown.add(seen);
            }
            let Some(id) = outcome.id else {
                limit.without_id += u64::from(outcome.is_denied);
                continue;
            };
            let period = now.0.checked_div(limit.period).unwrap_or_default();
            if !limit.ids.contains_key(&id) {
                if self.room == 0 {
                    limit.unlisted += u64::from(denied.iter().any(Option::is_some));
                    continue;
                }
                self.room -= 1;
            }
            let known = limit.ids.entry(id).or_insert_with(|| IdUse::new(now, period));
            known.count(now, period, seen);
            for (place, by) in denied.into_iter().enumerate() {
                let (Some(by), Some(list)) = (by, known.denied.get_mut(place)) else { continue };
                if list.is_none() {
                    if self.detail_room == 0 {
                        limit.unlisted += 1;
                        continue;
                    }
                    self.detail_room -= 1;
                }
                let denied = list.get_or_insert_with(|| {
                    let id = id_parts(side, asked, outcome);
                    let breakdown = Breakdown::default();
                    Box::new(Denied { by, id, requests: 0, first: now, last: now, breakdown })
                });
                (denied.requests, denied.last) = (denied.requests + 1, now);
                denied.breakdown.add(seen);
            }
        }
    }

    /// In the order of the limits.
    pub(super) fn into_report(self) -> impl Iterator<Item = LimitImpact> {
        self.limits.into_iter().map(|limit| {
            let LimitIds { period, ids, breakdown, unlisted, without_id } = limit;
            let mut ids: Vec<IdImpact> = ids.into_values().flat_map(|known| known.into_report(period)).collect();
            ids.sort_by(|a, b| b.denied.cmp(&a.denied).then_with(|| a.id.cmp(&b.id)));
            LimitImpact { ids, breakdown, unlisted, without_id }
        })
    }
}

/// The limit and each of its candidates, as far as they deny the request.
fn denied_by(side: &Side, outcome: &LimitOutcome) -> [Option<DeniedBy>; 1 + MOST_CANDIDATES] {
    let by = if outcome.is_enforced { DeniedBy::Limit } else { DeniedBy::Shadow };
    let mut all: [_; 1 + MOST_CANDIDATES] = Default::default();
    all[0] = outcome.is_denied.then_some(by);
    for ((place, denies), by) in (0..).zip(outcome.candidates_deny).zip(&mut all[1..]) {
        let candidate = side.rules.candidate(outcome.limit, place).filter(|_| denies == Some(true));
        *by = candidate.map(|candidate| DeniedBy::Candidate(candidate.name.clone()));
    }
    all
}

/// Gives a denied request to `sink`, once for each limit or candidate that denies it.
pub(super) fn tell(
    sink: &mut DeniedSink<'_>,
    side: &Side,
    at: Micros,
    asked: &Asked,
    outcomes: &[LimitOutcome],
    seen: &Seen,
) {
    for outcome in outcomes {
        for by in denied_by(side, outcome).into_iter().flatten() {
            let (limit, id) = (side.rules.name(outcome.limit), outcome.id.map(|_| id_parts(side, asked, outcome)));
            sink(&DeniedRequest { at, limit, by, id, seen });
        }
    }
}

impl IdUse {
    fn new(now: Micros, period: u64) -> Self {
        Self {
            requests: 0,
            first: now,
            last: now,
            squares: 0.0,
            period,
            in_period: 0,
            peak: 0,
            peak_period: period,
            unauthorized: 0,
            not_found: 0,
            agents: SmallVec::new(),
            denied: Default::default(),
        }
    }

    fn count(&mut self, now: Micros, period: u64, seen: &Seen) {
        self.requests += 1;
        let gap = seconds(now.0.saturating_sub(self.last.0));
        self.squares += gap * gap;
        self.last = now;
        if self.period != period {
            (self.period, self.in_period) = (period, 0);
        }
        self.in_period = self.in_period.saturating_add(1);
        if self.in_period > self.peak {
            (self.peak, self.peak_period) = (self.in_period, period);
        }
        self.unauthorized += u64::from(seen.status == Some(401));
        self.not_found += u64::from(seen.status == Some(404));
        let agent = seen.agent.as_deref().map(|agent| stable(agent.as_bytes()));
        let is_new = |agent: &u64| self.agents.len() < MOST_AGENTS && !self.agents.contains(agent);
        let agent = agent.filter(is_new);
        self.agents.extend(agent);
    }

    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    fn pace(&self) -> Option<Pace> {
        let gaps = self.requests.checked_sub(1).filter(|gaps| *gaps > 1)? as f64;
        let mean = seconds(self.last.0 - self.first.0) / gaps;
        let variance = (self.squares / gaps - mean * mean).max(0.0);
        (mean > 0.0).then(|| Pace { mean, variation: variance.sqrt() / mean })
    }

    fn into_report(mut self, period: u64) -> impl Iterator<Item = IdImpact> {
        let pace = self.pace();
        let peak_at = if period == 0 { self.first } else { Micros(self.peak_period * period) };
        std::mem::take(&mut self.denied).into_iter().flatten().map(move |denied| IdImpact {
            by: denied.by,
            id: denied.id,
            requests: self.requests,
            denied: denied.requests,
            first: denied.first,
            last: denied.last,
            peak: self.peak,
            peak_at,
            unauthorized: self.unauthorized,
            not_found: self.not_found,
            agents: self.agents.len(),
            pace,
            breakdown: denied.breakdown,
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "gaps between requests")]
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_tells_a_clock_from_bursts() {
        let pace = |gaps: &[u64]| {
            let mut now = Micros(1_000_000_000);
            let mut id = IdUse::new(now, 0);
            id.count(now, 0, &Seen::default());
            for gap in gaps {
                now = now.after(Micros(gap * 1_000_000));
                id.count(now, 0, &Seen::default());
            }
            id.pace()
        };
        assert_eq!(pace(&[5, 5, 5]), Some(Pace { mean: 5.0, variation: 0.0 }));
        assert_eq!(pace(&[0, 10]), Some(Pace { mean: 5.0, variation: 1.0 }));
        assert_eq!([pace(&[]), pace(&[5]), pace(&[0, 0])], [None; 3]);
    }

    #[test]
    fn values_keep_the_most_frequent() {
        let mut values = Values::default();
        for number in 0..1_000 {
            values.add(Some(&format!("/rare/{number}")));
            values.add(Some("/often"));
        }
        let top = values.top(5);
        assert_eq!(top[0].0, "/often");
        assert!((900..=1_000).contains(&top[0].1) && top[1..].iter().all(|(_, count)| *count == 1), "{top:?}");
        values.add(Some(&"ä".repeat(1_000)));
    }
}
