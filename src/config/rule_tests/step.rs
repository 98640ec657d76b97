//! The steps of a test: what is asked, when, and what is expected.

use super::super::mapping::{Mapping, all, find};
use super::super::node::{Key, Node, Value};
use super::super::problem::{ReadResult, quoted};
use super::expectation::{self, Expectation};
use super::subject::{self, Kind, Subject};
use super::{Known, span};
use crate::engine::algorithms::micros::{EXACT, Micros};

/// The keys that any step may have.
pub(in super::super) const TIME_KEYS: [&str; 5] = ["at", "after", "repeat", "every", "expect"];

/// The requests of one step. A longer run is a load test, not a test of rules.
pub const MOST_REPEATED: u64 = 100_000;

/// One request or charge, or several like it.
#[derive(Clone, Debug)]
pub struct Step {
    /// The place in the file.
    pub line: u32,
    /// Time of the first request since the test's start.
    pub at: Micros,
    /// At least 1.
    pub repeat: u64,
    /// The time between two.
    pub every: Micros,
    pub subject: Subject,
    pub expectation: Option<Expectation>,
}

/// The times of a step's requests.
struct Timing {
    at: Option<Micros>,
    after: Option<Micros>,
    repeat: u64,
    every: Micros,
}

/// Reads the steps of a test and sets their times.
pub(super) fn read_all(list: &[Node], limits: Known<'_>) -> ReadResult<Vec<Step>> {
    let mut now = Micros(0);
    let read = list.iter().map(|node| read(node, limits, &mut now));
    all(read)
}

/// Reads a step. `now` is when the last one ended, since the test's start.
fn read(node: &Node, limits: Known<'_>, now: &mut Micros) -> ReadResult<Step> {
    let known: Vec<&str> = TIME_KEYS.into_iter().chain(subject::keys()).collect();
    let map = Mapping::of(node, "a step", &known)?;
    let timing = timing(&map);
    let kind = Kind::of(&map);
    let subject = kind.and_then(|kind| subject::read(kind, &map, limits));
    let is_repeated = map.get("repeat").is_some();
    let expectation = map.read("expect", |node| expectation::read(node, limits, is_repeated));
    let fits = subject.as_ref().map_or(Ok(()), |subject| check_comparable(&map, subject));
    let (timing, subject, expectation) = (timing?, subject?, expectation?);
    fits?;
    let at = match (timing.at, timing.after) {
        (Some(at), _) if at < *now => {
            let help = "order the steps by time, or use `after`, the time since the last one";
            return Err(map.value("at").error("the step is before the end of the last one", help));
        }
        (Some(at), _) => at,
        (None, after) => now.after(after.unwrap_or_default()),
    };
    let last = at.0.checked_add(timing.every.0.saturating_mul(timing.repeat - 1)).filter(|last| *last < EXACT / 2);
    let Some(last) = last else { return Err(node.error("the test takes longer than 142 years", "shorten it")) };
    *now = Micros(last);
    let Timing { repeat, every, .. } = timing;
    Ok(Step { line: node.place.line, at, repeat, every, subject, expectation })
}

/// Rejects what only a request has: the proxy's answer, and a readable id.
fn check_comparable(map: &Mapping<'_>, subject: &Subject) -> ReadResult<()> {
    let Some((_, Node { value: Value::Map(expected), .. })) = map.get("expect") else { return Ok(()) };
    if matches!(subject, Subject::Request(_)) {
        return Ok(());
    }
    let wrong = |key: &Key| {
        let help = "remove it, or write a request such as `get: /path`";
        key.error(format!("{} is that of a request", quoted(&key.text)), help)
    };
    let limits = find(expected, "limits").map(|(_, limits)| entries(limits)).unwrap_or_default();
    let of_limits = limits.iter().filter_map(|(_, limit)| find(entries(limit), "id"));
    let errors = ["status", "headers"].iter().filter_map(|key| find(expected, key)).chain(of_limits);
    let errors: Vec<_> = errors.map(|(key, _)| wrong(key)).collect();
    errors.last().map_or(Ok(()), |error| Err(*error))
}

/// The entries of a map; none of another value, which has been reported.
fn entries(node: &Node) -> &[(Key, Node)] {
    if let Value::Map(entries) = &node.value { entries } else { &[] }
}

fn timing(map: &Mapping<'_>) -> ReadResult<Timing> {
    let at = map.read("at", span);
    let after = map.read("after", span);
    let repeat = map.read("repeat", |node| {
        let repeat = node.positive("`repeat` must be at least 1", "remove it for a single request")?;
        if repeat > MOST_REPEATED {
            return Err(node.error("`repeat` is too large", format!("use at most {MOST_REPEATED}")));
        }
        Ok(repeat)
    });
    let every = map.read("every", span);
    let (at, after, repeat, every) = (at?, after?, repeat?, every?);
    if let (Some(_), Some((key, _))) = (at, map.get("after")) {
        let help = "`at` is the time since the test's start, `after` the time since the last step";
        return Err(key.error("a step has `at` or `after`, not both", help));
    }
    if let (Some((key, _)), None) = (map.get("every"), repeat) {
        return Err(key.error("`every` needs `repeat`", "add `repeat: 10`"));
    }
    Ok(Timing { at, after, repeat: repeat.unwrap_or(1), every: every.unwrap_or_default() })
}
