//! Rules that a management server pushes by xDS: state of the world over the aggregated discovery service, as Envoy Gateway and
//! Envoy AI Gateway serve it to envoyproxy/ratelimit.
//!
//! Each response has all resources. It is checked with the rules files, put in force and acknowledged, or rejected with the reason,
//! and then the last good one stays in force.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

pub(super) use self::in_force::PushedConfiguration;
use self::messages::{DiscoveryRequest, DiscoveryResponse, METHOD, Node, TYPE_URL};
use super::compiler::Compiler;
use crate::config::{Files, Source};
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
mod resources;

/// How long a start waits for the first configuration, before the listeners open.
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// A stream without a response for so long is silent: the server may not know the node's id.
const SILENCE: Duration = Duration::from_secs(10);

/// The wait before a version is rejected that was rejected already, which doubles up to the longest. Servers answer a rejection with
/// the same version at once.
const REPEATED_REJECTION: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(10)];

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
    rejected: Option<Rejected>,
}

/// The last response that was rejected, until another one is accepted.
#[derive(Clone, Debug)]
struct Rejected {
    version: String,
    reason: String,
    /// How often in a row.
    times: u32,
}

/// What a session reports to.
#[derive(Clone, Copy)]
struct Surroundings<'a> {
    shared: &'a Shared,
    readiness: &'a Readiness,
    /// Puts new rules in force; `None` before the reload thread runs.
    ask_reload: Option<&'a ReloadSender>,
}

/// The end of a session.
struct SessionEnd {
    reason: String,
    /// The server had sent something.
    has_received: bool,
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
            rejected: None,
        }
    }

    /// Returns whether the process is not ready before the first configuration has come.
    pub fn is_awaited(&self) -> bool {
        !self.is_optional && !self.in_force.is_there()
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
            Ok(ended) => ended.reason,
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
        loop {
            let SessionEnd { reason, has_received } = self.session(surroundings).await;
            shared.metrics().server.xds_connected(false);
            shared.metrics().server.xds_silent(false);
            wait = if has_received { first } else { wait };
            let retry = wait.mul_f64(rand::random_range(0.5..1.0));
            tracing::warn!(server = %self.grpc.url, ?retry, "lost the management server: {reason}");
            readiness.xds(Some(format!("{}: {reason}", self.grpc.url)));
            sleep(retry).await;
            wait = (wait * 2).min(longest);
        }
    }

    /// Connects and takes what is sent, until the connection ends or, before the reload thread runs, a configuration was accepted.
    async fn session(&mut self, surroundings: Surroundings<'_>) -> SessionEnd {
        let mut has_received = false;
        let Err(reason) = self.follow(surroundings, &mut has_received).await else {
            return SessionEnd { reason: "the server ended the stream".to_owned(), has_received };
        };
        SessionEnd { reason: cut(reason), has_received }
    }

    async fn follow(&mut self, surroundings: Surroundings<'_>, has_received: &mut bool) -> Result<(), String> {
        let Surroundings { shared, readiness, ask_reload } = surroundings;
        let connection = self.grpc.connect().await?;
        let (requests, sent) = mpsc::channel(1);
        let send = async |request| requests.send(request).await.map_err(|_| "the connection ended".to_owned());
        send(self.request()).await?;
        shared.metrics().server.xds_connected(true);
        let (server, node, version) = (&self.grpc.url, &self.node.id, self.in_force.version());
        tracing::info!(%server, node, version, "following the management server");
        // A server that resumes at the accepted version has nothing to say.
        readiness.xds((!self.in_force.is_there()).then(|| self.silence()));
        let opening = connection.call::<_, DiscoveryResponse>(METHOD, sent);
        let mut responses = self.unless_silent(surroundings, opening).await?;
        loop {
            let response = if *has_received {
                responses.next().await
            } else {
                self.unless_silent(surroundings, responses.next()).await
            };
            let Some(response) = response? else { return Ok(()) };
            *has_received = true;
            shared.metrics().server.xds_silent(false);
            if response.type_url != TYPE_URL {
                tracing::warn!(type_url = shown(&response.type_url, 200), "ignoring a response of another type");
                continue;
            }
            let answer = self.take(response, surroundings).await;
            send(answer).await?;
            if ask_reload.is_none() && self.in_force.is_there() {
                return Ok(());
            }
        }
    }

    /// Waits for the server, and tells if nothing comes although nothing is in force.
    async fn unless_silent<T>(&self, surroundings: Surroundings<'_>, waiting: impl Future<Output = T>) -> T {
        let mut waiting = pin!(waiting);
        if !self.in_force.is_there() {
            if let Ok(got) = timeout(SILENCE, &mut waiting).await {
                return got;
            }
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
    async fn take(&mut self, response: DiscoveryResponse, surroundings: Surroundings<'_>) -> DiscoveryRequest {
        let Surroundings { shared, readiness, .. } = surroundings;
        let updates = &shared.metrics().server.xds_updates;
        let (resources, nonce) = (response.resources.len(), response.nonce.clone());
        let taken = match resources::sources(&response) {
            Ok(sources) => self.apply(sources, surroundings).await,
            Err(reason) => Err(reason),
        };
        let version = response.version_info.clone();
        let error_detail = match taken {
            Ok(()) => {
                tracing::info!(version, resources, "the management server's configuration is in force");
                updates[XdsUpdate::Accepted].inc();
                self.in_force.set(response);
                self.rejected = None;
                readiness.xds(None);
                readiness.configured();
                None
            }
            Err(reason) => {
                updates[XdsUpdate::Rejected].inc();
                let reason = cut(reason);
                readiness.xds(Some(format!("version {} was rejected: {reason}", quoted(&version))));
                self.reject(version, &reason).await;
                Some(Status { code: INVALID_ARGUMENT, message: reason })
            }
        };
        DiscoveryRequest { response_nonce: nonce, error_detail, ..self.request() }
    }

    /// Remembers a rejection, and waits before the same one is sent again.
    async fn reject(&mut self, version: String, reason: &str) {
        let is_known = |known: &Rejected| known.version == version && known.reason == reason;
        let times = self.rejected.as_ref().filter(|known| known.version == version).map_or(1, |known| known.times + 1);
        if !self.rejected.as_ref().is_some_and(is_known) {
            tracing::error!(
                version,
                "rejecting the management server's configuration, the last good one stays in force: {reason}"
            );
        }
        self.rejected = Some(Rejected { version, reason: reason.to_owned(), times });
        if times > 1 {
            let [first, longest] = REPEATED_REJECTION;
            sleep((first * 2_u32.saturating_pow(times - 2)).min(longest)).await;
        }
    }

    /// Checks pushed rules with the files, and puts all in force. The error has the mistakes.
    async fn apply(&self, sources: Vec<Source>, surroundings: Surroundings<'_>) -> Result<(), String> {
        let (compiler, files) = (self.compiler.clone(), self.files.clone());
        let before = files.pushed.get();
        // Takes a second for some ten thousand rules.
        let checked = tokio::task::spawn_blocking(move || compiler.check_pushed(&files, sources)).await;
        checked.map_err(|error| error.to_string())?.map_err(|report| report.to_string())?;
        let Some(ask_reload) = surroundings.ask_reload else { return Ok(()) };
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
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for XdsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdsClient").field("server", &self.grpc.url).finish_non_exhaustive()
    }
}

fn cut(reason: String) -> String {
    if reason.len() <= MAX_REASON {
        reason
    } else {
        format!("{}...", &reason[..reason.floor_char_boundary(MAX_REASON)])
    }
}
