//! Reads `deny_with` and `headers: none`: the response to requests that a limit denies.

use std::path::Path;

use http::StatusCode;
use http::header::HeaderName;

use super::mapping::{Mapping, all};
use super::named_files::{self, NamedFile};
use super::node::{Node, Value};
use super::problem::{ReadResult, quoted};
use super::suggest::did_you_mean;
use crate::engine::algorithms::script::may_set;
use crate::engine::limit::deny_with::{DenialBody, DenyWith, Template};
use crate::message::headers::is_value;

pub(super) const KEYS: [&str; 4] = ["status", "headers", "body", "content_type"];
const BODY_KEYS: [&str; 1] = [named_files::KEY];

/// The most headers.
pub(super) const MOST_HEADERS: usize = 16;
/// The longest value of a header, in bytes.
pub(super) const LONGEST_VALUE: usize = 1024;
/// The longest body, in bytes. A worker keeps 64 of them.
pub(super) const LONGEST_BODY: usize = 16 * 1024;

const PLAIN: &str = "text/plain; charset=utf-8";

/// Reads the value of `deny_with`.
pub(super) fn read(node: &Node, files: &[NamedFile]) -> ReadResult<DenyWith> {
    let map = Mapping::of(node, "`deny_with`", &KEYS)?;
    let status = map.read("status", status);
    let headers = map.read("headers", headers);
    let content_type = map.read("content_type", content_type);
    let body = map.read("body", |node| body(node, files));
    let (status, headers, content_type, body) = (status?, headers?, content_type?, body?);
    if let (Some((key, _)), None) = (map.get("content_type"), &body) {
        let help = "add `body`; the usual one is application/problem+json";
        return Err(map.lacks_at(key.place, "`content_type` needs `body`", help));
    }
    let body = body.map(|(text, usual)| DenialBody { content_type: content_type.unwrap_or(usual).to_owned(), text });
    let with = DenyWith { status, headers: headers.unwrap_or_default(), body };
    if with == DenyWith::default() {
        return Err(map.lacks("`deny_with` is empty", "add `status`, `headers` or `body`"));
    }
    Ok(with)
}

/// Returns true for `headers: none`. The list of a script's headers has the same key.
pub(super) fn is_none(node: &Node) -> bool {
    matches!(&node.value, Value::Scalar { text, .. } if text == "none")
}

fn status(node: &Node) -> ReadResult<StatusCode> {
    let code = node.whole().map(|code| u16::try_from(code).unwrap_or(0))?;
    let status = StatusCode::from_u16(code).ok().filter(|status| status.is_client_error() || status.is_server_error());
    status.ok_or_else(|| node.error("the status of a denial must be 400 to 599", "use one such as 429 or 503"))
}

fn headers(node: &Node) -> ReadResult<Vec<(HeaderName, Template)>> {
    let help = "write `headers: { x-reason: \"{limit}\" }`";
    let entries = node.map("`headers`", help)?;
    node.check_count("`headers`", entries.len(), "entries", MOST_HEADERS)?;
    all(entries.iter().map(|(key, value)| {
        let name = HeaderName::from_bytes(key.text.as_bytes())
            .map_err(|_| key.error(format!("invalid header name {}", quoted(&key.text)), "use one such as x-reason"))?;
        if !may_set(name.as_str()) {
            let help = match name.as_str() {
                "content-type" => "write `content_type` beside `body`",
                _ => "it frames the response or belongs to the connection; use another header",
            };
            return Err(key.error(format!("a denial cannot set {}", quoted(name.as_str())), help));
        }
        let text = value.text()?;
        if !is_value(text.as_bytes()) || text.len() > LONGEST_VALUE || text.trim() != text {
            let help = format!("use up to {LONGEST_VALUE} printable characters without spaces around them");
            return Err(value.error(format!("invalid value of header {}", quoted(name.as_str())), help));
        }
        Ok((name, template(value, text)?))
    }))
}

fn content_type(node: &Node) -> ReadResult<&str> {
    let text = node.text()?;
    if text.contains('/') && is_value(text.as_bytes()) && text.trim() == text && text.len() <= LONGEST_VALUE {
        return Ok(text);
    }
    Err(node.error(format!("invalid content type {}", quoted(text)), "use one such as text/html or application/json"))
}

/// Reads a body with its usual content type.
fn body<'f>(node: &Node, files: &'f [NamedFile]) -> ReadResult<(Template, &'static str)> {
    let (text, usual) = if matches!(node.value, Value::Map(_)) {
        let map = Mapping::of(node, "`body`", &BODY_KEYS)?;
        let file = map.need(named_files::KEY, "write `body: { file: denied.html }`")?;
        let (name, text): (_, &'f str) = named_files::text(file, files)?;
        (text, content_type_of(name))
    } else {
        (node.text()?, PLAIN)
    };
    if text.len() > LONGEST_BODY {
        let message = format!("the body has {} bytes", text.len());
        return Err(node.error(message, format!("use at most {LONGEST_BODY}")));
    }
    Ok((template(node, text)?, usual))
}

fn content_type_of(name: &str) -> &'static str {
    match Path::new(name).extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm") => "text/html; charset=utf-8",
        Some("json") => "application/json",
        _ => PLAIN,
    }
}

fn template(node: &Node, text: &str) -> ReadResult<Template> {
    Template::parse(text).map_err(|error| {
        let known = did_you_mean(&error.0, Template::PLACEHOLDERS);
        node.error(error.to_string(), format!("{known}; write `{{{{` for a brace"))
    })
}
