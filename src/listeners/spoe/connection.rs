//! A connection from `HAProxy`: the handshake, then rounds of questions and answers.
//!
//! A round is everything that has come since the last one. Its questions are decided concurrently, so that Redis gets one
//! call, and answered in one write, in order. `HAProxy` accepts any order (SPOE.txt section 3.2.1). A question that comes
//! during a round waits for its end, within the store's timeout.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Spoe;
use super::frame::{Frame, Hello, LENGTH_BYTES, MAX_FRAME, Notify, write_disconnect};
use super::status::Status;
use crate::http::HANDSHAKE;
use crate::http::observer::Observer;
use crate::message::connection::ConnectionFailure;

/// Questions of one round: as many as one call to Redis takes, and three times `HAProxy`'s `max-waiting-frames`.
const MAX_ROUND: usize = 64;

/// Free bytes for each read. A question has some hundred bytes, so this is a round.
const READ_BYTES: usize = 16 * 1024;

/// For the last bytes of a connection. `HAProxy` reads at once.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes that are discarded after the last frame. Closing a socket with unread bytes resets the connection, and the peer
/// may lose that frame.
const MAX_DISCARDED: usize = 64 * 1024;

/// A connection. The input never exceeds a frame and a read.
pub(super) struct Connection<'a, S> {
    spoe: &'a Spoe,
    stream: S,
    peer: IpAddr,
    input: BytesMut,
    output: Vec<u8>,
    /// The longest frame for either side, in bytes.
    max_frame: u32,
}

/// The end of a connection.
enum End {
    /// The peer has left, or needs no AGENT-DISCONNECT.
    Closed,
    Disconnect(Status),
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    pub(super) fn new(spoe: &'a Spoe, stream: S, peer: IpAddr) -> Self {
        Self { spoe, stream, peer, input: BytesMut::new(), output: Vec::new(), max_frame: MAX_FRAME }
    }

    pub(super) async fn serve(mut self, drain: &CancellationToken) {
        let Err(end) = self.converse(drain).await else { return };
        if let End::Disconnect(status) = end {
            self.spoe.disconnects(self.peer, status);
            write_disconnect(&mut self.output, status);
            let _ = timeout(CLOSE_TIMEOUT, self.close()).await;
        }
    }

    async fn converse(&mut self, drain: &CancellationToken) -> Result<(), End> {
        let timeouts = self.spoe.options.timeouts;
        let hello = self.handshake(drain).await?;
        hello.answer(&mut self.output);
        self.flush().await?;
        if hello.is_healthcheck {
            let _ = timeout(CLOSE_TIMEOUT, self.close()).await;
            return Err(End::Closed);
        }
        self.max_frame = hello.max_frame;
        loop {
            self.fill(timeouts.idle, drain).await?;
            let ended = self.round().await;
            self.flush().await?;
            ended?;
        }
    }

    async fn handshake(&mut self, drain: &CancellationToken) -> Result<Hello, End> {
        self.fill(self.spoe.options.timeouts.hello, drain).await?;
        // As a frame's length it would be too big. The peer would not understand a frame of ours.
        if self.input.first() == Some(&HANDSHAKE) {
            self.spoe.observer.connection_failed(ConnectionFailure::PlainPort);
            self.spoe.log_connection(self.peer, "HAProxy uses TLS, and this listener does not; add --spoe-tls-cert");
            return Err(End::Closed);
        }
        let (frame, length) = next(&self.input, self.max_frame).map_err(End::Disconnect)?.ok_or(End::Closed)?;
        let Frame::Hello(hello) = Frame::parse(frame).map_err(End::Disconnect)? else {
            return Err(End::Disconnect(Status::Invalid));
        };
        self.input.advance(length);
        Ok(hello)
    }

