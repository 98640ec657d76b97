//! HTTP/1.1 by hyper, for what is not hot: the admin listener, its clients and those of trace collectors.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
pub(crate) use http_body_util::LengthLimitError;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// The body of a request that is being received.
#[derive(Debug)]
pub(crate) struct RequestBody(Incoming);

impl RequestBody {
    /// Reads it to its end. A [`LengthLimitError`] says that it has more than `max_bytes`.
    pub(crate) async fn read(self, max_bytes: usize) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
        Ok(Limited::new(self.0, max_bytes).collect().await?.to_bytes())
    }
}

/// Serves a connection to its end. Once `closing` is cancelled, the current request is answered and no other is read.
pub(crate) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    header_timeout: Duration,
    closing: &CancellationToken,
    answer: impl AsyncFn(Request<RequestBody>) -> Response<Full<Bytes>>,
) -> Result<(), hyper::Error> {
    let service = service_fn(async |request: Request<_>| Ok::<_, Infallible>(answer(request.map(RequestBody)).await));
    let mut builder = server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(header_timeout);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        served = &mut serving => served,
        () = closing.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    }
}

/// Sends a request on a new connection and reads the response, whose body may have `max_bytes`. Callers set a timeout.
pub(crate) async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Bytes>,
    max_bytes: usize,
) -> Result<Response<Bytes>, Box<dyn Error + Send + Sync>> {
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let response = async {
        let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
        let body = Limited::new(body, max_bytes).collect().await;
        let body = body.map_err(|error| format!("the response cannot be read: {error}"))?.to_bytes();
        Ok(Response::from_parts(head, body))
    };
    let mut response = pin!(response);
    tokio::select! {
        response = &mut response => response,
        // The connection ends before the response or with it, and `send_request` knows which.
        _ = connection => response.await,
    }
}
