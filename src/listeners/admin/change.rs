//! Changes by operators: who may make them, and how they are counted and logged.

use std::net::SocketAddr;

use http::StatusCode;
use http::request::Parts;

use super::access::FOR_CHANGES;
use super::{Admin, AdminAnswer};
use crate::engine::text::quote::shown;
use crate::http::simple::Incoming;
use crate::limiter::operator::OperatorError;
use crate::message::reply::{Reply, problem};
use crate::telemetry::metrics::{AdminWrite, AdminWriteResult};

/// The characters of a bucket's name in the log.
pub(super) const MAX_SHOWN_NAME: usize = 200;

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

    pub(super) fn unauthorized(detail: &str) -> Self {
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
            OperatorError::File(_) => (StatusCode::INTERNAL_SERVER_ERROR, ""),
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
        apply: impl AsyncFnOnce(&Caller, Incoming) -> Result<AdminAnswer, Rejection>,
    ) -> AdminAnswer {
        let AdminRequest { head, body, peer } = request;
        let (op, bucket) = (write.label(), bucket.map(|bucket| shown(bucket, MAX_SHOWN_NAME)));
        let (result, answer) = match self.authorize(&head, peer, FOR_CHANGES) {
            Err(rejection) => {
                if let Some(suppressed) = self.rejection_log.pass() {
                    let peer = peer.map(|peer| peer.to_string());
                    tracing::warn!(op, bucket, peer, suppressed, "a change was rejected: {}", rejection.detail);
                }
                (AdminWriteResult::Unauthorized, rejection.reply().into())
            }
            Ok(caller) => match apply(&caller, body).await {
                Ok(answer) => (AdminWriteResult::Done, answer),
                Err(rejection) if rejection.status.is_server_error() => {
                    let (by, agent) = (&caller.name, &caller.agent);
                    tracing::warn!(op, bucket, by, agent, "a change failed: {}", rejection.detail);
                    (AdminWriteResult::Failed, rejection.reply().into())
                }
                Err(rejection) => (AdminWriteResult::Mistaken, rejection.reply().into()),
            },
        };
        self.options.shared.metrics().listeners.admin_writes[write][result].inc();
        answer
    }
}
