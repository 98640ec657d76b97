//! Between the messages of the engine and those of the HTTP libraries.

use http::Response;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::engine::fields::Fields;
use crate::engine::reply::Reply;

/// The same fields. A line whose name or value the library does not take is left out; the engine makes none such.
pub(crate) fn header_map(fields: &Fields) -> HeaderMap {
    let line = |(name, value)| Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?));
    let mut map = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields.iter().filter_map(line) {
        map.append(name, value);
    }
    map
}

/// The same reply as a response.
pub(crate) fn response(reply: Reply) -> Response<String> {
    let Reply { status, fields, body } = reply;
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = header_map(&fields);
    response
}
