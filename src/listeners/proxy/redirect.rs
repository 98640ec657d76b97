//! Redirects from `http://` to `https://`.

use http::StatusCode;

use crate::listeners::http::failure::Failure;
use crate::message::headers::Headers;
use crate::message::reply::Reply;

/// The port that URLs leave out.
const HTTPS: u16 = 443;

/// Sends a client to the same target over TLS. `host` is in lower case and without a port. 308 keeps the method and the body (RFC 9110
/// section 15.4.9).
pub(super) fn to_https(host: &str, port: u16, target: &str) -> Result<Reply, Failure> {
    if host.is_empty() {
        return Err(Failure::Malformed("a request without `Host` cannot be redirected to https"));
    }
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let port = if port == HTTPS { String::new() } else { format!(":{port}") };
    // `OPTIONS *` has no path.
    let target = if target.starts_with('/') { target } else { "/" };
    let headers = Headers::from_iter([("location", format!("https://{host}{port}{target}"))]);
    Ok(Reply { status: StatusCode::PERMANENT_REDIRECT, headers, body: String::new() })
}
