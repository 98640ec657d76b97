//! Rules that a management server pushes by xDS: state of the world over the aggregated discovery service, as Envoy Gateway and
//! Envoy AI Gateway serve it to envoyproxy/ratelimit.
//!
//! Each response has all resources. It is checked with the rules files, put in force and acknowledged, or rejected with the reason,
//! and then the last good one stays in force.

use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

pub(super) use self::in_force::PushedConfiguration;
use self::messages::{DiscoveryRequest, DiscoveryResponse, METHOD, Node, TYPE_URL};
use self::rejections::Rejections;
use super::compiler::Compiler;
use crate::config::Files;
use crate::engine::text::quote::{quoted, shown};
use crate::http::{ConnectorOptions, GrpcClient};
use crate::limiter::Shared;
use crate::listeners::admin::Readiness;
use crate::listeners::admin::reload::ReloadSender;
use crate::listeners::grpc::messages::{Kind, Status, Struct};
use crate::message::url::HttpUrl;
use crate::telemetry::metrics::XdsUpdate;

mod in_force;
mod messages;
mod rejections;
mod resources;

/// How long a start waits for the first configuration, before the listeners open.
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// A stream without a response for so long is silent: the server may not know the node's id.
const SILENCE: Duration = Duration::from_secs(10);

/// After a session of so long, the wait before the next one is the first again.
const STABLE: Duration = Duration::from_secs(10);

/// `google.rpc.Code.INVALID_ARGUMENT`
const INVALID_ARGUMENT: i32 = 3;

/// Bytes of a reason that is sent to the server or shown.
const MAX_REASON: usize = 4096;

/// The options of the client.
#[derive(Clone, Debug)]
pub struct XdsOptions {
    pub url: HttpUrl,
    /// By this id the server knows which configuration to send.
    pub node_id: String,
    pub metadata: Vec<(String, String)>,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub tls: ConnectorOptions,
    /// Between two tries to connect: the first wait, which doubles, and the longest.
    pub backoff: [Duration; 2],
    /// Bytes of a response.
    pub max_message: usize,
    /// The process is ready before the first configuration has come.
    pub is_optional: bool,
}

/// The client of a management server.
#[derive(Clone)]
pub struct XdsClient {
    grpc: GrpcClient,
    node: Node,
    backoff: [Duration; 2],
    is_optional: bool,
    files: Files,
    compiler: Compiler,
    in_force: PushedConfiguration,
    rejections: Rejections,
}

/// What a session reports to.
#[derive(Clone, Copy)]
struct Surroundings<'a> {
    shared: &'a Shared,
    readiness: &'a Readiness,
    /// Puts new rules in force; `None` before the reload thread runs.
    ask_reload: Option<&'a ReloadSender>,
}

/// A request that is to be sent to the server. A newer one takes its place.
struct Answer {
    request: DiscoveryRequest,
    due: Instant,
    /// The version that it rejects.
    rejected: Option<String>,
}

impl XdsClient {
    /// `files` are all those of the rules, with the place for pushed ones.
    pub fn new(options: XdsOptions, files: Files, compiler: Compiler) -> Self {
        let XdsOptions { url, node_id, metadata, headers, tls, backoff, max_message, is_optional } = options;
        let metadata: Struct = metadata.into_iter().map(|(key, value)| (key, Kind::Text(value.into()))).collect();
        let metadata = Some(metadata).filter(|metadata| !metadata.fields.is_empty());
        Self {
            grpc: GrpcClient { url, tls, headers, max_message },
            node: Node { id: node_id, metadata, user_agent_name: "weir".to_owned() },
            backoff,
            is_optional,
            files,
            compiler,
            in_force: PushedConfiguration::default(),
            rejections: Rejections::default(),
        }
    }

    /// Returns whether the first configuration has not come yet.
    pub fn is_awaited(&self) -> bool {
        !self.in_force.is_there()
    }

    /// Returns whether the process is ready without it.
    pub const fn is_optional(&self) -> bool {
        self.is_optional
    }

    /// The configuration in force, for a process that takes over.
    pub(super) fn in_force(&self) -> PushedConfiguration {
        self.in_force.clone()
    }

    /// Takes over the configuration of the process that hands over; the next reload puts it in force. The error has the mistakes.
    pub fn inherit(&self, encoded: &[u8]) -> Result<(), String> {
        let response = PushedConfiguration::decode(encoded)?;
        let sources = resources::sources(&response)?;
        self.compiler.check_pushed(&self.files, sources).map_err(|report| report.to_string())?;
        let (version, resources) = (&response.version_info, response.resources.len());
        tracing::info!(version, resources, "taking over the management server's configuration from the old process");
        self.in_force.set(response);
        Ok(())
    }