    /// Reads a whole frame, or an invalid one. The first byte may take `patience`, the rest the frame timeout. A drain ends
    /// idle connections.
    async fn fill(&mut self, patience: Duration, drain: &CancellationToken) -> Result<(), End> {
        let begun = |input: &BytesMut| !input.is_empty();
        let mut deadline =
            Instant::now() + if begun(&self.input) { self.spoe.options.timeouts.frame } else { patience };
        while matches!(next(&self.input, self.max_frame), Ok(None)) {
            let was_begun = begun(&self.input);
            // Bytes that arrived before the drain may be unnoticed. The yield lets the runtime look at the socket again.
            let drained = async {
                drain.cancelled().await;
                yield_now().await;
            };
            self.input.reserve(READ_BYTES);
            let length = tokio::select! {
                biased;
                read = self.stream.read_buf(&mut self.input) => read.map_err(|_| End::Closed)?,
                () = drained, if !was_begun => return Err(End::Disconnect(Status::Normal)),
                () = tokio::time::sleep_until(deadline.into()) => return Err(End::Disconnect(Status::Timeout)),
            };
            if length == 0 {
                return Err(End::Closed);
            }
            if !was_begun {
                deadline = Instant::now() + self.spoe.options.timeouts.frame;
            }
        }
        Ok(())
    }

    /// Answers what has come, up to a frame that ends the connection.
    async fn round(&mut self) -> Result<(), End> {
        let received = Instant::now();
        let mut questions: Vec<Notify<'_>> = Vec::new();
        let (mut taken, mut ended) = (0, Ok(()));
        while questions.len() < MAX_ROUND && ended.is_ok() {
            let frame = match next(&self.input[taken..], self.max_frame) {
                Ok(Some((frame, length))) => {
                    taken += length;
                    Frame::parse(frame)
                }
                Ok(None) => break,
                Err(status) => Err(status),
            };
            match frame {
                Ok(Frame::Notify(notify)) => questions.push(notify),
                Ok(Frame::Disconnect { code, message }) => {
                    self.spoe.log_disconnect(self.peer, code, message);
                    ended = Err(End::Disconnect(Status::Normal));
                }
                Ok(Frame::Hello(_)) => ended = Err(End::Disconnect(Status::Invalid)),
                Err(status) => ended = Err(End::Disconnect(status)),
            }
        }
        match &questions[..] {
            [question] => self.output.extend(self.spoe.answer(question, self.max_frame, received).await),
            questions => {
                let answers = questions.iter().map(|question| self.spoe.answer(question, self.max_frame, received));
                for answer in all(answers.map(Box::pin).collect()).await {
                    self.output.extend(answer);
                }
            }
        }
        drop(questions);
        self.input.advance(taken);
        ended
    }

    /// Sends the output.
    async fn flush(&mut self) -> Result<(), End> {
        let sent = timeout(self.spoe.options.timeouts.frame, self.stream.write_all(&self.output)).await;
        self.output.clear();
        if matches!(sent, Ok(Ok(()))) { Ok(()) } else { Err(End::Closed) }
    }

    /// Sends the last output and waits until the peer closes.
    async fn close(&mut self) {
        if self.stream.write_all(&self.output).await.is_err() || self.stream.shutdown().await.is_err() {
            return;
        }
        let mut rest = pin!((&mut self.stream).take(MAX_DISCARDED as u64));
        let mut piece = [0; 1024];
        while matches!(rest.read(&mut piece).await, Ok(length) if length > 0) {}
    }
}

/// Returns the first frame in `input` and its length with the prefix; `None` if it is incomplete.
pub(super) fn next(input: &[u8], max_frame: u32) -> Result<Option<(&[u8], usize)>, Status> {
    let Some((length, rest)) = input.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length);
    if length > max_frame {
        return Err(Status::TooBig);
    }
    let length = length as usize;
    Ok(rest.get(..length).map(|frame| (frame, LENGTH_BYTES + length)))
}

/// Runs futures concurrently and returns their outputs in order.
async fn all<F: Future>(mut futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    // They usually wait for one call to the store, and so wake this task together.
    poll_fn(|cx| {
        let mut is_ready = true;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(found) => *output = Some(found),
                    Poll::Pending => is_ready = false,
                }
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
