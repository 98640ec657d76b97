//! Forwards requests: picks an endpoint and a connection, and retries where that is safe.
//!
//! A request is charged once, before this, however often it is sent.

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::Method;
use tokio::time::{timeout, timeout_at};

use super::address::Server;
use super::cluster::Cluster;
use super::connections::{Connector, Needs, ReadyConnection};
use super::endpoint::{Endpoint, EndpointLease};
use super::kept_body::{KeptBody, KeptMemory};
use super::resolve::Resolution;
use crate::http::failure::SendFailed;
use crate::http::failure::UpstreamError;
use crate::http::forwarding;
use crate::http::message::{Request, RequestBody, Response};
use crate::http::observer::UpstreamObserver;
use crate::http::service::Context;
use crate::message::headers::Headers;

/// Gives a request the `Host` for a server. `client_host` is the client's, if a server before may have got another.
fn address(request: &mut Request, server: &Server, client_host: Option<&Option<Vec<u8>>>) {
    let client_host = client_host.and_then(Option::as_deref);
    match (&server.host, client_host) {
        (Some(host), _) => replace_host(&mut request.headers, host.as_bytes()),
        (None, Some(host)) => replace_host(&mut request.headers, host),
        (None, None) if request.headers.contains("host") => {}
        // HTTP/1.0 allows that.
        (None, None) => request.headers.append("host", server.default_host()),
    }
}

/// Sets the `Host`, which comes first (RFC 9110 section 7.2).
fn replace_host(headers: &mut Headers, host: &[u8]) {
    let others = headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(b"host"));
    let replaced = [(&b"host"[..], host)].into_iter().chain(others).collect();
    *headers = replaced;
}

/// Forwards requests to the servers of a route.
#[derive(Debug)]
pub(crate) struct Forwarder {
    pub(super) cluster: Rc<Cluster>,
    pub(super) resolution: Rc<Resolution>,
    pub(super) connector: Rc<Connector>,
    /// The timeout of one try, until the response's headers.
    pub(super) try_timeout: Option<Duration>,
    /// The timeout of all tries together, for an exchange without its client.
    pub(crate) response_timeout: Duration,
    pub(super) observer: Rc<dyn UpstreamObserver>,
    /// The longest body that is read before its request is sent.
    pub(super) buffer: usize,
    /// Shared by the worker's routes.
    pub(super) memory: Rc<KeptMemory>,
}

/// The most times that a request is sent to one HTTP/2 endpoint that refuses to process it.
const MAX_REFUSALS: usize = 3;

/// A failed try.
struct FailedAttempt {
    error: UpstreamError,
    /// True if nothing of the request's body was taken and nothing of a response has come.
    is_whole: bool,
    progress: Progress,
}

/// The progress of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Nothing of the request was written.
    Unsent,
    /// Some of it was written, on a connection that had been idle and may have been closed at that moment.
    SentOnReused,
    /// Some of it was written, on a good connection.
    SentOnGood,
    /// The try timed out.
    Late,
}

impl Progress {
    /// Returns whether the request may be sent again. One that was not written can go anywhere. One that was may have
    /// been processed, so only idempotent requests are repeated (RFC 9110 section 9.2.2), and only if that is likely to
    /// help: if the connection was the cause, if the operator set a timeout for tries, or if there is another endpoint.
    fn allows_second(self, method: &Method, has_other: bool) -> bool {
        match self {
            Self::Unsent => has_other,
            Self::SentOnReused | Self::Late => method.is_idempotent(),
            Self::SentOnGood => method.is_idempotent() && has_other,
        }
    }
}

impl Forwarder {
    /// Sends a request and waits for the response's headers. The request is used up.
    pub(crate) async fn send(&self, request: &mut Request, context: &Context) -> Result<Response, UpstreamError> {
        let activity = &context.activity;
        let mut kept = None;
        // The client of a gRPC stream may wait for an answer before it sends more.
        if self.buffer > 0 && !request.body.is_end() && !request.headers.is_grpc() {
            // Boxed, so that other requests have a smaller future.
            kept = Box::pin(self.read_ahead(request, context)).await?;
        }
        let start = activity.now();
        let mut failed_at: Option<Rc<Endpoint>> = None;
        let client_host = self.cluster.replaces_host().then(|| request.headers.get("host").map(<[u8]>::to_vec));
        loop {
            let lease = match self.lease_now(failed_at.as_ref(), context) {
                Ok(lease) => lease,
                // Boxed because it is rare.
                Err(first) => Box::pin(self.lease(first, failed_at.as_ref(), context)).await?,
            };
            let endpoint = lease.endpoint.clone();
            address(request, &endpoint.server, client_host.as_ref());
            context.attempts.borrow_mut().begin(&endpoint.address, activity.now());
            let FailedAttempt { error, is_whole, progress } =
                match self.try_once(request, &mut kept, lease, context).await {
                    Ok(response) => {
                        self.cluster.answered(&endpoint, response.status, activity.now());
                        self.observer.answered(activity.now() - start);
                        return Ok(response);
                    }
                    Err(failed) => failed,
                };
            self.failed(&endpoint, &error, progress, context);
            // A client's error would occur again, and after a response timeout there is no time left.
            let is_final = failed_at.is_some() || error.reason().is_none() || activity.is_late();
            let has_other = self.cluster.has_other(&endpoint);
            if !is_whole || is_final || !progress.allows_second(&request.method, has_other) {
                return Err(error);
            }
            self.observer.retried();
            failed_at = Some(endpoint);
        }
    }