    /// Waits a while for the first configuration, so that a process that takes over from another one has its limits. Returns true if
    /// it came; the next reload puts it in force.
    pub async fn fetch_first(&mut self, shared: &Shared, readiness: &Readiness) -> bool {
        let surroundings = Surroundings { shared, readiness, ask_reload: None };
        shared.metrics().server.xds_silent(false);
        let reason = match timeout(FIRST_WAIT, self.session(surroundings)).await {
            Ok(reason) => reason,
            Err(_) => format!("no good one came within {FIRST_WAIT:?}"),
        };
        shared.metrics().server.xds_connected(false);
        let is_there = self.in_force.is_there();
        if !is_there {
            tracing::warn!(server = %self.grpc.url, "starting without the management server's configuration: {reason}");
        }
        is_there
    }

    /// Follows the server until dropped.
    pub async fn run(mut self, shared: Arc<Shared>, readiness: Arc<Readiness>, ask_reload: ReloadSender) {
        let surroundings = Surroundings { shared: &shared, readiness: &readiness, ask_reload: Some(&ask_reload) };
        let [first, longest] = self.backoff;
        let mut wait = first;
        shared.metrics().server.xds_silent(false);
        loop {
            let begun = Instant::now();
            let reason = self.session(surroundings).await;
            shared.metrics().server.xds_connected(false);
            shared.metrics().server.xds_silent(false);
            wait = if begun.elapsed() < STABLE { wait } else { first };
            let retry = wait.mul_f64(rand::random_range(0.5..1.0));
            tracing::warn!(server = %self.grpc.url, ?retry, "lost the management server: {reason}");
            readiness.xds(Some(format!("{}: {reason}", self.grpc.url)));
            sleep(retry).await;
            wait = (wait * 2).min(longest);
        }
    }

    /// Connects and takes what is sent, until the connection ends or, before the reload thread runs, a configuration was accepted. Returns
    /// why it ended.
    async fn session(&mut self, surroundings: Surroundings<'_>) -> String {
        let ended = self.follow(surroundings).await;
        ended.map_or_else(cut, |()| "the server ended the stream".to_owned())
    }

    async fn follow(&mut self, surroundings: Surroundings<'_>) -> Result<(), String> {
        let Surroundings { shared, readiness, ask_reload } = surroundings;
        let mut connection = self.grpc.connect().await?;
        let (requests, sent) = mpsc::channel(1);
        permit(&requests, Some(Instant::now())).await?.send(self.request());
        shared.metrics().server.xds_connected(true);
        let (server, node, version) = (&self.grpc.url, &self.node.id, self.in_force.version());
        tracing::info!(%server, node, version, "following the management server");
        // A server that resumes at the accepted version has nothing to say.
        readiness.xds((!self.in_force.is_there()).then(|| self.silence()));
        let opening = connection.call::<_, DiscoveryResponse>(METHOD, sent);
        let mut silent_from = Some(Instant::now() + SILENCE);
        let mut responses = self.unless_silent(surroundings, &mut silent_from, opening).await?;
        let (mut is_of_other_type, mut answer) = (false, None::<Answer>);
        loop {
            let due = answer.as_ref().map(|answer| answer.due);
            let response = tokio::select! {
                biased;
                permit = permit(&requests, due) => {
                    let permit = permit?;
                    self.in_force.may_change().await;
                    if let Some(answer) = answer.take() {
                        self.tell(&answer);
                        permit.send(answer.request);
                    }
                    if ask_reload.is_none() && self.in_force.is_there() {
                        return Ok(());
                    }
                    continue;
                }
                response = self.unless_silent(surroundings, &mut silent_from, responses.next()) => response?,
            };
            let Some(response) = response else { return Ok(()) };
            if response.type_url == TYPE_URL {
                silent_from = None;
                shared.metrics().server.xds_silent(false);
                self.in_force.may_change().await;
                answer = Some(self.take(response, surroundings).await);
            } else if !std::mem::replace(&mut is_of_other_type, true) {
                tracing::warn!(type_url = shown(&response.type_url, 200), "ignoring responses of other types");
            }
        }
    }

