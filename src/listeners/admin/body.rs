//! The bodies of operators' requests.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::change::Rejection;
use crate::engine::algorithms::micros::Micros;
use crate::http::simple::{self, Incoming, LengthLimitError};
use crate::listeners::json::{Mistakes, Object};
use crate::message::unique_json;

const MAX_BYTES: usize = 16 * 1024;

const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// In characters.
const MAX_REASON: usize = 200;

/// Reads a body: an object with at most these members. An empty body is an empty object.
pub(super) async fn read<T>(
    body: Incoming,
    keys: &[&str],
    read: impl FnOnce(&Object<'_>) -> Option<T>,
) -> Result<T, Rejection> {
    parse(&receive(body).await?, keys, read).map_err(Rejection::bad)
}

/// Reads a body: an object, whose members the caller checks.
pub(super) async fn read_members<T>(
    body: Incoming,
    read: impl FnOnce(&Object<'_>, Map<String, Value>) -> Option<T>,
) -> Result<T, Rejection> {
    let text = receive(body).await?;
    // Whatever is not an object is a mistake below.
    let members: Map<String, Value> = serde_json::from_slice(&text).unwrap_or_default();
    let keys: Vec<_> = members.keys().cloned().collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    parse(&text, &keys, |body| read(body, members)).map_err(Rejection::bad)
}

async fn receive(body: Incoming) -> Result<Bytes, Rejection> {
    let late = |_| Rejection::new(StatusCode::REQUEST_TIMEOUT, "the body took too long");
    let bytes = timeout(BODY_TIMEOUT, simple::read(body, MAX_BYTES)).await.map_err(late)?.map_err(|error| {
        if error.is::<LengthLimitError>() {
            let detail = format!("the body is longer than {MAX_BYTES} bytes");
            return Rejection::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
        }
        Rejection::bad(format!("the body cannot be read: {error}"))
    })?;
    Ok(if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes })
}

fn parse<T>(text: &[u8], keys: &[&str], read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, String> {
    let json = unique_json::parse(text).map_err(|error| format!("invalid JSON: {error}"))?;
    let mistakes = Mistakes::default();
    let value = Object::root(&json, &mistakes).and_then(|object| {
        object.known(keys);
        read(&object)
    });
    mistakes.check(value).map_err(|mistakes| match &mistakes[..] {
        [first, ..] if first.pointer.is_empty() => first.detail.clone(),
        [first, ..] => format!("`{}`: {}", first.pointer.trim_start_matches('/'), first.detail),
        [] => String::new(),
    })
}

/// Reads a number of tokens.
pub(super) fn tokens(body: &Object<'_>, key: &str) -> Option<u64> {
    body.require(key, "it must be a whole number of tokens");
    body.whole(key, 0)
}

/// Reads `for`. `alternative` is advice for longer times.
pub(super) fn span(body: &Object<'_>, longest: Micros, alternative: &str) -> Option<Micros> {
    body.require("for", "give a duration, as in {\"for\": \"1h\"}");
    let span = Micros(body.duration("for")?.div_ceil(1_000));
    if span == Micros(0) {
        body.wrong("/for", "must be longer than 0");
    } else if span > longest {
        body.wrong("/for", &format!("must be at most {} days; {alternative}", longest.0 / 86_400_000_000));
    }
    Some(span)
}

/// Reads `reason`, which is optional.
pub(super) fn reason(body: &Object<'_>) -> Option<String> {
    note(body, "reason")
}

/// Reads `comment`, which is optional.
pub(super) fn comment(body: &Object<'_>) -> Option<String> {
    note(body, "comment")
}

fn note(body: &Object<'_>, key: &str) -> Option<String> {
    if body.get(key) == Some(&Value::Null) {
        return None;
    }
    let note = body.text(key).filter(|note| !note.is_empty())?;
    if note.chars().count() > MAX_REASON || note.contains(char::is_control) {
        let detail = format!("must have at most {MAX_REASON} characters and no control characters");
        body.wrong(&format!("/{key}"), &detail);
    }
    Some(note.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limit::blocks::LONGEST_BLOCK;

    #[track_caller]
    fn check(text: &str, keys: &[&str], read: impl FnOnce(&Object<'_>) -> Option<String>, expected: &str) {
        let found = parse(text.as_bytes(), keys, read).unwrap_or_else(|error| error);
        assert!(found.contains(expected), "{text}: {found}");
    }

    #[test]
    fn mistakes_say_what_would_be_right() {
        for (text, expected) in [
            (r#"{"for": "1h30m"}"#, "5400000000"),
            (r#"{"for": "1ns"}"#, "1"),
            (r"{}", "`for` is missing"),
            (r#"{"for": 3600}"#, "`for`: expected text, found 3600"),
            (r#"{"for": "90"}"#, "has no unit"),
            (r#"{"for": "0s"}"#, "longer than 0"),
            (r#"{"for": "367d"}"#, "at most 366 days"),
        ] {
            check(text, &["for"], |body| span(body, LONGEST_BLOCK, "").map(|span| span.0.to_string()), expected);
        }
        for (text, expected) in [
            (r#"{"cost": 3}"#, "3"),
            (r"{}", "is missing"),
            (r#"{"cost": -1}"#, "found -1"),
            (r#"{"cost": 1.5}"#, "found 1.5"),
            (r#"{"cost": "3"}"#, "found the text `3`"),
        ] {
            check(text, &["cost"], |body| tokens(body, "cost").map(|number| number.to_string()), expected);
        }
        for (text, expected) in [
            (r"{}", "None"),
            (r#"{"reason": null}"#, "None"),
            (r#"{"reason": ""}"#, "None"),
            (r#"{"reason": "scraping"}"#, "scraping"),
            (r#"{"reason": "a\nb"}"#, "no control characters"),
            (r#"{"reason": 1}"#, "expected text"),
        ] {
            check(text, &["reason"], |body| Some(format!("{:?}", reason(body))), expected);
        }
        let unknown = "`until`: unknown member `until`; expected `for`, `reason`";
        check(r#"{"until": 1}"#, &["for", "reason"], |_| Some(String::new()), unknown);
    }
}
