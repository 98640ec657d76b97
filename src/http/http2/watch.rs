//! Watches an HTTP/2 connection frame by frame as it is read.
//!
//! The library counts frames but has no clock, so a header block that never ends, or one PING per turn of the loop,
//! stays within its bounds forever. Each frame starts with nine bytes that contain its length and type (RFC 9113
//! section 4.1), so payloads need not be read.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::output::Output;

/// The length of the preface (RFC 9113 section 3.4).
pub(super) const PREFACE: usize = 24;

/// Control frames that belong to a request: its `PRIORITY`, its `RST_STREAM`, window updates for a small response.
const CONTROL_FRAMES_A_REQUEST: u64 = 10;

/// Bytes, in either direction, that justify a control frame: a window update, or a PING to measure bandwidth, comes
/// with every few kilobytes of a body.
const BYTES_A_CONTROL_FRAME: u64 = 1024;

/// Control frames per second that need no justification.
const CONTROL_FRAMES_A_SECOND: u64 = 10;

/// The place of the type in a frame's head.
const KIND: usize = 3;

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const PING: u8 = 0x6;
const WINDOW_UPDATE: u8 = 0x8;
const CONTINUATION: u8 = 0x9;
const END_HEADERS: u8 = 0x4;
const ACK: u8 = 0x1;

/// A type of frames that nobody knows, and that everybody ignores (RFC 9113 section 4.1).
const UNKNOWN: u8 = 0xff;

/// The traffic of a connection.
#[derive(Debug)]
pub(super) struct Traffic {
    /// The time of the connection task's last wake-up.
    now: Cell<Instant>,
    opened: Instant,
    scanner: RefCell<Scanner>,
    /// Since when a header block, or a frame other than `DATA`, is incomplete and blocks all streams.
    pub(super) incomplete_since: Cell<Option<Instant>>,
    /// The last time that the peer sent something.
    pub(super) heard: Cell<Instant>,
    bytes: Cell<u64>,
    /// Header blocks received since the last requests were accepted.
    not_accepted: Cell<u64>,
    read_state: Cell<ReadState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    Free,
    /// The last read brought requests that have not been accepted yet.
    Held,
    /// The same, and there is nothing more to read: the task is woken when there is.
    Drained,
}

/// The position in a frame.
#[derive(Debug, Default)]
struct Scanner {
    head: [u8; 9],
    /// Bytes received of the frame's head.
    filled: usize,
    /// Bytes of the payload that are still to come.
    payload: usize,
    /// True for a `DATA` frame.
    is_data: bool,
    /// True if a header block continues in another frame.
    in_block: bool,
    /// True for the last frame of a header block.
    ends_block: bool,
    counts: FrameCounts,
    /// The last stream that the peer has opened.
    last_stream: u32,
    /// PINGs that have no answer yet.
    pings: u32,
    refusal: Refusal,
}

/// The progress of a graceful shutdown (RFC 9113 section 6.8). The answer to the PING behind the first GOAWAY brings the second, which names
/// the last stream. The library ignores what belongs to later ones, but takes a `WINDOW_UPDATE` for an error of the connection. gRPC's
/// libraries send one right behind the head of a call, and may send all that behind their answer to the PING.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Refusal {
    #[default]
    No,
    /// After so many answers to PINGs.
    After(u32),
    /// Streams after this one are refused.
    Since(u32),
}

/// Frames received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FrameCounts {
    /// Complete header blocks.
    blocks: u64,
    data: u64,
    control: u64,
}

