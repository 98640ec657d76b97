//! One type for all kinds of connections, and the addresses to connect to.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;
use tokio_util::io::poll_read_buf;

use super::input::{SMALL_READ, make_room, release};

/// A connection of a client or to an upstream. Over plain TCP it costs one comparison more than the socket.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// TLS over one of the others.
    Tls(Box<TlsStream<Stream>>),
}

/// Calls a method of the wrapped stream.
macro_rules! delegate {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Tcp(stream) => {
                let $inner = Pin::new(stream);
                $call
            }
            Stream::Unix(stream) => {
                let $inner = Pin::new(stream);
                $call
            }
            Stream::Tls(stream) => {
                let $inner = Pin::new(&mut **stream);
                $call
            }
        }
    };
}

impl Stream {
    /// Returns whether nothing has arrived, as far as that is known without reading. Unknown for TLS.
    pub(crate) fn is_silent(&self, cx: &mut Context<'_>) -> bool {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx).is_pending(),
            Self::Unix(stream) => stream.poll_read_ready(cx).is_pending(),
            Self::Tls(_) => false,
        }
    }

    /// The same, but nobody is woken later, because registering a waker takes a lock.
    pub(crate) fn is_silent_now(&self) -> bool {
        self.try_io(|_| Ok(())).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Returns whether the peer has closed, even if there are bytes to read before the end.
    pub(crate) fn is_hung_up(&self) -> bool {
        match self {
            Self::Tcp(stream) => is_hung_up(stream.as_fd()),
            Self::Unix(stream) => is_hung_up(stream.as_fd()),
            Self::Tls(stream) => stream.get_ref().0.is_hung_up(),
        }
    }

    /// Appends what is available to `input`; 0 bytes at the end. At least `expected` bytes are known to come.
    ///
    /// Short reads from TCP use a buffer that all connections of a thread share, because most of them find nothing or little.
    pub(crate) fn poll_fill(
        &mut self,
        input: &mut BytesMut,
        expected: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) if expected <= SMALL_READ => SCRATCH.with_borrow_mut(|scratch| {
                let count = ready!(poll_receive(stream, cx, scratch))?;
                if count > 0 {
                    make_room(input, expected);
                    input.extend_from_slice(&scratch[..count]);
                }
                Poll::Ready(Ok(count))
            }),
            _ => {
                make_room(input, expected);
                let filled = poll_read_buf(Pin::new(self), cx, input);
                release(input);
                filled
            }
        }
    }

    /// Waits until `decide` returns something for the first bytes of a connection. It sees all bytes that have come, up
    /// to the size of `buffer`, and is called again when there are more. `None` if they ended or filled the buffer before
    /// that.
    ///
    /// If enough bytes are there, this is one `recv`. TLS streams cannot be peeked at.
    pub(super) async fn peek<T>(
        &self,
        buffer: &mut [u8],
        mut decide: impl FnMut(&[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        loop {
            let ready = self.ready().await?;
            let peeked = self.try_io(|socket| {
                let (count, _) = recv(socket, &mut *buffer, RecvFlags::PEEK)?;
                match decide(&buffer[..count]) {
                    None if count < buffer.len() && !ready.is_read_closed() && count > 0 => {
                        // This makes tokio wait for more bytes although the first ones are still unread.
                        Err(ErrorKind::WouldBlock.into())
                    }
                    decided => Ok(decided),
                }
            });
            match peeked {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                peeked => return peeked,
            }
        }
    }

    /// Waits until bytes or the end can be read.
    pub(super) async fn ready(&self) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(Interest::READABLE).await,
            Self::Unix(stream) => stream.ready(Interest::READABLE).await,
            Self::Tls(_) => Err(ErrorKind::Unsupported.into()),
        }
    }

    fn try_io<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::Tcp(stream) => stream.try_io(Interest::READABLE, || work(stream.as_fd())),
            Self::Unix(stream) => stream.try_io(Interest::READABLE, || work(stream.as_fd())),
            Self::Tls(_) => Err(ErrorKind::Unsupported.into()),
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<[u8; SMALL_READ]> = const { RefCell::new([0; SMALL_READ]) };
}

fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|answers| answers > 0)
}

