//! Metrics of the store, and of the buckets in memory.

use prometheus::{IntCounter, IntGauge, IntGaugeVec};

use super::DECISION_BUCKETS;
use super::families::{PerLabel, Timer, metrics};

label! {
    /// Charges that no request waits for: the label `kind` of `weir_store_reports_dropped_total`.
    pub enum StoreReport {
        /// The cost that a response has reported.
        Settlement = "settlement",
        /// A denied request: the count, for limits that count them, and what it gives back.
        Denied = "denied",
        /// A refund to a request whose client has left, or that another node's limit denies.
        Refund = "refund",
    }
}

label! {
    /// A store's failure: the label `kind` of `weir_store_errors_total`.
    pub enum StoreFailure {
        Down = "down",
        Late = "late",
        Broken = "broken",
        Busy = "busy",
        Error = "error",
        Duplicate = "duplicate",
    }
}

metrics! {
    pub struct StoreMetrics {
        /// Decisions in memory are not timed.
        seconds: Timer = timer("weir_store_duration_seconds", "Time until Redis replied", &DECISION_BUCKETS);
        errors: PerLabel<StoreFailure, IntCounter> = counter_by(
            "weir_store_errors_total", "Failed calls to the store, by kind", "kind",
        );
        reports_dropped: PerLabel<StoreReport, IntCounter> = counter_by(
            "weir_store_reports_dropped_total",
            "Charges that no request waits for and that Redis did not make, or that were not sent because too many were under way, by kind",
            "kind",
        );
        connections: IntGauge = gauge("weir_store_connections", "Workers connected to the store; in memory, all of them");
        breakers_open: IntGauge = gauge("weir_store_breakers_open", "Workers whose circuit breaker for the store is open");
        /// By the label of the store's `Fault`.
        unusable: IntGaugeVec = gauges(
            "weir_store_unusable", "Workers whose store cannot decide, by reason",
            &["reason"],
        );
        corrupt_values: IntCounter = counter(
            "weir_store_corrupt_values_total",
            "Stored values that were not a bucket and counted as a full one",
        );
        remembered_denials: IntCounter = counter(
            "weir_remembered_denials_total",
            "Requests denied by an answer of Redis to the same request a moment before, without asking again",
        );
        leased_decisions: IntCounter = counter("weir_leased_decisions_total", "Charges decided from leases, without asking Redis");
        leased_tokens: IntGauge = gauge("weir_leased_tokens", "Tokens left in leases");
        /// With Redis, those of limits that are kept here while it is down.
        keys: IntGauge = gauge("weir_keys", "Buckets in memory");
        keys_max: IntGauge = gauge("weir_keys_max", "Maximum number of buckets in memory");
        keys_evicted: IntCounter = counter("weir_keys_evicted_total", "Full buckets dropped from memory");
        keys_overflowed: IntCounter = counter(
            "weir_keys_overflowed_total",
            "Charges to a limit's shared bucket because memory had the maximum number of buckets",
        );
    }
}

/// The counts that the stores keep themselves, since the start.
pub struct StoreCounts {
    pub evicted: u64,
    pub overflowed: u64,
    pub corrupt_values: u64,
    pub lost_refunds: u64,
    pub leased_decisions: u64,
}

impl StoreMetrics {
    /// Sets the counters that the stores keep themselves. Only the admin listener calls it, one page after the other, so no
    /// reader sees a counter between its two steps.
    pub fn set_counts(&self, counts: &StoreCounts) {
        for (counter, value) in [
            (&self.keys_evicted, counts.evicted),
            (&self.keys_overflowed, counts.overflowed),
            (&self.corrupt_values, counts.corrupt_values),
            (&self.reports_dropped[StoreReport::Refund], counts.lost_refunds),
            (&self.leased_decisions, counts.leased_decisions),
        ] {
            counter.reset();
            counter.inc_by(value);
        }
    }
}
