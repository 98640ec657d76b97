//! The headers that rules read, for lines by which limits can be simulated.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, COOKIE};

use crate::engine::limit::LimitMode;
use crate::engine::limit::rules::Rules;
use crate::engine::request::part::{Part, is_secret};
use crate::engine::request::{AmbiguousValue, Duplicates, Request};

/// Stands for credentials that are malformed: servers read two of them.
const MALFORMED_CREDENTIALS: &str = "malformed,";

/// Stands for the value of a cookie that is malformed: an escape without digits.
const MALFORMED: &str = "%";

/// A header that rules read, with its values. It has none if the client has not sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedHeader {
    pub(crate) name: Box<str>,
    pub(crate) values: Vec<Box<str>>,
}

/// Returns the headers that the rules read. Hashes stand for secrets, under the key of the process.
pub(crate) fn of(rules: &Rules, request: &Request<'_>) -> Vec<LoggedHeader> {
    let mut headers = Vec::<LoggedHeader>::new();
    let limits = rules.limits().iter().filter(|limit| limit.mode != LimitMode::Off);
    let parts: Vec<&Part> = limits.flat_map(|limit| limit.parts().map(|(_, part)| part)).collect();
    let has_credentials = parts.iter().any(|part| matches!(part, Part::Credentials));
    let mut cookies = Vec::new();
    for part in parts {
        let (name, values) = match (part.word(), part.name()) {
            ("credentials", _) => (AUTHORIZATION.as_str(), None),
            ("header", Some(name)) if has_credentials && name == AUTHORIZATION.as_str() => continue,
            ("header", Some(name)) => (name, None),
            ("cookie", Some(name)) if !cookies.contains(&name) => {
                cookies.push(name);
                (COOKIE.as_str(), Some(cookie(rules, request, name)))
            }
            _ => continue,
        };
        let known = headers.iter_mut().find(|header| *header.name == *name);
        match (known, values) {
            (Some(known), Some(values)) => known.values.extend(values),
            (Some(_), None) => {}
            (None, values) => {
                let values = values.unwrap_or_else(|| match part {
                    Part::Credentials => credentials(rules, request),
                    _ => lines(rules, request, name),
                });
                headers.push(LoggedHeader { name: name.into(), values });
            }
        }
    }
    headers
}

fn lines(rules: &Rules, request: &Request<'_>, name: &str) -> Vec<Box<str>> {
    let line = |line: Cow<'_, str>| if is_secret(name) { hash(rules, &line).into() } else { line.into() };
    request.lines(name).map(line).collect()
}

fn credentials(rules: &Rules, request: &Request<'_>) -> Vec<Box<str>> {
    match request.credentials() {
        Ok(None) => Vec::new(),
        Ok(Some(text)) => vec![hash(rules, &text).into()],
        Err(AmbiguousValue) => vec![MALFORMED_CREDENTIALS.into()],
    }
}

fn cookie(rules: &Rules, request: &Request<'_>, name: &str) -> Vec<Box<str>> {
    let value = match request.cookie(name, Duplicates::First) {
        Ok(None) => return Vec::new(),
        Ok(Some(value)) => hash(rules, &value),
        Err(AmbiguousValue) => MALFORMED.to_owned(),
    };
    vec![format!("{name}={value}").into()]
}

fn hash(rules: &Rules, text: &str) -> String {
    let mut fingerprint = rules.fingerprinter.start();
    fingerprint.write(b"secret");
    fingerprint.write(text.as_bytes());
    format!("{:032x}", fingerprint.finish())
}
