//! Sending a request: which endpoint, which connection, and when it may be sent a second time.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use super::super::activity::Activity;
use super::super::context::Context;
use super::super::counters::Counters;
use super::super::failure::UpstreamError;
use super::super::http1::SendFailed;
use super::super::log::Throttle;
use super::super::message::{Request, Response};
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
    lease: Lease,
    /// The request, if it may be sent again.
    request: Option<Request>,
}

impl Forwarder {
    /// Sends a request and waits for the response's fields.
    pub(in super::super) async fn send(&self, mut request: Request, context: &Context) -> Result<Response, UpstreamError> {
        let activity = &context.activity;
        let start = activity.now();
        let mut failed_at: Option<Rc<Endpoint>> = None;
        loop {
            let lease = match self.lease(failed_at.as_ref(), activity).await {
                Ok(lease) => lease,
                Err(error) => return Err(self.no_endpoint(error)),
            };
            let endpoint = lease.endpoint().clone();
            context.attempts.begin(&endpoint, activity.now());
            match self.attempt(request, lease, context).await {
                Ok(response) => {
                    self.cluster.answered(&endpoint, response.status, activity.now());
                    self.counters.upstream_answered(activity.now() - start);
                    return Ok(response);
                }
                Err(Failed { error, lease, request: again }) => {
                    if let Some(reason) = error.reason() {
                        lease.failed(reason, &error, activity.now());
                    } else {
                        tracing::debug!(upstream = %lease.endpoint(), "a request broke off: {error}");
                    }
                    if matches!(error, UpstreamError::Connect(_) | UpstreamError::ConnectTimeout(_)) {
                        self.resolution.doubt();
                    }
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

    async fn attempt(&self, mut request: Request, mut lease: Lease, context: &Context) -> Result<Response, Failed> {
        if !request.fields.contains("host") {
            request.fields.append("host", lease.endpoint().server.authority());
        }
        loop {
            let pooled = lease.endpoint().pool.take(context.activity.now());
            let was_pooled = pooled.is_some();
            let connection = match pooled {
                Some(mut connection) => {
                    if !connection.is_quiet() {
                        // The server closed it meanwhile. The pool shrinks with each turn, so the turns end.
                        continue;
                    }
                    connection
                }
                None => match self.connector.connect(lease.endpoint()).await {
                    Ok(connection) => connection,
                    Err(error) => return Err(Failed { error, lease, request: Some(request) }),
                },
            };
            let SendFailed { error, lease: returned, request: again, was_sent } =
                match connection.send(request, context, lease).await {
                    Ok(response) => return Ok(response),
                    Err(failed) => *failed,
                };
            // A pooled connection may be closed by the server at the moment we write to it. RFC 9110 section 9.2.2 lets a
            // proxy repeat an idempotent request; anything else could be executed twice.
            let again = again.filter(|again| !was_sent || again.method.is_idempotent() && again.body.is_end());
            match (again, &error) {
                (Some(again), UpstreamError::Closed(_)) if was_pooled => (request, lease) = (again, returned),
                (again, _) => return Err(Failed { error, lease: returned, request: again }),
            }
        }
    }
}
