//! HTTP/1.1 by hand: what is read is read strictly, and what is written goes out in the pieces of its plan.

use std::future::{poll_fn, ready};
use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::yield_now;

use super::plan::{Body, Framing};
use super::{End, Received};

/// A connection, over TLS or not.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

pub(super) struct Reader<R> {
    io: R,
    buffer: BytesMut,
}

#[derive(Debug)]
pub(super) struct Head {
    /// The request line or the status line.
    pub(super) start: String,
    /// Names are in lower case.
    headers: Vec<(String, String)>,
}

impl Head {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// Returns the framing that the headers announce, and the length if there is one.
    pub(super) fn framing(&self, is_response: bool) -> Result<(Framing, usize), End> {
        match (self.header("transfer-encoding"), self.header("content-length")) {
            (Some("chunked"), None) => Ok((Framing::Stream, 0)),
            (None, Some(length)) => match length.parse() {
                Ok(length) => Ok((Framing::Length, length)),
                Err(_) => Err(End::Malformed(format!("a length of {length:?}"))),
            },
            (None, None) if is_response => Ok((Framing::Close, 0)),
            (None, None) => Ok((Framing::None, 0)),
            other => Err(End::Malformed(format!("framed by {other:?}"))),
        }
    }
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(io: R) -> Self {
        Self { io, buffer: BytesMut::new() }
    }

    /// Reads a head; `None` if the connection ends before its first byte.
    pub(super) async fn head(&mut self) -> Result<Option<Head>, End> {
        let end = loop {
            if let Some(end) = memchr(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            if let Err(error) = self.fill().await {
                return if self.buffer.is_empty() { Ok(None) } else { Err(error) };
            }
        };
        let text = String::from_utf8_lossy(&self.buffer.split_to(end + 4)).into_owned();
        let mut lines = text.trim_end().split("\r\n");
        let start = lines.next().unwrap_or_default().to_owned();
        Ok(Some(Head { start, headers: headers(lines)? }))
    }

    /// Reads a body, of which no more than `most` bytes are wanted.
    pub(super) async fn body(&mut self, (framing, length): (Framing, usize), most: usize) -> Received {
        let mut received = Received { body: BytesMut::new(), trailers: Vec::new(), end: End::Whole };
        let read = match framing {
            Framing::None => Ok(()),
            Framing::Length => self.exactly(length, most, &mut received.body).await,
            Framing::Stream => self.chunks(most, &mut received).await,
            Framing::Close => self.until_close(most, &mut received.body).await,
        };
        if let Err(end) = read {
            received.end = end;
        }
        received
    }

    /// Reads everything up to the end of the connection.
    pub(super) async fn rest(mut self) -> BytesMut {
        while self.fill().await.is_ok() {}
        self.buffer
    }

    async fn until_close(&mut self, most: usize, body: &mut BytesMut) -> Result<(), End> {
        loop {
            body.unsplit(self.buffer.split());
            if body.len() > most {
                return Err(End::Left);
            }
            match self.fill().await {
                Ok(()) => {}
                Err(End::Closed) => return Ok(()),
                Err(end) => return Err(end),
            }
        }
    }

    async fn chunks(&mut self, most: usize, received: &mut Received) -> Result<(), End> {
        loop {
            let line = self.line().await?;
            let is_size = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_hexdigit());
            let size = usize::from_str_radix(&line, 16).ok().filter(|_| is_size);
            let size = size.ok_or_else(|| End::Malformed(format!("a chunk size of {line:?}")))?;
            if size == 0 {
                break;
            }
            let end = received.body.len() + size;
            self.exactly(end, most, &mut received.body).await?;
            let line = self.line().await?;
            if !line.is_empty() {
                return Err(End::Malformed(format!("{line:?} behind a chunk")));
            }
        }
        let mut lines = Vec::new();
        loop {
            match self.line().await? {
                line if line.is_empty() => break,
                line => lines.push(line),
            }
        }
        received.trailers = headers(lines.iter().map(String::as_str))?;
        Ok(())
    }

    /// Reads until the body has this length.
    async fn exactly(&mut self, length: usize, most: usize, body: &mut BytesMut) -> Result<(), End> {
        loop {
            let part = self.buffer.len().min(length - body.len());
            body.extend_from_slice(&self.buffer[..part]);
            self.buffer.advance(part);
            if body.len() > most {
                return Err(End::Left);
            }
            if body.len() == length {
                return Ok(());
            }
            self.fill().await?;
        }
    }

