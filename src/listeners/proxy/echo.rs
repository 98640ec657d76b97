//! The built-in upstream, for trying rules without a server: it echoes the request as JSON.

use http::StatusCode;
use serde_json::{Value, json};

use crate::http::activity::Activity;
use crate::http::failure::UpstreamError;
use crate::http::message::{Request, Response, ResponseBody};
use crate::listeners::http::body;
use crate::message::headers::Headers;

/// Answers with the request's method, target, headers and body length as JSON.
pub(super) async fn answer(request: &mut Request, activity: &Activity) -> Result<Response, UpstreamError> {
    let mut length: u64 = 0;
    while let Some(data) = body::next(&mut request.body, activity).await? {
        length += data.len() as u64;
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