impl Scanner {
    /// Advances over received bytes. Frames that the library must not see become unknown ones; a frame whose head is cut, between two
    /// reads, stays as it is.
    fn walk(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            if self.payload > 0 {
                let length = self.payload.min(bytes.len() - at);
                self.payload -= length;
                at += length;
                self.end();
                continue;
            }
            let length = (self.head.len() - self.filled).min(bytes.len() - at);
            self.head[self.filled..self.filled + length].copy_from_slice(&bytes[at..at + length]);
            self.filled += length;
            at += length;
            if self.filled == self.head.len() {
                self.begin();
                if self.is_refused() && length == self.head.len() {
                    bytes[at - length + KIND] = UNKNOWN;
                }
            }
        }
    }

    /// Returns whether the frame that has begun is a `WINDOW_UPDATE` of a stream that is refused.
    fn is_refused(&self) -> bool {
        matches!(self.refusal, Refusal::Since(last) if self.head[KIND] == WINDOW_UPDATE && self.stream() > last)
    }

    /// The stream of the frame that has begun.
    const fn stream(&self) -> u32 {
        let [.., first, second, third, fourth] = self.head;
        u32::from_be_bytes([first, second, third, fourth]) & !(1 << 31)
    }

    /// A frame's head is complete.
    fn begin(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.filled = 0;
        self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.is_data = kind == DATA;
        match kind {
            DATA => self.counts.data += 1,
            HEADERS | CONTINUATION => {
                self.in_block = flags & END_HEADERS == 0;
                self.ends_block = !self.in_block;
                self.last_stream = self.last_stream.max(self.stream());
            }
            _ => {
                self.counts.control += 1;
                if kind == PING && flags & ACK != 0 {
                    self.pings = self.pings.saturating_sub(1);
                    self.refusal = match self.refusal {
                        Refusal::After(answers @ 2..) => Refusal::After(answers - 1),
                        Refusal::After(_) => Refusal::Since(self.last_stream),
                        other => other,
                    };
                }
            }
        }
        self.end();
    }

    /// Counts a complete header block. Only then has the library a request; counting an incomplete one would make it
    /// stand for a request of the next read, which in turn would wait for a third.
    fn end(&mut self) {
        if self.payload == 0 {
            self.counts.blocks += u64::from(std::mem::take(&mut self.ends_block));
        }
    }

    /// Returns whether an incomplete frame blocks all streams. A `DATA` frame blocks only its own.
    const fn is_incomplete(&self) -> bool {
        self.in_block || self.filled > 0 || (self.payload > 0 && !self.is_data)
    }
}

impl Traffic {
    /// A PING was sent.
    pub(super) fn ping(&self) {
        self.scanner.borrow_mut().pings += 1;
    }

    /// A graceful shutdown begins, with a PING of its own.
    pub(super) fn drain(&self) {
        let mut scanner = self.scanner.borrow_mut();
        scanner.refusal = Refusal::After(scanner.pings + 1);
    }

    /// `preface` is the number of bytes before the first frame.
    pub(super) fn new(preface: usize) -> Rc<Self> {
        let now = Instant::now();
        // The preface has its own deadline, so here it is treated as a `DATA` frame.
        let scanner = Scanner { payload: preface, is_data: true, ..Scanner::default() };
        Rc::new(Self {
            now: Cell::new(now),
            opened: now,
            scanner: RefCell::new(scanner),
            incomplete_since: Cell::new(None),
            heard: Cell::new(now),
            bytes: Cell::new(0),
            not_accepted: Cell::new(0),
            read_state: Cell::new(ReadState::Free),
        })
    }

    /// The connection's task was woken.
    pub(super) fn wake(&self) -> Instant {
        let now = Instant::now();
        self.now.set(now);
        now
    }

    /// Returns when the connection's task was woken.
    pub(super) fn now(&self) -> Instant {
        self.now.get()
    }

    /// Returns the number of heads and `DATA` frames received.
    pub(super) fn content(&self) -> u64 {
        let FrameCounts { blocks, data, .. } = self.scanner.borrow().counts;
        blocks + data
    }

    /// Returns whether the peer has sent more control frames than its requests, their bodies and the time justify, plus
    /// `allowance`.
    pub(super) fn is_flooded(&self, allowance: u64) -> bool {
        let FrameCounts { blocks, control, .. } = self.scanner.borrow().counts;
        // The usual case is decided without the rest.
        control > allowance
            && control
                > allowance
                    + blocks * CONTROL_FRAMES_A_REQUEST
                    + self.bytes.get() / BYTES_A_CONTROL_FRAME
                    + self.now().saturating_duration_since(self.opened).as_secs() * CONTROL_FRAMES_A_SECOND
    }

    /// All received requests were accepted, so more may be read. Returns whether there may be more without a wake-up.
    pub(super) fn release(&self) -> bool {
        self.not_accepted.set(0);
        self.read_state.replace(ReadState::Free) == ReadState::Held
    }

    /// A request was accepted. Returns whether it was the last one received and nothing is left to read, so the library
    /// need not be polled again.
    pub(super) fn accepted(&self) -> bool {
        self.not_accepted.set(self.not_accepted.get().saturating_sub(1));
        let is_last = self.not_accepted.get() == 0 && self.read_state.get() == ReadState::Drained;
        if is_last {
            self.read_state.set(ReadState::Free);
        }
        is_last
    }

