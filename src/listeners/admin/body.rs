//! The bodies of what operators ask: an object of a few members, and what is wrong with it.

use std::time::Duration;

use http::StatusCode;
use tokio::time::timeout;

use super::buckets::Rejection;
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::duration;
use crate::engine::rules::quote::quoted;
use crate::http::simple::{self, Incoming, LengthLimitError};
use crate::listeners::http_check::json::Json;

/// A body has two members, one of them a sentence.
const MOST_BYTES: usize = 16 * 1024;

/// How long a body may take to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// What a reason may have, in characters.
const LONGEST_REASON: usize = 200;

/// The body as an object; an empty one is an object without members.
pub(super) async fn read(body: Incoming) -> Result<Json, Rejection> {
    let collected = timeout(BODY_TIMEOUT, simple::read(body, MOST_BYTES)).await;
    let late = |_| Rejection::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
    let bytes = match collected.map_err(late)? {
        Ok(bytes) => bytes,
        Err(error) if error.is::<LengthLimitError>() => {
            let detail = format!("the body has at most {MOST_BYTES} bytes");
            return Err(Rejection::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
        }
        Err(error) => return Err(Rejection::bad(format!("the body cannot be read: {error}"))),
    };
    if bytes.is_empty() {
        return Ok(Json::Map(Vec::new()));
    }
    match Json::parse(&bytes) {
        Ok(body @ Json::Map(_)) => Ok(body),
        Ok(other) => Err(Rejection::bad(format!("the body is an object, this is {}", other.describe()))),
        Err(error) => Err(Rejection::bad(format!("the body is no JSON: {error}"))),
    }
}

/// Whether a body has no other members.
pub(super) fn members(body: &Json, known: &[&str]) -> Result<(), Rejection> {
    let Json::Map(members) = body else { return Ok(()) };
    match members.iter().find(|(key, _)| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some((key, _)) if known.is_empty() => {
            Err(Rejection::bad(format!("no member is wanted, this has {}", quoted(key))))
        }
        Some((key, _)) => {
            let known: Vec<String> = known.iter().map(|key| format!("`{key}`")).collect();
            Err(Rejection::bad(format!("there is no member {}; there are {}", quoted(key), known.join(" and "))))
        }
    }
}

/// A member that is a number of tokens.
pub(super) fn number(body: &Json, key: &str) -> Result<u64, Rejection> {
    let wrong = |given: &str| Rejection::bad(format!("`{key}` is a whole number of tokens, {given}"));
    match body.get(key) {
        None => Err(wrong("and is missing")),
        Some(Json::Number(number)) => number.as_u64().ok_or_else(|| wrong(&format!("this is {number}"))),
        Some(other) => Err(wrong(&format!("this is {}", other.describe()))),
    }
}

/// `for`: how long, and at most how long; `otherwise` says what to do who wants longer.
pub(super) fn span(body: &Json, longest: Micros, otherwise: &str) -> Result<Micros, Rejection> {
    let text = match body.get("for") {
        Some(Json::Text(text)) => text,
        None => return Err(Rejection::bad("`for` is missing: how long, as in {\"for\": \"1h\"}")),
        Some(other) => {
            return Err(Rejection::bad(format!("`for` is a duration in text, this is {}", other.describe())));
        }
    };
    let nanoseconds =
        duration::parse(text).map_err(|(wrong, right)| Rejection::bad(format!("`for`: {wrong}; {right}")))?;
    match Micros(nanoseconds.div_ceil(1_000)) {
        Micros(0) => Err(Rejection::bad("`for` must be longer than 0")),
        span if span > longest => {
            let days = longest.0 / 86_400_000_000;
            Err(Rejection::bad(format!("`for` is at most {days} days; {otherwise}")))
        }
        span => Ok(span),
    }
}

/// A member that is text and must be there; `wanted` says what it is.
pub(super) fn text<'a>(body: &'a Json, key: &str, wanted: &str) -> Result<&'a str, Rejection> {
    match body.get(key) {
        Some(Json::Text(text)) => Ok(text),
        None => Err(Rejection::bad(format!("`{key}` is missing: {wanted}"))),
        Some(other) => Err(Rejection::bad(format!("`{key}` is text, this is {}: {wanted}", other.describe()))),
    }
}

/// `reason`, if there is one.
pub(super) fn reason(body: &Json) -> Result<Option<String>, Rejection> {
    match body.get("reason") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Text(text)) if text.chars().count() > LONGEST_REASON || text.contains(char::is_control) => {
            Err(Rejection::bad(format!("`reason` has at most {LONGEST_REASON} characters, and no control characters")))
        }
        Some(Json::Text(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(other) => Err(Rejection::bad(format!("`reason` is text, this is {}", other.describe()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rules::blocks::LONGEST_BLOCK;

    #[test]
    fn bodies_say_what_would_be_right() {
        let parse = |text: &str| Json::parse(text.as_bytes()).unwrap();
        let told = |result: Result<String, Rejection>| result.unwrap_or_else(|rejection| rejection.detail);
        for (text, expected) in [
            (r#"{"for": "1h30m"}"#, "5400000000"),
            (r#"{"for": "1ns"}"#, "1"),
            (r"{}", "`for` is missing"),
            (r#"{"for": 3600}"#, "a duration in text, this is 3600"),
            (r#"{"for": "90"}"#, "has no unit"),
            (r#"{"for": "0s"}"#, "longer than 0"),
            (r#"{"for": "367d"}"#, "at most 366 days"),
        ] {
            let found = told(span(&parse(text), LONGEST_BLOCK, "").map(|span| span.0.to_string()));
            assert!(found.contains(expected), "{text}: {found}");
        }
        for (text, expected) in [
            (r#"{"cost": 3}"#, "3"),
            (r"{}", "is missing"),
            (r#"{"cost": -1}"#, "this is -1"),
            (r#"{"cost": 1.5}"#, "this is 1.5"),
            (r#"{"cost": "3"}"#, "this is the text `3`"),
        ] {
            let found = told(number(&parse(text), "cost").map(|number| number.to_string()));
            assert!(found.contains(expected), "{text}: {found}");
        }
        for (text, expected) in [
            (r"{}", "None"),
            (r#"{"reason": ""}"#, "None"),
            (r#"{"reason": "scraping"}"#, "scraping"),
            (r#"{"reason": "a\nb"}"#, "no control characters"),
            (r#"{"reason": 1}"#, "is text"),
        ] {
            let found = told(reason(&parse(text)).map(|reason| format!("{reason:?}")));
            assert!(found.contains(expected), "{text}: {found}");
        }
        let found = told(members(&parse(r#"{"until": 1}"#), &["for", "reason"]).map(|()| String::new()));
        assert_eq!(found, "there is no member `until`; there are `for` and `reason`");
    }
}
