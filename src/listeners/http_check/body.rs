//! The body of a call, as a whole.

use std::future::poll_fn;
use std::task::Poll;

use crate::http::activity::Activity;
use crate::http::failure::UpstreamError;
use crate::http::message::{Piece, RequestBody};
use crate::listeners::http::failure::Failure;

/// The longest body of a call: 32 charges whose ids are URLs of 2 KB.
const MOST_BYTES: usize = 64 * 1024;

/// Reads a body to its end, within the listener's deadlines.
pub(super) async fn read(body: &mut RequestBody, activity: &Activity) -> Result<Vec<u8>, Failure> {
    let too_long = || Failure::TooLong(MOST_BYTES as u64);
    if body.length().is_some_and(|length| length > MOST_BYTES as u64) {
        return Err(too_long());
    }
    let mut text = Vec::new();
    let mut next = poll_fn(|cx| match body.poll_piece(cx) {
        Poll::Pending if activity.is_late() => Poll::Ready(Some(Err(UpstreamError::UploadStalled))),
        polled => polled.map(|piece| piece.map(|piece| piece.map_err(UpstreamError::Upload))),
    });
    while let Some(piece) = (&mut next).await {
        if let Piece::Data(data) = piece? {
            if text.len() + data.len() > MOST_BYTES {
                return Err(too_long());
            }
            text.extend_from_slice(&data);
        }
    }
    Ok(text)
}
