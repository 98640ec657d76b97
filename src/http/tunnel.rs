//! Bytes in both directions, after a client and an upstream have switched to another protocol.

use std::fmt::Debug;
use std::io;
use std::rc::Rc;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, copy_bidirectional_with_sizes, join, split};
use tokio_util::io::{InspectReader, InspectWriter};

use super::activity::{Activity, Phase};
use super::transport::Stream;

/// Bytes buffered in each direction.
const BUFFER: usize = 16 * 1024;

/// An upstream's connection after a `101 Switching Protocols`.
#[derive(Debug)]
pub(crate) struct Tunnel {
    stream: Stream,
    read_ahead: BytesMut,
    /// Held until the tunnel closes.
    _lease: Box<dyn Debug>,
}

impl Tunnel {
    pub(super) fn new(stream: Stream, read_ahead: BytesMut, lease: impl Debug + 'static) -> Self {
        Self { stream, read_ahead, _lease: Box::new(lease) }
    }

    /// Forwards bytes in both directions until both sides have ended. `read_ahead` was read from the client before HTTP
    /// ended.
    pub(super) async fn run(
        self: Box<Self>,
        client: impl AsyncRead + AsyncWrite + Unpin,
        read_ahead: BytesMut,
        activity: Rc<Activity>,
    ) -> io::Result<()> {
        activity.enter(Phase::Tunnel);
        let mut client = watched(client, &read_ahead, &activity);
        let mut upstream = watched(self.stream, &self.read_ahead, &activity);
        copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER).await.map(drop)
    }
}

/// Puts what was read ahead before the rest of a stream, and keeps the connection alive as long as bytes move.
fn watched<'a>(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'a,
    read_ahead: &'a [u8],
    activity: &'a Activity,
) -> impl AsyncRead + AsyncWrite + Unpin + 'a {
    let (reader, writer) = split(stream);
    let moved = |_: &[u8]| activity.moved();
    join(InspectReader::new(read_ahead.chain(reader), moved), InspectWriter::new(writer, moved))
}
