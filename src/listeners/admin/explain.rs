//! Explains which limits apply to a request that an operator describes, as `weir explain` prints it.

use std::net::IpAddr;

use serde_json::Value;

use super::Admin;
use super::body::read;
use super::buckets::json_reply;
use super::change::Rejection;
use crate::engine::request::incoming;
use crate::engine::request::{DescriptorEntry, Request};
use crate::engine::text::quote::quoted;
use crate::http::simple::Incoming;
use crate::jwt::Checker;
use crate::listeners::json::Object;
use crate::listeners::json::headers::headers;
use crate::listeners::rules_json;
use crate::message::address;
use crate::message::headers::{Headers, is_name, is_value};
use crate::message::reply::Reply;

const KEYS: [&str; 9] = ["method", "url", "host", "path", "headers", "ip", "tls_subject", "domain", "descriptor"];

/// A request as an operator describes it.
struct Described {
    method: String,
    url: String,
    headers: Headers,
    peer: Option<IpAddr>,
    tls_subject: Option<String>,
    domain: Option<String>,
    descriptor: Vec<(String, String)>,
}

impl Admin {
    pub(super) async fn explain(&self, body: Incoming) -> Reply {
        match self.explanation(body).await {
            Ok(reply) => reply,
            Err(rejection) => rejection.reply(),
        }
    }

    async fn explanation(&self, body: Incoming) -> Result<Reply, Rejection> {
        let mut described = read(body, &KEYS, described).await?;
        let entries = described.descriptor.iter().map(|(key, value)| DescriptorEntry { key, value });
        let entries: Vec<_> = entries.collect();
        let (view, now) = (self.operator.view(), self.operator.now());
        let (received, claims);
        let request = if let Some(domain) = &described.domain {
            Request { domain: Some(domain), ..Request::empty(&described.headers) }
        } else {
            let given = incoming::Described {
                method: &described.method,
                url: &described.url,
                headers: &mut described.headers,
                peer: described.peer,
                is_of_gateway: !entries.is_empty(),
            };
            let read = self.options.reading.read(given);
            let client;
            (received, client) = read.map_err(Rejection::bad)?;
            claims = Checker::new(self.options.shared.keys.clone()).claims(view.rules(), received.headers, now, |_| ());
            let tls_subject = described.tls_subject.as_deref();
            Request { client, tls_subject, claims: &claims, ..received.request() }
        };
        let request = Request { descriptor: &entries, now, ..request };
        Ok(json_reply(&rules_json::explanation(view.rules(), &request, Some(&self.operator.blocks()))))
    }
}

fn described(body: &Object<'_>) -> Option<Described> {
    let text = |key: &str| body.text(key).map(str::to_owned);
    let (method, domain) = (text("method").unwrap_or_else(|| "GET".to_owned()), text("domain"));
    let mut headers = match body.get("headers") {
        Some(Value::Array(pairs)) => header_pairs(body, pairs),
        _ => body.object("headers").map(|object| headers(&object)).unwrap_or_default(),
    };
    let url = match (text("url"), text("host"), text("path")) {
        (Some(url), None, None) => url,
        (Some(_), ..) => {
            body.wrong("/url", "`url` stands alone; or give `host` and `path`");
            return None;
        }
        (None, host, path) => {
            if path.is_none() && domain.is_none() {
                body.wrong("", "give `url`, or `host` and `path`; or `domain` and `descriptor`");
            }
            if let Some(host) = host {
                headers.append("host", &host);
            }
            path.unwrap_or_else(|| "/".to_owned())
        }
    };
    let parse = |ip: &str| {
        let invalid = |_| body.wrong("/ip", &format!("invalid IP address {}", quoted(ip)));
        address::parse(ip).map_err(invalid).ok()
    };
    let peer = body.text("ip").and_then(parse);
    let descriptor = descriptor(body);
    Some(Described { method, url, headers, peer, tls_subject: text("tls_subject"), domain, descriptor })
}

/// Reads `[["name", "value"], ...]`, which repeats names as a request may.
fn header_pairs(body: &Object<'_>, pairs: &[Value]) -> Headers {
    const EXPECTED: &str = "expected a header's name and value, as in [\"x-id\", \"7\"]";
    let mut headers = Headers::new();
    for (place, pair) in pairs.iter().enumerate() {
        let path = format!("/headers/{place}");
        match pair {
            Value::Array(pair) => match &pair[..] {
                [Value::String(name), Value::String(value)]
                    if is_name(name.as_bytes()) && is_value(value.trim().as_bytes()) =>
                {
                    headers.append(name, value.trim());
                }
                _ => body.wrong(&path, EXPECTED),
            },
            _ => body.wrong(&path, EXPECTED),
        }
    }
    headers
}

/// Reads `[{"key": ..., "value": ...}, ...]`.
fn descriptor(body: &Object<'_>) -> Vec<(String, String)> {
    const EXPECTED: &str = "a list of entries, as in [{\"key\": \"user\", \"value\": \"bob\"}]";
    let items = match body.get("descriptor") {
        None => return Vec::new(),
        Some(Value::Array(items)) => items,
        Some(other) => {
            body.expected("/descriptor", EXPECTED, other);
            return Vec::new();
        }
    };
    let entry = |(place, item): (usize, &Value)| {
        let item = body.nested(&format!("/descriptor/{place}"), item)?;
        item.known(&["key", "value"]);
        item.require("key", EXPECTED);
        Some((item.text("key")?.to_owned(), item.text("value").unwrap_or_default().to_owned()))
    };
    items.iter().enumerate().filter_map(entry).collect()
}
