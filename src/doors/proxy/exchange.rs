//! A connection to an upstream, and one request and its response on it.
//!
//! A connection is driven by whoever uses it: the client's connection sends the request, waits and passes the body on in
//! one and the same task. A task of its own for each upstream connection would cost two wake-ups a request more, and it
//! would outlive a client that went away.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::MAX_BUFFER;
use super::activity::Activity;
use super::body::RequestBody;
use super::failure::UpstreamError;
use super::upstream::Lease;
use super::stream::Compact;

/// A connection to an upstream. It goes from hand to hand in a box: it is a kilobyte.
#[derive(Debug)]
pub(super) struct Connection {
    sender: http1::SendRequest<RequestBody>,
    /// `None` when it is closed.
    driver: Option<http1::Connection<TokioIo<Compact<TcpStream>>, RequestBody>>,
}

/// How sending a request went wrong.
#[derive(Debug)]
pub(super) enum SendError {
    /// The connection was closed before anything of the request was written: it can go another way.
    Unsent(Box<Request<RequestBody>>, hyper::Error),
    /// The request may have reached the upstream.
    Failed(UpstreamError),
}

impl Connection {
    /// Speaks HTTP/1.1 on a new stream.
    pub(super) async fn handshake(stream: TcpStream) -> Result<Box<Self>, hyper::Error> {
        let (sender, driver) =
            http1::Builder::new().max_buf_size(MAX_BUFFER).handshake(TokioIo::new(Compact(stream))).await?;
        Ok(Box::new(Self { sender, driver: Some(driver) }))
    }

    /// Reads and writes what can be read and written now.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && Pin::new(driver).poll(cx).is_ready()
        {
            // Its error, if any, went to the request or to its body. Dropping it hands back what was not sent.
            self.driver = None;
        }
    }

    /// Whether another request can follow: both messages of the last exchange have ended and nothing else came.
    fn is_reusable(&self) -> bool {
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Sends a request and waits for the response's fields.
    pub(super) async fn send(
        mut self: Box<Self>,
        request: Box<Request<RequestBody>>,
        activity: &Rc<Activity>,
        lease: Lease,
    ) -> Result<Response<UpstreamBody>, (SendError, Lease)> {
        let mut promise = pin!(self.sender.try_send_request(*request));
        let received = poll_fn(|cx| {
            self.drive(cx);
            // Only the driver keeps the promise, and it was polled just now: no other wake-up is needed. With one, each
            // response would wake this task a second time for nothing.
            match promise.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(received) => Poll::Ready(Some(received)),
                Poll::Pending if activity.is_late() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        match received {
            Some(Ok(response)) => {
                let (parts, incoming) = response.into_parts();
                let activity = activity.clone();
                let mut body = UpstreamBody { incoming, connection: Some(self), lease: Some(lease), activity, broken: None };
                if body.incoming.is_end_stream() {
                    poll_fn(|cx| {
                        body.finish(cx);
                        Poll::Ready(())
                    })
                    .await;
                }
                Ok(Response::from_parts(parts, body))
            }
            Some(Err(mut error)) => Err((match error.take_message() {
                Some(request) => SendError::Unsent(Box::new(request), error.into_error()),
                None => SendError::Failed(UpstreamError::from_send(error.into_error())),
            }, lease)),
            None if activity.is_uploading() => Err((SendError::Failed(UpstreamError::UploadStalled), lease)),
            None => Err((SendError::Failed(UpstreamError::ResponseTimeout), lease)),
        }
    }
}

/// A response's body, and the connection that it comes on.
#[derive(Debug)]
pub(super) struct UpstreamBody {
    incoming: Incoming,
    /// `None` once the body has ended or failed.
    connection: Option<Box<Connection>>,
    /// Until the body has ended or failed.
    lease: Option<Lease>,
    activity: Rc<Activity>,
    /// How it broke off, once it has.
    broken: Option<hyper::Error>,
}

impl UpstreamBody {
    pub(super) fn into_lease(self) -> Option<Lease> {
        self.lease
    }

    /// The body has ended: the connection goes back to the pool if it is clean.
    fn finish(&mut self, cx: &mut Context<'_>) {
        if let Some(mut connection) = self.connection.take() {
            if !connection.is_reusable() {
                connection.drive(cx);
            }
            if let Some(lease) = self.lease.take()
                && connection.is_reusable()
            {
                lease.keep(connection, self.activity.now());
            }
        }
    }

    fn poll_incoming(&mut self) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        // Only the driver feeds it; see `Connection::send`.
        Pin::new(&mut self.incoming).poll_frame(&mut Context::from_waker(Waker::noop()))
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let mut polled = self.poll_incoming();
        if polled.is_pending()
            && let Some(connection) = &mut self.connection
        {
            connection.drive(cx);
            polled = self.poll_incoming();
        }
        match polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(_))) => {
                self.activity.moved();
                if self.incoming.is_end_stream() {
                    self.finish(cx);
                }
            }
            Poll::Ready(None) => self.finish(cx),
            Poll::Ready(Some(Err(error))) => {
                self.connection = None;
                if let Some(lease) = self.lease.take() {
                    lease.failed("body", &error, self.activity.now());
                }
                // hyper drops what it has not sent when it hears of an error, even the response's fields. So it hears
                // of it a turn later, when all that came before is on its way.
                self.broken = Some(error);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