/// Works like `TcpStream`'s `poll_read`, but calls the system through rustix. glibc's `recv` is a cancellation point, which
/// costs two locked instructions per call in a process with several threads.
fn poll_receive(stream: &TcpStream, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_read_ready(cx))?;
        let mut received = Err(rustix::io::Errno::AGAIN);
        let _ = stream.try_io(Interest::READABLE, || {
            received = recv(stream, &mut *buffer, RecvFlags::empty()).map(|(count, _)| count);
            // As in tokio: a partially filled buffer was all there is, and another call would return nothing.
            let is_drained = received.is_ok_and(|count| 0 < count && count < buffer.len());
            if is_drained { Err(ErrorKind::WouldBlock.into()) } else { received.map_err(io::Error::from) }
        });
        match received {
            Err(rustix::io::Errno::AGAIN) => {}
            other => return Poll::Ready(other.map_err(io::Error::from)),
        }
    }
}

/// The same as [`poll_receive`] for `poll_write`.
fn poll_send(stream: &TcpStream, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        // Nearly always there is room.
        match stream.try_io(Interest::WRITABLE, || Ok(send(stream, bytes, SendFlags::NOSIGNAL)?)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            sent => return Poll::Ready(sent),
        }
        ready!(stream.poll_write_ready(cx))?;
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Self::Tcp(stream) = &*self {
            return poll_send(stream, cx, bytes);
        }
        delegate!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, stream => stream.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        // Both kinds of sockets have `writev`, and rustls gathers by itself.
        true
    }
}

/// A server's address, written as `127.0.0.1:3000` or `unix:/run/app.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Network(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// Opens a connection. The caller gives it a deadline.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Network(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                keep_alive(&stream)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
        }
    }
}

/// Has the system notice an upstream that vanished without closing: an event stream may be silent for any time.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

/// The same as for clients' connections: two minutes until a silent peer that does not answer is given up.
const KEEPALIVE_IDLE: Duration = Duration::from_mins(1);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_PROBES: u32 = 3;

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Sends several pieces in one call and then the end, and expects them on the other side.
    async fn check(mut one: Stream, mut other: Stream) {
        assert!(one.is_write_vectored());
        let pieces = [IoSlice::new(b"one, "), IoSlice::new(b"two")];
        assert_eq!(one.write_vectored(&pieces).await.unwrap(), 8);
        one.write_all(b", three").await.unwrap();
        one.flush().await.unwrap();
        one.shutdown().await.unwrap();
        let mut text = String::new();
        other.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "one, two, three");
    }

    #[tokio::test]
    async fn sockets_of_both_kinds_are_read_and_written() {
        let (one, other) = UnixStream::pair().unwrap();
        check(Stream::Unix(one), Stream::Unix(other)).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        check(Stream::Tcp(one), Stream::Tcp(listener.accept().await.unwrap().0)).await;
    }

    #[test]
    fn a_stream_takes_no_more_room_than_its_largest_socket() {
        // It is moved from hand to hand; TLS, which is kilobytes, is in a box.
        assert!(size_of::<Stream>() <= size_of::<TcpStream>() + size_of::<usize>());
    }

    async fn tcp() -> (TcpStream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        (client, Stream::Tcp(listener.accept().await.unwrap().0))
    }

    /// Sends byte by byte, and expects the decision at the line's end, and every byte to be there still.
    async fn check_peek(mut client: impl AsyncWriteExt + Unpin, mut stream: Stream) {
        let looks = Cell::new(0);
        let mut buffer = [0; 8];
        let peeking = stream.peek(&mut buffer, |bytes| {
            looks.set(bytes.len());
            bytes.ends_with(b"\n").then_some(bytes.len())
        });
        let sending = async {
            for (sent, byte) in (1..).zip(*b"abc\n") {
                client.write_all(&[byte]).await.unwrap();
                while looks.get() < sent {
                    tokio::task::yield_now().await;
                }
            }
        };
        let (peeked, ()) = tokio::join!(peeking, sending);
        assert_eq!(peeked.unwrap(), Some(4));
        client.write_all(b"d").await.unwrap();
        let mut read = [0; 5];
        stream.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"abc\nd");
    }

    #[tokio::test]
    async fn bytes_are_looked_at_as_they_come_and_stay() {
        let (client, stream) = tcp().await;
        check_peek(client, stream).await;
        let (client, stream) = UnixStream::pair().unwrap();
        check_peek(client, Stream::Unix(stream)).await;
    }

    #[tokio::test]
    async fn the_end_and_a_full_buffer_leave_no_decision() {
        for sent in ["", "ab", "abcdefgh", "abcdefghi"] {
            let (mut client, stream) = tcp().await;
            client.write_all(sent.as_bytes()).await.unwrap();
            if sent.len() < 8 {
                client.shutdown().await.unwrap();
            }
            let never = stream.peek(&mut [0; 8], |_| None::<()>).await;
            assert_eq!(never.unwrap(), None, "{sent}");
        }
    }
}
