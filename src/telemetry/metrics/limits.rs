//! What is counted of each limit: made when rules load, and gone when rules no longer have the limit.
//!
//! These are the metrics that there may be thousands of series of, and they are not the library's. It knows a series by a
//! hash of its label values without a separator, so `Aerror_` with `allowed` could be `A` with `error_allowed`; and it
//! copies every label of every series for a page: 6 ms for 1,000 limits and 15 ms if they settle, on an idle machine, where
//! this takes half of one.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Metrics;
use super::labels::{DecisionResult, SettlementResult};
use super::tally::Tally;

/// The handles of one limit.
#[derive(Clone, Debug)]
pub struct LimitMetrics {
    decisions: [Count; DecisionResult::ALL.len()],
}

/// What a worker counts of one limit. Most limits come to few results, and the others have no tally.
#[derive(Debug, Default)]
pub struct LimitTallies {
    decisions: [OnceCell<Tally>; DecisionResult::ALL.len()],
}

impl LimitTallies {
    /// Counts one decision of the limit, whose handles are `limit`.
    pub fn count(&self, metrics: &Metrics, limit: &LimitMetrics, result: DecisionResult) {
        let tally = || metrics.tallies.count(limit.decisions[result as usize].clone());
        self.decisions[result as usize].get_or_init(tally).inc();
    }
}

/// The handles of a limit's settlements.
#[derive(Clone, Debug)]
pub struct SettlementMetrics {
    results: [Count; SettlementResult::ALL.len()],
}

impl SettlementMetrics {
    /// What counts this result.
    pub const fn of(&self, result: SettlementResult) -> &Count {
        &self.results[result as usize]
    }
}

impl Metrics {
    /// The handles of a limit.
    pub fn limit(&self, name: &str) -> LimitMetrics {
        LimitMetrics { decisions: self.decisions.of(name) }
    }

    /// The handles of the settlements of a limit.
    pub fn settlements(&self, name: &str) -> SettlementMetrics {
        SettlementMetrics { results: self.settlements.of(name) }
    }

    /// What counts the charges of a limit to the bucket that its ids share beyond its bound.
    pub fn keys_limited(&self, name: &str) -> Arc<AtomicU64> {
        let [count] = self.keys_limited.of(name);
        count.0
    }

    /// Forgets limits that the rules no longer have.
    pub fn forget_limits(&self, is_kept: impl Fn(&str) -> bool) {
        self.decisions.of_limits.lock().retain(|name, _| is_kept(name));
        self.settlements.of_limits.lock().retain(|name, _| is_kept(name));
        self.keys_limited.of_limits.lock().retain(|name, _| is_kept(name));
    }
}

/// A counter. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Count(Arc<AtomicU64>);

impl Count {
    /// Counts one more.
    pub fn inc(&self) {
        self.inc_by(1);
    }

    pub(super) fn inc_by(&self, change: u64) {
        self.0.fetch_add(change, Ordering::Relaxed);
    }
}

/// A metric that has a series for each limit and each of `RESULTS` results.
#[derive(Debug)]
pub(super) struct PerLimit<const RESULTS: usize> {
    name: &'static str,
    help: &'static str,
    results: [&'static str; RESULTS],
    /// In the order of their names, which is that of the page.
    of_limits: Mutex<BTreeMap<Box<str>, [Count; RESULTS]>>,
}

impl<const RESULTS: usize> PerLimit<RESULTS> {
    /// `results` are the values of the label `result`; a metric that has none has one result, the empty text.
    pub(super) fn new(name: &'static str, help: &'static str, results: [&'static str; RESULTS]) -> Self {
        Self { name, help, results, of_limits: Mutex::default() }
    }

    fn of(&self, limit: &str) -> [Count; RESULTS] {
        let mut of_limits = self.of_limits.lock();
        if let Some(counts) = of_limits.get(limit) {
            return counts.clone();
        }
        let counts = std::array::from_fn(|_| Count::default());
        of_limits.insert(limit.into(), counts.clone());
        counts
    }

    /// Adds the metric to a page in the text exposition format.
    pub(super) fn write(&self, page: &mut Vec<u8>) {
        let of_limits = self.of_limits.lock();
        let mut add = |parts: &[&str]| parts.iter().for_each(|part| page.extend_from_slice(part.as_bytes()));
        if !of_limits.is_empty() {
            add(&["# HELP ", self.name, " ", self.help, "\n# TYPE ", self.name, " counter\n"]);
        }
        let mut digits = itoa::Buffer::new();
        for (limit, counts) in of_limits.iter() {
            let limit = escaped(limit);
            for (result, count) in self.results.iter().zip(counts) {
                let value = digits.format(count.0.load(Ordering::Relaxed));
                let labels = ["\",result=\"", result];
                let labels = if result.is_empty() { &[][..] } else { &labels[..] };
                add(&[self.name, "{limit=\"", &limit]);
                add(labels);
                add(&["\"} ", value, "\n"]);
            }
        }
    }
}

/// A label's value as the format wants it. Rules give no limit a name that needs it.
fn escaped(value: &str) -> Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return value.into();
    }
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n").into()
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

    #[test]
    fn a_limit_goes_on_counting_where_other_rules_have_it_too() {
        let metrics = Metrics::new().unwrap();
        for _ in 0..2 {
            metrics.limit("A").decisions[DecisionResult::Denied as usize].inc();
            metrics.forget_limits(|name| name == "A");
        }
        assert!(text(&metrics).contains("weir_decisions_total{limit=\"A\",result=\"denied\"} 2\n"));
    }

    #[test]
    fn no_name_breaks_the_page() {
        let metrics = Metrics::new().unwrap();
        metrics.settlements("a\\b\"c\nd");
        let line = r#"weir_settlements_total{limit="a\\b\"c\nd",result="charged"} 0"#;
        let page = text(&metrics);
        assert!(page.lines().any(|found| found == line), "{page}");
    }
}
