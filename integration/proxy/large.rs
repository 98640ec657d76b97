//! Bodies larger than the memory that they may take.

use crate::support::PATIENCE;
use crate::support::server::WIDE;
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;
use crate::support::wire::{Message, Wire};

/// 32 times what the process may grow.
const BODY: usize = 1 << 28;

/// The size of a write and the content's period. It is not a power of two, so that no proxy's buffer starts where the
/// content does.
const PIECE: usize = 65_521;

/// The most that the process may grow, in KiB.
const MOST_GROWTH: u64 = 8 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    Length,
    Chunked,
}

/// Content in which a lost, doubled or swapped piece shows.
struct Content {
    piece: Vec<u8>,
    position: usize,
}

impl Content {
    fn new() -> Self {
        // Multiples of the multiplier of Knuth's linear congruential generator: their high bytes have no short period.
        let bytes = (0..PIECE as u64).map(|n| n.wrapping_mul(6_364_136_223_846_793_005).to_be_bytes()[0]);
        Self { piece: bytes.collect(), position: 0 }
    }

    /// Sends the whole body and reports progress for about each mebibyte.
    fn send(&mut self, wire: &mut Wire, framing: Framing, mut progress: impl FnMut()) {
        wire.stream.set_write_timeout(Some(PATIENCE)).unwrap();
        while self.position < BODY {
            let size = PIECE.min(BODY - self.position);
            if framing == Framing::Chunked {
                wire.send(format!("{size:x}\r\n"));
            }
            wire.send(&self.piece[..size]);
            if framing == Framing::Chunked {
                wire.send("\r\n");
            }
            self.advance(size, &mut progress);
        }
        if framing == Framing::Chunked {
            wire.send("0\r\n\r\n");
        }
    }

    /// Receives the whole body and compares it.
    #[track_caller]
    fn receive(&mut self, wire: &mut Wire, head: &Message, mut progress: impl FnMut()) {
        if head.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&wire.line(), 16).unwrap();
                self.compare(wire, size, &mut progress);
                assert_eq!(wire.line(), "", "what ends a chunk, or the trailers after the last");
                if size == 0 {
                    break;
                }
            }
        } else {
            let length = head.header("content-length").unwrap().parse().unwrap();
            self.compare(wire, length, &mut progress);
        }
        assert_eq!(self.position, BODY, "the body is not whole");
    }

    #[track_caller]
    fn compare(&mut self, wire: &mut Wire, mut left: usize, progress: &mut impl FnMut()) {
        while left > 0 {
            let start = self.position % PIECE;
            let size = left.min(PIECE - start);
            assert!(wire.exactly(size) == self.piece[start..start + size], "another byte after {}", self.position);
            self.advance(size, progress);
            left -= size;
        }
    }

    fn advance(&mut self, size: usize, progress: &mut impl FnMut()) {
        let before = self.position;
        self.position += size;
        if before >> 20 < self.position >> 20 {
            progress();
        }
    }
}

fn framing_fields(framing: Framing) -> String {
    match framing {
        Framing::Length => format!("content-length: {BODY}"),
        Framing::Chunked => "transfer-encoding: chunked".to_owned(),
    }
}

/// Receives a body on POST; on GET sends one that is framed as the path says.
fn serve(wire: &mut Wire) {
    while let Some(head) = wire.head() {
        if head.start.starts_with("POST") {
            Content::new().receive(wire, &head, || {});
            wire.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nsame");
            continue;
        }
        if head.start.contains("/none") {
            wire.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnone");
            continue;
        }
        let framing = if head.start.contains("/chunked") { Framing::Chunked } else { Framing::Length };
        wire.send(format!("HTTP/1.1 200 OK\r\n{}\r\n\r\n", framing_fields(framing)));
        Content::new().send(wire, framing, || {});
    }
}

fn up(weir: &Weir, framing: Framing, progress: impl FnMut()) {
    let mut client = weir.connect();
    client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{}\r\n\r\n", framing_fields(framing)));
    Content::new().send(&mut client, framing, progress);
    let answer = client.response();
    assert_eq!((answer.status(), answer.text()), (200, "same"));
}

fn down(weir: &Weir, framing: Framing, progress: impl FnMut()) {
    let mut client = weir.connect();
    let path = if framing == Framing::Chunked { "/chunked" } else { "/length" };
    client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
    let head = client.head().unwrap();
    assert_eq!(head.status(), 200);
    let header = if framing == Framing::Chunked { "transfer-encoding" } else { "content-length" };
    assert!(head.header(header).is_some(), "the framing is the upstream's: {head:?}");
    Content::new().receive(&mut client, &head, progress);
}

/// Moves a body through a process and watches its memory.
#[track_caller]
fn check(transfer: impl Fn(&Weir, &mut dyn FnMut())) {
    let upstream = Upstream::start(|wire, _| serve(wire));
    let url = format!("http://{}", upstream.address);
    let weir = Weir::serve(WIDE, &["--upstream", &url, "--workers", "1"]);
    // The first request's lasting allocations do not depend on the body's size.
    assert_eq!(weir.get("/none", &[]).text(), "none");
    let before = weir.resident();
    let mut most = before;
    transfer(&weir, &mut || most = most.max(weir.resident()));
    let grown = most - before;
    assert!(grown <= MOST_GROWTH, "the process grew by {grown} KiB, from {before}");
}

#[test]
fn a_large_body_goes_up() {
    check(|weir, progress| up(weir, Framing::Length, progress));
}

#[test]
fn a_large_body_in_chunks_goes_up() {
    check(|weir, progress| up(weir, Framing::Chunked, progress));
}

#[test]
fn a_large_body_comes_down() {
    check(|weir, progress| down(weir, Framing::Length, progress));
}

#[test]
fn a_large_body_in_chunks_comes_down() {
    check(|weir, progress| down(weir, Framing::Chunked, progress));
}
