//! `GET /live`: what the live page shows, as small JSON. Counters only grow; the page computes rates.
//!
//! Reading needs no token. A request with a token has it checked, so that the page can tell at once that one is wrong.

use http::StatusCode;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::access::FOR_CHANGES;
use super::change::AdminRequest;
use super::health::StoresHealth;
use super::history::{RESULTS, counts};
use super::{Admin, AdminOptions, Phase, page};
use crate::engine::limit::candidate::Candidate;
use crate::engine::limit::{Limit, LimitMode, WHOLE_SHARE};
use crate::engine::text::instant::day_until;
use crate::limiter::LimitCounts;
use crate::listeners::rules_json::owned;
use crate::message::reply::Reply;
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::telemetry::metrics::CandidateResult;

impl Admin {
    pub(super) fn answer_live(&self, request: &AdminRequest) -> Reply {
        let mut operator = Value::Null;
        if request.head.headers.contains_key(AUTHORIZATION) {
            match self.authorize(&request.head, request.peer, FOR_CHANGES) {
                Ok(caller) => operator = caller.name.into(),
                Err(rejection) => return rejection.reply(),
            }
        }
        page(StatusCode::OK, "application/json", format!("{}\n", self.live(&operator)))
    }

    fn live(&self, operator: &Value) -> Value {
        let AdminOptions { readiness, shared, tokens, listeners, .. } = &self.options;
        let now = Timestamp::now();
        let mut limits = Vec::new();
        shared.each_limit(|limit, of| limits.extend(counted(limit, &of, now)));
        let metrics = shared.metrics();
        let upstreams: Value = metrics.upstreams.endpoints.iter().map(|(state, gauge)| (state, gauge.get())).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "now_ms": now.as_millisecond(),
            "started": metrics.server.start_timestamp.get(),
            "phase": match readiness.phase() {
                Phase::Starting => "starting",
                Phase::Serving => "serving",
                Phase::Draining => "draining",
            },
            "workers": metrics.server.workers.get(),
            "rules": {
                "loaded": metrics.server.reload_timestamp.get(),
                "error": readiness.reload_error(),
            },
            "store": self.live_store(),
            "upstreams": upstreams,
            "connections": { "open": metrics.server.connections.get(), "max": metrics.server.connections_max.get() },
            "blocks": metrics.listeners.blocks.get(),
            "listeners": listeners.iter().map(|(name, address)| json!({ "name": name, "address": address })).collect::<Value>(),
            "changes": !tokens.is_empty(),
            "operator": operator,
            "results": RESULTS,
            "limits": limits,
        })
    }

    fn live_store(&self) -> Value {
        let AdminOptions { stores, shared, .. } = &self.options;
        let health = StoresHealth::of(stores);
        let in_memory = stores.iter().find_map(Store::as_memory).map(MemoryStore::usage);
        json!({
            "kind": if stores.iter().any(Store::is_remote) { "redis" } else { "memory" },
            "workers": stores.len(),
            "connected": health.connected,
            "failing": health.failing,
            "breakers_open": health.breakers_open,
            "error": health.error,
            "buckets": in_memory.map(|usage| usage.keys),
            "buckets_max": shared.metrics().store.keys_max.get(),
        })
    }
}

fn candidate((candidate, counts): (&Candidate, &[u64; CandidateResult::ALL.len()])) -> Value {
    let [allowed, denied] = counts;
    json!({ "name": candidate.name.as_deref(), "allowed": allowed, "denied": denied })
}

/// A limit's row. Limits that requests carry have one only if there were any.
fn counted(limit: &Limit, of: &LimitCounts, now: Timestamp) -> Option<Value> {
    let is_carried = !limit.name.starts_with(|first: char| first.is_ascii_alphanumeric());
    if is_carried && of.decisions.iter().all(|count| *count == 0) {
        return None;
    }
    let mode = match limit.mode {
        LimitMode::Off => "off",
        LimitMode::Enforce if !limit.is_shadowed => "enforce",
        LimitMode::Enforce | LimitMode::Shadow => "shadow",
    };
    Some(owned(
        limit,
        json!({
            "name": limit.name,
            "mode": mode,
            "candidates": limit.candidates.iter().zip(&of.candidates).map(candidate).collect::<Value>(),
            "enforced_percent": f64::from(limit.enforce_for) * 100.0 / f64::from(WHOLE_SHARE),
            "review_by": limit.review_by.map(day_until),
            "review_due": limit.review_by.is_some_and(|end| i128::from(end.0) <= i128::from(now.as_microsecond())),
            "counts": counts(of),
        }),
    ))
}
