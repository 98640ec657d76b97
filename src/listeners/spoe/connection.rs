//! A connection of `HAProxy`'s: the handshake, and rounds of questions and answers until one side has had enough.
//!
//! A round is what has come by the time that the last one was answered. Its questions are decided side by side, so that
//! Redis is asked once for all of them, and their answers leave in one write, in the order of the questions. `HAProxy`
//! takes them in any order (SPOE.txt section 3.2.1); a question that comes during a round waits for its end, which is
//! within the store's timeout.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Spoe;
use super::frame::{Frame, Hello, LENGTH_BYTES, MAX_FRAME, Notify, write_disconnect};
use super::status::Status;

/// Questions of one round: as many as one call to Redis takes, and three times what `HAProxy` lets wait on a connection
/// (`max-waiting-frames`).
const MAX_ROUND: usize = 64;

/// What is read at once, at least. A question has some hundred bytes, so this is a round.
const READ_BYTES: usize = 16 * 1024;

/// How long the last bytes of a connection may take. `HAProxy` reads at once.
const FAREWELL: Duration = Duration::from_secs(1);

/// What is read after the farewell, and thrown away: what was on its way. A socket that is closed with bytes unread
/// resets its connection, and the peer may lose the farewell.
const MAX_DISCARDED: usize = 64 * 1024;

/// A connection, and what was read and not yet looked at: never more than a frame and a read.
pub(super) struct Connection<'a, S> {
    spoe: &'a Spoe,
    stream: S,
    peer: IpAddr,
    input: BytesMut,
    output: Vec<u8>,
    /// The longest frame of either side, in bytes.
    max_frame: u32,
}

/// How a connection ends.
enum End {
    /// The peer is gone, or needs no farewell.
    Closed,
    /// We say farewell, for this reason.
    Disconnect(Status),
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    pub(super) fn new(spoe: &'a Spoe, stream: S, peer: IpAddr) -> Self {
        Self { spoe, stream, peer, input: BytesMut::new(), output: Vec::new(), max_frame: MAX_FRAME }
    }

    /// Serves it to its end.
    pub(super) async fn serve(mut self, drain: &CancellationToken) {
        let Err(end) = self.converse(drain).await else { return };
        if let End::Disconnect(status) = end {
            self.spoe.disconnects(self.peer, status);
            write_disconnect(&mut self.output, status);
            let _ = timeout(FAREWELL, self.part()).await;
        }
    }

    async fn converse(&mut self, drain: &CancellationToken) -> Result<(), End> {
        let timeouts = self.spoe.timeouts;
        let hello = self.handshake(drain).await?;
        hello.answer(&mut self.output);
        self.flush().await?;
        if hello.is_healthcheck {
            let _ = timeout(FAREWELL, self.part()).await;
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
        self.fill(self.spoe.timeouts.hello, drain).await?;
        let (frame, length) = next(&self.input, self.max_frame).map_err(End::Disconnect)?.ok_or(End::Closed)?;
        let Frame::Hello(hello) = Frame::parse(frame).map_err(End::Disconnect)? else {
            return Err(End::Disconnect(Status::Invalid));
        };
        self.input.advance(length);
        Ok(hello)
    }

    /// Reads until there is a whole frame, or one that is none. Its first byte may take as long as `patience`, and the
    /// rest as long as a frame may. Nobody who is idle is waited for when the process ends.
    async fn fill(&mut self, patience: Duration, drain: &CancellationToken) -> Result<(), End> {
        let begun = |input: &BytesMut| !input.is_empty();
        let mut deadline = Instant::now() + if begun(&self.input) { self.spoe.timeouts.frame } else { patience };
        while matches!(next(&self.input, self.max_frame), Ok(None)) {
            let was_begun = begun(&self.input);
            self.input.reserve(READ_BYTES);
            let length = tokio::select! {
                biased;
                read = self.stream.read_buf(&mut self.input) => read.map_err(|_| End::Closed)?,
                () = drain.cancelled(), if !was_begun => return Err(End::Disconnect(Status::Normal)),
                () = tokio::time::sleep_until(deadline.into()) => return Err(End::Disconnect(Status::Timeout)),
            };
            if length == 0 {
                return Err(End::Closed);
            }
            if !was_begun {
                deadline = Instant::now() + self.spoe.timeouts.frame;
            }
        }
        Ok(())
    }

    /// Answers what has come. If something among it ends the connection, what came before is answered all the same.
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
                    self.spoe.disconnected(self.peer, code, message);
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

    /// Sends the output. A peer that does not take it is as good as gone.
    async fn flush(&mut self) -> Result<(), End> {
        let sent = timeout(self.spoe.timeouts.frame, self.stream.write_all(&self.output)).await;
        self.output.clear();
        if matches!(sent, Ok(Ok(()))) { Ok(()) } else { Err(End::Closed) }
    }

    /// Sends the output as the last there is, and waits until the peer closes.
    async fn part(&mut self) {
        if self.stream.write_all(&self.output).await.is_err() || self.stream.shutdown().await.is_err() {
            return;
        }
        let mut rest = pin!((&mut self.stream).take(MAX_DISCARDED as u64));
        let mut piece = [0; 1024];
        while matches!(rest.read(&mut piece).await, Ok(length) if length > 0) {}
    }
}

/// The first frame in `input`, and how many bytes it takes with its length; `None` if its end is still to come.
pub(super) fn next(input: &[u8], max_frame: u32) -> Result<Option<(&[u8], usize)>, Status> {
    let Some((length, rest)) = input.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length);
    if length > max_frame {
        return Err(Status::TooBig);
    }
    let length = length as usize;
    Ok(rest.get(..length).map(|frame| (frame, LENGTH_BYTES + length)))
}

/// What comes of futures that run side by side, in their order.
async fn all<F: Future>(mut futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    // All of them wait for one call to the store as a rule, and so wake this task together.
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
