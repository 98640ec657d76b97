//! Makes metrics and registers them.

use std::marker::PhantomData;
use std::ops::Index;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::local::LocalHistogram;
use prometheus::{
    Counter, Error, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use crate::label::Label;

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

/// A metric for each value of a label. All begin at 0, so that a rate over the first event is not lost.
#[derive(Debug)]
pub struct PerLabel<L, M> {
    /// In the order of the label's values.
    all: Box<[M]>,
    label: PhantomData<fn(L)>,
}

impl<L: Label, M> PerLabel<L, M> {
    pub(super) fn new(metric_of: impl FnMut(&'static str) -> M) -> Self {
        Self { all: L::ALL_LABELS.iter().copied().map(metric_of).collect(), label: PhantomData }
    }

    /// All metrics with their labels.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &M)> {
        L::ALL_LABELS.iter().copied().zip(&self.all)
    }

    pub fn map<N>(&self, other_of: impl FnMut(&M) -> N) -> PerLabel<L, N> {
        PerLabel { all: self.all.iter().map(other_of).collect(), label: PhantomData }
    }
}

impl<L: Label, M> Index<L> for PerLabel<L, M> {
    type Output = M;

    fn index(&self, label: L) -> &M {
        &self.all[label.place()]
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

    /// A counter for each value of a label.
    pub(super) fn counter_by<L: Label>(self, label: &str) -> Result<PerLabel<L, IntCounter>, Error> {
        let counters = self.counters(&[label])?;
        Ok(PerLabel::new(|value| counters.with_label_values(&[value])))
    }

    /// A counter for each combination of two labels.
    pub(super) fn counter_by_two<L: Label, K: Label>(
        self,
        label: &str,
        other: &str,
    ) -> Result<PerLabel<L, PerLabel<K, IntCounter>>, Error> {
        let counters = self.counters(&[label, other])?;
        Ok(PerLabel::new(|value| PerLabel::new(|other| counters.with_label_values(&[value, other]))))
    }

    /// A gauge for each value of a label.
    pub(super) fn gauge_by<L: Label>(self, label: &str) -> Result<PerLabel<L, IntGauge>, Error> {
        let gauges = self.gauges(&[label])?;
        Ok(PerLabel::new(|value| gauges.with_label_values(&[value])))
    }

    /// Counters without a series until one is used.
    pub(super) fn counters(self, labels: &[&str]) -> Result<IntCounterVec, Error> {
        self.register(IntCounterVec::new(self.options(), labels)?)
    }

    /// Gauges without a series until one is set.
    pub(super) fn gauges(self, labels: &[&str]) -> Result<IntGaugeVec, Error> {
        self.register(IntGaugeVec::new(self.options(), labels)?)
    }

    /// A timer for each value of a label.
    pub(super) fn timer_by<L: Label>(self, buckets: &[f64], label: &str) -> Result<PerLabel<L, Timer>, Error> {
        let timers = self.register(HistogramVec::new(self.buckets(buckets), &[label])?)?;
        Ok(PerLabel::new(|value| Timer(timers.with_label_values(&[value]))))
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
