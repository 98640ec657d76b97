//! Upstream connections: one request and its response at a time.
//!
//! The task of the client's connection drives the upstream's connection too: it sends the request, waits and forwards
//! the body. A task per upstream connection would cost two more wake-ups per request and would outlive a client that
//! has gone.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use bytes::{BufMut, BytesMut};
use http::{Method, StatusCode};

use super::decode::{Decoder, Framing, Sender};
use super::encode::{self, Outbox};
use super::head::{self, ResponseHead};
use crate::http::activity::Activity;
use crate::http::failure::UpstreamError;
use crate::http::failure::{Lease, SendFailed};
use crate::http::limits::HeadLimits;
use crate::http::message::{BodyError, Download, Piece, Request, RequestBody, Response, ResponseBody};
use crate::http::service::Context as RequestContext;
use crate::http::transport::{Stream, input};
use crate::http::tunnel::Tunnel;

/// Bounds on a response's head. Servers set many cookies, and they are the operator's own.
const LIMITS: HeadLimits = HeadLimits { bytes: 64 * 1024, target: 0, lines: head::MOST_LINES };

/// A lease on an endpoint that keeps idle connections.
pub(crate) trait KeepAlive: Lease + Sized {
    /// Keeps a clean connection for another request.
    fn keep(self, connection: Box<Connection<Self>>, now: Instant);
}

/// An upstream connection. Boxed because it moves between the pool, the request and the response's body.
#[derive(Debug)]
pub(crate) struct Connection<L> {
    stream: Stream,
    input: BytesMut,
    outbox: Outbox,
    /// The request's body until its end is in the outbox, or until it never will be.
    upload: Option<Outgoing>,
    decoder: Decoder,
    /// True if the heads allow another request.
    is_persistent: bool,
    /// True if a part of the request's body was taken, so the request cannot be sent again unless it was kept.
    has_taken: bool,
    /// True if bytes have arrived since the request began.
    has_received: bool,
    /// Set while a response's body is read.
    response: Option<(L, Rc<Activity>)>,
}

/// A request's body.
#[derive(Debug)]
struct Outgoing {
    body: RequestBody,
    /// Its framing, less the bytes already sent.
    framing: Framing,
}

/// An error while sending a request's body.
enum UploadError {
    Client(BodyError),
    /// The upstream stopped reading.
    Upstream(io::Error),
}

impl<L: KeepAlive> Connection<L> {
    pub(crate) fn new(stream: Stream) -> Box<Self> {
        Box::new(Self {
            stream,
            input: BytesMut::new(),
            outbox: Outbox::default(),
            upload: None,
            decoder: Decoder::Ended,
            is_persistent: true,
            has_taken: false,
            has_received: false,
            response: None,
        })
    }

    /// Returns whether nothing has arrived while it was idle: neither an end nor an unrequested response.
    pub(crate) fn is_quiet(&mut self) -> bool {
        // The reactor knows that a socket is not readable without asking the system.
        self.stream.is_silent_now() || {
            let mut cx = Context::from_waker(Waker::noop());
            self.stream.poll_fill(&mut self.input, 0, &mut cx).is_pending()
        }
    }

    /// Sends a request and waits for the response's headers.
    pub(crate) async fn send(
        mut self: Box<Self>,
        request: &mut Request,
        context: &RequestContext,
        lease: L,
    ) -> Result<Response, Box<SendFailed<L>>> {
        let activity = &context.activity;
        self.begin(request);
        let mut interim = 0;
        let received = poll_fn(|cx| {
            // An upstream that responds early may stop reading, so a failed write may still be followed by a response.
            let broken = match self.poll_upload(cx) {
                Poll::Ready(Err(UploadError::Client(error))) => {
                    return Poll::Ready(Err(UpstreamError::Upload(error)));
                }
                Poll::Ready(Err(UploadError::Upstream(error))) => Some(error),
                Poll::Ready(Ok(())) | Poll::Pending => None,
            };
            loop {
                match self.poll_head(&request.method, cx) {
                    Poll::Ready(Ok(head)) if head.is_interim() => {
                        interim += 1;
                        context.forward_interim(interim, head.status, head.headers)?;
                    }
                    Poll::Ready(head) => return Poll::Ready(head),
                    Poll::Pending => {
                        let error = broken.map(UpstreamError::Closed).or_else(|| activity.overdue());
                        return error.map_or(Poll::Pending, |error| Poll::Ready(Err(error)));
                    }
                }
            }
        })
        .await;
        match received {
            Ok(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                if self.upload.is_some() || !self.outbox.is_empty() || !request.headers.contains("upgrade") {
                    return Err(self.failed(UpstreamError::SwitchedProtocols, request, lease));
                }
                let body = ResponseBody::Tunnel(Box::new(Tunnel::new(self.stream, self.input, lease)));
                Ok(Response { status: head.status, headers: head.headers.into(), body })
            }
            Ok(head) => Ok(self.respond(head, lease, activity)),
            Err(error) => Err(self.failed(error, request, lease)),
        }
    }

