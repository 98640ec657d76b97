//! Metrics per limit: created when rules load, and removed when the rules no longer have the limit.
//!
//! There may be thousands of these series, and the library does not hold them. It identifies a series by a hash of its label
//! values without a separator, so `Aerror_` with `allowed` could be `A` with `error_allowed`. And it copies every label of
//! every series to render them: 6 ms for 1,000 limits and 15 ms if they settle, on an idle machine, where this takes 0.5 ms.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Metrics;
use super::tally::Tally;
use crate::engine::charging::settlement::SettlementOutcome;
use crate::engine::limit::request_numbers::RequestNumbersResult;

label! {
    /// A limit's decision: the label `result` of `weir_decisions_total`.
    pub enum DecisionResult {
        Allowed = "allowed",
        /// Allowed after a wait (`delay:`).
        Delayed = "delayed",
        Denied = "denied",
        /// A limit in shadow mode would have denied the request.
        ShadowDenied = "shadow_denied",
        /// Another limit denied the request, so nothing was charged.
        Uncharged = "uncharged",
        /// The id is unlimited.
        Unlimited = "unlimited",
        /// The request is exempt from the limit (`exempt:`).
        Exempt = "exempt",
        /// The store failed and the limit let the request pass.
        ErrorAllowed = "error_allowed",
        /// The store failed and the limit denied the request.
        ErrorDenied = "error_denied",
        /// Too many requests were waiting for the store.
        Rejected = "rejected",
    }
}

label! {
    /// A candidate's decision: the label `result` of `weir_candidate_decisions_total`.
    pub enum CandidateResult {
        Allowed = "allowed",
        Denied = "denied",
    }
}

label! {
    /// The outcome of a ban: the label `result` of `weir_bans_total`.
    pub enum BanResult {
        Banned = "banned",
        /// The limit or the id is in shadow.
        WouldBan = "would_ban",
        /// There were too many bans.
        Dropped = "dropped",
        /// A denial that could not be counted: the id or its strikes had no bucket of their own.
        Uncounted = "uncounted",
    }
}

label! {
    /// The label `result` of `weir_warnings_total`.
    pub enum WarningResult {
        /// Told here, and by no other gateway.
        Warned = "warned",
        /// Too many were waiting for the store.
        Dropped = "dropped",
    }
}

label! {
    /// The label `result` of `weir_webhooks_total`.
    pub enum WebhookResult {
        Delivered = "delivered",
        /// The receiver did not accept it, however often it was sent.
        Failed = "failed",
        /// Too many were waiting, or the process ended.
        Dropped = "dropped",
    }
}

/// The counters of the decisions of one limit or candidate, by result.
#[derive(Clone, Debug)]
pub struct DecisionMetrics<const RESULTS: usize>([Count; RESULTS]);

pub type LimitMetrics = DecisionMetrics<{ DecisionResult::ALL.len() }>;
pub type CandidateMetrics = DecisionMetrics<{ CandidateResult::ALL.len() }>;

impl<const RESULTS: usize> DecisionMetrics<RESULTS> {
    /// The decisions by result, without those since [`Metrics::add_up`].
    pub fn decisions(&self) -> [u64; RESULTS] {
        self.0.each_ref().map(|count| count.0.load(Ordering::Relaxed))
    }
}

/// A worker's share of [`DecisionMetrics`]. Most limits have few results, so tallies are created when they are needed.
#[derive(Debug)]
pub struct DecisionTallies<const RESULTS: usize>([OnceCell<Tally>; RESULTS]);

pub type LimitTallies = DecisionTallies<{ DecisionResult::ALL.len() }>;
pub type CandidateTallies = DecisionTallies<{ CandidateResult::ALL.len() }>;

impl<const RESULTS: usize> Default for DecisionTallies<RESULTS> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| OnceCell::new()))
    }
}

impl LimitTallies {
    /// Counts one decision of `limit`.
    pub fn count(&self, metrics: &Metrics, limit: &LimitMetrics, result: DecisionResult) {
        self.add(metrics, limit, result as usize);
    }
}

impl CandidateTallies {
    /// Counts one decision of `candidate`.
    pub fn count(&self, metrics: &Metrics, candidate: &CandidateMetrics, result: CandidateResult) {
        self.add(metrics, candidate, result as usize);
    }
}

impl<const RESULTS: usize> DecisionTallies<RESULTS> {
    fn add(&self, metrics: &Metrics, counters: &DecisionMetrics<RESULTS>, result: usize) {
        self.0[result].get_or_init(|| metrics.tallies.count(counters.0[result].clone())).inc();
    }
}

/// The counters of a limit's settlements.
#[derive(Clone, Debug)]
pub struct SettlementMetrics {
    results: [Count; SettlementOutcome::LABELS.len()],
}

impl SettlementMetrics {
    pub const fn of(&self, outcome: SettlementOutcome) -> &Count {
        &self.results[outcome as usize]
    }
}

