//! The handles of limits, which are made when rules load and go when rules no longer have them.

use std::cell::OnceCell;

use prometheus::core::Collector;
use prometheus::proto::LabelPair;
use prometheus::{IntCounter, IntCounterVec};

use super::Metrics;
use super::labels::{DecisionResult, SettlementResult};
use super::tally::Tally;

/// The handles of one limit.
#[derive(Clone, Debug)]
pub struct LimitMetrics {
    decisions: [IntCounter; DecisionResult::ALL.len()],
}

/// What a worker counts of one limit. Most limits come to few results, and the others have no tally.
#[derive(Debug, Default)]
pub struct LimitTallies {
    decisions: [OnceCell<Tally>; DecisionResult::ALL.len()],
}

impl LimitTallies {
    /// Counts one decision of the limit, whose handles are `limit`.
    pub fn count(&self, metrics: &Metrics, limit: &LimitMetrics, result: DecisionResult) {
        let tally = || metrics.tallies.counter(limit.decisions[result as usize].clone());
        self.decisions[result as usize].get_or_init(tally).inc();
    }
}

/// The handles of a limit's settlements.
#[derive(Clone, Debug)]
pub struct SettlementMetrics {
    results: [IntCounter; SettlementResult::ALL.len()],
}

impl SettlementMetrics {
    /// What counts this result.
    pub const fn of(&self, result: SettlementResult) -> &IntCounter {
        &self.results[result as usize]
    }
}

impl Metrics {
    /// The handles of a limit.
    pub fn limit(&self, name: &str) -> LimitMetrics {
        let of = |result: DecisionResult| self.decisions.with_label_values(&[result.label(), name]);
        LimitMetrics { decisions: DecisionResult::ALL.map(of) }
    }

    /// The handles of the settlements of a limit.
    pub fn settlements(&self, name: &str) -> SettlementMetrics {
        let of = |result: SettlementResult| self.settlements.with_label_values(&[result.label(), name]);
        SettlementMetrics { results: SettlementResult::ALL.map(of) }
    }

    /// Forgets limits that the rules no longer have.
    pub fn forget_limits(&self, is_kept: impl Fn(&str) -> bool) {
        for vector in [&self.decisions, &self.settlements] {
            forget(vector, &is_kept);
        }
    }
}

/// Forgets what a vector counts of limits that are not kept.
fn forget(vector: &IntCounterVec, is_kept: impl Fn(&str) -> bool) {
    for family in vector.collect() {
        for metric in family.get_metric() {
            let value = |name| metric.get_label().iter().find(|pair| pair.name() == name).map(LabelPair::value);
            if let (Some(limit), Some(result)) = (value("limit"), value("result"))
                && !is_kept(limit)
            {
                let _ = vector.remove_label_values(&[result, limit]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &Metrics) -> String {
        String::from_utf8(metrics.render().unwrap()).unwrap()
    }

    #[test]
    fn limits_are_counted_by_result_until_they_are_forgotten() {
        let metrics = Metrics::new().unwrap();
        for (limit, result) in [("A", DecisionResult::Denied), ("B", DecisionResult::Allowed)] {
            LimitTallies::default().count(&metrics, &metrics.limit(limit), result);
            metrics.settlements(limit).of(SettlementResult::Charged).inc();
        }
        let page = text(&metrics);
        assert!(page.contains("weir_decisions_total{limit=\"A\",result=\"denied\"} 1"), "{page}");
        assert!(page.contains("weir_settlements_total{limit=\"A\",result=\"charged\"} 1"), "{page}");
        assert!(page.contains("weir_settlements_total{limit=\"A\",result=\"failed\"} 0"), "{page}");
        metrics.forget_limits(|name| name == "B");
        let page = text(&metrics);
        assert!(!page.contains("limit=\"A\"") && page.contains("limit=\"B\""), "{page}");
    }

    #[test]
    fn a_limit_whose_name_ends_as_a_result_begins_counts_for_itself() {
        let metrics = Metrics::new().unwrap();
        let names = ["A", "Aerror_", "Ashadow_", "Aun"];
        for name in names {
            let limit = metrics.limit(name);
            for (times, result) in (1..).zip(DecisionResult::ALL) {
                limit.decisions[result as usize].inc_by(times);
            }
            metrics.settlements(name).of(SettlementResult::Charged).inc_by(8);
            metrics.settlements(name);
        }
        let page = text(&metrics);
        for name in names {
            for (times, result) in (1..).zip(DecisionResult::ALL) {
                let line = format!("weir_decisions_total{{limit=\"{name}\",result=\"{}\"}} {times}\n", result.label());
                assert!(page.contains(&line), "{line} is not in {page}");
            }
            let line = format!("weir_settlements_total{{limit=\"{name}\",result=\"charged\"}} 8\n");
            assert!(page.contains(&line), "{line} is not in {page}");
        }
        metrics.forget_limits(|name| name != "A");
        let page = text(&metrics);
        assert!(!page.contains("limit=\"A\"") && page.contains("limit=\"Aerror_\",result=\"allowed\""), "{page}");
    }
}
