//! HTTP/2 bodies in both directions.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, HeaderMap};

use super::convert;
use crate::http::activity::Activity;
use crate::http::forwarding;
use crate::http::message::{BodyError, Message, Piece, RequestBody, ResponseBody};
use crate::http::service::Exchange;

/// A body that is received.
///
/// The sender's window is reopened when the next part is requested, which is when the previous one has been forwarded.
/// A slow receiver therefore holds up at most one window.
#[derive(Debug)]
pub(super) struct ReceivedBody {
    stream: RecvStream,
    /// Bytes of the last part, not yet returned to the sender's window.
    unreleased: usize,
    length: Option<u64>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Data,
    Trailers,
    Ended,
}

impl ReceivedBody {
    pub(super) fn new(stream: RecvStream, map: &HeaderMap) -> Self {
        let length = map.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let phase = if stream.is_end_stream() { Phase::Ended } else { Phase::Data };
        Self { stream, unreleased: 0, length, phase }
    }

    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        self.release();
        while self.phase == Phase::Data {
            match ready!(self.stream.poll_data(cx)) {
                // The last frame of a body is often empty.
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    self.unreleased = data.len();
                    self.length = self.length.map(|length| length.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Piece::Data(data))));
                }
                Some(Err(error)) => return self.broken(&error),
                None => self.phase = Phase::Trailers,
            }
        }
        if self.phase == Phase::Ended {
            return Poll::Ready(None);
        }
        match ready!(self.stream.poll_trailers(cx)) {
            Ok(trailers) => {
                self.phase = Phase::Ended;
                let headers = trailers
                    .map(|map| forwarding::trailers(convert::headers(&map)))
                    .filter(|headers| !headers.is_empty());
                Poll::Ready(headers.map(|headers| Ok(Piece::Trailers(headers))))
            }
            Err(error) => self.broken(&error),
        }
    }

    fn broken(&mut self, error: &h2::Error) -> Poll<Option<Result<Piece, BodyError>>> {
        self.phase = Phase::Ended;
        let error = if error.is_library() && error.is_reset() {
            BodyError::Malformed(error.to_string())
        } else {
            BodyError::Cut(error.to_string())
        };
        Poll::Ready(Some(Err(error)))
    }

    /// Nothing more is taken of it.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Ended;
    }

    fn release(&mut self) {
        let unreleased = std::mem::take(&mut self.unreleased);
        if unreleased > 0 {
            // Fails only if more is returned than was taken.
            let _ = self.stream.flow_control().release_capacity(unreleased);
        }
    }

    pub(super) fn is_end(&self) -> bool {
        self.phase == Phase::Ended || self.stream.is_end_stream()
    }

    pub(super) const fn length(&self) -> Option<u64> {
        self.length
    }
}

/// The source of a body that is sent.
pub(super) enum Source<'a> {
    Request(&'a mut RequestBody),
    /// With the client's deadlines and the listener's exchange.
    Response(&'a mut ResponseBody, &'a Activity, Option<&'a dyn Exchange>),
}

impl Source<'_> {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        match self {
            Self::Request(body) => body.poll_piece(cx),
            Self::Response(body, ..) => body.poll_piece(cx),
        }
    }

    fn is_end(&self) -> bool {
        match self {
            Self::Request(body) => body.is_end(),
            Self::Response(body, ..) => body.is_end(),
        }
    }

    /// The receiver takes nothing at the moment.
    fn stalled(&mut self, cx: &mut Context<'_>) {
        if let Self::Response(body, activity, _) = self {
            activity.awaits_download();
            body.drive_upload(cx);
        }
    }

    fn sent(&self, bytes: usize) {
        if let Self::Response(_, activity, exchange) = self {
            activity.downloaded(bytes as u64);
            exchange.inspect(|exchange| exchange.sent(bytes));
        }
    }
}

/// A body that is sent.
#[derive(Debug)]
pub(super) struct SentBody {
    stream: SendStream<Bytes>,
    /// The rest of a part, waiting for the receiver's window.
    rest: Bytes,
    /// True once a part was taken from the source.
    pub(super) has_begun: bool,
}

/// An error while sending a body.
#[derive(Debug)]
pub(super) enum SendError {
    /// The receiver reset the stream, or the connection is closed.
    Gone,
    /// The source failed.
    Body(BodyError),
}

