//! Sending a request: which endpoint, which connection, and when it may be sent a second time.

use std::rc::Rc;
use std::time::Duration;

use http::header::{HOST, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use tokio::time::timeout;

use super::super::activity::Activity;
use super::super::body::RequestBody;
use super::super::counters::Counters;
use super::super::exchange::{SendError, UpstreamBody};
use super::super::failure::UpstreamError;
use super::super::log::Throttle;
use super::cluster::Cluster;
use super::connect::Connector;
use super::endpoint::{Endpoint, Lease};
use super::resolve::{Resolution, Unresolved};

/// A worker's way to the servers of a route.
#[derive(Debug)]
pub(in super::super) struct Forwarder {
    pub(super) cluster: Rc<Cluster>,
    pub(super) resolution: Rc<Resolution>,
    pub(super) connector: Rc<Connector>,
    /// How long one try may take, if a second one is to have a chance.
    pub(super) try_timeout: Option<Duration>,
    pub(super) counters: Rc<Counters>,
    pub(super) log: Throttle,
}

/// A try that failed.
struct Failed {
    error: UpstreamError,
    lease: Option<Lease>,
    /// The request, if nothing of it was sent.
    request: Option<Box<Request<RequestBody>>>,
}

impl Forwarder {
    /// Sends a request and waits for the response's fields.
    pub(in super::super) async fn send(
        &self,
        mut request: Box<Request<RequestBody>>,
        activity: &Rc<Activity>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        *request.version_mut() = Version::HTTP_11;
        let start = activity.now();
        let mut failed_at: Option<Rc<Endpoint>> = None;
        loop {
            let lease = match self.lease(failed_at.as_ref(), activity).await {
                Ok(lease) => lease,
                Err(error) => return Err(self.no_endpoint(error)),
            };
            let endpoint = lease.endpoint().clone();
            match self.attempt(request, lease, activity).await {
                Ok(response) => {
                    self.cluster.answered(&endpoint, response.status(), activity.now());
                    self.counters.upstream_answered(activity.now() - start);
                    return Ok(response);
                }
                Err(Failed { error, lease, request: again }) => {
                    let Some(lease) = lease else { return Err(error) };
                    if let Some(reason) = error.reason() {
                        lease.failed(reason, &error, activity.now());
                    } else {
                        tracing::debug!(upstream = %lease.endpoint(), "a request broke off: {error}");
                    }
                    self.resolution.doubt();
                    match again {
                        Some(again) if failed_at.is_none() && self.cluster.has_other(lease.endpoint()) => {
                            self.counters.upstream_retried();
                            failed_at = Some(lease.endpoint().clone());
                            request = again;
                        }
                        _ => return Err(error),
                    }
                }
            }
        }
    }

    /// No endpoint was tried, so none is to blame.
    fn no_endpoint(&self, error: UpstreamError) -> UpstreamError {
        if let Some(reason) = error.reason() {
            self.counters.upstream_failed(reason);
            if let Some(suppressed) = self.log.pass() {
                tracing::warn!(reason, suppressed, "upstream failed: {error}");
            }
        }
        error
    }

    /// The right to use an endpoint, another than `avoid` if there is one.
    async fn lease(&self, avoid: Option<&Rc<Endpoint>>, activity: &Activity) -> Result<Lease, UpstreamError> {
        let patience = self.connector.timeout;
        let mut lease = loop {
            if let Some(lease) = self.cluster.pick(activity.now(), avoid) {
                break lease;
            }
            self.resolution.wait(patience).await.map_err(|unresolved| match unresolved {
                Unresolved::Failed(error) => UpstreamError::Unresolved(error),
                Unresolved::Late => UpstreamError::ResolveTimeout(patience),
            })?;
        };
        if !lease.try_admit() && timeout(patience, lease.admit()).await.is_err() {
            return Err(UpstreamError::Busy(patience));
        }
        Ok(lease)
    }

    async fn attempt(
        &self,
        mut request: Box<Request<RequestBody>>,
        mut lease: Lease,
        activity: &Rc<Activity>,
    ) -> Result<Response<UpstreamBody>, Failed> {
        if !request.headers().contains_key(HOST) {
            let host = HeaderValue::try_from(lease.endpoint().server.authority());
            request.headers_mut().insert(HOST, host.unwrap_or(HeaderValue::from_static("")));
        }
        loop {
            let pooled = lease.endpoint().pool.take(activity.now());
            let was_pooled = pooled.is_some();
            let connection = match pooled {
                Some(connection) => connection,
                None => match self.connector.connect(lease.endpoint()).await {
                    Ok(connection) => connection,
                    Err(error) => return Err(Failed { error, lease: Some(lease), request: Some(request) }),
                },
            };
            let (error, returned) = match connection.send(request, activity, lease).await {
                Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    let error = UpstreamError::SwitchedProtocols;
                    return Err(Failed { error, lease: response.into_body().into_lease(), request: None });
                }
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            lease = returned;
            match error {
                // The server closed an idle connection and nothing was written to it, so the request may go another
                // way whatever its method. The pool shrinks with each turn, so the turns end.
                SendError::Unsent(unsent, _) if was_pooled => request = unsent,
                SendError::Unsent(unsent, error) => {
                    return Err(Failed {
                        error: UpstreamError::Closed(error),
                        lease: Some(lease),
                        request: Some(unsent),
                    });
                }
                SendError::Failed(error) => return Err(Failed { error, lease: Some(lease), request: None }),
            }
        }
    }
}
