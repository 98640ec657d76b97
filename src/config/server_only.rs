//! What limits must not say that only Redis can keep: queues and scripts.

use super::fields::Fields;
use super::limit::Limits;
use super::problem::{Findings, quoted};
use crate::engine::algorithms::queue::Then;
use crate::engine::rules::by::Source;
use crate::engine::rules::limit::{Algorithm, Limit, LimitMode, StoreErrorPolicy};
use crate::engine::rules::matching::DescriptorMatch;

/// Says which limits cannot be kept if buckets live in memory.
pub(super) fn report(limits: &Limits, findings: &mut Findings) {
    for draft in &limits.drafts {
        if let Some(place) = draft.needs_redis.filter(|_| draft.limit.mode != LimitMode::Off) {
            let message =
                format!("{} needs Redis: queues and scripts do not work in memory", quoted(&draft.limit.name));
            findings.error(place, message, "start with `--store redis://...`, or remove the limit");
        }
    }
}

/// Checks the fields of such a limit, once they are read.
pub(super) fn check(fields: &Fields<'_>, limit: &mut Limit, findings: &mut Findings) {
    let what = if limit.algorithm == Algorithm::Queue { "queue" } else { "script" };
    if let Some((key, _)) = fields.get("cost") {
        let help = match limit.algorithm {
            Algorithm::Queue => "each request adds one entry; remove `cost`",
            _ => "the script decides the cost; remove `cost`",
        };
        findings.error(key.place, format!("`cost` does not apply to `algorithm: {what}`"), help);
    }
    if let Some((key, _)) = fields.get("per_call").filter(|_| limit.per_call) {
        findings.error(key.place, format!("`per_call` does not apply to `algorithm: {what}`"), "remove `per_call`");
    }
    if let Some((key, _)) = fields.get("drain_over_limit").filter(|_| limit.drain_over_limit) {
        findings.error(
            key.place,
            format!("`drain_over_limit` does not apply to `algorithm: {what}`"),
            "remove `drain_over_limit`",
        );
    }
    if let Some((_, node)) = fields.get("on_store_error")
        && limit.on_store_error == StoreErrorPolicy::Local
    {
        findings.error(
            node.place,
            format!("`on_store_error: local` does not apply to `algorithm: {what}`"),
            "write `allow` or `deny`",
        );
    }
    let conditions = &limit.conditions;
    let described = !conditions.domains.is_empty() || conditions.descriptor != DescriptorMatch::default();
    let by_entry = limit.by.iter().any(|component| matches!(component.source, Source::Descriptor(_)));
    let place = if described { fields.get("match") } else { fields.get("by").filter(|_| by_entry) };
    if let Some((_, node)) = place {
        let message = format!("the rate limit service does not support `algorithm: {what}`");
        let help = "descriptors do not stand for single requests; remove `domain` and `descriptor`";
        findings.error(node.place, message, help);
    }
    let Some(queue) = &limit.queue else { return };
    if let Some((key, _)) = fields.get("mode").filter(|_| limit.mode == LimitMode::Shadow) {
        let help = "workers would process the entries, so none are added";
        findings.warning(key.place, "`mode: shadow` adds nothing to this queue", help);
    }
    // Nobody but the workers knows what to do with such a request.
    if queue.then == Then::Accept && fields.get("on_store_error").is_none() {
        limit.on_store_error = StoreErrorPolicy::Deny;
    }
}
