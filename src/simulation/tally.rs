//! Counts the denials of the limits of one side.

use super::coverage::{Missing, needs};
use super::curve::Curves;
use super::ids::IdTable;
use super::load::Histogram;
use super::most_denied::{MostDenied, top};
use super::record::{Record, why_none};
use super::replay::{LimitOutcome, Replay};
use super::report::{CandidateReport, Delays, LimitLeftOut, LimitReport, Load, SideReport, Status};
use super::requests::{Asked, Side};
use super::series::Series;
use super::suggestion::Goal;
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::candidate::{Candidate, MOST_CANDIDATES};
use crate::engine::limit::{Limit, LimitMode};
use crate::message::lossless::shown;
use crate::message::percent::decode;

/// The counts of one side.
pub(super) struct Tally {
    limits: Vec<LimitTally>,
    /// The first column is that of all requests, the others are those of the limits.
    series: Series,
    /// The number of ids that may still be added, of all limits.
    room: usize,
    /// The number of charges that may still be recorded, of all limits.
    record_room: usize,
    denied: u64,
    delays: DelayTally,
}

#[derive(Default)]
struct LimitTally {
    left_out: Vec<LimitLeftOut>,
    requests: u64,
    exempt: u64,
    bans: u64,
    warnings: u64,
    denied: u64,
    denied_in_shadow: u64,
    /// By candidate: requests that it decided beside the id's numbers, and denied.
    candidates: [(u64, u64); MOST_CANDIDATES],
    first: Option<Micros>,
    last: Option<Micros>,
    ids: IdTable,
    most_denied: MostDenied,
    /// In microseconds; 0 stands for the whole log.
    period: u64,
    record: Option<Record>,
    delays: DelayTally,
}

/// Delays in milliseconds, rounded up.
#[derive(Default)]
struct DelayTally(Histogram);

/// The options of a tally.
#[derive(Clone, Copy)]
pub(super) struct TallyOptions {
    pub(super) max_ids: usize,
    pub(super) max_charges: usize,
    pub(super) keeps_record: bool,
}

/// What is to be found out at the end.
#[derive(Clone, Copy)]
pub(super) struct Ending {
    pub(super) goal: Goal,
    pub(super) has_curves: bool,
    /// The most denied ids.
    pub(super) most: usize,
    pub(super) threads: usize,
    /// The length of the log, and its requests.
    pub(super) spans: Micros,
    pub(super) requests: u64,
}

impl Tally {
    pub(super) fn new(side: &Side, options: &TallyOptions) -> Self {
        let limits: Vec<LimitTally> = side
            .rules
            .limits()
            .iter()
            .map(|limit| LimitTally {
                period: period(limit),
                record: options.keeps_record.then(|| Record::of(limit)).flatten(),
                ..LimitTally::default()
            })
            .collect();
        let series = Series::new(limits.len() + 1);
        Self {
            limits,
            series,
            room: options.max_ids,
            record_room: options.max_charges,
            denied: 0,
            delays: DelayTally::default(),
        }
    }

    /// Counts lines for a limit that they say too little for.
    pub(super) fn leave_out(&mut self, limit: u32, more: LimitLeftOut) {
        let Some(tally) = self.limits.get_mut(limit as usize) else { return };
        match tally.left_out.iter_mut().find(|left| left.lacks == more.lacks) {
            Some(left) => left.lines += more.lines,
            None => tally.left_out.push(more),
        }
    }

