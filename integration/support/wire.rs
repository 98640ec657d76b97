//! One end of an HTTP/1.1 connection, byte by byte, without any of the product's libraries.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

/// A request or a response.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    /// The request line or the status line.
    pub(crate) start: String,
    /// Names are in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
}

impl Message {
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(given, _)| given == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The value of a header that must not be repeated.
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let values = self.all(name);
        assert!(values.len() < 2, "{name} comes more than once: {values:?}");
        values.first().copied()
    }

    pub(crate) fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Wire {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).unwrap())
    }

    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a request without a body and reads the response.
    #[track_caller]
    pub(crate) fn get(&mut self, target: &str) -> Message {
        self.get_with(target, &[])
    }

    #[track_caller]
    pub(crate) fn get_with(&mut self, target: &str, headers: &[(&str, &str)]) -> Message {
        self.get_from("a.example", target, headers)
    }

    /// Gets a page of an admin listener on loopback.
    #[track_caller]
    pub(crate) fn page(&mut self, target: &str) -> Message {
        self.get_from("localhost", target, &[])
    }

    #[track_caller]
    pub(crate) fn get_from(&mut self, host: &str, target: &str, headers: &[(&str, &str)]) -> Message {
        let mut head = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n");
        for (name, value) in headers {
            head.extend([*name, ": ", *value, "\r\n"]);
        }
        self.send(head + "\r\n");
        self.response()
    }

    /// Reads a response to anything but HEAD.
    #[track_caller]
    pub(crate) fn response(&mut self) -> Message {
        let mut message = self.head().expect("a response");
        let empty = matches!(message.status(), 100..200 | 204 | 304);
        if !empty {
            self.body(&mut message, true);
        }
        message
    }

    /// Reads a request; `None` if the peer closed instead.
    pub(crate) fn request(&mut self) -> Option<Message> {
        let mut message = self.head()?;
        self.body(&mut message, false);
        Some(message)
    }

    /// Reads a start line and headers; `None` at the end of the stream.
    pub(crate) fn head(&mut self) -> Option<Message> {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            if !self.fill() {
                assert!(self.buffer.is_empty(), "the stream ended in a head: {:?}", self.buffered());
                return None;
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        let head = String::from_utf8_lossy(&head);
        let mut lines = head.trim_end().split("\r\n");
        let start = lines.next().unwrap().to_owned();
        Some(Message { start, headers: headers(lines), ..Message::default() })
    }

    /// Reads the body that the headers announce.
    #[track_caller]
    pub(crate) fn body(&mut self, message: &mut Message, until_close: bool) {
        if message.header("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            loop {
                let size = usize::from_str_radix(&self.line(), 16).unwrap();
                if size == 0 {
                    break;
                }
                message.body.extend(self.exactly(size));
                assert_eq!(self.line(), "");
            }
            let mut lines = Vec::new();
            loop {
                match self.line() {
                    line if line.is_empty() => break,
                    line => lines.push(line),
                }
            }
            message.trailers = headers(lines.iter().map(String::as_str));
        } else if let Some(length) = message.header("content-length") {
            let length = length.parse().unwrap();
            message.body = self.exactly(length);
        } else if until_close {
            while self.fill() {}
            message.body = std::mem::take(&mut self.buffer);
        }
    }

    #[track_caller]
    pub(crate) fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            assert!(self.fill(), "the stream ended after {} of {count} bytes", self.buffer.len());
        }
        self.buffer.drain(..count).collect()
    }

    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                break end;
            }
            assert!(self.fill(), "the stream ended in a line: {:?}", self.buffered());
        };
        let line = self.buffer.drain(..end + 2).take(end).collect();
        String::from_utf8(line).unwrap()
    }

    /// Waits until the peer closes, and fails on another byte.
    #[track_caller]
    pub(crate) fn expect_end(&mut self) {
        let more = self.fill();
        assert!(!more, "instead of the end came {:?}", self.buffered());
    }

    fn buffered(&self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }

    /// Reads once; returns false at the end of the stream.
    #[track_caller]
    fn fill(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        match self.stream.read(&mut piece) {
            Ok(0) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&piece[..count]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing came within {PATIENCE:?}: {error}"),
        }
    }
}

fn headers<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let pair = |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    lines.map(|line| pair(line).unwrap()).collect()
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