    fn read(&self, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut scanner = self.scanner.borrow_mut();
        let (was_incomplete, before) = (scanner.is_incomplete(), scanner.counts);
        scanner.walk(bytes);
        // Another incomplete frame may have followed the one that was completed.
        let ended = scanner.counts != before;
        let since = match self.incomplete_since.get() {
            since @ Some(_) if was_incomplete && !ended => since,
            _ => Some(self.now()),
        };
        self.incomplete_since.set(since.filter(|_| scanner.is_incomplete()));
        self.heard.set(self.now());
        self.count(bytes.len());
        let blocks = scanner.counts.blocks - before.blocks;
        if blocks > 0 {
            self.not_accepted.set(self.not_accepted.get() + blocks);
            self.read_state.set(ReadState::Held);
        }
    }

    fn count(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes as u64);
    }
}

/// A watched stream.
#[derive(Debug)]
pub(super) struct WatchedStream {
    output: Rc<Output>,
    traffic: Rc<Traffic>,
}

impl WatchedStream {
    pub(super) const fn new(output: Rc<Output>, traffic: Rc<Traffic>) -> Self {
        Self { output, traffic }
    }
}

impl AsyncRead for WatchedStream {
    /// A read that brought requests is the last until they were accepted. The library would otherwise read on and drop
    /// requests that are followed by a reset or an error, before limits see them (CVE-2023-44487).
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut stream = self.output.stream.borrow_mut();
        if self.traffic.read_state.get() != ReadState::Free {
            let is_drained = stream.is_silent(cx);
            self.traffic.read_state.set(if is_drained { ReadState::Drained } else { ReadState::Held });
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut *stream).poll_read(cx, buffer);
        self.traffic.read(&mut buffer.filled_mut()[before..]);
        polled
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = self.output.poll_write(bytes, cx);
        if let Poll::Ready(Ok(written)) = polled {
            self.traffic.count(written);
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.output.is_gathering() { Poll::Ready(Ok(())) } else { self.output.poll_flush(cx) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.poll_shutdown(cx)
    }
}

/// A leaky bucket of resets.
#[derive(Debug)]
pub(super) struct Resets {
    level: f64,
    since: Instant,
}

/// The time in which as many resets drain as are allowed at once.
const RESETS_FORGIVEN_IN: Duration = Duration::from_secs(10);

impl Resets {
    pub(super) const fn new(now: Instant) -> Self {
        Self { level: 0.0, since: now }
    }

    /// Counts a reset. Returns whether there are more than `allowed`.
    pub(super) fn count(&mut self, allowed: u32, now: Instant) -> bool {
        let allowed = f64::from(allowed);
        let forgiven = now.saturating_duration_since(self.since).div_duration_f64(RESETS_FORGIVEN_IN) * allowed;
        self.level = (self.level - forgiven).max(0.0) + 1.0;
        self.since = now;
        self.level > allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.resize(9 + usize::from(length), 0xaa);
        frame
    }

