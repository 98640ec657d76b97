//! Peeks at the first bytes of a connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{RecvFlags, recv};
use tokio::io::{Interest, Ready};

use super::Stream;

/// Waits until `decide` returns something for the first bytes of a connection. It sees all bytes that have come, up to
/// the size of `buffer`, and is called again when there are more. `None` if they ended or filled the buffer before
/// that.
///
/// If enough bytes are there, this is one `recv`. TLS streams cannot be peeked at.
pub(super) async fn peek<T>(
    stream: &Stream,
    buffer: &mut [u8],
    mut decide: impl FnMut(&[u8]) -> Option<T>,
) -> io::Result<Option<T>> {
    loop {
        let ready = ready(stream).await?;
        let looked = try_io(stream, |socket| {
            let (count, _) = recv(socket, &mut *buffer, RecvFlags::PEEK)?;
            match decide(&buffer[..count]) {
                None if count < buffer.len() && !ready.is_read_closed() && count > 0 => {
                    // This makes tokio wait for more bytes although the first ones are still unread.
                    Err(io::ErrorKind::WouldBlock.into())
                }
                decided => Ok(decided),
            }
        });
        match looked {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            looked => return looked,
        }
    }
}

/// Waits until bytes or the end can be read.
pub(super) async fn readable(stream: &Stream) -> io::Result<()> {
    ready(stream).await.map(drop)
}

async fn ready(stream: &Stream) -> io::Result<Ready> {
    match stream {
        Stream::Tcp(stream) => stream.ready(Interest::READABLE).await,
        Stream::Unix(stream) => stream.ready(Interest::READABLE).await,
        Stream::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn try_io<T>(stream: &Stream, work: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
    match stream {
        Stream::Tcp(stream) => stream.try_io(Interest::READABLE, || work(stream.as_fd())),
        Stream::Unix(stream) => stream.try_io(Interest::READABLE, || work(stream.as_fd())),
        Stream::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    async fn tcp() -> (TcpStream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        (client, Stream::Tcp(listener.accept().await.unwrap().0))
    }

    /// Sends byte by byte, and expects the decision at the line's end, and every byte to be there still.
    async fn check(mut client: impl AsyncWriteExt + Unpin, mut stream: Stream) {
        let looks = Cell::new(0);
        let mut buffer = [0; 8];
        let peeking = peek(&stream, &mut buffer, |bytes| {
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
        check(client, stream).await;
        let (client, stream) = UnixStream::pair().unwrap();
        check(client, Stream::Unix(stream)).await;
    }

    #[tokio::test]
    async fn the_end_and_a_full_buffer_leave_no_decision() {
        for sent in ["", "ab", "abcdefgh", "abcdefghi"] {
            let (mut client, stream) = tcp().await;
            client.write_all(sent.as_bytes()).await.unwrap();
            if sent.len() < 8 {
                client.shutdown().await.unwrap();
            }
            let never = peek(&stream, &mut [0; 8], |_| None::<()>).await;
            assert_eq!(never.unwrap(), None, "{sent}");
        }
    }
}