    /// Counts a request that was decided at `now`.
    pub(super) fn count(&mut self, side: &Side, now: Micros, is_denied: bool, asked: &Asked, replay: &Replay) {
        let outcomes = &replay.outcomes;
        if !is_denied && side.rules.has_delays() {
            self.delays.add(replay.wait());
            for outcome in outcomes {
                if let Some(tally) = self.limits.get_mut(outcome.limit as usize) {
                    tally.delays.add(outcome.delay);
                }
            }
        }
        let mut add = |limits: &[u32], one: fn(&mut LimitTally) -> &mut u64| {
            for limit in limits {
                self.limits.get_mut(*limit as usize).into_iter().for_each(|tally| *one(tally) += 1);
            }
        };
        add(&asked.deciding.plan.exempt, |tally| &mut tally.exempt);
        add(&replay.bans, |tally| &mut tally.bans);
        add(&replay.warnings, |tally| &mut tally.warnings);
        let place = self.series.place(now);
        self.series.count(0, place, is_denied);
        self.denied += u64::from(is_denied);
        for outcome in outcomes {
            let Some(tally) = self.limits.get_mut(outcome.limit as usize) else { continue };
            self.series.count(outcome.limit as usize + 1, place, outcome.is_denied);
            tally.requests += 1;
            for ((requests, denied), denies) in tally.candidates.iter_mut().zip(outcome.candidates_deny) {
                *requests += u64::from(denies.is_some());
                *denied += u64::from(denies == Some(true));
            }
            if outcome.is_denied {
                tally.denied += 1;
                tally.denied_in_shadow += u64::from(!outcome.is_enforced);
                tally.first = tally.first.or(Some(now));
                tally.last = Some(now);
                if let Some(id) = outcome.id {
                    tally.most_denied.add(id, || id_text(side, asked, outcome));
                }
            }
            let period = now.0.checked_div(tally.period).unwrap_or_default();
            let number = outcome.id.and_then(|id| tally.ids.count(id, period, outcome.is_denied, &mut self.room));
            if let Some(record) = &mut tally.record {
                // Each descriptor of a call has its charge.
                let is_own = |charge: &&Charge| charge.origin.limit == outcome.limit && !charge.origin.is_beside();
                if asked.deciding.plan.joint.is_some()
                    && asked.deciding.plan.charges.iter().filter(is_own).nth(1).is_some()
                {
                    record.refuse_several();
                }
                // A request that is denied before the store is asked charges nothing, whatever the numbers.
                let charge = outcome.charge.filter(|_| !asked.deciding.plan.is_denied());
                let charge = charge.and_then(|place| asked.deciding.plan.charges.get(place));
                let is_denied_by_others = is_denied
                    && outcomes
                        .iter()
                        .any(|other| other.limit != outcome.limit && other.is_denied && other.is_enforced);
                record.add(now, charge, number, outcome.is_denied, is_denied_by_others, &mut self.record_room);
            }
        }
    }

    pub(super) fn into_report(mut self, side: &Side, ending: &Ending) -> SideReport {
        let tallies = std::mem::take(&mut self.limits);
        let limits = (0..).zip(tallies).zip(side.rules.limits());
        let limits = limits.map(|((index, mut tally), limit)| {
            let lacking: u64 = tally.left_out.iter().map(|left| left.lines).sum();
            let missing = side.coverage.missing_for(index, lacking < ending.requests);
            let status = if limit.mode == LimitMode::Off {
                Status::Off
            } else if missing.is_empty() {
                Status::Covered
            } else {
                tally.left_out.clear();
                Status::NotCovered(missing.to_vec())
            };
            tally.into_report(limit, status, self.series.worst(index + 1), ending)
        });
        let delays = side.rules.has_delays().then(|| self.delays.into_report());
        SideReport { denied: self.denied, delays, limits: limits.collect(), series: self.series }
    }
}

impl DelayTally {
    fn add(&mut self, delay: Micros) {
        if delay > Micros(0) {
            self.0.add(u32::try_from(delay.0.div_ceil(1_000)).unwrap_or(u32::MAX));
        }
    }

    fn into_report(self) -> Delays {
        let [p50, p99, most] = [self.0.quantile(500), self.0.quantile(990), self.0.most()];
        let [p50, p99, most] = [p50, p99, most].map(|millis| Micros::from_millis(millis.into()));
        Delays { requests: self.0.total(), p50, p99, most }
    }
}

fn candidate_report((candidate, (requests, denied)): (&Candidate, (u64, u64))) -> CandidateReport {
    let Candidate { name, allowance, enforce_for } = candidate;
    CandidateReport { name: name.clone(), numbers: numbers(allowance), enforce_for: *enforce_for, requests, denied }
}