    /// Feeds the frames in pieces of each size, and compares what is seen and whether something is incomplete.
    #[track_caller]
    fn check(frames: &[Vec<u8>], cut: usize, expected: (u64, u64, bool)) {
        let mut bytes = frames.concat();
        bytes.truncate(bytes.len() - cut);
        for size in 1..=bytes.len() {
            let traffic = Traffic::new(0);
            bytes.chunks_mut(size).for_each(|piece| traffic.read(piece));
            let FrameCounts { blocks, control, .. } = traffic.scanner.borrow().counts;
            let seen = (blocks, control, traffic.incomplete_since.get().is_some());
            assert_eq!(seen, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn frames_are_told_apart_however_they_come() {
        let (settings, ping) = (frame(0x4, 0, 0), frame(0x6, 0, 8));
        check(&[settings.clone(), frame(HEADERS, 0x5, 20), ping.clone()], 0, (1, 2, false));
        check(&[frame(HEADERS, 0x4, 3), frame(DATA, 0, 200), frame(DATA, 1, 0)], 0, (1, 0, false));
        check(&[frame(HEADERS, 0, 3), frame(CONTINUATION, 0, 9)], 0, (0, 0, true));
        check(&[frame(HEADERS, 0, 3), frame(CONTINUATION, 4, 9)], 0, (1, 0, false));
        check(&[frame(0xee, 0, 30), frame(DATA, 0, 100)], 50, (0, 1, false));
        check(&[settings, ping.clone()], 1, (0, 2, true));
        check(&[ping], 12, (0, 0, true));
    }

    /// The last request of a read may be cut anywhere; the library has it only when it is whole.
    #[test]
    fn every_request_that_has_come_is_accepted_before_more_is_read() {
        let mut bytes = [frame(HEADERS, 0x5, 20), frame(HEADERS, 0x5, 20), frame(HEADERS, 0x5, 20)].concat();
        for cut in 29..58 {
            let traffic = Traffic::new(0);
            traffic.read(&mut bytes[..cut]);
            assert!(!traffic.accepted());
            assert!(traffic.release());
            traffic.read(&mut bytes[cut..]);
            traffic.read_state.set(ReadState::Drained);
            assert_eq!([traffic.accepted(), traffic.accepted()], [false, true], "cut at {cut}");
        }
    }

    #[test]
    fn frames_that_nothing_explains_are_a_flood() {
        let traffic = Traffic::new(0);
        let mut ping = frame(PING, 0, 8);
        (0..100).for_each(|_| traffic.read(&mut ping));
        // 100 frames are allowed, and one more is explained by the 1700 bytes.
        assert!(!traffic.is_flooded(100));
        (0..10).for_each(|_| traffic.read(&mut ping));
        assert!(traffic.is_flooded(100));
        traffic.read(&mut frame(HEADERS, 5, 9));
        assert!(!traffic.is_flooded(100));
        // A second explains as many as a request does.
        (0..10).for_each(|_| traffic.read(&mut ping));
        for (seconds, is_flooded) in [(0, true), (1, false), (2, false)] {
            traffic.now.set(traffic.opened + Duration::from_secs(seconds));
            assert_eq!(traffic.is_flooded(100), is_flooded, "after {seconds} s");
        }
        (0..10).for_each(|_| traffic.read(&mut ping));
        traffic.now.set(traffic.opened + Duration::from_secs(1));
        assert!(traffic.is_flooded(100));
    }

    /// A `HEADERS`, `WINDOW_UPDATE` or another frame of a stream.
    fn of_stream(kind: u8, flags: u8, stream: u8) -> Vec<u8> {
        let mut frame = frame(kind, flags, 4);
        frame[8] = stream;
        frame
    }

    #[test]
    fn window_updates_of_refused_streams_are_hidden() {
        let traffic = Traffic::new(0);
        let kinds = |frames: &[Vec<u8>]| {
            let mut bytes = frames.concat();
            traffic.read(&mut bytes);
            let mut kinds = Vec::new();
            let mut at = 0;
            while at < bytes.len() {
                kinds.push(bytes[at + KIND]);
                at += 9 + usize::from(bytes[at + 2]);
            }
            kinds
        };
        let call = |stream| [of_stream(HEADERS, END_HEADERS, stream), of_stream(WINDOW_UPDATE, 0, stream)].concat();
        let answer = || frame(PING, ACK, 8);
        let seen = [HEADERS, WINDOW_UPDATE];
        assert_eq!(kinds(&[call(1), answer(), call(3)]), [&seen[..], &[PING], &seen].concat());
        // One PING is under way when the shutdown begins.
        traffic.ping();
        traffic.drain();
        assert_eq!(kinds(&[call(5), answer(), call(7)]), [&seen[..], &[PING], &seen].concat());
        assert_eq!(kinds(&[frame(PING, 0, 8), call(9)]), [&[PING][..], &seen].concat());
        assert_eq!(kinds(&[answer(), call(11), call(9)]), [PING, HEADERS, UNKNOWN, HEADERS, WINDOW_UPDATE]);
        assert_eq!(
            kinds(&[answer(), of_stream(WINDOW_UPDATE, 0, 0), call(13)]),
            [PING, WINDOW_UPDATE, HEADERS, UNKNOWN]
        );
    }

    #[test]
    fn resets_are_forgiven_with_time() {
        let start = Instant::now();
        let mut resets = Resets::new(start);
        let mut count = |seconds| resets.count(5, start + Duration::from_secs(seconds));
        assert!((0..5).all(|_| !count(0)));
        assert!(count(0));
        // Six are in, and two seconds forgive one.
        assert!(count(2));
        assert!(!count(30));
    }
}
