//! Operations on buckets over HTTP.
//!
//! | | |
//! |---|---|
//! | `GET /buckets/NAME:ID` | shows the bucket |
//! | `PUT /buckets/NAME:ID` `{"remaining": N}` | sets what remains |
//! | `POST /buckets/NAME:ID/reset` | fills the bucket |
//! | `POST /buckets/NAME:ID/refund` `{"cost": N}` | gives tokens back |
//! | `PUT /buckets/NAME:ID/block` `{"for": "1h", "reason": "..."}` | denies the id, or all that begin with it, for a time |
//! | `DELETE /buckets/NAME:ID/block` | ends the block |
//! | `GET /blocks` | lists the blocks |
//!
//! A bucket's name is one percent-encoded path segment. Reading needs no token, changes do.

use std::borrow::Cow;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::body::{read, reason, span, tokens};
use super::change::{AdminRequest, Caller, Rejection};
use super::{Admin, replies};
use crate::engine::rules::blocks::LONGEST_BLOCK;
use crate::http::simple::Incoming;
use crate::limiter::operator::{BucketChange, BucketState};
use crate::listeners::replies::method_not_allowed;
use crate::message::percent::decode;
use crate::message::reply::Reply;
use crate::telemetry::metrics::AdminWrite;

/// Bytes of a decoded bucket name: an id may be a URL.
const MAX_NAME: usize = 4 * 1024;

/// The resource that a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target<'a> {
    Blocks,
    Bucket(Cow<'a, str>),
    /// A path below a bucket.
    Below(Cow<'a, str>, &'a str),
}

impl<'a> Target<'a> {
    pub(super) fn parse(path: &'a str) -> Option<Self> {
        if path == "/blocks" {
            return Some(Self::Blocks);
        }
        let rest = path.strip_prefix("/buckets/")?;
        Some(match rest.split_once('/') {
            None => Self::Bucket(decode(rest)),
            Some((bucket, below)) => Self::Below(decode(bucket), below),
        })
    }
}

impl Admin {
    pub(super) async fn answer_buckets(&self, target: &Target<'_>, request: AdminRequest) -> Reply {
        let method = &request.head.method;
        let bucket = match target {
            Target::Bucket(bucket) | Target::Below(bucket, _) => bucket.as_ref(),
            Target::Blocks => "",
        };
        if bucket.len() > MAX_NAME {
            let detail = format!("a bucket's name must have at most {MAX_NAME} bytes");
            return Rejection::new(StatusCode::URI_TOO_LONG, detail).reply();
        }
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let write = match (target, method) {
            (Target::Blocks, _) if is_read => return self.blocks(),
            (Target::Bucket(_), _) if is_read => {
                let state = self.operator.look(bucket).await;
                return state.map_or_else(|error| Rejection::from(error).reply(), |state| page(&state));
            }
            (Target::Bucket(_), &Method::PUT) => AdminWrite::Set,
            (Target::Below(_, "reset"), &Method::POST) => AdminWrite::Reset,
            (Target::Below(_, "refund"), &Method::POST) => AdminWrite::Refund,
            (Target::Below(_, "block"), &Method::PUT) => AdminWrite::Block,
            (Target::Below(_, "block"), &Method::DELETE) => AdminWrite::Unblock,
            (Target::Blocks, _) => return method_not_allowed(method, "GET, HEAD"),
            (Target::Bucket(_), _) => return method_not_allowed(method, "GET, HEAD, PUT"),
            (Target::Below(_, "reset" | "refund"), _) => return method_not_allowed(method, "POST"),
            (Target::Below(_, "block"), _) => return method_not_allowed(method, "PUT, DELETE"),
            (Target::Below(..), _) => {
                let detail = "below a bucket there are /reset, /refund and /block; a `/` in its name is written %2F";
                return Rejection::new(StatusCode::NOT_FOUND, detail).reply();
            }
        };
        let apply = async |caller: &Caller, body: Incoming| {
            let (state, what) = self.apply(write, bucket, body, caller).await?;
            let (op, by, agent) = (write.label(), &caller.name, &caller.agent);
            tracing::info!(op, bucket = state.bucket, by, agent, "a bucket was changed: {what}");
            Ok(page(&state))
        };
        self.change(write, Some(bucket), request, apply).await
    }

    /// Returns the new state, and a description of the change for the log.
    async fn apply(
        &self,
        write: AdminWrite,
        bucket: &str,
        body: Incoming,
        caller: &Caller,
    ) -> Result<(BucketState, String), Rejection> {
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
            AdminWrite::Log => return Err(Rejection::new(StatusCode::NOT_FOUND, "a bucket has no log; there is /log")),
        })
    }

    fn blocks(&self) -> Reply {
        let blocks: Vec<Value> =
            self.operator.blocked().iter().map(|(block, left)| replies::block(block, *left)).collect();
        json_reply(&json!({ "blocks": blocks }))
    }
}

fn page(state: &BucketState) -> Reply {
    json_reply(&replies::state(state))
}

pub(super) fn json_reply(value: &Value) -> Reply {
    super::page(StatusCode::OK, "application/json", format!("{value}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_one_segment_of_the_path() {
        for (path, expected) in [
            ("/blocks", Some(Target::Blocks)),
            ("/buckets/L:2001%3Adb8::%2F64", Some(Target::Bucket("L:2001:db8::/64".into()))),
            ("/buckets/L:a%253Ab/block", Some(Target::Below("L:a%3Ab".into(), "block"))),
            ("/buckets/L:a/b/block", Some(Target::Below("L:a".into(), "b/block"))),
            ("/buckets/", Some(Target::Bucket("".into()))),
            ("/buckets", None),
            ("/blocks/", None),
            ("/metrics", None),
        ] {
            assert_eq!(Target::parse(path), expected, "{path}");
        }
    }
}