    async fn read_ahead(
        &self,
        request: &mut Request,
        context: &Context,
    ) -> Result<Option<Rc<KeptBody>>, UpstreamError> {
        let body = &mut request.body;
        let read = KeptBody::read_ahead(body, self.buffer, &self.memory, &context.activity).await?;
        Ok(read.unwrap_or_else(|reason| {
            self.observer.unbuffered(reason);
            None
        }))
    }

    /// Reports a failed try.
    fn failed(&self, endpoint: &Endpoint, error: &UpstreamError, progress: Progress, context: &Context) {
        let Some(reason) = error.reason() else {
            tracing::debug!(upstream = %endpoint, "a request broke off: {error}");
            return;
        };
        self.cluster.report(endpoint, reason, error);
        // A server may close an idle connection at any time, even while we are writing to it.
        if progress != Progress::SentOnReused && !matches!(error, UpstreamError::Exhausted(_)) {
            self.cluster.failed(endpoint, context.activity.now());
        }
        if matches!(error, UpstreamError::Connect(_) | UpstreamError::ConnectTimeout(_)) {
            self.resolution.doubt();
        }
    }

    /// Leases an endpoint other than `avoid`, if there is one. The error is one that has no free connection, if any.
    fn lease_now(
        &self,
        avoid: Option<&Rc<Endpoint>>,
        context: &Context,
    ) -> Result<EndpointLease, Option<EndpointLease>> {
        let mut lease = self.cluster.pick(context.activity.now(), avoid).ok_or(None)?;
        if lease.try_admit() { Ok(lease) } else { Err(Some(lease)) }
    }

    /// Waits for a connection of an endpoint, or for an endpoint.
    async fn lease(
        &self,
        mut found: Option<EndpointLease>,
        avoid: Option<&Rc<Endpoint>>,
        context: &Context,
    ) -> Result<EndpointLease, UpstreamError> {
        let patience = self.connector.timeout;
        let mut lease = loop {
            if let Some(lease) = found {
                break lease;
            }
            self.resolution.wait(patience).await.map_err(|error| self.without_endpoint(error))?;
            found = self.cluster.pick(context.activity.now(), avoid);
        };
        if !lease.try_admit() && timeout(patience, lease.admit()).await.is_err() {
            return Err(self.without_endpoint(UpstreamError::Busy(patience)));
        }
        Ok(lease)
    }

    /// Reports a request that got no endpoint.
    fn without_endpoint(&self, error: UpstreamError) -> UpstreamError {
        error.reason().inspect(|reason| self.observer.failed(None, *reason, &error));
        error
    }

    /// Sends a request once, within the timeout of a try.
    async fn try_once(
        &self,
        request: &mut Request,
        kept: &mut Option<Rc<KeptBody>>,
        lease: EndpointLease,
        context: &Context,
    ) -> Result<Response, FailedAttempt> {
        match self.try_timeout {
            None => self.exchange(request, kept, lease, context).await,
            // Boxed, so that others have a smaller future.
            Some(limit) => Box::pin(self.try_within(limit, request, kept, lease, context)).await,
        }
    }

