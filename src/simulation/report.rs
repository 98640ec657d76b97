//! The report of a simulation.

use super::against::Comparison;
use super::coverage::Missing;
pub use super::most_denied::DeniedId;
use super::series::Series;
use super::suggestion::Suggestion;
use crate::engine::algorithms::micros::Micros;

/// The unreadable lines that a report shows.
pub const SHOWN_LINES: usize = 5;

/// The result of a simulation.
#[derive(Clone, Debug)]
pub struct Report {
    pub lines: LineCounts,
    /// The first unreadable lines.
    pub unreadable: Vec<UnreadableLine>,
    /// The arrival of the first and of the last request.
    pub span: Option<(Micros, Micros)>,
    /// The requests that the rules decided.
    pub requests: u64,
    /// Requests that came too far out of order; they were decided at the time that the clock had reached.
    pub late: u64,
    /// Charges to a bucket that ids share beyond `--max-keys`.
    pub overflowed: u64,
    /// Requests for which two limits have the same bucket.
    pub undecided: u64,
    /// Instants are whole multiples of this.
    pub precision: Micros,
    pub side: SideReport,
    /// The report on the other rules.
    pub other: Option<SideReport>,
    pub comparison: Option<Comparison>,
}

/// Lines of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    pub lines: u64,
    pub unreadable: u64,
    /// Lines that tell of no request.
    pub other: u64,
    /// Requests that are rejected before any limit.
    pub rejected: u64,
    /// Requests whose cost is not a number, which are rejected, too.
    pub invalid: u64,
}

/// A line that tells no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableLine {
    pub file: String,
    pub line: u64,
    pub reason: String,
}

/// The effect of one rules file on the log.
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
pub struct LimitReport {
    pub name: String,
    pub status: Status,
    /// False in shadow.
    pub is_enforced: bool,
    /// For people; empty if it has none.
    pub numbers: String,
    pub requests: u64,
    /// Requests that it denies, or would deny if it were not in shadow.
    pub denied: u64,
    /// The part of `denied` that belongs to ids for which the limit is in shadow.
    pub denied_in_shadow: u64,
    /// Requests that its candidate would deny; `None` if it has none.
    pub candidate_denied: Option<u64>,
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

impl LineCounts {
    pub(super) fn add(&mut self, more: &Self) {
        self.lines += more.lines;
        self.unreadable += more.unreadable;
        self.other += more.other;
        self.rejected += more.rejected;
        self.invalid += more.invalid;
    }
}
