//! Asks for a reload of the files of rules and certificates, as SIGHUP does, and tells its result. Also the version of the
//! process and of its rules.

use std::sync::mpsc;
use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::body::read;
use super::buckets::json_reply;
use super::change::{AdminRequest, Caller, Rejection};
use super::{Admin, AdminAnswer};
use crate::http::simple::Incoming;
use crate::listeners::rules_json::timestamp;
use crate::message::reply::Reply;
use crate::telemetry::metrics::AdminWrite;

/// Files with a million overrides load in seconds.
const RELOAD_TIMEOUT: Duration = Duration::from_mins(1);

/// Takes requests for a reload to the thread that reloads.
pub type ReloadSender = mpsc::Sender<ReloadRequest>;

/// A request for a reload, with the place for its result if somebody waits for it.
pub type ReloadRequest = Option<oneshot::Sender<ReloadOutcome>>;

/// The result of a reload.
#[derive(Debug, Default)]
pub struct ReloadOutcome {
    /// Other rules are in force.
    pub is_replaced: bool,
    /// The mistakes in the files; the last good ones stay in force.
    pub problems: Vec<String>,
}

impl Admin {
    pub(super) async fn reload(&self, request: AdminRequest) -> AdminAnswer {
        let apply = async |caller: &Caller, body: Incoming| {
            read(body, &[], |_| Some(())).await?;
            let (by, agent) = (&caller.name, &caller.agent);
            tracing::info!(by, agent, "an operator asked for a reload");
            let unavailable = |detail: &str| Rejection::new(StatusCode::SERVICE_UNAVAILABLE, detail);
            let (sender, outcome) = oneshot::channel();
            self.options.reloads.send(Some(sender)).map_err(|_| unavailable("this process is stopping"))?;
            let waited = timeout(RELOAD_TIMEOUT, outcome).await;
            let outcome =
                waited.map_err(|_| unavailable("the reload has not ended yet; its result will be in the log"))?;
            let ReloadOutcome { is_replaced, problems } =
                outcome.map_err(|_| unavailable("this process is stopping"))?;
            if !problems.is_empty() {
                return Err(Rejection::new(StatusCode::UNPROCESSABLE_ENTITY, problems.join("\n")));
            }
            let limits = self.operator.view().rules().limits().len();
            let rules = if is_replaced { "replaced" } else { "unchanged" };
            Ok(json_reply(&json!({ "rules": rules, "limits": limits })).into())
        };
        self.change(AdminWrite::Reload, None, request, apply).await
    }

    pub(super) fn version(&self) -> Reply {
        let view = self.operator.view();
        let rules = view.rules();
        json_reply(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_s": self.started.elapsed().as_secs(),
            "rules": { "files": rules.files(), "loaded": timestamp(rules.loaded_at), "limits": rules.limits().len() },
        }))
    }
}
