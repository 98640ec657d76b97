//! Makes metrics and registers them.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::local::LocalHistogram;
use prometheus::{
    Counter, Error, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// Declares a group of metrics, each with the method of [`Family`] that makes it, its name, its help, and further arguments.
macro_rules! metrics {
    ($(#[$doc:meta])* $visibility:vis struct $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $kind:ty = $make:ident($metric:expr, $help:expr $(, $argument:expr)* $(,)?);)+
    }) => {
        $(#[$doc])*
        #[derive(Debug)]
        $visibility struct $name {
            $($(#[$field_doc])* pub $field: $kind,)+
        }

        impl $name {
            pub(super) fn new(registry: &::prometheus::Registry) -> Result<Self, ::prometheus::Error> {
                use super::families::Family;
                Ok(Self { $($field: Family { registry, name: $metric, help: $help }.$make($($argument),*)?,)+ })
            }
        }
    };
}

pub(super) use metrics;

/// Counters for the values of one label.
#[derive(Debug)]
pub struct Counters(IntCounterVec);

impl Counters {
    pub fn inc(&self, value: &'static str) {
        self.0.with_label_values(&[value]).inc();
    }
}

/// A histogram of durations, in seconds.
#[derive(Debug)]
pub struct Timer(Histogram);

impl Timer {
    pub fn observe(&self, span: Duration) {
        self.0.observe(span.as_secs_f64());
    }

    /// Returns a worker's share.
    pub fn local(&self) -> LocalTimer {
        LocalTimer(self.0.local())
    }
}

/// A worker's share of a [`Timer`]. Adding to the shared histogram takes 40 ns of atomics.
#[derive(Debug)]
pub struct LocalTimer(LocalHistogram);

impl LocalTimer {
    pub fn observe(&self, span: Duration) {
        self.0.observe(span.as_secs_f64());
    }

    /// Adds what was observed to the shared histogram.
    pub fn flush(&self) {
        self.0.flush();
    }
}

/// The name and help of a metric to be registered.
#[derive(Clone, Copy)]
pub(super) struct Family<'a> {
    pub(super) registry: &'a Registry,
    pub(super) name: &'a str,
    pub(super) help: &'a str,
}

impl Family<'_> {
    pub(super) fn counter(self) -> Result<IntCounter, Error> {
        self.register(IntCounter::with_opts(self.options())?)
    }

    pub(super) fn float_counter(self) -> Result<Counter, Error> {
        self.register(Counter::with_opts(self.options())?)
    }

    pub(super) fn gauge(self) -> Result<IntGauge, Error> {
        self.register(IntGauge::with_opts(self.options())?)
    }

    pub(super) fn timer(self, buckets: &[f64]) -> Result<Timer, Error> {
        Ok(Timer(self.register(Histogram::with_opts(self.buckets(buckets))?)?))
    }

    /// A counter for each value of a label, in their order.
    pub(super) fn counter_by<const N: usize>(self, label: &str, values: [&str; N]) -> Result<[IntCounter; N], Error> {
        let counters = self.counter_vec(&[label])?;
        Ok(values.map(|value| counters.with_label_values(&[value])))
    }

    /// A counter for each combination of two labels, in the order of their values.
    pub(super) fn counter_by_two<const N: usize, const M: usize>(
        self,
        (label, values): (&str, [&str; N]),
        (other_label, other_values): (&str, [&str; M]),
    ) -> Result<[[IntCounter; M]; N], Error> {
        let counters = self.counter_vec(&[label, other_label])?;
        Ok(values.map(|value| other_values.map(|other| counters.with_label_values(&[value, other]))))
    }

    /// Counters that begin at 0 for these values of a label, so that a rate over the first event is not lost.
    pub(super) fn counters(self, label: &str, values: &[&str]) -> Result<Counters, Error> {
        let counters = self.counter_vec(&[label])?;
        for value in values {
            counters.with_label_values(&[value]);
        }
        Ok(Counters(counters))
    }

    /// A gauge for each value of a label, in their order.
    pub(super) fn gauge_by<const N: usize>(self, label: &str, values: [&str; N]) -> Result<[IntGauge; N], Error> {
        let gauges = self.gauges(&[label])?;
        Ok(values.map(|value| gauges.with_label_values(&[value])))
    }

    /// Gauges without a series until one is set.
    pub(super) fn gauges(self, labels: &[&str]) -> Result<IntGaugeVec, Error> {
        self.register(IntGaugeVec::new(self.options(), labels)?)
    }

    /// A timer for each value of a label, in their order.
    pub(super) fn timer_by<const N: usize>(
        self,
        buckets: &[f64],
        label: &str,
        values: [&str; N],
    ) -> Result<[Timer; N], Error> {
        let timers = self.register(HistogramVec::new(self.buckets(buckets), &[label])?)?;
        Ok(values.map(|value| Timer(timers.with_label_values(&[value]))))
    }

    fn counter_vec(self, labels: &[&str]) -> Result<IntCounterVec, Error> {
        self.register(IntCounterVec::new(self.options(), labels)?)
    }

    fn options(self) -> Opts {
        Opts::new(self.name, self.help)
    }

    fn buckets(self, buckets: &[f64]) -> HistogramOpts {
        HistogramOpts::new(self.name, self.help).buckets(buckets.to_vec())
    }

    fn register<C: Collector + Clone + 'static>(self, metric: C) -> Result<C, Error> {
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}
