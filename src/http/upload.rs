//! Reads a request's body within the listener's deadlines.

use std::task::{Context, Poll};

use super::activity::Activity;
use super::failure::UpstreamError;
use super::message::{Piece, RequestBody};

/// The next part of a body, `None` at its end, or an error once it is overdue.
pub(crate) fn poll_piece(
    body: &mut RequestBody,
    activity: &Activity,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<Piece>, UpstreamError>> {
    match body.poll_piece(cx) {
        Poll::Pending if activity.is_late() => Poll::Ready(Err(UpstreamError::UploadStalled)),
        polled => polled.map(|piece| piece.transpose().map_err(UpstreamError::Upload)),
    }
}
