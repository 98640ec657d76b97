//! The built-in upstream: it answers with what it received, so that rules can be tried without a server.

use std::future::poll_fn;
use std::task::Poll;

use http::StatusCode;
use serde_json::{Value, json};

use crate::http::activity::Activity;
use crate::http::failure::UpstreamError;
use crate::http::message::{Piece, Request, Response, ResponseBody};
use crate::message::headers::Headers;

/// Answers with the method, the target, the headers and the length of the body, as JSON.
pub(super) async fn answer(mut request: Request, activity: &Activity) -> Result<Response, UpstreamError> {
    let mut length: u64 = 0;
    let mut next = poll_fn(|cx| match request.body.poll_piece(cx) {
        Poll::Pending if activity.is_late() => Poll::Ready(Some(Err(UpstreamError::UploadStalled))),
        polled => polled.map(|piece| piece.map(|piece| piece.map_err(UpstreamError::Upload))),
    });
    while let Some(piece) = (&mut next).await {
        if let Piece::Data(data) = piece? {
            length += data.len() as u64;
        }
    }
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let headers: Vec<Value> = request.headers.iter().map(|(name, value)| json!([text(name), text(value)])).collect();
    let received = json!({
        "method": request.method.as_str(),
        "target": request.target,
        "headers": headers,
        "body_bytes": length,
    });
    let headers = Headers::from_iter([("content-type", "application/json")]);
    let body = ResponseBody::Text(format!("{received}\n").into());
    Ok(Response { status: StatusCode::OK, headers: headers.into(), body })
}
