//! The reload of all files of `weir serve`.

use std::sync::Arc;

use super::certificates::Certificates;
use super::upstream_reload::UpstreamReloader;
use crate::config::PollMode;
use crate::limiter;
use crate::listeners::admin::Readiness;
use crate::listeners::admin::reload::ReloadOutcome;
use crate::server::Reload;
use crate::server::reload::{ReloadResult, Reloader};

/// Reloads the files of rules, routes and certificates.
pub(super) fn all(
    mut rules: Reloader,
    mut upstream: Option<UpstreamReloader>,
    mut certificates: Certificates,
    (shared, readiness): (Arc<limiter::Shared>, Arc<Readiness>),
) -> Reload {
    Box::new(move |asked| {
        let mut outcome = ReloadOutcome::default();
        match rules.reload(&shared, if asked { PollMode::Always } else { PollMode::IfTouched }) {
            ReloadResult::Unchanged => outcome.problems.extend(readiness.reload_error()),
            ReloadResult::Replaced => {
                outcome.is_replaced = true;
                readiness.reloaded(None);
            }
            // The answer to who asked has the mistakes, though what else has changed is in force.
            ReloadResult::Partly(report) | ReloadResult::Broken(report) => {
                outcome.problems.push(report.to_string());
                readiness.reloaded(Some(report.to_string()));
            }
        }
        readiness.ruled(shared.has_domains());
        if let Some(upstream) = &mut upstream {
            upstream.reload(asked, shared.metrics());
            readiness.routes_reloaded(upstream.error());
            outcome.problems.extend(upstream.error());
        }
        if certificates.reload(asked, shared.metrics()) {
            readiness.certificates_reloaded(certificates.errors());
        }
        outcome.problems.extend(certificates.errors());
        outcome
    })
}
