//! The pages about the process: its readiness and its metrics.

use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::json;

use super::{Admin, AdminOptions, PLAIN, Phase, page};
use crate::listeners::replies::method_not_allowed;
use crate::message::reply::{Reply, problem};
use crate::store::memory::{MemoryStore, Usage};
use crate::store::{Fault, Store};
use crate::telemetry::metrics::{Metrics, StoreCounts};

impl Admin {
    /// Losing the store does not make the process unready: each limit has its `on_store_error`, and all processes would
    /// become unready at once.
    pub(super) fn ready_page(&self) -> Reply {
        let stores = &self.options.stores;
        let health = StoresHealth::of(stores);
        let reload_error = self.options.readiness.reload_error();
        let certificate_error = self.options.readiness.certificate_error();
        let routes_error = self.options.readiness.routes_error();
        let keys_error = self.options.readiness.keys_error();
        let xds_error = self.options.readiness.xds_error();
        let has_broken_files = reload_error.is_some() || certificate_error.is_some() || routes_error.is_some();
        let is_degraded = health.connected < stores.len()
            || health.failing > 0
            || has_broken_files
            || keys_error.is_some()
            || xds_error.is_some();
        let (code, status) = match self.options.readiness.phase() {
            Phase::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
            Phase::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
            Phase::Serving if is_degraded => (StatusCode::OK, "degraded"),
            Phase::Serving => (StatusCode::OK, "ready"),
        };
        let store = match health.connected {
            connected if connected == stores.len() && health.failing == 0 => "up",
            connected if connected > 0 && connected == health.failing => "failing",
            0 => "down",
            _ => "partly up",
        };
        let mut body =
            json!({ "status": status, "store": store, "config": if reload_error.is_some() { "error" } else { "ok" } });
        if let Some(error) = health.error {
            body["store_error"] = error.into();
        }
        if let Some(error) = reload_error {
            body["config_error"] = error.into();
        }
        if let Some(error) = certificate_error {
            body["certificate_error"] = error.into();
        }
        if let Some(error) = routes_error {
            body["routes_error"] = error.into();
        }
        if let Some(error) = keys_error {
            body["keys_error"] = error.into();
        }
        if let Some(error) = xds_error {
            body["xds_error"] = error.into();
        }
        page(code, "application/json", format!("{body}\n"))
    }

    /// Answers at the address of the metrics alone.
    pub(super) fn answer_scraper(&self, head: &Parts) -> Reply {
        let path = &*self.options.metrics_path;
        match head.method {
            Method::GET | Method::HEAD if head.uri.path() == path => self.metrics_page(),
            Method::GET | Method::HEAD => problem(StatusCode::NOT_FOUND, &format!("there is {path}")),
            _ => method_not_allowed(&head.method, "GET, HEAD"),
        }
    }

    pub(super) fn metrics_page(&self) -> Reply {
        let AdminOptions { stores, shared, .. } = &self.options;
        // The workers share one table.
        let in_memory = stores.iter().find_map(Store::as_memory).map(MemoryStore::usage);
        StoresHealth::of(stores).publish(shared.metrics(), &in_memory.unwrap_or_else(|| shared.local.usage()));
        let text = shared.metrics().render().map(String::from_utf8);
        if let Ok(Ok(text)) = text {
            return page(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text);
        }
        tracing::error!("cannot render the metrics: {text:?}");
        page(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "cannot render the metrics\n".to_owned())
    }
}

/// The health of all workers' stores.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StoresHealth {
    pub(super) connected: usize,
    /// Connected stores whose last replies were errors.
    pub(super) failing: usize,
    pub(super) breakers_open: usize,
    /// In the order of [`Fault::LABELS`].
    pub(super) faults: [u64; Fault::LABELS.len()],
    pub(super) corrupt_values: u64,
    pub(super) lost_refunds: u64,
    pub(super) leased_decisions: u64,
    pub(super) leased_tokens: u64,
    /// The error of a store that cannot decide.
    pub(super) error: Option<String>,
}

impl StoresHealth {
    pub(super) fn of(stores: &[Store]) -> Self {
        let mut all = Self::default();
        for store in stores {
            let health = store.health();
            all.connected += usize::from(health.connected);
            all.breakers_open += usize::from(health.breaker_open);
            all.failing += usize::from(health.connected && health.fault.is_some());
            if let Some(fault) = health.fault {
                all.faults[fault as usize] += 1;
            }
            all.corrupt_values += health.corrupt_values;
            all.lost_refunds += health.lost_refunds;
            all.leased_decisions += health.leased_decisions;
            all.leased_tokens += health.leased_tokens;
            all.error = health.last_error.or(all.error);
        }
        all
    }

    /// `usage` is that of the buckets in memory.
    fn publish(&self, metrics: &Metrics, usage: &Usage) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        metrics.store.connections.set(gauge(self.connected as u64));
        metrics.store.breakers_open.set(gauge(self.breakers_open as u64));
        for (reason, workers) in Fault::LABELS.into_iter().zip(self.faults) {
            metrics.store.unusable.with_label_values(&[reason]).set(gauge(workers));
        }
        metrics.store.keys.set(gauge(usage.keys));
        metrics.store.leased_tokens.set(gauge(self.leased_tokens));
        metrics.store.set_counts(&StoreCounts {
            evicted: usage.evicted,
            overflowed: usage.overflowed,
            corrupt_values: self.corrupt_values,
            lost_refunds: self.lost_refunds,
            leased_decisions: self.leased_decisions,
        });
    }
}
