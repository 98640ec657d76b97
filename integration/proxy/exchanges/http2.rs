//! Bodies over HTTP/2. The library frames what it is given, so the plan says which frame ends a stream.

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::task::yield_now;

use super::plan::{Body, Framing};
use super::{End, Received};

/// Writes a body that has not ended with its head. Leaves after `most` bytes; returns whether all of it was written. The
/// last piece is sent after `gate`.
pub(super) async fn write(
    stream: &mut SendStream<Bytes>,
    body: &Body,
    trailers: &[(String, String)],
    most: usize,
    gate: impl Future<Output = ()>,
) -> Result<bool, h2::Error> {
    let (mut sent, size, mut gate) = (0, body.bytes.len(), Some(gate));
    for mut piece in body.pieces() {
        if let Some(gate) = gate.take_if(|_| sent + piece.len() == size) {
            gate.await;
        }
        let leaves = sent + piece.len() > most;
        piece.truncate(most - sent);
        while !piece.is_empty() {
            stream.reserve_capacity(piece.len());
            let room = match poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(room) => room?,
                None => return Ok(false),
            };
            let part = piece.split_to(room.min(piece.len()));
            sent += part.len();
            let is_end = sent == size && body.ends_with_piece && trailers.is_empty();
            stream.send_data(part, is_end)?;
            if is_end {
                return Ok(true);
            }
        }
        if leaves {
            return Ok(false);
        }
        if body.head_first {
            yield_now().await;
        }
    }
    if let Some(gate) = gate {
        gate.await;
    }
    if trailers.is_empty() {
        stream.send_data(Bytes::new(), true)?;
    } else {
        let pairs = trailers.iter().map(|(name, value)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        });
        stream.send_trailers(pairs.collect())?;
    }
    Ok(true)
}

/// Reads a body, of which no more than `most` bytes are wanted.
pub(super) async fn read(stream: &mut RecvStream, most: usize) -> Received {
    let mut received = Received { body: BytesMut::new(), trailers: Vec::new(), end: End::Whole };
    while let Some(piece) = stream.data().await {
        match piece {
            Ok(piece) => {
                let _ = stream.flow_control().release_capacity(piece.len());
                received.body.extend_from_slice(&piece);
            }
            Err(error) => {
                received.end = End::Cut(error.to_string());
                return received;
            }
        }
        if received.body.len() > most {
            received.end = End::Left;
            return received;
        }
    }
    match stream.trailers().await {
        Ok(trailers) => received.trailers = pairs(&trailers.unwrap_or_default()),
        Err(error) => received.end = End::Cut(error.to_string()),
    }
    received
}

fn pairs(map: &HeaderMap) -> Vec<(String, String)> {
    map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned())).collect()
}

/// The headers that describe a body.
pub(super) fn headers(body: &Body, map: &mut HeaderMap) {
    map.insert("content-type", HeaderValue::from_static(body.content_type()));
    if body.framing == Framing::Length {
        map.insert("content-length", body.bytes.len().into());
    }
}