/// The longest last part that is sent at once if it fits into the receiver's window. Streams with small responses then
/// need no second poll.
const SMALL: usize = 16 * 1024;

impl SentBody {
    pub(super) const fn new(stream: SendStream<Bytes>) -> Self {
        Self { stream, rest: Bytes::new(), has_begun: false }
    }

    /// Sends a short message and its trailers at once if it fits into the receiver's window. Returns its length, or `None` if
    /// nothing was sent.
    pub(super) fn send_message(&mut self, message: &mut Message) -> Result<Option<usize>, SendError> {
        let length = message.data.len();
        let Some(trailers) = message.trailers.as_ref().filter(|_| (1..=SMALL).contains(&length)) else {
            return Ok(None);
        };
        if !self.has_room(length) {
            return Ok(None);
        }
        let trailers = trailers.http2(|| convert::header_map(trailers, 0, |_| true), |_| {});
        let sent = self.stream.send_data(std::mem::take(&mut message.data), false);
        sent.and_then(|()| self.stream.send_trailers(trailers)).map_err(|_| SendError::Gone)?;
        Ok(Some(length))
    }

    /// Returns whether a part waits for the receiver's window.
    pub(super) const fn is_stuck(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Sends as much as there is and as the receiver takes. Ready at the end of the body.
    pub(super) fn poll_send(&mut self, mut source: Source<'_>, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let gone = |_| SendError::Gone;
        loop {
            while !self.rest.is_empty() {
                let Poll::Ready(room) = self.poll_room(cx) else {
                    source.stalled(cx);
                    return Poll::Pending;
                };
                let part = self.rest.split_to(room.ok_or(SendError::Gone)?.min(self.rest.len()));
                source.sent(part.len());
                let is_last = self.rest.is_empty() && source.is_end();
                self.stream.send_data(part, is_last).map_err(gone)?;
                if is_last {
                    return Poll::Ready(Ok(()));
                }
            }
            let polled = source.poll_piece(cx);
            self.has_begun |= polled.is_ready();
            match polled {
                Poll::Ready(Some(Ok(Piece::Data(data))))
                    if data.len() <= SMALL && source.is_end() && self.has_room(data.len()) =>
                {
                    source.sent(data.len());
                    return Poll::Ready(self.stream.send_data(data, true).map_err(gone));
                }
                Poll::Ready(Some(Ok(Piece::Data(data)))) => {
                    // Only for what there is: capacity reserved for nothing is missing on the connection's other
                    // streams.
                    self.stream.reserve_capacity(data.len());
                    self.rest = data;
                }
                // Some servers end the whole connection for them (nginx 1.22), and with it the exchanges of other clients. A proxy may
                // drop trailers (RFC 9110 section 6.5.1).
                Poll::Ready(Some(Ok(Piece::Trailers(_)))) if matches!(source, Source::Request(_)) => {
                    return Poll::Ready(self.stream.send_data(Bytes::new(), true).map_err(gone));
                }
                Poll::Ready(Some(Ok(Piece::Trailers(headers)))) => {
                    let trailers = convert::header_map(&headers, 0, |_| true);
                    return Poll::Ready(self.stream.send_trailers(trailers).map_err(gone));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(SendError::Body(error))),
                Poll::Ready(None) => return Poll::Ready(self.stream.send_data(Bytes::new(), true).map_err(gone)),
                Poll::Pending if self.stream.poll_reset(cx).is_ready() => return Poll::Ready(Err(SendError::Gone)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Returns whether the receiver's window has this much room. Anything beyond waits uncounted in the library.
    fn has_room(&mut self, length: usize) -> bool {
        self.stream.reserve_capacity(length);
        self.stream.capacity() >= length
    }

    /// Returns the room in the receiver's window; `None` if the receiver takes no more.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        match self.stream.capacity() {
            0 => Poll::Ready(ready!(self.stream.poll_capacity(cx)).and_then(Result::ok)),
            room => Poll::Ready(Some(room)),
        }
    }

    /// Resets the stream, so that the receiver does not take the part that was sent for the whole.
    pub(super) fn reset(&mut self, reason: h2::Reason) {
        self.stream.send_reset(reason);
    }
}
