//! Operations on buckets: look, set, reset, refund, block. A bucket's name is one percent-encoded path segment.

use http::StatusCode;
use serde_json::{Value, json};

use super::body::{read, reason, span, tokens};
use super::change::{AdminRequest, Caller, Rejection};
use super::{Admin, AdminAnswer, replies};
use crate::engine::limit::blocks::LONGEST_BLOCK;
use crate::http::simple::Incoming;
use crate::limiter::operator::{BucketChange, BucketReport};
use crate::listeners::rules_json;
use crate::message::reply::Reply;
use crate::telemetry::metrics::AdminWrite;

/// Bytes of a decoded bucket name: an id may be a URL.
const MAX_NAME: usize = 4 * 1024;

impl Admin {
    pub(super) async fn bucket(&self, bucket: &str) -> Reply {
        if let Err(rejection) = check_length(bucket) {
            return rejection.reply();
        }
        let state = self.operator.look(bucket).await;
        state.map_or_else(|error| Rejection::from(error).reply(), |state| page(&state))
    }

    pub(super) async fn change_bucket(&self, write: AdminWrite, bucket: &str, request: AdminRequest) -> AdminAnswer {
        if let Err(rejection) = check_length(bucket) {
            return rejection.reply().into();
        }
        let apply = async |caller: &Caller, body: Incoming| {
            let (state, what) = self.apply(write, bucket, body, caller).await?;
            let (op, by, agent) = (write.label(), &caller.name, &caller.agent);
            tracing::info!(op, bucket = state.bucket, by, agent, "a bucket was changed: {what}");
            Ok(page(&state).into())
        };
        self.change(write, Some(bucket), request, apply).await
    }

    /// Makes all buckets of a limit full.
    pub(super) async fn reset_limit(&self, name: &str, request: AdminRequest) -> AdminAnswer {
        if let Err(rejection) = check_length(name) {
            return rejection.reply().into();
        }
        let write = AdminWrite::ResetAll;
        let apply = async |caller: &Caller, body: Incoming| {
            read(body, &[], |_| Some(())).await?;
            let reset = self.operator.reset_all(name, caller.name.clone()).await?;
            let (op, by, agent) = (write.label(), &caller.name, &caller.agent);
            tracing::info!(op, limit = reset.limit, by, agent, "all buckets of a limit were made full");
            let at = rules_json::timestamp(reset.at);
            Ok(json_reply(&json!({ "reset": { "limit": reset.limit, "at": at, "by": reset.by } })).into())
        };
        self.change(write, Some(name), request, apply).await
    }

    /// Returns the new state, and a description of the change for the log.
    async fn apply(
        &self,
        write: AdminWrite,
        bucket: &str,
        body: Incoming,
        caller: &Caller,
    ) -> Result<(BucketReport, String), Rejection> {
        Ok(match write {
            AdminWrite::Reset => {
                read(body, &[], |_| Some(())).await?;
                (self.operator.change(bucket, BucketChange::Reset).await?, "made full".to_owned())
            }
            AdminWrite::Refund => {
                let cost = read(body, &["cost"], |body| tokens(body, "cost")).await?;
                (self.operator.change(bucket, BucketChange::Refund(cost)).await?, format!("{cost} given back"))
            }
            AdminWrite::Set => {
                let remaining = read(body, &["remaining"], |body| tokens(body, "remaining")).await?;
                (self.operator.change(bucket, BucketChange::Set(remaining)).await?, format!("{remaining} remain"))
            }
            AdminWrite::Block => {
                const ADVICE: &str = "to block it for good, give the id an override with `deny: true`";
                let block =
                    read(body, &["for", "reason"], |body| Some((span(body, LONGEST_BLOCK, ADVICE)?, reason(body))));
                let (span, reason) = block.await?;
                let text = reason.as_deref().unwrap_or("none");
                let what = format!("blocked for {} s, reason: {text}", span.ceil_seconds());
                (self.operator.block(bucket, span, reason, caller.name.clone()).await?, what)
            }
            AdminWrite::Unblock => {
                read(body, &[], |_| Some(())).await?;
                (self.operator.unblock(bucket).await?, "unblocked".to_owned())
            }
            // They have routes of their own.
            AdminWrite::Log
            | AdminWrite::ResetAll
            | AdminWrite::Reload
            | AdminWrite::Record
            | AdminWrite::SetOverride
            | AdminWrite::DeleteOverride => {
                return Err(Rejection::new(StatusCode::NOT_FOUND, "not a change of a bucket"));
            }
        })
    }

    pub(super) fn blocks(&self) -> Reply {
        let blocks: Vec<Value> =
            self.operator.blocked().iter().map(|(block, left)| replies::block(block, *left)).collect();
        json_reply(&json!({ "blocks": blocks }))
    }
}

fn check_length(bucket: &str) -> Result<(), Rejection> {
    if bucket.len() <= MAX_NAME {
        return Ok(());
    }
    let detail = format!("a bucket's name must have at most {MAX_NAME} bytes");
    Err(Rejection::new(StatusCode::URI_TOO_LONG, detail))
}

fn page(state: &BucketReport) -> Reply {
    json_reply(&replies::state(state))
}

pub(super) fn json_reply(value: &Value) -> Reply {
    super::page(StatusCode::OK, "application/json", format!("{value}\n"))
}
