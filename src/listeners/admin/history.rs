//! `GET /history`: the counters of the last two minutes. The live page draws from them what happened before it was opened.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::Admin;
use super::buckets::json_reply;
use crate::limiter::{LimitCounts, Shared};
use crate::message::reply::Reply;
use crate::telemetry::metrics::{CandidateResult, DecisionResult};

/// The time between two readings. The page draws a gap if no reading comes for 4 s.
const INTERVAL: Duration = Duration::from_secs(2);

/// Readings that are kept: two minutes.
const MAX_READINGS: usize = 61;

/// Limits that are kept by name, the first ones of the rules. With so many, the readings take 2 MB.
const MAX_LIMITS: usize = 256;

/// The counts of a limit by [`RESULTS`].
pub(super) type Counts = [u64; RESULTS.len()];

/// The results of a limit's decisions, and what its candidates would have denied.
pub(super) const RESULTS: [&str; DecisionResult::ALL.len() + 1] = {
    let mut results = ["candidate_denied"; DecisionResult::ALL.len() + 1];
    let (decisions, _) = results.split_at_mut(DecisionResult::ALL.len());
    decisions.copy_from_slice(&DecisionResult::LABELS);
    results
};

pub(super) fn counts(of: &LimitCounts) -> Counts {
    let denied = of.candidates.iter().map(|counts| counts[CandidateResult::Denied as usize]).sum();
    let mut all = [denied; RESULTS.len()];
    all[..DecisionResult::ALL.len()].copy_from_slice(&of.decisions);
    all
}

/// The counters at one time.
struct Reading {
    at: Timestamp,
    /// The counts of all limits together.
    total: Counts,
    /// Readings share the names.
    limits: Vec<(Rc<str>, Counts)>,
}

/// The readings, the oldest first.
#[derive(Default)]
pub(super) struct History(RefCell<VecDeque<Reading>>);

impl History {
    fn read(&self, shared: &Shared, at: Timestamp) {
        let mut readings = self.0.borrow_mut();
        let last = readings.back().map_or(&[][..], |last| &last.limits);
        let (mut total, mut limits) = ([0; RESULTS.len()], Vec::with_capacity(last.len()));
        shared.each_limit(|limit, of| {
            let counts = counts(&of);
            for (sum, count) in total.iter_mut().zip(counts) {
                *sum += count;
            }
            if limits.len() < MAX_LIMITS {
                let known = last.get(limits.len()).filter(|(name, _)| **name == *limit.name);
                let name = known.map_or_else(|| limit.name.as_str().into(), |(name, _)| name.clone());
                limits.push((name, counts));
            }
        });
        if readings.len() == MAX_READINGS {
            readings.pop_front();
        }
        readings.push_back(Reading { at, total, limits });
    }

    /// Without the limits that have decided nothing by now. A limit whose first decision came after the newest reading has
    /// its zeros, from which the page draws that decision.
    fn describe(&self, shared: &Shared) -> Vec<Value> {
        let readings = self.0.borrow();
        let mut shown: HashSet<String> = HashSet::new();
        shared.each_limit(|limit, of| {
            if counts(&of).iter().any(|count| *count > 0) {
                shown.insert(limit.name.clone());
            }
        });
        let describe = |reading: &Reading| {
            let limits = reading.limits.iter().filter(|(name, _)| shown.contains(&**name));
            let limits: Map<_, _> = limits.map(|(name, counts)| (name.to_string(), json!(counts))).collect();
            json!({ "now_ms": reading.at.as_millisecond(), "total": reading.total, "limits": limits })
        };
        readings.iter().map(describe).collect()
    }
}

impl Admin {
    /// Reads the counters until it is dropped.
    pub async fn keep_history(self: Rc<Self>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.history.read(&self.options.shared, Timestamp::now());
        }
    }

    pub(super) fn answer_history(&self) -> Reply {
        json_reply(&json!({
            "started": self.options.shared.metrics().server.start_timestamp.get(),
            "results": RESULTS,
            "readings": self.history.describe(&self.options.shared),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::limit::Limit;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::rules::Rules;
    use crate::store::memory::MemoryStore;
    use crate::telemetry::metrics::{LimitTallies, Metrics};

    #[test]
    fn the_newest_readings_and_the_first_limits_are_kept() {
        let limits = (0..MAX_LIMITS + 9).map(|number| Limit::new(&format!("L{number}"))).collect();
        let rules = Rules::new(limits, Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let metrics = Arc::new(Metrics::new().unwrap());
        let shared = Shared::new(rules, metrics.clone(), MemoryStore::new(1));
        let (history, beyond) = (History::default(), format!("L{MAX_LIMITS}"));
        for second in 0..100 {
            for limit in ["L0", &beyond] {
                LimitTallies::default().count(&metrics, &metrics.limit(limit), DecisionResult::Denied);
            }
            history.read(&shared, Timestamp::from_second(second).unwrap());
        }
        LimitTallies::default().count(&metrics, &metrics.limit("L1"), DecisionResult::Denied);
        let readings = history.describe(&shared);
        assert_eq!(readings.len(), MAX_READINGS);
        let denied = DecisionResult::Denied as usize;
        for (reading, second) in [(&readings[0], 39), (&readings[60], 99)] {
            assert_eq!(reading["now_ms"], second * 1_000);
            assert_eq!(reading["total"][denied], 2 * (second + 1));
            let limits = reading["limits"].as_object().unwrap();
            assert_eq!(limits.keys().collect::<Vec<_>>(), ["L0", "L1"]);
            assert_eq!((&limits["L0"][denied], &limits["L1"][denied]), (&json!(second + 1), &json!(0)));
        }
        let kept = history.0.borrow();
        assert_eq!(kept[0].limits.len(), MAX_LIMITS);
        assert!(Rc::ptr_eq(&kept[0].limits[9].0, &kept[60].limits[9].0));
    }
}
