//! Calls a gRPC service with a stream in each direction: a connection for each call, so that rotated certificates are used.

use std::error::Error;
use std::marker::PhantomData;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use super::{Connector, ConnectorFlags, ConnectorOptions, Stream};
use crate::message::url::HttpUrl;

/// For the reason why a connection has ended, once its call has.
const REASON_DEADLINE: Duration = Duration::from_secs(1);

/// For the lookup of the name, the connection and the handshakes.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// The time between two PINGs on a connection, and for the answer, so that a server that is gone without a word is noticed.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// A gRPC server, and what is sent to it with each call.
#[derive(Clone, Debug)]
pub struct GrpcClient {
    pub url: HttpUrl,
    /// Files for `https://`, read for each connection.
    pub tls: ConnectorOptions,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Bytes of a message.
    pub max_message: usize,
}

/// A connection for one call.
#[derive(Debug)]
pub struct GrpcConnection {
    sender: http2::SendRequest<Body>,
    origin: Uri,
    headers: HeaderMap,
    max_message: usize,
    /// Drives the connection, and ends with the reason for its end.
    driver: AbortOnDropHandle<String>,
    /// Advice in case the server closes it.
    advice: String,
}

impl GrpcClient {
    /// Connects. The error says why not.
    pub async fn connect(&self) -> Result<GrpcConnection, String> {
        timeout(CONNECT_DEADLINE, self.try_connect())
            .await
            .unwrap_or_else(|_| Err(format!("no connection within {CONNECT_DEADLINE:?}")))
    }

    async fn try_connect(&self) -> Result<GrpcConnection, String> {
        let HttpUrl { host, port, authority, is_tls, .. } = &self.url;
        let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut stream = Stream::Tcp(stream);
        if *is_tls {
            let (connector, _) = Connector::load(&self.tls).map_err(|error| error.to_string())?;
            let agreed = connector.connect(host, stream, true).await.map_err(|error| format!("TLS: {error}"))?;
            // Some servers of gRPC speak HTTP/2 without saying so by ALPN.
            stream = agreed.0;
        }
        let (interval, patience) = KEEP_ALIVE;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(interval).keep_alive_timeout(patience);
        let handshake = builder.keep_alive_while_idle(true).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| format!("HTTP/2: {error}"))?;
        let driver = tokio::spawn(async {
            connection.await.err().map_or_else(|| "without a reason".to_owned(), |error| with_sources(&error))
        });
        let scheme = if *is_tls { "https" } else { "http" };
        let origin = format!("{scheme}://{authority}").parse().map_err(|error| format!("{error}"))?;
        let headers = self.headers.iter().cloned().collect();
        let advice = if *is_tls {
            let ConnectorFlags { certificate, .. } = self.tls.flags;
            format!("check {certificate}, and that the server trusts its authority")
        } else {
            "it may need https://".to_owned()
        };
        Ok(GrpcConnection {
            sender,
            origin,
            headers,
            max_message: self.max_message,
            driver: AbortOnDropHandle::new(driver),
            advice,
        })
    }
}

/// The responses of a call.
#[derive(Debug)]
pub struct GrpcResponses<R>(Streaming<R>);

impl<R> GrpcResponses<R> {
    /// Waits for the next response; `None` is the end. The error is the server's reason, or that the connection ended.
    pub async fn next(&mut self) -> Result<Option<R>, String> {
        self.0.message().await.map_err(|status| reason(&status))
    }
}

/// An error with its causes, without those that its text has already.
fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

fn reason(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

impl GrpcConnection {
    /// Calls a method, and returns the stream of its responses, which may begin only with the first of them. The error is the server's
    /// reason, or that the connection ended.
    pub async fn call<Q, R>(
        &mut self,
        method: &'static str,
        mut requests: Receiver<Q>,
    ) -> Result<GrpcResponses<R>, String>
    where
        Q: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        let sender = self.sender.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let mut sender = sender.clone();
            async move {
                sender.ready().await?;
                sender.send_request(request).await
            }
        });
        let mut grpc = Grpc::with_origin(service, self.origin.clone()).max_decoding_message_size(self.max_message);
        let requests = futures_util::stream::poll_fn(move |cx| requests.poll_recv(cx));
        let mut request = tonic::Request::new(requests);
        *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        let codec = MessageCodec::<Q, R>(PhantomData);
        let response = grpc.streaming(request, PathAndQuery::from_static(method), codec).await;
        match response {
            Ok(response) => Ok(GrpcResponses(response.into_inner())),
            Err(status) => Err(self.refusal(&status).await),
        }
    }

    /// Returns why there is no response. In TLS 1.3, a server refuses a client's certificate only after the handshake, and the call hears
    /// no more than that it was cancelled, or that its channel is closed.
    async fn refusal(&mut self, status: &Status) -> String {
        // What the server itself answers has no cause here.
        if status.source().is_none() {
            return reason(status);
        }
        match timeout(REASON_DEADLINE, &mut self.driver).await {
            Ok(Ok(why)) => format!("the server closed the connection before it answered ({why}); {}", self.advice),
            _ => reason(status),
        }
    }
}

/// Requests and responses as protocol buffers.
struct MessageCodec<Q, R>(PhantomData<(Q, R)>);

impl<Q: Message + 'static, R: Message + Default + 'static> Codec for MessageCodec<Q, R> {
    type Encode = Q;
    type Decode = R;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self(PhantomData)
    }

    fn decoder(&mut self) -> Self {
        Self(PhantomData)
    }
}

impl<Q: Message, R> Encoder for MessageCodec<Q, R> {
    type Item = Q;
    type Error = Status;

    fn encode(&mut self, message: Q, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<Q, R: Message + Default> Decoder for MessageCodec<Q, R> {
    type Item = R;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<R>, Status> {
        R::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
