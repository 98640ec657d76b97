//! The lines of a recording: requests with stand-ins for ids.

use std::borrow::Cow;
use std::fmt::Write;

use http::header::AUTHORIZATION;
use serde_json::{Value, json};

use super::Recording;
use super::parts::{Treatment, key};
use super::pseudonyms::Pseudonyms;
use crate::engine::charging::descriptors::{DescriptorMode, DescriptorRequest, Hits};
use crate::engine::limit::rules::Rules;
use crate::engine::request::part::Part;
use crate::engine::request::{AmbiguousValue, DescriptorEntry, Duplicates, Request};
use crate::engine::telling::explanation::Explanation;
use crate::message::headers::Headers;
use crate::message::lossless;

/// Stands for a value of a query parameter or cookie that is malformed: an escape without digits.
const MALFORMED: &str = "%";

/// Stands for credentials that are malformed: servers read two of them.
const MALFORMED_CREDENTIALS: &str = "malformed,";

impl Recording {
    /// A call of the rate limit service. Its descriptors are decided together.
    pub(in crate::limiter) fn call(&self, rules: &Rules, call: &DescriptorRequest<'_>) -> Value {
        let headers = Headers::new();
        let entries = call
            .descriptors
            .iter()
            .map(|descriptor| self.entries(descriptor.entries, &Clear::of(rules, &call.request(descriptor, &headers))));
        let mut line =
            json!({ "at_us": call.now.0, "domain": call.domain, "descriptors": entries.collect::<Vec<_>>() });
        if call.descriptors.iter().any(|descriptor| descriptor.hits != Hits::Take(1)) {
            line["hits"] = call.descriptors.iter().map(|descriptor| hits(descriptor.hits)).collect();
        }
        if call.purpose == DescriptorMode::Check {
            line["only_checks"] = true.into();
        }
        if call.descriptors.iter().any(|descriptor| descriptor.carried.is_some()) {
            line["carries_limits"] = true.into();
        }
        line
    }

    pub(in crate::limiter) fn request(&self, rules: &Rules, request: &Request<'_>) -> Value {
        let clear = Clear::of(rules, request);
        // Only an IPv6 address has a colon, and a log has it in brackets, as `Host` does.
        let is_ipv6 = request.host.contains(':');
        let host = if is_ipv6 { format!("[{}]", request.host).into() } else { Cow::Borrowed(request.host) };
        let mut line = json!({
            "at_us": request.now.0,
            "method": request.method,
            "host": host,
            "target": self.target(request, &clear),
        });
        let address = |client| if clear.client { client } else { self.pseudonyms.address(client) };
        if let Some(client) = request.client.map(address) {
            line["client"] = client.to_string().into();
        }
        if let Some(subject) = request.tls_subject.filter(|_| self.parts.has_tls_subject) {
            let hidden = || format!("CN={:032x}", self.pseudonyms.hash("subject", subject.as_bytes()));
            line["tls_subject"] = if clear.tls_subject { subject.into() } else { hidden().into() };
        }
        let headers = self.headers(request, &clear);
        if !headers.is_empty() {
            line["headers"] = headers.into();
        }
        if !request.descriptor.is_empty() {
            line["descriptors"] = json!([self.entries(request.descriptor, &clear)]);
        }
        line
    }

    /// The path, and the query parameters that rules name.
    fn target(&self, request: &Request<'_>, clear: &Clear) -> String {
        let path = if clear.path { request.path.into() } else { self.parts.path(request.path, &self.pseudonyms) };
        let mut target = path.into_owned();
        for (name, treatment) in self.parts.named("query") {
            // Several values that differ are malformed for the rules, which two values keep.
            let values = query_values(request, name);
            for value in values {
                let kept =
                    value.map(|value| encoded(&clear.or_hidden(("query", name), &value, treatment, &self.pseudonyms)));
                target.push(if target.contains('?') { '&' } else { '?' });
                target.push_str(&encoded(name));
                target.push('=');
                target.push_str(kept.as_deref().unwrap_or(MALFORMED));
            }
        }
        target
    }

    fn headers(&self, request: &Request<'_>, clear: &Clear) -> Vec<Value> {
        let mut kept = Vec::new();
        for (name, treatment) in self.parts.named("header") {
            if self.parts.has_credentials && *name == AUTHORIZATION.as_str() {
                // Each spelling would have a hash of its own.
                match request.credentials() {
                    Ok(None) => {}
                    Ok(Some(text)) => kept.push(json!([name, treatment.kept(&text, &self.pseudonyms)])),
                    Err(AmbiguousValue) => kept.push(json!([name, MALFORMED_CREDENTIALS])),
                }
                continue;
            }
            for line in request.lines(name) {
                kept.push(json!([name, clear.or_hidden(("header", name), &line, treatment, &self.pseudonyms)]));
            }
        }
        for (name, treatment) in self.parts.named("cookie") {
            let value = match request.cookie(name, Duplicates::First) {
                Ok(None) => continue,
                Ok(Some(value)) => encoded(&clear.or_hidden(("cookie", name), &value, treatment, &self.pseudonyms)),
                Err(AmbiguousValue) => MALFORMED.to_owned(),
            };
            kept.push(json!(["cookie", format!("{name}={value}")]));
        }
        kept
    }

