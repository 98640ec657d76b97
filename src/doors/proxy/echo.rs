//! The built-in upstream: it answers with what it received, so that rules can be tried without a server.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::body::RequestBody;
use super::failure::UpstreamError;

/// Answers with the method, the target, the fields and the length of the body, as JSON.
pub(super) async fn answer(request: Request<RequestBody>) -> Result<Response<String>, UpstreamError> {
    let (parts, mut body) = request.into_parts();
    let mut length: u64 = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(UpstreamError::Upload)?;
        length += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
    let fields: Vec<Value> = parts
        .headers
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
        .collect();
    let received = json!({
        "method": parts.method.as_str(),
        "target": parts.uri.to_string(),
        "headers": fields,
        "body_bytes": length,
    });
    let mut response = Response::new(format!("{received}\n"));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