    /// Writes the request's head into the outbox.
    fn begin(&mut self, request: &mut Request) {
        let body = std::mem::take(&mut request.body);
        let framing = match body.length() {
            Some(length) => Framing::of_length(length),
            None => Framing::Chunked,
        };
        // A body without a length is written to its end even if it has ended: the head announces chunks.
        self.upload = (framing != Framing::Empty).then_some(Outgoing { body, framing });
        (self.has_taken, self.has_received) = (false, false);
        self.outbox.total = 0;
        encode::request_head(self.outbox.text(), &request.method, &request.target, &request.headers, framing);
    }

    #[cold]
    fn failed(self, error: UpstreamError, request: &mut Request, lease: L) -> Box<SendFailed<L>> {
        let was_sent = self.outbox.total > 0;
        let (was_taken, is_unanswered) = (self.has_taken, !self.has_received);
        request.body = self.upload.map(|upload| upload.body).unwrap_or_default();
        Box::new(SendFailed {
            error,
            lease,
            request: is_unanswered.then(|| std::mem::take(request)),
            was_taken,
            was_sent,
        })
    }

    /// Sends as much of the request as possible. Ready when all of it is sent or the rest never will be.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), UploadError>> {
        while let Some(Outgoing { body, framing }) = &mut self.upload {
            if !self.outbox.has_room() {
                ready!(self.poll_flush(cx))?;
                continue;
            }
            let Poll::Ready(piece) = body.poll_piece(cx) else {
                let _ = self.poll_flush(cx)?;
                return Poll::Pending;
            };
            self.has_taken |= piece.is_some();
            let encoded = piece.transpose().and_then(|piece| framing.encode(piece, || body.is_end(), &mut self.outbox));
            match encoded {
                Ok(false) => {}
                Ok(true) => self.upload = None,
                Err(error) => {
                    self.upload = None;
                    self.is_persistent = false;
                    return Poll::Ready(Err(UploadError::Client(error)));
                }
            }
        }
        self.poll_flush(cx)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), UploadError>> {
        self.outbox.poll_flush(&mut self.stream, cx).map_err(|error| {
            self.upload = None;
            self.is_persistent = false;
            self.outbox.discard();
            UploadError::Upstream(error)
        })
    }

    /// Reads a response's head.
    fn poll_head(&mut self, method: &Method, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, UpstreamError>> {
        let Self { stream, input, has_received, .. } = self;
        let fill = |input: &mut BytesMut| {
            let filled = stream.poll_fill(input, 0, cx);
            *has_received |= matches!(filled, Poll::Ready(Ok(1..)));
            filled
        };
        let head = ready!(head::poll(input, &LIMITS, fill, |bytes| head::response(bytes, method, &LIMITS)));
        Poll::Ready(head.map_err(UpstreamError::Closed)?.map_err(UpstreamError::Head))
    }

    fn respond(mut self: Box<Self>, head: ResponseHead, lease: L, activity: &Rc<Activity>) -> Response {
        let ResponseHead { status, headers, framing, is_persistent } = head;
        self.decoder = Decoder::new(framing);
        self.is_persistent &= is_persistent;
        self.response = Some((lease, activity.clone()));
        Response { status, headers: headers.into(), body: ResponseBody::download(self) }
    }

    /// Returns whether another request can follow: both messages have ended and nothing came after them.
    fn is_reusable(&self) -> bool {
        self.is_persistent
            && self.decoder.is_end()
            && self.upload.is_none()
            && self.outbox.is_empty()
            && self.input.is_empty()
    }

    /// Returns whether more of the response is overdue.
    fn is_late(&self) -> bool {
        self.response.as_ref().is_some_and(|(_, activity)| activity.is_late())
    }

    /// Ends the response without allowing another request.
    fn end(&mut self) {
        self.decoder = Decoder::Ended;
        self.is_persistent = false;
        self.upload = None;
    }
}

