//! What operators ask of buckets over HTTP.
//!
//! | | |
//! |---|---|
//! | `GET /buckets/NAME:ID` | how it stands |
//! | `PUT /buckets/NAME:ID` `{"remaining": N}` | so much remains |
//! | `POST /buckets/NAME:ID/reset` | it is made full |
//! | `POST /buckets/NAME:ID/refund` `{"cost": N}` | so much is given back |
//! | `PUT /buckets/NAME:ID/block` `{"for": "1h", "reason": "..."}` | its id, or all that begin so, are denied for a time |
//! | `DELETE /buckets/NAME:ID/block` | no longer |
//! | `GET /blocks` | what is blocked |
//!
//! The name of a bucket is one segment of the path, percent-encoded. Whoever reaches the listener may look; to change
//! something takes a token.

use std::borrow::Cow;
use std::net::SocketAddr;

use http::header::{AUTHORIZATION, HeaderMap, USER_AGENT};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::body::{members, number, read, reason, span};
use super::{Admin, replies};
use crate::engine::rules::blocks::LONGEST_BLOCK;
use crate::engine::rules::quote::shown;
use crate::http::simple::Incoming;
use crate::limiter::operator::{BucketChange, BucketState, OperatorError};
use crate::message::headers::Headers;
use crate::message::percent::decode;
use crate::message::reply::{Reply, problem};
use crate::telemetry::metrics::{AdminWrite, AdminWriteResult};

/// What a bucket's name may have, decoded: an id may be a URL.
const LONGEST_NAME: usize = 4 * 1024;

/// Of a bucket's name that is none of ours, in the log, in characters.
pub(super) const LONGEST_SHOWN: usize = 200;

/// What is said of a block that is to be longer.
const FOR_GOOD: &str = "for good, give the id an override with `deny: true`";

/// Of what a client calls itself, in characters.
const LONGEST_AGENT: usize = 100;

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked<'a> {
    Blocks,
    Bucket(Cow<'a, str>),
    /// What is below a bucket.
    Below(Cow<'a, str>, &'a str),
}

/// Why nothing was done.
pub(super) struct Rejection {
    status: StatusCode,
    pub(super) detail: String,
    /// A header beside it.
    header: Option<(&'static str, &'static str)>,
}

impl Rejection {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), header: None }
    }

    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn reply(self) -> Reply {
        let mut reply = problem(self.status, &self.detail);
        if let Some((name, value)) = self.header {
            reply.headers.append(name, value);
        }
        reply
    }
}

impl From<OperatorError> for Rejection {
    fn from(error: OperatorError) -> Self {
        let status = match &error {
            OperatorError::Unknown(_) => StatusCode::NOT_FOUND,
            OperatorError::Invalid(_) => StatusCode::BAD_REQUEST,
            OperatorError::Unsupported(_) => StatusCode::CONFLICT,
            OperatorError::Store(store) if store.is_ambiguous() => {
                return Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!("{error}; it may have been done all the same"),
                );
            }
            OperatorError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

/// Who asks.
pub(super) struct Caller<'a> {
    /// The token's name or, of one that has none, the address.
    pub(super) name: String,
    pub(super) agent: Cow<'a, str>,
}

/// What a path of buckets asks for; `None` if it is none.
pub(super) fn asked(path: &str) -> Option<Asked<'_>> {
    if path == "/blocks" {
        return Some(Asked::Blocks);
    }
    let rest = path.strip_prefix("/buckets/")?;
    match rest.split_once('/') {
        None => Some(Asked::Bucket(decode(rest))),
        Some((bucket, below)) => Some(Asked::Below(decode(bucket), below)),
    }
}

