//! Replies that Weir writes itself.

use std::fmt::Write;

use http::StatusCode;

use super::headers::Headers;

/// A reply to a request that is denied or cannot be served.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    /// Without those that frame the body.
    pub headers: Headers,
    /// May be empty.
    pub body: String,
}

/// Returns problem details (RFC 9457) of the default type, as for a bad request or an unreachable upstream.
pub fn problem(status: StatusCode, detail: &str) -> Reply {
    let mut body = begin_problem("about:blank", status.canonical_reason().unwrap_or("Error"), status);
    for character in detail.chars() {
        match character {
            '"' | '\\' => {
                body.push('\\');
                body.push(character);
            }
            control if control.is_control() => {
                let _ = write!(body, "\\u{:04x}", u32::from(control));
            }
            other => body.push(other),
        }
    }
    body.push_str("\"}");
    problem_reply(status, body)
}

/// Returns the members of a problem up to the text of `detail`.
pub(crate) fn begin_problem(kind: &str, title: &str, status: StatusCode) -> String {
    let mut body = String::with_capacity(384);
    for part in ["{\"type\":\"", kind, "\",\"title\":\"", title, "\",\"status\":", status.as_str(), ",\"detail\":\""] {
        body.push_str(part);
    }
    body
}

pub(crate) fn problem_reply(status: StatusCode, body: String) -> Reply {
    let mut headers = Headers::with_capacity(8, 384);
    headers.append("content-type", "application/problem+json");
    Reply { status, headers, body }
}
