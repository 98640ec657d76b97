//! The lines of a recording: requests with stand-ins for ids.

use std::borrow::Cow;
use std::fmt::Write;

use http::header::AUTHORIZATION;
use serde_json::{Value, json};

use super::Recording;
use super::parts::Treatment;
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
    fn target(&self, request: &Request<'_>, clear: &Clear<'_>) -> String {
        let path = if clear.path { request.path.into() } else { self.parts.path(request.path, &self.pseudonyms) };
        let mut target = path.into_owned();
        for (name, treatment) in &self.parts.queries {
            // Several values that differ are malformed for the rules, which two values keep.
            let values = query_values(request, name);
            for value in values {
                let kept = value.map(|value| encoded(&clear.or_hidden(name, &value, treatment, &self.pseudonyms)));
                target.push(if target.contains('?') { '&' } else { '?' });
                target.push_str(&encoded(name));
                target.push('=');
                target.push_str(kept.as_deref().unwrap_or(MALFORMED));
            }
        }
        target
    }

    fn headers(&self, request: &Request<'_>, clear: &Clear<'_>) -> Vec<Value> {
        let mut kept = Vec::new();
        for (name, treatment) in &self.parts.headers {
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
                kept.push(json!([name, clear.or_hidden(name, &line, treatment, &self.pseudonyms)]));
            }
        }
        for (name, treatment) in &self.parts.cookies {
            let value = match request.cookie(name, Duplicates::First) {
                Ok(None) => continue,
                Ok(Some(value)) => encoded(&clear.or_hidden(name, &value, treatment, &self.pseudonyms)),
                Err(AmbiguousValue) => MALFORMED.to_owned(),
            };
            kept.push(json!(["cookie", format!("{name}={value}")]));
        }
        kept
    }

    fn entries(&self, entries: &[DescriptorEntry<'_>], clear: &Clear<'_>) -> Vec<Value> {
        let other = Treatment::default();
        let kept = entries.iter().map(|entry| {
            let treatment = self.parts.entries.get(entry.key).unwrap_or(&other);
            json!([entry.key, clear.or_hidden(entry.key, entry.value, treatment, &self.pseudonyms)])
        });
        kept.collect()
    }
}

/// The parts of a request that stay as they are, because an override names this id in the rules: under a stand-in it would
/// have other numbers.
#[derive(Debug, Default)]
struct Clear<'r> {
    client: bool,
    path: bool,
    tls_subject: bool,
    /// The names of headers, query parameters, cookies and descriptor entries.
    names: Vec<Cow<'r, str>>,
}

impl<'r> Clear<'r> {
    fn of(rules: &'r Rules, request: &Request<'_>) -> Self {
        let mut clear = Self::default();
        let overridden = rules.limits().iter().any(|limit| !limit.overrides.is_empty());
        let explanations = if overridden { rules.explain(request, None) } else { Vec::new() };
        for (limit, explanation) in rules.limits().iter().zip(explanations) {
            if !matches!(explanation, Explanation::Applies { given_by: Some(_), .. }) {
                continue;
            }
            for part in &limit.by {
                match &part.part {
                    Part::Ip { .. } => clear.client = true,
                    Part::PathParameter { .. } => clear.path = true,
                    Part::TlsSubject => clear.tls_subject = true,
                    Part::Header(name) => clear.names.push(name.as_str().into()),
                    Part::Query(name) | Part::Cookie(name) => {
                        clear.names.push(name.to_ascii_lowercase().into());
                    }
                    Part::Descriptor(key) | Part::Entry { key, .. } => {
                        clear.names.push(key.as_str().into());
                    }
                    // A secret stays one.
                    Part::Credentials | Part::Host | Part::Method | Part::Path | Part::Claim(_) | Part::Body(_) => {}
                }
            }
        }
        clear
    }

    fn or_hidden<'v>(
        &self,
        name: &str,
        value: &'v str,
        treatment: &Treatment,
        pseudonyms: &Pseudonyms,
    ) -> Cow<'v, str> {
        let is_clear = !treatment.is_secret && self.names.iter().any(|clear| clear == name);
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
