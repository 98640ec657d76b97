//! Both directions of a client's connection. The request's body is read while the response is written.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::decode::{Decoder, Framing, Sender};
use super::encode::{self, Outbox};
use crate::http::activity::Activity;
use crate::http::message::{BodyError, Piece, Upload};
use crate::http::service::Downstream;
use crate::http::transport::Stream;
use crate::message::connection::Cut;
use crate::message::headers::Headers;

/// The most bytes that are read ahead of a client while it is answered. Reading notices when the client closes.
const MOST_AHEAD: usize = 16 * 1024;

/// The interval at which the system is asked whether a client has closed behind bytes that are not read yet.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The most bytes of interim responses that wait for a client that does not read.
const MOST_INTERIM: usize = 64 * 1024;

/// Both directions of a client's connection.
#[derive(Debug)]
pub(crate) struct ClientIo {
    pub(super) stream: RefCell<Stream>,
    pub(super) input: RefCell<BytesMut>,
    pub(super) outbox: RefCell<Outbox>,
    /// For the request that is being answered.
    pub(super) decoder: Cell<Decoder>,
    /// Bytes of the body that may still come.
    allowance: Cell<u64>,
    /// The limit for the whole body.
    most: Cell<u64>,
    /// True while the client waits for a `100 Continue` before it sends the body.
    pub(super) awaits_continue: Cell<bool>,
    /// False for HTTP/1.0, which does not have interim responses.
    takes_interim: Cell<bool>,
    /// The next check whether the client has closed. Boxed because few requests have one.
    next_check: RefCell<Option<Pin<Box<Sleep>>>>,
    activity: Rc<Activity>,
}

impl ClientIo {
    pub(super) fn new(stream: Stream, activity: Rc<Activity>) -> Rc<Self> {
        Rc::new(Self {
            stream: RefCell::new(stream),
            input: RefCell::default(),
            outbox: RefCell::default(),
            decoder: Cell::new(Decoder::Ended),
            allowance: Cell::new(0),
            most: Cell::new(0),
            awaits_continue: Cell::new(false),
            takes_interim: Cell::new(false),
            next_check: RefCell::default(),
            activity,
        })
    }

    /// A request's head was read; its body of at most `most` bytes comes next.
    pub(super) fn begin(&self, framing: Framing, most: u64, takes_interim: bool, awaits_continue: bool) {
        self.decoder.set(Decoder::new(framing));
        self.limit_body(most);
        self.takes_interim.set(takes_interim);
        self.next_check.take();
        self.awaits_continue.set(awaits_continue);
    }

    pub(super) fn poll_fill(&self, expected: usize, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.stream.borrow_mut().poll_fill(&mut self.input.borrow_mut(), expected, cx)
    }

    /// Writes what is waiting to be written.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut outbox = self.outbox.borrow_mut();
        let before = outbox.total;
        let flushed = outbox.poll_flush(&mut *self.stream.borrow_mut(), cx);
        let written = outbox.total - before;
        if written > 0 {
            self.activity.downloaded(written);
        }
        if flushed.is_pending() {
            self.activity.awaits_download();
        }
        if matches!(flushed, Poll::Ready(Err(_))) {
            self.activity.cut_by(Cut::Client);
        }
        flushed
    }

    /// Returns whether the client has closed while it is answered.
    pub(super) fn poll_gone(&self, cx: &mut Context<'_>) -> bool {
        let is_gone = self.poll_closed(cx);
        if is_gone {
            self.activity.cut_by(Cut::Client);
        }
        is_gone
    }

    fn poll_closed(&self, cx: &mut Context<'_>) -> bool {
        loop {
            if !self.decoder.get().is_end() || self.input.borrow().len() > MOST_AHEAD {
                // If the body is being waited for, its reader sees the end.
                return !self.activity.is_awaiting_upload() && self.poll_hung_up(cx);
            }
            match self.poll_fill(0, cx) {
                Poll::Ready(Ok(0) | Err(_)) => return true,
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return false,
            }
        }
    }
}

impl ClientIo {
    /// Returns whether the client has closed behind bytes that are not read yet. The reactor does not tell while there are
    /// such bytes, so the system is asked now and then.
    fn poll_hung_up(&self, cx: &mut Context<'_>) -> bool {
        let mut next_check = self.next_check.borrow_mut();
        let next = next_check.get_or_insert_with(|| Box::pin(sleep(CHECK_INTERVAL)));
        while next.as_mut().poll(cx).is_ready() {
            if self.stream.borrow().is_hung_up() {
                return true;
            }
            next.as_mut().reset(Instant::now() + CHECK_INTERVAL);
        }
        false
    }
}

impl Downstream for ClientIo {
    fn send_interim(&self, status: StatusCode, headers: &Headers) {
        let mut outbox = self.outbox.borrow_mut();
        if self.takes_interim.get() && outbox.len() < MOST_INTERIM {
            let text = outbox.text();
            encode::response_start(text, status, headers);
            text.put_slice(b"\r\n");
        }
    }

    fn commit(&self) -> bool {
        // When an HTTP/1 client goes, its connection's task ends, and the exchange with it.
        true
    }

    fn limit_body(&self, bytes: u64) {
        self.most.set(bytes);
        self.allowance.set(bytes);
    }
}

/// The body of the request that is being answered. It is read only on demand.
impl Upload for ClientIo {
    fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        loop {
            let mut decoder = self.decoder.get();
            let decoded = decoder.decode(&mut self.input.borrow_mut(), Sender::Client);
            self.decoder.set(decoder);
            match &decoded {
                Poll::Pending => {}
                Poll::Ready(Some(Err(_))) => return decoded,
                Poll::Ready(Some(Ok(Piece::Data(data)))) => {
                    let length = data.len() as u64;
                    let Some(left) = self.allowance.get().checked_sub(length) else {
                        return Poll::Ready(Some(Err(BodyError::TooLong(self.most.get()))));
                    };
                    self.allowance.set(left);
                    self.activity.uploaded(length);
                    if decoder.is_end() {
                        self.activity.upload_ended();
                    }
                    return decoded;
                }
                Poll::Ready(_) => {
                    self.activity.upload_ended();
                    return decoded;
                }
            }
            if self.awaits_continue.take() {
                self.outbox.borrow_mut().text().put_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
            if !self.outbox.borrow().is_empty()
                && let Poll::Ready(Err(error)) = self.poll_flush(cx)
            {
                return Poll::Ready(Some(Err(BodyError::Cut(error.to_string()))));
            }
            match self.poll_fill(decoder.expected(), cx) {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Some(Err(BodyError::Cut("the client closed the connection".into()))));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(BodyError::Cut(error.to_string())))),
                Poll::Pending => {
                    self.activity.awaits_upload();
                    return Poll::Pending;
                }
            }
        }
    }

    fn is_end(&self) -> bool {
        self.decoder.get().is_end()
    }

    fn length(&self) -> Option<u64> {
        self.decoder.get().length()
    }
}

/// The client's stream after HTTP has ended.
#[derive(Debug)]
pub(super) struct ClientStream(pub(super) Rc<ClientIo>);

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_read(cx, buffer)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_shutdown(cx)
    }
}
