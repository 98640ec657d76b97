//! One end of an HTTP/2 connection, frame by frame. No library changes what a test sends.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

pub(crate) const DATA: u8 = 0x0;
pub(crate) const HEADERS: u8 = 0x1;
pub(crate) const PRIORITY: u8 = 0x2;
pub(crate) const RST_STREAM: u8 = 0x3;
pub(crate) const SETTINGS: u8 = 0x4;
pub(crate) const PING: u8 = 0x6;
pub(crate) const GOAWAY: u8 = 0x7;
pub(crate) const WINDOW_UPDATE: u8 = 0x8;

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The error code of a `RST_STREAM` or a `GOAWAY`.
    pub(crate) fn error(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }

    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// The status at the start of a header block (RFC 7541: indexed, or a literal with an indexed name and Huffman-coded digits).
    pub(crate) fn status(&self) -> u16 {
        const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
        match self.payload[..] {
            [index @ 0x88..=0x8e, ..] => INDEXED[usize::from(index - 0x88)],
            [0x48, length, ref text @ ..] if length & 0x80 == 0 => {
                std::str::from_utf8(&text[..length.into()]).unwrap().parse().unwrap()
            }
            [0x48, length, ref text @ ..] => digits(&text[..usize::from(length & 0x7f)]),
            _ => panic!("no status in {:?}", self.payload),
        }
    }
}

/// The first three Huffman-coded digits: 0 to 2 have five bits, the others six.
fn digits(bytes: &[u8]) -> u16 {
    let bits: Vec<u16> =
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| u16::from(byte >> bit & 1))).collect();
    let value = |bits: &[u16]| bits.iter().fold(0, |value, bit| value << 1 | bit);
    let mut bits = &bits[..];
    (0..3).fold(0, |number, _| {
        let (digit, length) = match value(&bits[..5]) {
            short @ 0..=2 => (short, 5),
            _ => (value(&bits[..6]) - 0b01_1001 + 3, 6),
        };
        bits = &bits[length..];
        number * 10 + digit
    })
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header block of literals without indexing.
pub(crate) fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let text = |block: &mut Vec<u8>, text: &str| {
        match text.len() {
            length @ 0..127 => block.push(u8::try_from(length).unwrap()),
            length => {
                let mut rest = length - 127;
                block.push(127);
                while rest >= 128 {
                    block.push(u8::try_from(rest % 128 + 128).unwrap());
                    rest /= 128;
                }
                block.push(u8::try_from(rest).unwrap());
            }
        }
        block.extend(text.bytes());
    };
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    block
}

/// The headers of a valid request for this path, and more.
pub(crate) fn request(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let pseudo = [(":method", method), (":scheme", "http"), (":authority", "a.example"), (":path", path)];
    block(&[&pseudo[..], more].concat())
}

pub(crate) struct Frames {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

impl Frames {
    /// Connects and sends the preface.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut frames = Self { stream, buffer: Vec::new() };
        frames.send([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &[])[..]].concat());
        frames
    }

    /// The server's end of a new connection, after the client's preface.
    pub(crate) fn accept(mut stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.read_exact(&mut [0; b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len()]).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// Sends bytes. The peer may close the connection meanwhile.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Sends a request without a body.
    pub(crate) fn get(&mut self, stream: u32, path: &str) {
        self.send(frame(HEADERS, END_STREAM | END_HEADERS, stream, &request("GET", path, &[])));
    }

    /// The next frame, or `None` at the end of the connection. Answers `PING`s.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some((head, rest)) = self.buffer.split_first_chunk::<9>() {
                let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
                if rest.len() >= length {
                    let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
                    let frame = Frame { kind: head[3], flags: head[4], stream, payload: rest[..length].to_vec() };
                    self.buffer.drain(..9 + length);
                    if frame.kind == PING && frame.flags & ACK == 0 {
                        self.send(self::frame(PING, ACK, 0, &frame.payload));
                        continue;
                    }
                    return Some(frame);
                }
            }
            let mut piece = [0; 16 * 1024];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(length) => self.buffer.extend(&piece[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    /// The next frame of this kind. Skips others.
    #[track_caller]
    pub(crate) fn next_of(&mut self, kind: u8) -> Frame {
        let mut others = Vec::new();
        while let Some(frame) = self.next() {
            if frame.kind == kind {
                return frame;
            }
            others.push((frame.kind, frame.flags, frame.stream));
        }
        panic!("no frame of kind {kind}, but {others:?}");
    }

    /// The frames of a stream until its end or its reset.
    #[track_caller]
    pub(crate) fn stream(&mut self, stream: u32) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            let frame = self.next().unwrap_or_else(|| panic!("closed after {frames:?}"));
            let is_last = frame.ends_stream() || frame.kind == RST_STREAM;
            if frame.stream == stream && frame.kind != WINDOW_UPDATE {
                frames.push(frame);
                if is_last {
                    return frames;
                }
            }
        }
    }
}