impl LimitTally {
    fn into_report(self, limit: &Limit, status: Status, worst: Option<(Micros, u64)>, ending: &Ending) -> LimitReport {
        let (ids, ids_denied, ids_are_estimates) = (self.ids.len(), self.ids.denied(), self.ids.is_estimate());
        let is_asked = status == Status::Covered && (ending.goal.is_given() || ending.has_curves);
        let record = match self.record {
            Some(mut record) => record.complete().map(|()| record),
            None => Err(why_none(limit)),
        };
        let record = is_asked.then_some(record);
        let suggestion = record.as_ref().filter(|_| ending.goal.is_given());
        let suggestion = suggestion.map(|record| record.as_ref().map(|record| ending.goal.suggest(record, ids)));
        let curves = record
            .as_ref()
            .filter(|_| ending.has_curves)
            .map(|record| record.as_ref().map(|record| Curves::of(record, ids, ending.spans, ending.threads)));
        let suggestion = suggestion.map(|suggestion| suggestion.map_err(|why| *why));
        let curves = curves.map(|curves| curves.map_err(|why| *why));
        let has_slots = limit.counts_in_flight();
        let load = self.ids.into_load();
        LimitReport {
            name: limit.name.clone(),
            status,
            is_enforced: limit.is_enforced(),
            numbers: numbers(&limit.allowance),
            left_out: self.left_out,
            reads: reads(limit),
            requests: self.requests,
            exempt: self.exempt,
            bans: limit.ban.as_ref().map(|_| self.bans),
            warnings: limit.warn_at.as_ref().map(|_| self.warnings),
            denied: self.denied,
            denied_in_shadow: self.denied_in_shadow,
            candidates: limit.candidates.iter().zip(self.candidates).map(candidate_report).collect(),
            ids,
            ids_denied,
            ids_are_estimates,
            first: self.first,
            last: self.last,
            worst,
            most_denied: top(self.most_denied, ending.most),
            delays: limit.delay.map(|_| self.delays.into_report()),
            load: (!load.is_empty() && !has_slots).then(|| Load {
                period: (self.period > 0).then_some(Micros(self.period)),
                p50: load.quantile(500),
                p99: load.quantile(990),
                p999: load.quantile(999),
                most: load.most(),
            }),
            suggestion,
            curves,
            impact: None,
        }
    }
}

/// The period of a limit's first window in microseconds; 0 if it has none.
pub(super) fn period(limit: &Limit) -> u64 {
    let first = limit.allowance.windows().and_then(|windows| windows.first());
    first.map_or(0, |numbers| numbers.period() / 1_000)
}

fn reads(limit: &Limit) -> Vec<Missing> {
    let mut reads = needs(limit);
    reads.sort();
    reads.dedup();
    reads
}

fn numbers(allowance: &Allowance) -> String {
    let windows = allowance.windows().map(|windows| windows.iter().map(ToString::to_string));
    windows.map_or_else(String::new, |windows| windows.collect::<Vec<_>>().join(" and "))
}

/// The id of a request for a limit, as text.
pub(super) fn id_text(side: &Side, asked: &Asked, outcome: &LimitOutcome) -> String {
    id_parts(side, asked, outcome).join(":")
}

/// The parts of the id of a request for a limit.
pub(super) fn id_parts(side: &Side, asked: &Asked, outcome: &LimitOutcome) -> Vec<String> {
    let Some(charge) = outcome.charge.and_then(|place| asked.deciding.plan.charges.get(place)) else {
        let known = asked.uncharged.iter().find(|(limit, ..)| *limit == outcome.limit);
        return known.map(|(.., id)| vec![id.clone()]).unwrap_or_default();
    };
    let key = &charge.bucket.key;
    let short = side.rules.limit(outcome.limit).map_or("", |limit| &limit.short);
    let id = key.strip_prefix(short).and_then(|id| id.strip_prefix(':')).unwrap_or_default();
    let id = id.split('#').next().unwrap_or_default();
    let parts = id.split(':').filter(|_| !id.is_empty());
    parts.map(|part| shown(&decode(part)).into_owned()).collect()
}