    /// Waits for the server, and tells once if no configuration has come until a time although none is in force.
    async fn unless_silent<T>(
        &self,
        surroundings: Surroundings<'_>,
        silent_from: &mut Option<Instant>,
        waiting: impl Future<Output = T>,
    ) -> T {
        let mut waiting = pin!(waiting);
        if let Some(at) = silent_from.filter(|_| !self.in_force.is_there()) {
            if let Ok(got) = timeout_at(at, &mut waiting).await {
                return got;
            }
            *silent_from = None;
            tracing::warn!("{}", self.silence());
            surroundings.shared.metrics().server.xds_silent(true);
        }
        waiting.await
    }

    fn silence(&self) -> String {
        let id = quoted(&self.node.id);
        format!("{} has sent no configuration for the node {id} yet; does it know this id?", self.grpc.url)
    }

    /// The subscription, which later requests extend.
    fn request(&self) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.in_force.version().unwrap_or_default(),
            node: Some(self.node.clone()),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    /// Puts a configuration in force. Returns the acknowledgement, or the rejection.
    async fn take(&mut self, response: DiscoveryResponse, surroundings: Surroundings<'_>) -> Answer {
        let Surroundings { shared, readiness, .. } = surroundings;
        let updates = &shared.metrics().server.xds_updates;
        let (resources, nonce) = (response.resources.len(), response.nonce.clone());
        let taken = if self.in_force.is(&response) { Ok(false) } else { self.apply(&response, surroundings).await };
        let version = response.version_info.clone();
        let (now, rejection) = (Instant::now(), taken.map_err(cut));
        let (due, error_detail) = match rejection {
            Ok(is_new) => {
                if is_new {
                    tracing::info!(version, resources, "the management server's configuration is in force");
                    updates[XdsUpdate::Accepted].inc();
                    self.in_force.set(response);
                    self.rejections = Rejections::default();
                    readiness.configured();
                }
                readiness.xds(None);
                (now, None)
            }
            Err(reason) => {
                updates[XdsUpdate::Rejected].inc();
                readiness.xds(Some(format!("version {} was rejected: {reason}", quoted(&version))));
                (self.rejections.add(now), Some(Status { code: INVALID_ARGUMENT, message: reason }))
            }
        };
        let rejected = error_detail.is_some().then_some(version);
        let request = DiscoveryRequest { response_nonce: nonce, error_detail, ..self.request() };
        Answer { request, due, rejected }
    }

    /// Logs a rejection that is sent now.
    fn tell(&mut self, answer: &Answer) {
        if let (Some(version), Some(detail)) = (&answer.rejected, &answer.request.error_detail) {
            self.rejections.tell(version, &detail.message);
        }
    }

    /// Checks pushed rules with the files, and puts all in force; true, as they are new. The error has the mistakes.
    async fn apply(&self, response: &DiscoveryResponse, surroundings: Surroundings<'_>) -> Result<bool, String> {
        let sources = resources::sources(response)?;
        let (compiler, files) = (self.compiler.clone(), self.files.clone());
        let before = files.pushed.get();
        // Takes a second for some ten thousand rules.
        let checked = tokio::task::spawn_blocking(move || compiler.check_pushed(&files, sources)).await;
        checked.map_err(|error| error.to_string())?.map_err(|report| report.to_string())?;
        let Some(ask_reload) = surroundings.ask_reload else { return Ok(true) };
        let (reply, outcome) = oneshot::channel();
        let ending = "the process is ending";
        ask_reload.send(Some(reply)).map_err(|_| ending)?;
        let outcome = outcome.await.map_err(|_| ending)?;
        match surroundings.readiness.reload_error() {
            // A file that has been broken since the check.
            Some(error) if !outcome.is_replaced => {
                self.files.pushed.set(before);
                Err(error)
            }
            _ => Ok(true),
        }
    }
}

impl fmt::Debug for XdsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdsClient").field("server", &self.grpc.url).finish_non_exhaustive()
    }
}

/// Waits until a request is due and can be sent; without one, forever.
async fn permit(
    requests: &mpsc::Sender<DiscoveryRequest>,
    due: Option<Instant>,
) -> Result<mpsc::Permit<'_, DiscoveryRequest>, String> {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
    requests.reserve().await.map_err(|_| "the connection ended".to_owned())
}

fn cut(reason: String) -> String {
    if reason.len() <= MAX_REASON {
        reason
    } else {
        format!("{}...", &reason[..reason.floor_char_boundary(MAX_REASON)])
    }
}