impl Admin {
    /// Answers what is asked of buckets.
    pub(super) async fn answer_operator(
        &self,
        asked: &Asked<'_>,
        method: &Method,
        headers: &HeaderMap,
        body: Incoming,
        peer: Option<SocketAddr>,
    ) -> Reply {
        let bucket = match asked {
            Asked::Bucket(bucket) | Asked::Below(bucket, _) => bucket.as_ref(),
            Asked::Blocks => "",
        };
        if bucket.len() > LONGEST_NAME {
            let detail = format!("the name of a bucket has at most {LONGEST_NAME} bytes");
            return Rejection::new(StatusCode::URI_TOO_LONG, detail).reply();
        }
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let write = match (asked, method) {
            (Asked::Blocks, _) if is_read => return self.blocks(),
            (Asked::Bucket(_), _) if is_read => {
                return self
                    .operator
                    .look(bucket)
                    .await
                    .map_or_else(|error| Rejection::from(error).reply(), |state| page(&state));
            }
            (Asked::Bucket(_), &Method::PUT) => AdminWrite::Set,
            (Asked::Below(_, "reset"), &Method::POST) => AdminWrite::Reset,
            (Asked::Below(_, "refund"), &Method::POST) => AdminWrite::Refund,
            (Asked::Below(_, "block"), &Method::PUT) => AdminWrite::Block,
            (Asked::Below(_, "block"), &Method::DELETE) => AdminWrite::Unblock,
            (Asked::Blocks, _) => return not_with(method, "GET, HEAD"),
            (Asked::Bucket(_), _) => return not_with(method, "GET, HEAD, PUT"),
            (Asked::Below(_, "reset" | "refund"), _) => return not_with(method, "POST"),
            (Asked::Below(_, "block"), _) => return not_with(method, "PUT, DELETE"),
            (Asked::Below(..), _) => {
                let detail = "below a bucket there are /reset, /refund and /block; a `/` in its name is written %2F";
                return Rejection::new(StatusCode::NOT_FOUND, detail).reply();
            }
        };
        let (result, reply) = match self.caller(headers, peer) {
            Err(rejection) => {
                if let Some(suppressed) = self.complaints.pass() {
                    let peer = peer.map(|peer| peer.to_string());
                    tracing::warn!(
                        op = write.label(),
                        bucket = shown(bucket, LONGEST_SHOWN),
                        peer,
                        suppressed,
                        "a change of a bucket was rejected: {}",
                        rejection.detail
                    );
                }
                (AdminWriteResult::Unauthorized, rejection.reply())
            }
            Ok(caller) => self.write(write, bucket, body, &caller).await,
        };
        self.metrics.listeners.admin_writes[write as usize][result as usize].inc();
        reply
    }

    /// Changes something, and writes into the log who has and what.
    async fn write(
        &self,
        write: AdminWrite,
        bucket: &str,
        body: Incoming,
        caller: &Caller<'_>,
    ) -> (AdminWriteResult, Reply) {
        let (op, by, agent) = (write.label(), caller.name.as_str(), caller.agent.as_ref());
        match self.obey(write, bucket, body, caller).await {
            Ok((state, what)) => {
                tracing::info!(op, bucket = state.bucket, by, agent, "a bucket was changed: {what}");
                (AdminWriteResult::Done, page(&state))
            }
            Err(rejection) if rejection.status.is_server_error() => {
                tracing::warn!(
                    op,
                    bucket = shown(bucket, LONGEST_SHOWN),
                    by,
                    agent,
                    "a bucket was not changed: {}",
                    rejection.detail
                );
                (AdminWriteResult::Failed, rejection.reply())
            }
            Err(rejection) => (AdminWriteResult::Mistaken, rejection.reply()),
        }
    }

