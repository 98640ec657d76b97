//! Changes by operators: who may make them, and how they are counted and logged.

use std::net::SocketAddr;

use http::StatusCode;
use http::header::{AUTHORIZATION, USER_AGENT};
use http::request::Parts;

use super::Admin;
use crate::engine::rules::quote::shown;
use crate::http::simple::Incoming;
use crate::limiter::operator::OperatorError;
use crate::message::reply::{Reply, problem};
use crate::telemetry::metrics::{AdminWrite, AdminWriteResult};

/// The characters of a bucket's name in the log.
pub(super) const MAX_SHOWN_NAME: usize = 200;

/// The characters of a `User-Agent` in the log.
const MAX_SHOWN_AGENT: usize = 100;

/// A request to the admin listener.
pub(super) struct AdminRequest {
    pub(super) head: Parts,
    pub(super) body: Incoming,
    pub(super) peer: Option<SocketAddr>,
}

/// A request that was not carried out.
pub(super) struct Rejection {
    status: StatusCode,
    detail: String,
    challenge: Option<&'static str>,
}

impl Rejection {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), challenge: None }
    }

    pub(super) fn bad(detail: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    fn unauthorized(detail: &str) -> Self {
        Self { challenge: Some("Bearer realm=\"weir\""), ..Self::new(StatusCode::UNAUTHORIZED, detail) }
    }

    pub(super) fn reply(self) -> Reply {
        let mut reply = problem(self.status, &self.detail);
        if let Some(challenge) = self.challenge {
            reply.headers.append("www-authenticate", challenge);
        }
        reply
    }
}

impl From<OperatorError> for Rejection {
    fn from(error: OperatorError) -> Self {
        let (status, note) = match &error {
            OperatorError::Unknown(_) => (StatusCode::NOT_FOUND, ""),
            OperatorError::Invalid(_) => (StatusCode::BAD_REQUEST, ""),
            OperatorError::Unsupported(_) => (StatusCode::CONFLICT, ""),
            OperatorError::Store(store) if store.is_ambiguous() => {
                (StatusCode::SERVICE_UNAVAILABLE, "; the change may have been made")
            }
            OperatorError::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, ""),
        };
        Self::new(status, format!("{error}{note}"))
    }
}

/// The author of a change.
pub(super) struct Caller {
    /// The token's name, or the address if the token has none.
    pub(super) name: String,
    pub(super) agent: String,
}

impl Admin {
    /// Makes a change if the request has a token for it. Counts the result, and logs failures.
    pub(super) async fn change(
        &self,
        write: AdminWrite,
        bucket: Option<&str>,
        request: AdminRequest,
        apply: impl AsyncFnOnce(&Caller, Incoming) -> Result<Reply, Rejection>,
    ) -> Reply {
        let AdminRequest { head, body, peer } = request;
        let (op, bucket) = (write.label(), bucket.map(|bucket| shown(bucket, MAX_SHOWN_NAME)));
        let (result, reply) = match self.authorize(&head, peer) {
            Err(rejection) => {
                if let Some(suppressed) = self.rejection_log.pass() {
                    let peer = peer.map(|peer| peer.to_string());
                    tracing::warn!(op, bucket, peer, suppressed, "a change was rejected: {}", rejection.detail);
                }
                (AdminWriteResult::Unauthorized, rejection.reply())
            }
            Ok(caller) => match apply(&caller, body).await {
                Ok(reply) => (AdminWriteResult::Done, reply),
                Err(rejection) if rejection.status.is_server_error() => {
                    let (by, agent) = (&caller.name, &caller.agent);
                    tracing::warn!(op, bucket, by, agent, "a change failed: {}", rejection.detail);
                    (AdminWriteResult::Failed, rejection.reply())
                }
                Err(rejection) => (AdminWriteResult::Mistaken, rejection.reply()),
            },
        };
        self.options.shared.metrics().listeners.admin_writes[write as usize][result as usize].inc();
        reply
    }

    pub(super) fn authorize(&self, head: &Parts, peer: Option<SocketAddr>) -> Result<Caller, Rejection> {
        let tokens = &self.options.tokens;
        if tokens.is_empty() {
            let detail = "changes are not enabled: start Weir with `--admin-token-file FILE` or WEIR_ADMIN_TOKEN, and send \
                          the token as `Authorization: Bearer TOKEN`";
            return Err(Rejection::new(StatusCode::FORBIDDEN, detail));
        }
        let given = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
        let given = given
            .ok_or_else(|| Rejection::unauthorized("a change needs a token: send `Authorization: Bearer TOKEN`"))?;
        let token = tokens.find(given).ok_or_else(|| Rejection::unauthorized("unknown token"))?;
        let address = || peer.map_or_else(|| "unknown".to_owned(), |peer| peer.ip().to_string());
        let agent = head.headers.get(USER_AGENT).map(|agent| String::from_utf8_lossy(agent.as_bytes()));
        let agent = agent.map(|agent| shown(&agent, MAX_SHOWN_AGENT)).unwrap_or_default();
        Ok(Caller { name: token.name.clone().unwrap_or_else(address), agent })
    }
}

/// Returns the token of an `Authorization` header. Its scheme is case-insensitive (RFC 9110 section 11.1).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_stands_behind_its_scheme() {
        for (value, expected) in
            [("Bearer x", Some("x")), ("bearer  x ", Some("x")), ("Basic x", None), ("Bearer", None), ("x", None)]
        {
            assert_eq!(bearer(value), expected, "{value}");
        }
    }
}
