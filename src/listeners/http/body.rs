//! Reads the bodies of requests within the listener's deadlines.

use std::future::poll_fn;

use bytes::Bytes;

use super::failure::Failure;
use crate::http::activity::Activity;
use crate::http::failure::UpstreamError;
use crate::http::message::{Piece, RequestBody};
use crate::http::upload;

/// Returns the next data of a body, or `None` at its end.
pub(crate) async fn next(body: &mut RequestBody, activity: &Activity) -> Result<Option<Bytes>, UpstreamError> {
    loop {
        match piece(body, activity).await? {
            Some(Piece::Data(data)) => return Ok(Some(data)),
            Some(Piece::Trailers(_)) => {}
            None => return Ok(None),
        }
    }
}

/// Returns the next part of a body, or `None` at its end.
pub(crate) async fn piece(body: &mut RequestBody, activity: &Activity) -> Result<Option<Piece>, UpstreamError> {
    poll_fn(|cx| upload::poll_piece(body, activity, cx)).await
}

/// Reads a body to its end.
pub(crate) async fn read(body: &mut RequestBody, activity: &Activity, max_bytes: usize) -> Result<Vec<u8>, Failure> {
    let too_long = || Failure::TooLong(max_bytes as u64);
    if body.length().is_some_and(|length| length > max_bytes as u64) {
        return Err(too_long());
    }
    let mut text = Vec::new();
    while let Some(data) = next(body, activity).await? {
        if text.len() + data.len() > max_bytes {
            return Err(too_long());
        }
        text.extend_from_slice(&data);
    }
    Ok(text)
}
