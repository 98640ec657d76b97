//! A management server that behaves as go-control-plane's snapshot cache: it knows clients by their node's id, answers a request
//! whose version is not the snapshot's at once, be it a rejection, and keeps silent about nodes without a snapshot.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::protobuf::Any;
use envoy_types::pb::ratelimit::config::ratelimit::v3::RateLimitConfig;
use futures_util::Stream;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use prost::{Message as _, Name as _};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tonic::{Request, Response, Status, Streaming};

use crate::support::eventually;
use crate::support::process::free_port;

/// Certificates for new connections; `None` without TLS.
type Tls = Arc<Mutex<Option<Arc<ServerConfig>>>>;

pub(crate) struct ManagementServer {
    pub(crate) address: SocketAddr,
    cache: Arc<Cache>,
    tls: Tls,
    _alive: oneshot::Sender<()>,
}

#[derive(Default)]
struct Cache {
    /// Version and resources by node.
    snapshots: Mutex<HashMap<String, (String, Vec<Any>)>>,
    /// Each request with the headers of its stream.
    requests: Mutex<Vec<(HashMap<String, String>, DiscoveryRequest)>>,
    changed: watch::Sender<()>,
    /// Ends all streams that began before.
    cut: watch::Sender<()>,
    /// Sent at once, whatever the client has answered.
    pushed: watch::Sender<Vec<DiscoveryResponse>>,
}

impl ManagementServer {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    pub(crate) fn start_with(config: Option<Arc<ServerConfig>>) -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, free_port()).into(), config)
    }

    pub(crate) fn start_at(address: SocketAddr, config: Option<Arc<ServerConfig>>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let (address, cache) = (listener.local_addr().unwrap(), Arc::<Cache>::default());
        let tls: Tls = Arc::new(Mutex::new(config));
        let (alive, gone) = oneshot::channel::<()>();
        let accepting = accept(listener, cache.clone(), tls.clone());
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accepting => {}
                    _ = gone => {}
                }
            });
        });
        Self { address, cache, tls, _alive: alive }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Uses these certificates for new connections.
    pub(crate) fn rotate(&self, config: Arc<ServerConfig>) {
        *self.tls.lock().unwrap() = Some(config);
    }

    /// Sets the snapshot of a node.
    pub(crate) fn set(&self, node: &str, version: &str, resources: &[RateLimitConfig]) {
        let any =
            |config: &RateLimitConfig| Any { type_url: RateLimitConfig::type_url(), value: config.encode_to_vec() };
        self.set_any(node, version, resources.iter().map(any).collect());
    }

    pub(crate) fn set_any(&self, node: &str, version: &str, resources: Vec<Any>) {
        self.cache.snapshots.lock().unwrap().insert(node.to_owned(), (version.to_owned(), resources));
        self.cache.changed.send_replace(());
    }

    /// Sends responses at once, as a server that waits for no answer: type, version and resources.
    pub(crate) fn push(&self, responses: impl IntoIterator<Item = (String, String, Vec<Any>)>) {
        let response = |(number, (type_url, version_info, resources))| DiscoveryResponse {
            version_info,
            resources,
            type_url,
            nonce: format!("pushed-{number}"),
            ..DiscoveryResponse::default()
        };
        self.cache.pushed.send_replace((0..).zip(responses).map(response).collect::<Vec<_>>());
    }

    /// Ends all streams without a word.
    pub(crate) fn cut(&self) {
        self.cache.cut.send_replace(());
    }

    pub(crate) fn requests(&self) -> Vec<DiscoveryRequest> {
        self.cache.requests.lock().unwrap().iter().map(|(_, request)| request.clone()).collect()
    }

    /// The header of a stream's first request.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.cache.requests.lock().unwrap().first().and_then(|(headers, _)| headers.get(name).cloned())
    }

    /// Returns whether the last request acknowledges this version.
    pub(crate) fn has_accepted(&self, version: &str) -> bool {
        let requests = self.cache.requests.lock().unwrap();
        requests.last().is_some_and(|(_, request)| request.version_info == version && request.error_detail.is_none())
    }

    /// Waits until a version was acknowledged, which a stream that resumes at it does as well.
    #[track_caller]
    pub(crate) fn until_accepted(&self, version: &str) {
        let is_it = |request: &DiscoveryRequest| request.version_info == version && request.error_detail.is_none();
        eventually(&format!("acknowledgement of {version}"), || {
            let requests = self.requests();
            requests.iter().any(is_it).then_some(()).ok_or(requests.last().cloned().map(Box::new))
        });
    }

    /// Waits for a rejection whose reason contains this text, and returns the version that it keeps.
    #[track_caller]
    pub(crate) fn until_rejected(&self, reason: &str) -> String {
        let is_it = |request: &DiscoveryRequest| {
            request.error_detail.as_ref().is_some_and(|error| error.message.contains(reason))
        };
        eventually(&format!("rejection with `{reason}`"), || {
            let requests = self.requests();
            let found = requests.iter().find(|request| is_it(request)).map(|request| request.version_info.clone());
            found.ok_or(requests.last().cloned().map(Box::new))
        })
    }
}