    async fn try_within(
        &self,
        limit: Duration,
        request: &mut Request,
        kept: &mut Option<Rc<KeptBody>>,
        lease: EndpointLease,
        context: &Context,
    ) -> Result<Response, FailedAttempt> {
        // A try that times out does not return the request, so a copy is kept.
        let is_kept = kept.as_ref().is_some_and(|kept| kept.is_whole());
        let copy = (request.body.is_end() || is_kept).then(|| Request {
            method: request.method.clone(),
            target: request.target.clone(),
            version: request.version,
            headers: request.headers.clone(),
            body: RequestBody::Empty,
        });
        let started = Instant::now();
        {
            let mut exchange = pin!(self.exchange(request, kept, lease, context));
            let activity = &context.activity;
            let mut end = started + limit;
            loop {
                if let Ok(outcome) = timeout_at(end.into(), exchange.as_mut()).await {
                    return outcome;
                }
                // The time that a client takes for its body is not the upstream's.
                let since = if activity.is_awaiting_upload() { end } else { started.max(activity.since()) };
                if since + limit <= end {
                    break;
                }
                end = since + limit;
            }
        }
        let is_whole = copy.is_some();
        if let Some(copy) = copy {
            *request = copy;
            if let Some(kept) = kept.as_ref().filter(|kept| kept.rewind()) {
                request.body = RequestBody::Upload(kept.clone());
            }
        }
        Err(FailedAttempt { error: UpstreamError::TryTimeout(limit), is_whole, progress: Progress::Late })
    }

    /// Sends a request over an existing or new connection. `kept` is its body if it can be sent again.
    async fn exchange(
        &self,
        request: &mut Request,
        kept: &mut Option<Rc<KeptBody>>,
        mut lease: EndpointLease,
        context: &Context,
    ) -> Result<Response, FailedAttempt> {
        let mut refusals = 0;
        // HTTP/2 does not have upgrades (RFC 9113 section 8.6).
        let needs = Needs { may_share: forwarding::upgrade(request).is_none(), uploads: !request.body.is_end() };
        loop {
            let (connected, was_reused) =
                match self.connector.connection(&lease.endpoint, context.activity.now(), needs).await {
                    Ok(connected) => connected,
                    Err(error) => {
                        return Err(FailedAttempt { error, is_whole: true, progress: Progress::Unsent });
                    }
                };
            let is_http2 = matches!(connected, ReadyConnection::Http2(_));
            if is_http2 && kept.is_none() {
                *kept = KeptBody::keep(&mut request.body, &self.memory);
            }
            let was_sent_before = std::mem::replace(&mut context.attempts.borrow_mut().was_sent, true);
            let sent = match connected {
                ReadyConnection::Http1(connection) => connection.send(request, context, lease).await,
                // Boxed, so that the future for HTTP/1 is smaller.
                ReadyConnection::Http2(stream) => Box::pin(stream.send(std::mem::take(request), context, lease)).await,
            };
            let SendFailed { error, lease: returned, request: again, was_taken, was_sent } = match sent {
                Ok(response) => {
                    if let Some(kept) = kept {
                        kept.forget();
                    }
                    return Ok(response);
                }
                Err(failed) => *failed,
            };
            context.attempts.borrow_mut().was_sent = was_sent || was_sent_before;
            let progress = match (was_sent, was_reused) {
                (false, _) => Progress::Unsent,
                // The end of a shared connection is announced or noticed at once, so there is no such moment.
                (true, true) if !is_http2 => Progress::SentOnReused,
                (true, _) => Progress::SentOnGood,
            };
            let is_whole = again.is_some() && kept.as_ref().map_or(!was_taken, |kept| kept.rewind());
            if let Some(again) = again {
                *request = again;
            }
            if let Some(kept) = kept.as_ref().filter(|_| is_whole) {
                request.body = RequestBody::Upload(kept.clone());
            }
            // The server had closed the connection or said that it did not process the request (RFC 9113 section 8.7), so
            // the request may be sent elsewhere, whatever its method. This loop ends: each turn uses up an idle connection
            // or one of few refusals.
            refusals += usize::from(is_http2);
            let may_repeat = if is_http2 { refusals < MAX_REFUSALS } else { was_reused };
            if !is_whole || progress != Progress::Unsent || !may_repeat {
                return Err(FailedAttempt { error, is_whole, progress });
            }
            lease = returned;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_worked_on_is_repeated_only_if_idempotent() {
        for (progress, method, alone, with_other) in [
            (Progress::Unsent, Method::GET, false, true),
            (Progress::Unsent, Method::POST, false, true),
            (Progress::SentOnReused, Method::GET, true, true),
            (Progress::SentOnReused, Method::POST, false, false),
            (Progress::SentOnGood, Method::DELETE, false, true),
            (Progress::SentOnGood, Method::PATCH, false, false),
            (Progress::Late, Method::HEAD, true, true),
            (Progress::Late, Method::POST, false, false),
        ] {
            let allowed = [false, true].map(|has_other| progress.allows_second(&method, has_other));
            assert_eq!(allowed, [alone, with_other], "{progress:?} {method}");
        }
    }
}