/// All metrics per limit.
#[derive(Debug)]
pub(super) struct Limits {
    decisions: PerLimit<{ DecisionResult::ALL.len() }>,
    /// By [label](crate::engine::limit::candidate::Candidate::label).
    candidates: PerLimit<{ CandidateResult::ALL.len() }>,
    settlements: PerLimit<{ SettlementOutcome::LABELS.len() }>,
    keys_limited: PerLimit<1>,
    bans: PerLimit<{ BanResult::ALL.len() }>,
    request_numbers: PerLimit<{ RequestNumbersResult::ALL.len() }>,
    near: PerLimit<1>,
    warnings: PerLimit<{ WarningResult::ALL.len() }>,
    webhooks: PerLimit<{ WebhookResult::ALL.len() }>,
    review_by: PerLimit<1>,
    /// By the name of the limit, a colon and its owner.
    owners: PerLimit<1>,
}

impl Limits {
    pub(super) fn new() -> Self {
        Self {
            decisions: PerLimit::new("weir_decisions_total", "Decisions, by limit and result", DecisionResult::LABELS),
            candidates: PerLimit {
                second_label: Some("candidate"),
                ..PerLimit::new(
                    "weir_candidate_decisions_total",
                    "What candidates would have decided, by limit, candidate and result",
                    CandidateResult::LABELS,
                )
            },
            settlements: PerLimit::new(
                "weir_settlements_total",
                "Settlements of costs that responses report, by limit and result",
                SettlementOutcome::LABELS,
            ),
            keys_limited: PerLimit::new(
                "weir_keys_limited_total",
                "Charges to the bucket that a limit's new ids share once it has its maximum number of buckets",
                [""],
            ),
            request_numbers: PerLimit::new(
                "weir_request_numbers_total",
                "Requests to limits whose numbers requests bring, by limit and result",
                RequestNumbersResult::LABELS,
            ),
            near: PerLimit::new(
                "weir_near_limit_total",
                "Requests that a limit allowed although their id had used the lowest share of `warn_at`, or that of `--near-limit`",
                [""],
            ),
            warnings: PerLimit::new(
                "weir_warnings_total",
                "Warnings of ids that have used a share of what a limit allows, by limit and result",
                WarningResult::LABELS,
            ),
            webhooks: PerLimit::new(
                "weir_webhooks_total",
                "Webhooks about warnings, by limit and result",
                WebhookResult::LABELS,
            ),
            bans: PerLimit::new("weir_bans_total", "Bans of ids, by limit and result", BanResult::LABELS),
            review_by: PerLimit {
                kind: "gauge",
                ..PerLimit::new(
                    "weir_limit_review_by_timestamp_seconds",
                    "The end of the day by which a limit is to be reviewed (`review_by`)",
                    [""],
                )
            },
            owners: PerLimit {
                kind: "gauge",
                second_label: Some("owner"),
                ..PerLimit::new(
                    "weir_limit_owner",
                    "Always 1: the owner of a limit of a directory of rules files",
                    [""],
                )
            },
        }
    }

    /// Appends the metrics to a page in the text exposition format.
    pub(super) fn write(&self, page: &mut Vec<u8>) {
        self.decisions.write(page);
        self.candidates.write(page);
        self.settlements.write(page);
        self.keys_limited.write(page);
        self.bans.write(page);
        self.request_numbers.write(page);
        self.near.write(page);
        self.warnings.write(page);
        self.webhooks.write(page);
        self.review_by.write(page);
        self.owners.write(page);
    }
}

impl Metrics {
    pub fn limit(&self, name: &str) -> LimitMetrics {
        DecisionMetrics(self.limits.decisions.of(name))
    }

    /// Returns the counters of the candidate with this [label](crate::engine::limit::candidate::Candidate::label).
    pub fn candidate(&self, label: &str) -> CandidateMetrics {
        DecisionMetrics(self.limits.candidates.of(label))
    }

    pub fn settlements(&self, name: &str) -> SettlementMetrics {
        SettlementMetrics { results: self.limits.settlements.of(name) }
    }

    /// Returns the counter of a limit's charges to the bucket that new ids share beyond its maximum.
    pub fn keys_limited(&self, name: &str) -> Arc<AtomicU64> {
        let [count] = self.limits.keys_limited.of(name);
        count.0
    }

    /// Counts a ban by a limit.
    pub fn count_ban(&self, name: &str, result: BanResult) {
        self.limits.bans.of(name)[result as usize].inc();
    }

    /// Counts a request of an id that has nearly used up a limit.
    pub fn count_near(&self, name: &str) {
        self.limits.near.of(name)[0].inc();
    }

    pub fn count_warning(&self, name: &str, result: WarningResult) {
        self.limits.warnings.of(name)[result as usize].inc();
    }

    pub fn count_webhook(&self, name: &str, result: WebhookResult) {
        self.limits.webhooks.of(name)[result as usize].inc();
    }

    /// Counts what a request brought of a limit's numbers.
    pub fn count_request_numbers(&self, name: &str, result: RequestNumbersResult) {
        self.limits.request_numbers.of(name)[result as usize].inc();
    }