async fn accept(listener: TcpListener, cache: Arc<Cache>, tls: Tls) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let config = tls.lock().unwrap().clone();
        tokio::spawn(serve(stream, cache.clone(), config));
    }
}

async fn serve(stream: TcpStream, cache: Arc<Cache>, config: Option<Arc<ServerConfig>>) {
    let service = TowerToHyperService::new(AggregatedDiscoveryServiceServer::new(Discovery(cache)));
    let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // A client that cannot be served is the test's matter.
    let _ = match config {
        None => http2.serve_connection(TokioIo::new(stream), service).await,
        Some(config) => match TlsAcceptor::from(config).accept(stream).await {
            Ok(stream) => http2.serve_connection(TokioIo::new(stream), service).await,
            Err(_) => return,
        },
    };
}

struct Discovery(Arc<Cache>);

#[tonic::async_trait]
impl AggregatedDiscoveryService for Discovery {
    type StreamAggregatedResourcesStream = Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;
    type DeltaAggregatedResourcesStream = Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (sender, mut responses) = mpsc::channel(1);
        let headers = request.metadata().clone().into_headers();
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        tokio::spawn(stream(self.0.clone(), headers, request.into_inner(), sender));
        Ok(Response::new(Box::pin(futures_util::stream::poll_fn(move |cx| responses.poll_recv(cx)))))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("state of the world only"))
    }
}

async fn stream(
    cache: Arc<Cache>,
    headers: HashMap<String, String>,
    mut requests: Streaming<DiscoveryRequest>,
    responses: mpsc::Sender<Result<DiscoveryResponse, Status>>,
) {
    let (mut changed, mut cut) = (cache.changed.subscribe(), cache.cut.subscribe());
    let mut pushed = cache.pushed.subscribe();
    // The node's id and the version of the request that waits for an answer.
    let (mut node, mut watched, mut nonce) = (String::new(), None, 0_u32);
    loop {
        tokio::select! {
            request = requests.message() => {
                let Ok(Some(request)) = request else { return };
                cache.requests.lock().unwrap().push((headers.clone(), request.clone()));
                node = request.node.as_ref().map_or(node, |node| node.id.clone());
                if request.response_nonce.is_empty() || request.response_nonce == nonce.to_string() {
                    watched = Some(request.version_info);
                }
            }
            _ = changed.changed() => {}
            _ = pushed.changed() => {
                let all = pushed.borrow_and_update().clone();
                for response in all {
                    if responses.send(Ok(response)).await.is_err() {
                        return;
                    }
                }
            }
            _ = cut.changed() => {
                let _ = responses.send(Err(Status::unavailable("cut"))).await;
                return;
            }
        }
        let snapshot = cache.snapshots.lock().unwrap().get(&node).cloned();
        if let Some((version, resources)) =
            snapshot.filter(|(version, _)| watched.as_ref().is_some_and(|it| it != version))
        {
            nonce += 1;
            watched = None;
            let (nonce, type_url) = (nonce.to_string(), RateLimitConfig::type_url());
            let response =
                DiscoveryResponse { version_info: version, resources, nonce, type_url, ..DiscoveryResponse::default() };
            if responses.send(Ok(response)).await.is_err() {
                return;
            }
        }
    }
}
