//! Whom a change hits: the requests of access logs, decided by the old rules and by the new ones.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::thread::available_parallelism;

use serde_json::{Value, json};

use super::super::exit::Failure;
use super::super::print::counted;
use super::super::simulate::left_out;
use crate::engine::rules::rule_set::Rules;
use crate::logs::format::Format;
use crate::logs::input::Blocks;
use crate::simulation::report::{LeftOut, SideReport, Status};
use crate::simulation::{self, Options};
use crate::store::memory::DEFAULT_MAX_KEYS;

/// The requests of a log that two rules files decide differently.
#[derive(Debug)]
pub(super) struct LogHits {
    requests: u64,
    unreadable: u64,
    /// What the numbers do not cover.
    left_out: Vec<String>,
    left_out_json: Value,
    /// The requests that a limit had already denied.
    denied_before: Option<String>,
    /// Why the numbers cannot be relied on.
    pub(super) doubt: Option<String>,
    /// Some limit of either file decided a request.
    decides: bool,
    /// Requests that only the new rules deny, and only the old ones.
    denied: u64,
    passed: u64,
    limits: Vec<LimitHits>,
    /// The limits of the new rules that the log says too little for.
    uncovered: Vec<String>,
}

/// The requests and ids that a limit denies under only one of the files.
#[derive(Debug)]
struct LimitHits {
    name: String,
    denied: (u64, u64),
    passed: (u64, u64),
}

impl LogHits {
    /// Decides the requests of the logs by both rules.
    pub(super) fn of(logs: &[PathBuf], format: Option<&str>, old: Rules, new: Rules) -> Result<Self, Failure> {
        let format = format.map(Format::named).transpose();
        let format = format.map_err(|error| Failure::usage(format!("--log-format: {error}")))?;
        let blocks = Blocks::open(logs, format.as_ref()).map_err(Failure::could_not_start)?;
        let lines = AtomicU64::new(0);
        let threads = available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1));
        let options = Options { threads, max_keys: DEFAULT_MAX_KEYS, goal: None, top: 0, lines: &lines };
        let report = simulation::run(blocks, new, Some(old), &options);
        let unreadable = report.lines.left_out(LeftOut::Unreadable);
        if report.lines.lines == unreadable {
            return Err(Failure::could_not_start("no line of the logs could be read; see --log-format"));
        }
        let decides = report.side.decides() || report.other.as_ref().is_some_and(SideReport::decides);
        let left_out = left_out::sentences(&report, false);
        let (left_out_json, doubt) = (left_out::json(&report, false), left_out::doubt(&report, decides));
        let denied_before = left_out::denied_before(&report);
        let comparison = report.comparison.unwrap_or_default();
        let limits = comparison.limits.into_iter().map(|limit| LimitHits {
            name: limit.name,
            denied: (limit.only_here.requests, limit.only_here.ids),
            passed: (limit.only_there.requests, limit.only_there.ids),
        });
        let uncovered = report.side.limits.iter().filter(|limit| matches!(limit.status, Status::NotCovered(_)));
        Ok(Self {
            requests: report.requests,
            unreadable,
            left_out,
            left_out_json,
            denied_before,
            doubt,
            decides,
            denied: comparison.only_here,
            passed: comparison.only_there,
            limits: limits.collect(),
            uncovered: uncovered.map(|limit| limit.name.clone()).collect(),
        })
    }

    /// What was left out, a line for the rest of the log as a whole, and one for each limit that decides otherwise.
    pub(super) fn lines(&self) -> Vec<String> {
        let Self { requests, denied, passed, .. } = self;
        let mut lines = self.left_out.clone();
        let of = if lines.is_empty() { "requests in the log" } else { "requests that were read" };
        lines.push(if self.decides {
            format!("of {requests} {of}, {denied} would be newly denied and {passed} would newly pass")
        } else {
            format!("no limit decided any of {requests} {of}")
        });
        lines.extend(self.denied_before.clone());
        let shown = |(requests, ids): (u64, u64)| {
            let number = |number: u64, what| counted(usize::try_from(number).unwrap_or(usize::MAX), what);
            format!("{} of {}", number(requests, "request"), number(ids, "id"))
        };
        for LimitHits { name, denied, passed } in &self.limits {
            lines.push(format!("{name}: newly denies {}, no longer denies {}", shown(*denied), shown(*passed)));
        }
        if !self.uncovered.is_empty() {
            lines.push(format!("not covered by this log: {}", self.uncovered.join(", ")));
        }
        lines
    }

    pub(super) fn json(&self) -> Value {
        let side = |(requests, ids): (u64, u64)| json!({ "requests": requests, "ids": ids });
        let limits = self.limits.iter().map(|limit| {
            let value = json!({ "newly_denied": side(limit.denied), "newly_passed": side(limit.passed) });
            (limit.name.clone(), value)
        });
        json!({
            "requests": self.requests,
            "unreadable": self.unreadable,
            "left_out": self.left_out_json,
            "newly_denied": self.denied,
            "newly_passed": self.passed,
            "limits": limits.collect::<serde_json::Map<_, _>>(),
            "not_covered": self.uncovered,
        })
    }
}