    /// How the bucket stands now, and what was done for the log.
    async fn obey(
        &self,
        write: AdminWrite,
        bucket: &str,
        body: Incoming,
        caller: &Caller<'_>,
    ) -> Result<(BucketState, String), Rejection> {
        let body = read(body).await?;
        match write {
            AdminWrite::Reset => {
                members(&body, &[])?;
                Ok((self.operator.change(bucket, BucketChange::Reset).await?, "made full".to_owned()))
            }
            AdminWrite::Refund => {
                members(&body, &["cost"])?;
                let cost = number(&body, "cost")?;
                Ok((self.operator.change(bucket, BucketChange::Refund(cost)).await?, format!("{cost} given back")))
            }
            AdminWrite::Set => {
                members(&body, &["remaining"])?;
                let remaining = number(&body, "remaining")?;
                Ok((self.operator.change(bucket, BucketChange::Set(remaining)).await?, format!("{remaining} remain")))
            }
            AdminWrite::Block => {
                members(&body, &["for", "reason"])?;
                let (span, reason) = (span(&body, LONGEST_BLOCK, FOR_GOOD)?, reason(&body)?);
                let what =
                    format!("blocked for {} s, reason: {}", span.ceil_seconds(), reason.as_deref().unwrap_or("none"));
                Ok((self.operator.block(bucket, span, reason, caller.name.clone()).await?, what))
            }
            AdminWrite::Unblock => {
                members(&body, &[])?;
                Ok((self.operator.unblock(bucket).await?, "unblocked".to_owned()))
            }
            AdminWrite::Log => Err(Rejection::new(StatusCode::NOT_FOUND, "a bucket has no log; there is /log")),
        }
    }

    /// Who asks for a change; the error says what is missing.
    pub(super) fn caller<'h>(&self, headers: &'h HeaderMap, peer: Option<SocketAddr>) -> Result<Caller<'h>, Rejection> {
        if self.tokens.is_empty() {
            let detail = "changes are not enabled: start Weir with `--admin-token-file FILE` or WEIR_ADMIN_TOKEN, and send \
                          the token as `Authorization: Bearer TOKEN`";
            return Err(Rejection::new(StatusCode::FORBIDDEN, detail));
        }
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
        let wrong = |detail: &str| Rejection {
            header: Some(("www-authenticate", "Bearer realm=\"weir\"")),
            ..Rejection::new(StatusCode::UNAUTHORIZED, detail)
        };
        let Some(given) = given else {
            return Err(wrong("a change needs a token: send `Authorization: Bearer TOKEN`"));
        };
        let name = self.tokens.find(given).ok_or_else(|| wrong("this token is not known"))?.name.clone();
        let address = || peer.map_or_else(|| "unknown".to_owned(), |peer| peer.ip().to_string());
        let agent = headers.get(USER_AGENT).map(|agent| String::from_utf8_lossy(agent.as_bytes()));
        let agent = agent.map_or(Cow::Borrowed(""), |agent| Cow::Owned(shown(&agent, LONGEST_AGENT)));
        Ok(Caller { name: name.unwrap_or_else(address), agent })
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
    let headers = Headers::from_iter([("content-type", "application/json"), ("cache-control", "no-store")]);
    Reply { status: StatusCode::OK, headers, body: format!("{value}\n") }
}

pub(super) fn not_with(method: &Method, allowed: &'static str) -> Reply {
    let rejection =
        Rejection::new(StatusCode::METHOD_NOT_ALLOWED, format!("this is asked with {allowed}, not {method}"));
    Rejection { header: Some(("allow", allowed)), ..rejection }.reply()
}

/// The token of `Authorization`, whose scheme is written in any case (RFC 9110 section 11.1).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_one_segment_of_the_path() {
        for (path, expected) in [
            ("/blocks", Some(Asked::Blocks)),
            ("/buckets/L:2001%3Adb8::%2F64", Some(Asked::Bucket("L:2001:db8::/64".into()))),
            ("/buckets/L:a%253Ab/block", Some(Asked::Below("L:a%3Ab".into(), "block"))),
            ("/buckets/L:a/b/block", Some(Asked::Below("L:a".into(), "b/block"))),
            ("/buckets/", Some(Asked::Bucket("".into()))),
            ("/buckets", None),
            ("/blocks/", None),
            ("/metrics", None),
        ] {
            assert_eq!(asked(path), expected, "{path}");
        }
    }

    #[test]
    fn a_token_stands_behind_its_scheme() {
        for (value, expected) in
            [("Bearer x", Some("x")), ("bearer  x ", Some("x")), ("Basic x", None), ("Bearer", None), ("x", None)]
        {
            assert_eq!(bearer(value), expected, "{value}");
        }
    }
}
