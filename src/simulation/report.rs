//! The report of a simulation.

use std::sync::Arc;

use super::against::Comparison;
use super::coverage::Missing;
use super::curve::Curves;
use super::impact::LimitImpact;
pub use super::most_denied::DeniedId;
use super::series::Series;
use super::suggestion::Suggestion;
use crate::engine::algorithms::micros::Micros;
use crate::logs::RecordingEnd;

/// The lines that were left out for one reason that a report has as examples.
pub const MOST_EXAMPLES: usize = 5;

/// The percentage of a log's lines that may be unread.
pub const MOST_UNREAD: u64 = 1;

/// The result of a simulation.
#[derive(Debug)]
pub struct Report {
    pub lines: LineCounts,
    /// The first lines that were left out for each reason, at most [`MOST_EXAMPLES`], in the order of the log.
    pub examples: Vec<Example>,
    /// Why files were not read to their end.
    pub interrupted: Vec<String>,
    /// Files of directories that were not read, because their names are those of error logs.
    pub error_logs: Vec<String>,
    /// The arrival of the first and of the last request.
    pub span: Option<(Micros, Micros)>,
    /// The requests that the rules decided.
    pub requests: u64,
    /// Those of them that the server had answered with 429.
    pub answered_429: u64,
    /// Those that came from a private address and name another client, though no proxy there is trusted.
    pub maybe_proxied: u64,
    /// All of them came from the same private address, and a limit reads it.
    pub has_one_private_client: bool,
    /// Lines with members that the first lines of the log lack, and the first of these lines.
    pub new_members: u64,
    pub new_member: Option<Example>,
    pub recordings: Vec<RecordingReport>,
    /// Requests that came too far out of order; they were decided at the time that the clock had reached.
    pub late: u64,
    /// Charges to a bucket that ids share beyond `--max-keys`.
    pub overflowed: u64,
    /// Costs that were settled before their responses ended, because more responses than `--max-keys` were in flight.
    pub settled_early: u64,
    /// Requests for which two limits have the same bucket.
    pub undecided: u64,
    /// Instants are whole multiples of this.
    pub precision: Micros,
    /// The logs contain when requests arrive, and not only when responses end.
    pub is_arrival: bool,
    pub side: SideReport,
    /// The report on the other rules.
    pub other: Option<SideReport>,
    pub comparison: Option<Comparison>,
}

/// A recording among the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingReport {
    pub file: String,
    /// `None` if its last line is missing.
    pub end: Option<RecordingEnd>,
    /// The lines with requests and calls, those that cannot be read included.
    pub lines: u64,
}

/// Lines of the log. Each tells a request that was decided, or was left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    pub lines: u64,
    /// In the order of [`LeftOut::ALL`].
    left_out: [u64; LeftOut::ALL.len()],
}

/// The reason why a line was not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// A limit reads the client's address, and the line has none or something else in its place.
    NoClient,
    /// The line does not fit its format.
    Unreadable,
    /// The request is rejected before any limit: by its server, or because it is malformed.
    Rejected,
    /// The request is rejected because its entry for a queue is too large.
    InvalidEntry,
    /// Limits came with the call, and the recording does not keep them.
    CarriesLimits,
    /// The line tells of no request.
    NoRequest,
}

/// A line of which something was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    pub reason: LeftOut,
    pub file: String,
    pub line: u64,
    /// For [`LeftOut::NoClient`], what is in the client's place; for [`LeftOut::Unreadable`], what was expected; for a new member,
    /// its name.
    pub found: String,
}

/// The effect of one rules file on the log.
#[derive(Debug)]
pub struct SideReport {
    /// Requests that enforced limits deny.
    pub denied: u64,
    /// `None` if no limit has `delay`.
    pub delays: Option<Delays>,
    /// In the order of the rules.
    pub limits: Vec<LimitReport>,
    /// The first column is that of all requests, where only enforced limits deny. The others are those of the limits, in their
    /// order, where limits in shadow count as if they denied.
    pub series: Series,
}

/// The effect of one limit on the log.
#[derive(Debug)]
pub struct LimitReport {
    pub name: String,
    pub status: Status,
    /// False in shadow.
    pub is_enforced: bool,
    /// For people; empty if it has none.
    pub numbers: String,
    /// The lines that lack a part which it reads: a count for each part, with the first line.
    pub left_out: Vec<LimitLeftOut>,
    /// The parts of a request that it reads.
    pub reads: Vec<Missing>,
    pub requests: u64,
    /// Requests that it covers, and that are exempt from it.
    pub exempt: u64,
    /// The bans that it makes, or would make if it were not in shadow; `None` if it has no `ban`.
    pub bans: Option<u64>,
    /// The warnings of ids that have used a share of it; `None` if it has no `warn_at`.
    pub warnings: Option<u64>,
    /// Requests that it denies, or would deny if it were not in shadow.
    pub denied: u64,
    /// The part of `denied` that belongs to ids for which the limit is in shadow.
    pub denied_in_shadow: u64,
    pub candidates: Vec<CandidateReport>,
    /// `None` if it has no `delay`.
    pub delays: Option<Delays>,
    pub ids: u64,
    pub ids_denied: u64,
    /// The numbers of ids are estimates, within 2 % of the ids beyond the bound.
    pub ids_are_estimates: bool,
    /// The first and the last denial.
    pub first: Option<Micros>,
    pub last: Option<Micros>,
    /// The start of the slice of the series with the most denials, and these.
    pub worst: Option<(Micros, u64)>,
    pub most_denied: Vec<DeniedId>,
    pub load: Option<Load>,
    /// The error is the reason why no numbers were searched. `None` if no share was given.
    pub suggestion: Option<Result<Suggestion, &'static str>>,
    /// What other numbers would deny, or why that is not known. `None` if nobody asked for it.
    pub curves: Option<Result<Curves, &'static str>>,
    /// `None` if nobody asked for it.
    pub impact: Option<LimitImpact>,
}