    fn entries(&self, entries: &[DescriptorEntry<'_>], clear: &Clear) -> Vec<Value> {
        let other = Treatment::default();
        let kept = entries.iter().map(|entry| {
            let treatment = self.parts.entry(entry.key).unwrap_or(&other);
            json!([entry.key, clear.or_hidden(("descriptor", entry.key), entry.value, treatment, &self.pseudonyms)])
        });
        kept.collect()
    }
}

/// The parts of a request that stay as they are, because an override names this id in the rules: under a stand-in it would
/// have other numbers.
#[derive(Debug, Default)]
struct Clear {
    client: bool,
    path: bool,
    tls_subject: bool,
    /// By word and name, as [`key`] has them.
    named: Vec<(&'static str, String)>,
}

impl Clear {
    fn of(rules: &Rules, request: &Request<'_>) -> Self {
        let mut clear = Self::default();
        let overridden = rules.limits().iter().any(|limit| !limit.overrides.is_empty());
        let explanations = if overridden { Explanation::of_limits(rules, request, None) } else { Vec::new() };
        for (limit, explanation) in rules.limits().iter().zip(explanations) {
            if !matches!(explanation, Explanation::Applies { given_by: Some(_), .. }) {
                continue;
            }
            for by in &limit.by {
                match &by.part {
                    Part::Ip { .. } => clear.client = true,
                    Part::Path | Part::PathParameter { .. } => clear.path = true,
                    Part::TlsSubject => clear.tls_subject = true,
                    part => clear.named.extend(key(part)),
                }
            }
        }
        clear
    }

    fn or_hidden<'v>(
        &self,
        (word, name): (&str, &str),
        value: &'v str,
        treatment: &Treatment,
        pseudonyms: &Pseudonyms,
    ) -> Cow<'v, str> {
        let is_clear = !treatment.is_secret && self.named.iter().any(|clear| clear.0 == word && clear.1 == name);
        if is_clear { Cow::Borrowed(value) } else { treatment.kept(value, pseudonyms) }
    }
}

fn hits(hits: Hits) -> Value {
    match hits {
        Hits::Take(hits) => json!(["take", hits]),
        Hits::TakeOrDrain(hits) => json!(["take_or_drain", hits]),
        Hits::GiveBack(hits) => json!(["give_back", hits]),
    }
}

/// The different values of a query parameter, at most two: more tell the rules nothing new.
fn query_values<'a>(request: &Request<'a>, name: &str) -> Vec<Result<Cow<'a, str>, AmbiguousValue>> {
    let first = request.query(name, Duplicates::First).transpose();
    let last = request.query(name, Duplicates::Last).transpose().filter(|last| Some(last) != first.as_ref());
    first.into_iter().chain(last).collect()
}

/// Percent-encodes what has a meaning in a query or in a segment of a path.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in lossless::bytes(text).iter() {
        if byte.is_ascii_alphanumeric() || b"-._~:@,/!".contains(byte) {
            encoded.push(char::from(*byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Source, Sources, load};
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::limit::WHOLE_SHARE;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::request::sample;

    const RULES: &str = "
limits:
  PerPath: { by: path, burst: 9 }
  PerUser: { match: { path: '/users/{id}' }, by: { path: id }, burst: 9 }
  PerHeader: { by: { header: user }, burst: 9 }
  PerQuery: { by: { query: user }, burst: 9 }
  PerKey: { by: credentials, burst: 9 }
overrides:
  PerPath:/users/7: { burst: 1 }
  PerHeader:alice: { burst: 1 }
  PerKey:secret: { burst: 1 }
";

    /// Checks which of these texts of a request a recording has in clear.
    #[track_caller]
    fn check(path: &str, query: &str, headers: &[(&'static str, &str)], expected: &[(&str, bool)]) {
        let sources =
            Sources { limits: Some(Source { name: String::new(), text: RULES.into() }), ..Sources::default() };
        let rules = load(&sources, Fingerprinter::new((1, 2)), Micros(0)).rules.unwrap();
        let (recording, _lines) = Recording::new(&rules, (3, 4), WHOLE_SHARE);
        let headers: Headers = headers.iter().copied().collect();
        let request = Request { path, query: Some(query), ..sample(&headers) };
        let line = recording.request(&rules, &request).to_string();
        for (text, is_clear) in expected {
            assert_eq!(line.contains(text), *is_clear, "{text}: {line}");
        }
    }

    #[test]
    fn what_an_override_names_is_in_clear_and_nothing_else_is() {
        check("/users/7", "", &[], &[("/users/7", true)]);
        check("/users/8", "", &[], &[("/users/8", false)]);
        check("/", "user=carol", &[("user", "alice")], &[("alice", true), ("carol", false)]);
        check("/", "user=alice", &[("user", "bob")], &[("alice", false), ("bob", false)]);
        check("/", "", &[("authorization", "Bearer secret")], &[("secret", false)]);
    }
}