    /// Sets the limits that are to be reviewed and by when, in seconds since the Unix epoch.
    pub fn set_reviews<'a>(&self, reviews: impl Iterator<Item = (&'a str, u64)>) {
        let value = |(limit, end): (&str, u64)| (limit.into(), [Count(Arc::new(end.into()))]);
        *self.limits.review_by.of_limits.lock() = reviews.map(value).collect();
    }

    /// Sets the limits that have owners.
    pub fn set_owners<'a>(&self, owners: impl Iterator<Item = (&'a str, &'a str)>) {
        let value = |(limit, owner)| (format!("{limit}:{owner}").into(), [Count(Arc::new(1.into()))]);
        *self.limits.owners.of_limits.lock() = owners.map(value).collect();
    }

    /// Removes the limits, and the candidates by their labels, that the rules no longer have.
    pub fn forget_limits(&self, is_kept: impl Fn(&str) -> bool, is_candidate_kept: impl Fn(&str) -> bool) {
        self.limits.candidates.of_limits.lock().retain(|label, _| is_candidate_kept(label));
        self.limits.decisions.of_limits.lock().retain(|name, _| is_kept(name));
        self.limits.settlements.of_limits.lock().retain(|name, _| is_kept(name));
        self.limits.keys_limited.of_limits.lock().retain(|name, _| is_kept(name));
        self.limits.bans.of_limits.lock().retain(|name, _| is_kept(name));
        self.limits.request_numbers.of_limits.lock().retain(|name, _| is_kept(name));
        self.limits.near.of_limits.lock().retain(|name, _| is_kept(name));
        self.limits.warnings.of_limits.lock().retain(|name, _| is_kept(name));
        self.limits.webhooks.of_limits.lock().retain(|name, _| is_kept(name));
    }
}

/// A counter. Clones share their count.
#[derive(Clone, Debug, Default)]
pub struct Count(Arc<AtomicU64>);

impl Count {
    pub fn inc(&self) {
        self.inc_by(1);
    }

    pub(super) fn inc_by(&self, change: u64) {
        self.0.fetch_add(change, Ordering::Relaxed);
    }
}

/// A metric with a series per limit and result.
#[derive(Debug)]
struct PerLimit<const RESULTS: usize> {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    results: [&'static str; RESULTS],
    /// True if the series are of candidates, with a label for their names.
    second_label: Option<&'static str>,
    /// By name; the page is sorted.
    of_limits: Mutex<BTreeMap<Box<str>, [Count; RESULTS]>>,
}

impl<const RESULTS: usize> PerLimit<RESULTS> {
    /// `results` are the values of the label `result`. A metric without the label has one result, the empty text.
    fn new(name: &'static str, help: &'static str, results: [&'static str; RESULTS]) -> Self {
        Self { name, help, kind: "counter", results, second_label: None, of_limits: Mutex::default() }
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

    fn write(&self, page: &mut Vec<u8>) {
        let of_limits = self.of_limits.lock();
        let mut add = |parts: &[&str]| parts.iter().for_each(|part| page.extend_from_slice(part.as_bytes()));
        if !of_limits.is_empty() {
            add(&["# HELP ", self.name, " ", self.help, "\n# TYPE ", self.name, " ", self.kind, "\n"]);
        }
        let mut digits = itoa::Buffer::new();
        for (limit, counts) in of_limits.iter() {
            let (limit, second) = match limit.split_once(':') {
                Some((limit, second)) if self.second_label.is_some() => (limit, second),
                _ => (&**limit, ""),
            };
            let limit = escaped(limit);
            let second = self.second_label.map(|label| ["\",", label, "=\"", second]);
            for (result, count) in self.results.iter().zip(counts) {
                let value = digits.format(count.0.load(Ordering::Relaxed));
                let labels = ["\",result=\"", result];
                let labels = if result.is_empty() { &[][..] } else { &labels[..] };
                add(&[self.name, "{limit=\"", &limit]);
                add(second.as_ref().map_or(&[], |parts| &parts[..]));
                add(labels);
                add(&["\"} ", value, "\n"]);
            }
        }
    }
}

/// Escapes a label's value. Limits from rules files have no name that needs it.
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
            metrics.settlements(limit).of(SettlementOutcome::Charged).inc();
        }
        let page = text(&metrics);
        assert!(page.contains("weir_decisions_total{limit=\"A\",result=\"denied\"} 1"), "{page}");
        assert!(page.contains("weir_settlements_total{limit=\"A\",result=\"charged\"} 1"), "{page}");
        assert!(page.contains("weir_settlements_total{limit=\"A\",result=\"failed\"} 0"), "{page}");
        metrics.forget_limits(|name| name == "B", |_| false);
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
                limit.0[result as usize].inc_by(times);
            }
            metrics.settlements(name).of(SettlementOutcome::Charged).inc_by(8);
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
        metrics.forget_limits(|name| name != "A", |_| false);
        let page = text(&metrics);
        assert!(!page.contains("limit=\"A\"") && page.contains("limit=\"Aerror_\",result=\"allowed\""), "{page}");
    }

    #[test]
    fn a_limit_goes_on_counting_where_other_rules_have_it_too() {
        let metrics = Metrics::new().unwrap();
        for _ in 0..2 {
            metrics.limit("A").0[DecisionResult::Denied as usize].inc();
            metrics.forget_limits(|name| name == "A", |_| false);
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