/// Requests that a limit did not decide, because their lines lack a part that it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitLeftOut {
    pub lacks: Missing,
    pub lines: u64,
    /// The first line.
    pub file: String,
    pub line: u64,
}

/// The effect of a candidate.
#[derive(Clone, Debug)]
pub struct CandidateReport {
    pub name: Option<Arc<str>>,
    /// For people.
    pub numbers: String,
    /// The share of ids that have these numbers in place of the limit's, in parts per
    /// [`WHOLE_SHARE`](crate::engine::limit::WHOLE_SHARE).
    pub enforce_for: u32,
    /// Requests of the other ids, for which it is decided beside the limit's numbers.
    pub requests: u64,
    /// Those of them that it would deny.
    pub denied: u64,
}

/// The requests that would wait and then pass, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    pub requests: u64,
    pub p50: Micros,
    pub p99: Micros,
    pub most: Micros,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    Covered,
    /// The log lacks this.
    NotCovered(Vec<Missing>),
    Off,
}

/// Requests per id and period, of periods with at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// `None` stands for the whole log.
    pub period: Option<Micros>,
    pub p50: u32,
    pub p99: u32,
    pub p999: u32,
    pub most: u32,
}

impl LeftOut {
    pub const ALL: [Self; 6] =
        [Self::NoClient, Self::Unreadable, Self::Rejected, Self::InvalidEntry, Self::CarriesLimits, Self::NoRequest];
}

impl LineCounts {
    pub const fn left_out(&self, reason: LeftOut) -> u64 {
        self.left_out[reason as usize]
    }

    /// Lines whose requests, if they are requests, are unknown.
    pub const fn unread(&self) -> u64 {
        self.left_out(LeftOut::NoClient) + self.left_out(LeftOut::Unreadable)
    }

    pub(super) fn leave_out(&mut self, reason: LeftOut) {
        self.left_out[reason as usize] += 1;
    }

    pub(super) fn add(&mut self, more: &Self) {
        self.lines += more.lines;
        for (count, more) in self.left_out.iter_mut().zip(more.left_out) {
            *count += more;
        }
    }
}

impl Report {
    /// Lines that were decided at their time, and all lines about requests.
    pub const fn coverage(&self) -> (u64, u64) {
        (self.requests - self.late - self.undecided, self.lines.lines - self.lines.left_out(LeftOut::NoRequest))
    }

    /// Returns true if each line was read and each request decided.
    pub fn is_whole(&self) -> bool {
        let is_whole = |recording: &RecordingReport| {
            recording.end.is_some_and(|end| end.dropped == 0) && !recording.is_miscounted()
        };
        let mut limits = self.sides().flat_map(|side| &side.limits);
        self.lines.unread() == 0
            && self.undecided == 0
            && self.interrupted.is_empty()
            && self.recordings.iter().all(is_whole)
            && limits.all(|limit| limit.left_out.is_empty())
    }

    /// The report on these rules, and that on the others.
    pub fn sides(&self) -> impl Iterator<Item = &SideReport> {
        [&self.side].into_iter().chain(&self.other)
    }

    /// A limit that must not be relied on, because its part of the log is too small.
    pub fn too_much_left_out(&self) -> Option<&LimitReport> {
        let mut limits = self.sides().flat_map(|side| &side.limits);
        limits.find(|limit| {
            let lines = |of_all: bool| {
                let lacking = limit.left_out.iter().filter(|left| of_all || left.lacks.is_of_each_request());
                lacking.map(|left| left.lines).sum::<u64>()
            };
            lines(false) * 100 > self.lines.lines * MOST_UNREAD || (limit.requests == 0 && lines(true) > 0)
        })
    }

    /// Returns true if too much of the log was not read for the report to be relied on.
    pub fn is_too_much_unread(&self) -> bool {
        self.lines.unread() * 100 > self.lines.lines * MOST_UNREAD || !self.interrupted.is_empty()
    }
}

impl RecordingReport {
    /// Returns true if the last line counts other lines than there are.
    pub fn is_miscounted(&self) -> bool {
        self.end.and_then(|end| end.kept).is_some_and(|kept| kept != self.lines)
    }
}

impl SideReport {
    /// Returns true if some limit decided a request.
    pub fn decides(&self) -> bool {
        self.limits.iter().any(|limit| limit.requests > 0)
    }

    /// The limits that are not off.
    pub fn active(&self) -> impl Iterator<Item = &LimitReport> {
        self.limits.iter().filter(|limit| limit.status != Status::Off)
    }
}
