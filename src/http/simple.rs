//! A simple HTTP/1.1 server and client on hyper, for what is not hot: the admin listener, its clients, health checks and
//! trace collectors.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{Request, Response, StatusCode};
pub(crate) use http_body_util::LengthLimitError;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{self, Frame, SizeHint};
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

/// Bytes of a response's head.
const MAX_HEAD: usize = 16 * 1024;

/// The body of a message that is being received.
#[derive(Debug)]
pub(crate) struct Incoming(body::Incoming);

impl Incoming {
    /// Waits for the next bytes. `None` is the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        loop {
            match self.0.frame().await?.map(Frame::into_data) {
                Ok(Ok(bytes)) => return Some(Ok(bytes)),
                // Trailers.
                Ok(Err(_)) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The body of a response.
pub(crate) enum Body {
    Whole(Full<Bytes>),
    /// Ends when its sender is dropped. The sender learns from the channel that the client has left.
    Stream(Receiver<Bytes>),
}

impl body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(whole) => Pin::new(whole).poll_frame(cx),
            Self::Stream(pieces) => pieces.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_end_stream(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => whole.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// Reads a body to its end. The error is a [`LengthLimitError`] if it has more than `max_bytes`.
pub(crate) async fn read(body: Incoming, max_bytes: usize) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    Ok(Limited::new(body.0, max_bytes).collect().await?.to_bytes())
}

/// Serves a connection to its end. Once `closing` is cancelled, the current request is answered and no other is read.
pub(crate) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    header_timeout: Duration,
    closing: &CancellationToken,
    answer: impl AsyncFn(Request<Incoming>) -> Response<Body>,
) -> Result<(), hyper::Error> {
    let service = service_fn(async |request: Request<_>| Ok::<_, Infallible>(answer(request.map(Incoming)).await));
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
    let (head, body) = send(stream, request, async |_, body| read(body, max_bytes).await).await?;
    let body = body.map_err(|error| format!("the response cannot be read: {error}"))?;
    Ok(Response::from_parts(head, body))
}

/// Sends a request on a new connection and returns the response's status. Its body is not read. Callers set a timeout.
pub(crate) async fn status(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Bytes>,
) -> hyper::Result<StatusCode> {
    Ok(send(stream, request, async |_, _| ()).await?.0.status)
}

/// Sends a request on a new connection and passes the response's body on, piece by piece. The body of a response with
/// another status than 200 is returned. Callers set a timeout.
pub(crate) async fn stream(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Bytes>,
    max_bytes: usize,
    mut take: impl FnMut(Bytes) -> io::Result<()>,
) -> Result<Response<Bytes>, Box<dyn Error + Send + Sync>> {
    let reading = async |head: &Parts, mut body: Incoming| {
        if head.status != StatusCode::OK {
            return read(body, max_bytes).await;
        }
        while let Some(piece) = body.next().await {
            take(piece?)?;
        }
        Ok(Bytes::new())
    };
    let (head, body) = send(stream, request, reading).await?;
    Ok(Response::from_parts(head, body?))
}

/// Sends a request and calls `read` with the response's head and body.
async fn send<T>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Bytes>,
    read: impl AsyncFnOnce(&Parts, Incoming) -> T,
) -> hyper::Result<(Parts, T)> {
    let mut builder = client::conn::http1::Builder::new();
    let (mut sender, connection) = builder.max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await?;
    let mut response = pin!(async {
        let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
        let read = read(&head, Incoming(body)).await;
        Ok((head, read))
    });
    tokio::select! {
        response = &mut response => response,
        // The connection ends before the response or with it, and `send_request` knows which.
        _ = connection => response.await,
    }
}