    async fn line(&mut self) -> Result<String, End> {
        loop {
            if let Some(end) = memchr(&self.buffer, b"\r\n") {
                let line = self.buffer.split_to(end + 2);
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.buffer.len() > 200 {
                return Err(End::Malformed(format!("{:?} is no line", self.buffer)));
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<(), End> {
        self.buffer.reserve(16 * 1024);
        match self.io.read_buf(&mut self.buffer).await {
            Ok(0) => Err(End::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(End::Cut(error.to_string())),
        }
    }
}

fn headers<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Vec<(String, String)>, End> {
    let pair = |line: &'a str| match line.split_once(": ") {
        Some((name, value)) => Ok((name.to_lowercase(), value.to_owned())),
        None => Err(End::Malformed(format!("a header line of {line:?}"))),
    };
    lines.map(pair).collect()
}

fn memchr(bytes: &[u8], part: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, part)
}

/// Writes a message whose head lacks the header that frames the body and the empty line. Leaves after `most` bytes of the
/// body; returns whether all of it was written. The last piece is written after `gate`.
pub(super) async fn write(
    io: &mut (impl AsyncWrite + Unpin),
    head: String,
    body: &Body,
    trailers: &[(String, String)],
    most: usize,
    gate: impl Future<Output = ()>,
) -> io::Result<bool> {
    write_body(io, framed(head, body), body, trailers, most, gate).await
}

async fn write_body(
    io: &mut (impl AsyncWrite + Unpin),
    mut pending: Vec<u8>,
    body: &Body,
    trailers: &[(String, String)],
    most: usize,
    gate: impl Future<Output = ()>,
) -> io::Result<bool> {
    let (is_chunked, mut gate) = (body.framing == Framing::Stream, Some(gate));
    if body.head_first {
        write_apart(io, &mut pending).await?;
    }
    let mut sent = 0;
    for mut piece in body.pieces() {
        if sent + piece.len() == body.bytes.len() {
            pass(&mut gate, io, &mut pending).await?;
        }
        let leaves = sent + piece.len() > most;
        if is_chunked {
            let blanks = if body.is_padded { "  " } else { "" };
            pending.extend_from_slice(format!("{:x}{blanks}\r\n", piece.len()).as_bytes());
        }
        piece.truncate(most - sent);
        sent += piece.len();
        pending.extend_from_slice(&piece);
        if leaves {
            io.write_all(&pending).await?;
            io.flush().await?;
            return Ok(false);
        }
        if is_chunked {
            pending.extend_from_slice(b"\r\n");
        }
        let is_end = sent == body.bytes.len();
        if !is_end || !body.ends_with_piece {
            write_apart(io, &mut pending).await?;
        }
    }
    pass(&mut gate, io, &mut pending).await?;
    if is_chunked {
        pending.extend_from_slice(b"0\r\n");
        for (name, value) in trailers {
            pending.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        pending.extend_from_slice(b"\r\n");
    }
    io.write_all(&pending).await?;
    io.flush().await?;
    Ok(true)
}

/// Writes a message whose whole body waits for `gate`.
pub(super) async fn write_after(
    io: &mut (impl AsyncWrite + Unpin),
    head: String,
    body: &Body,
    trailers: &[(String, String)],
    gate: impl Future<Output = ()>,
) -> io::Result<bool> {
    let mut pending = framed(head, body);
    pass(&mut Some(gate), io, &mut pending).await?;
    write_body(io, pending, body, trailers, usize::MAX, ready(())).await
}

/// Completes a head.
fn framed(mut head: String, body: &Body) -> Vec<u8> {
    match body.framing {
        Framing::None | Framing::Close => {}
        Framing::Length => head.extend(["content-length: ", &body.bytes.len().to_string(), "\r\n"]),
        Framing::Stream => head += "transfer-encoding: chunked\r\n",
    }
    (head + "\r\n").into_bytes()
}

/// Waits for the gate, unless it was passed. Pending bytes are written first.
async fn pass(
    gate: &mut Option<impl Future<Output = ()>>,
    io: &mut (impl AsyncWrite + Unpin),
    pending: &mut Vec<u8>,
) -> io::Result<()> {
    let Some(gate) = gate.take() else { return Ok(()) };
    let mut gate = pin!(gate);
    if poll_fn(|cx| Poll::Ready(gate.as_mut().poll(cx))).await.is_pending() {
        write_apart(io, pending).await?;
        gate.await;
    }
    Ok(())
}

/// Writes, and lets others run, so that the rest likely arrives by itself.
async fn write_apart(io: &mut (impl AsyncWrite + Unpin), pending: &mut Vec<u8>) -> io::Result<()> {
    io.write_all(pending).await?;
    io.flush().await?;
    pending.clear();
    yield_now().await;
    Ok(())
}

/// Writes what nothing frames behind `pending`, and ends the connection in this direction.
pub(super) async fn write_raw(io: &mut (impl AsyncWrite + Unpin), mut pending: Vec<u8>, body: &Body) -> io::Result<()> {
    if body.head_first {
        write_apart(io, &mut pending).await?;
    }
    for piece in body.pieces() {
        pending.extend_from_slice(&piece);
        write_apart(io, &mut pending).await?;
    }
    io.write_all(&pending).await?;
    io.shutdown().await
}