impl<L: KeepAlive> Download for Connection<L> {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        // The request may still be in progress. If its client cut it off, nobody can receive the response.
        if let Poll::Ready(Err(UploadError::Client(error))) = self.poll_upload(cx) {
            self.end();
            self.response = None;
            return Poll::Ready(Some(Err(error)));
        }
        let error = loop {
            match self.decoder.decode(&mut self.input, Sender::Upstream) {
                Poll::Pending => {}
                Poll::Ready(Some(Err(error))) => break error,
                Poll::Ready(piece) => {
                    if let Some((_, activity)) = &self.response {
                        activity.moved();
                    }
                    return Poll::Ready(piece);
                }
            }
            let expected = self.decoder.expected();
            match self.stream.poll_fill(&mut self.input, expected, cx) {
                Poll::Pending if self.is_late() => break BodyError::Silent,
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) if self.decoder.may_close() => {
                    self.end();
                    return Poll::Ready(None);
                }
                Poll::Ready(Ok(0)) => break BodyError::Cut("the connection was closed".into()),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => break BodyError::Cut(error.to_string()),
            }
        };
        self.end();
        if let Some((lease, activity)) = self.response.take() {
            activity.upstream_cut(error.reason());
            lease.cut_off(&error, activity.now());
        }
        Poll::Ready(Some(Err(error)))
    }

    fn drive_upload(&mut self, cx: &mut Context<'_>) {
        let _ = self.poll_upload(cx);
    }

    fn is_end(&self) -> bool {
        self.decoder.is_end()
    }

    fn length(&self) -> Option<u64> {
        self.decoder.length()
    }

    fn take_whole(&mut self, text: &mut dyn BufMut) -> bool {
        let is_sent = self.upload.is_none() && self.outbox.is_empty();
        let is_taken = is_sent && self.decoder.take_whole(&mut self.input, text);
        if let Some((_, activity)) = self.response.as_ref().filter(|_| is_taken) {
            activity.moved();
        }
        is_taken
    }

    fn is_done(&self) -> bool {
        self.decoder.is_end()
    }

    fn release(mut self: Box<Self>) {
        let Some((lease, activity)) = self.response.take() else { return };
        lease.completed();
        if self.is_reusable() {
            input::release(&mut self.input);
            lease.keep(self, activity.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Weak;
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use socket2::SockRef;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::time::timeout;
    use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

    use super::super::client_io::ClientIo;
    use super::*;
    use crate::http::admission::SlowReaders;
    use crate::http::forwarding::Peer;
    use crate::http::message::Upload;
    use crate::message::headers::Headers;

    #[derive(Debug)]
    struct NotKept;

    impl Lease for NotKept {
        fn cut_off(&self, _: &BodyError, _: Instant) {}

        fn completed(&self) {}
    }

    impl KeepAlive for NotKept {
        fn keep(self, _: Box<Connection<Self>>, _: Instant) {}
    }

    /// A body that is there.
    #[derive(Debug)]
    struct Whole(RefCell<Bytes>);

    impl Upload for Whole {
        fn poll_piece(&self, _: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
            let data = self.0.take();
            Poll::Ready((!data.is_empty()).then_some(Ok(Piece::Data(data))))
        }

        fn is_end(&self) -> bool {
            self.0.borrow().is_empty()
        }

        fn length(&self) -> Option<u64> {
            Some(self.0.borrow().len() as u64)
        }
    }

    /// TLS over a socket that takes a few kilobytes at a time.
    async fn narrow_tls() -> (Stream, impl AsyncReadExt + AsyncWriteExt + Unpin) {
        let signed = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let (certificate, key) = (signed.cert.der().clone(), signed.signing_key.serialize_der());
        let key = PrivateKeyDer::try_from(key).unwrap();
        let provider = Arc::new(default_provider());
        let server =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
        let server = server.with_no_client_auth().with_single_cert(vec![certificate.clone()], key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let client = client.with_root_certificates(roots).with_no_client_auth();
        let (near, far) = UnixStream::pair().unwrap();
        SockRef::from(&near).set_send_buffer_size(4 * 1024).unwrap();
        let (connector, acceptor) = (TlsConnector::from(Arc::new(client)), TlsAcceptor::from(Arc::new(server)));
        let name = ServerName::try_from("a.example").unwrap();
        let (near, far) = tokio::join!(connector.connect(name, Stream::Unix(near)), acceptor.accept(far));
        (Stream::Tls(Box::new(TlsStream::Client(near.unwrap()))), far.unwrap())
    }

    /// TLS takes more than its socket does. When there is room again, nobody else sends the rest.
    #[tokio::test]
    async fn the_end_of_an_upload_does_not_stay_in_tls() {
        const BODY: usize = 40_000;
        let body = Bytes::from(vec![b'x'; BODY]);
        let (stream, mut upstream) = narrow_tls().await;
        let activity = Rc::new(Activity::new(Instant::now(), Rc::new(SlowReaders::new(1 << 20))));
        let peer = Rc::new(Peer::untrusted([192, 0, 2, 7]));
        let context = RequestContext::new(activity, peer, Weak::<ClientIo>::new());
        let mut request = Request {
            method: Method::POST,
            target: "/".to_owned(),
            headers: Headers::from_iter([("host", "a.example")]),
            body: RequestBody::Upload(Rc::new(Whole(RefCell::new(body.clone())))),
            ..Request::default()
        };
        let answering = async {
            let mut received = Vec::new();
            while !received.ends_with(&body) {
                upstream.read_buf(&mut received).await.unwrap();
            }
            upstream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            upstream.flush().await.unwrap();
        };
        let sending = Connection::new(stream).send(&mut request, &context, NotKept);
        let exchange = async { tokio::join!(sending, answering).0 };
        let response = timeout(Duration::from_secs(10), exchange).await.expect("all of the body came");
        assert_eq!(response.unwrap().status, StatusCode::NO_CONTENT);
    }
}
