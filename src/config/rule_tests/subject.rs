//! The subject of a step: a request, a charge by name, or a call of the rate limit service.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use serde_json::Value as Json;

use super::super::jwt::MOST_ISSUERS;
use super::super::mapping::{Mapping, all};
use super::super::node::{Node, Value};
use super::super::problem::{ReadResult, quoted};
use super::super::scalars::one_of;
use super::{Known, span};
use crate::engine::algorithms::charge::Mode;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::named_id::GivenId;
use crate::engine::request::INSPECTED_BYTES;
use crate::engine::request::claims::TokenClaims;
use crate::engine::request::incoming::{Incoming, Preparation, Received};
use crate::message::address;
use crate::message::client_headers::ClientHeaders;
use crate::message::headers::{self, Headers};
use crate::message::path::EscapedSlashes;
use crate::message::target::is_absolute;
use crate::message::underscores::Underscores;

/// Keys that are a method, each with it.
pub(in super::super) const METHODS: [(&str, &str); 7] = [
    ("get", "GET"),
    ("head", "HEAD"),
    ("post", "POST"),
    ("put", "PUT"),
    ("patch", "PATCH"),
    ("delete", "DELETE"),
    ("options", "OPTIONS"),
];

/// The keys of a request beside its method and `request`.
pub(in super::super) const REQUEST_KEYS: [&str; 9] =
    ["host", "ip", "headers", "tls_subject", "claims", "body", "descriptor", "lasts", "response"];

pub(in super::super) const CHARGE_KEYS: [&str; 4] = ["limit", "id", "cost", "mode"];

pub(in super::super) const DOMAIN_KEYS: [&str; 4] = ["domain", "descriptor", "descriptors", "hits"];

pub(in super::super) const RESPONSE_KEYS: [&str; 3] = ["status", "headers", "body"];

/// `mode:` of a charge by name.
pub(in super::super) const CHARGE_MODES: [(&str, Mode); 5] = [
    ("spend", Mode::Spend),
    ("check", Mode::Check),
    ("spend_only", Mode::SpendOnly),
    ("refund", Mode::Refund),
    ("reset", Mode::Reset),
];

/// The host of a request that names none.
const HOST: &str = "localhost";

/// The descriptors of a call, and the entries of a descriptor, as the service bounds them.
pub(in super::super) const MOST_ENTRIES: usize = 100;

/// The subject of a step.
#[derive(Clone, Debug)]
pub enum Subject {
    Request(Box<TestRequest>),
    Charge(TestCharge),
    Descriptors(TestDescriptors),
}

/// A request, as rules see it, and its response.
#[derive(Clone, Debug)]
pub struct TestRequest {
    pub method: String,
    pub host: String,
    /// Normalised.
    pub path: String,
    pub query: Option<String>,
    pub headers: Headers,
    pub client: IpAddr,
    pub tls_subject: Option<String>,
    /// Taken as verified, of every issuer.
    pub claims: Vec<TokenClaims>,
    pub body: Option<String>,
    /// The longest body that the gateway reads, in bytes.
    pub inspected_bytes: usize,
    pub descriptor: Vec<(String, String)>,
    /// Its time in flight; `None` if it ends before the next request.
    pub lasts: Option<Micros>,
    /// The upstream's status and headers.
    pub status: u16,
    pub response: Headers,
    /// The upstream's body; may be empty.
    pub response_body: String,
}

/// A charge that names its limit.
#[derive(Clone, Debug)]
pub struct TestCharge {
    pub limit: String,
    pub id: GivenId,
    pub cost: Option<u64>,
    pub mode: Mode,
}

/// A call of the rate limit service.
#[derive(Clone, Debug)]
pub struct TestDescriptors {
    pub domain: String,
    pub descriptors: Vec<Vec<(String, String)>>,
    pub hits: u64,
}

/// The kinds of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The key with its target.
    Request(&'static str),
    Charge,
    Descriptors,
}

/// The keys of all kinds.
pub(in super::super) fn keys() -> impl Iterator<Item = &'static str> {
    let methods = METHODS.into_iter().map(|(key, _)| key).chain(["request"]);
    let others = DOMAIN_KEYS.into_iter().filter(|key| *key != "descriptor");
    methods.chain(REQUEST_KEYS).chain(CHARGE_KEYS).chain(others)
}

impl Kind {
    /// Returns what a step asks, and rejects the keys of other kinds.
    pub(super) fn of(map: &Mapping<'_>) -> ReadResult<Self> {
        let targets = METHODS.into_iter().map(|(key, _)| key).chain(["request"]);
        let requests = targets.map(|key| (key, Self::Request(key)));
        let kinds = requests.chain([("limit", Self::Charge), ("domain", Self::Descriptors)]);
        let mut found = kinds.filter(|(key, _)| map.get(key).is_some());
        let Some((first, kind)) = found.next() else {
            let help = "write `get: /path`, `limit: NAME` with `id`, or `domain: NAME` with `descriptor`";
            return Err(map.node.error("the step asks nothing", help));
        };
        if let Some((key, _)) = found.next().and_then(|(other, _)| map.get(other)) {
            let message = format!("a step asks one thing, not both `{first}` and {}", quoted(&key.text));
            return Err(key.error(message, "write two steps"));
        }
        let (what, own): (_, &[&str]) = match kind {
            Self::Request(_) => ("a request", &REQUEST_KEYS),
            Self::Charge => ("a charge by name", &CHARGE_KEYS),
            Self::Descriptors => ("a call of the rate limit service", &DOMAIN_KEYS),
        };
        let foreign = keys().filter(|key| *key != first && !own.contains(key)).filter_map(|key| map.get(key));
        let errors = foreign.map(|(key, _)| {
            let has = own.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
            key.error(format!("{} does not apply to {what}", quoted(&key.text)), format!("it may have {has}"))
        });
        errors.last().map_or(Ok(kind), Err)
    }
}

pub(super) fn read(kind: Kind, map: &Mapping<'_>, limits: Known<'_>) -> ReadResult<Subject> {
    match kind {
        Kind::Request(key) => request(key, map).map(Box::new).map(Subject::Request),
        Kind::Charge => charge(map, limits).map(Subject::Charge),
        Kind::Descriptors => descriptors(map).map(Subject::Descriptors),
    }
}

fn request(key: &str, map: &Mapping<'_>) -> ReadResult<TestRequest> {
    let line = map.need(key, "write a path").and_then(|node| Ok((method_and_target(key, node)?, node)));
    let host = map.read("host", |node| node.text().map(str::to_owned));
    let client = map.read("ip", |node| {
        address::parse(node.text()?).map_err(|message| node.error(message, "write one such as 10.1.2.3"))
    });
    let fields = map.read("headers", header_lines);
    let tls_subject = map.read("tls_subject", |node| node.text().map(str::to_owned));
    let claims = map.read("claims", claims);
    let body = map.read("body", |node| node.text().map(str::to_owned));
    let descriptor = map.read("descriptor", entries);
    let lasts = map.read("lasts", span);
    let response = map.read("response", response);
    let told = line.and_then(|(line, node)| told(line, node, host?.as_deref(), fields?.unwrap_or_default()));
    let client = client?.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let claims = claims?.unwrap_or_default();
    let (tls_subject, descriptor, lasts) = (tls_subject?, descriptor?.unwrap_or_default(), lasts?);
    let (status, response, response_body) = response?.unwrap_or((200, Headers::new(), String::new()));
    let body = body?;
    let Told { method, host, path, query, headers } = told?;
    Ok(TestRequest {
        method,
        host,
        path,
        query,
        headers,
        client,
        tls_subject,
        claims,
        body,
        inspected_bytes: INSPECTED_BYTES as usize,
        descriptor,
        lasts,
        status,
        response,
        response_body,
    })
}

/// The text of a request as rules see it.
struct Told {
    method: String,
    host: String,
    path: String,
    query: Option<String>,
    headers: Headers,
}

/// Reads a request as the proxy reads one of a trusted proxy. A test does not know the server's flags.
fn told((method, url): (&str, &str), node: &Node, host: Option<&str>, mut headers: Headers) -> ReadResult<Told> {
    if !is_absolute(url) && host.is_none() && !headers.contains("host") {
        headers.append("host", HOST);
    }
    let accepted = ClientHeaders { underscores: Underscores::Keep, ..ClientHeaders::default() };
    let incoming = Incoming {
        method: Some(method),
        target: url,
        query: None,
        authority: host,
        headers: &mut headers,
        preparation: Preparation::Forwarded { accepted: &accepted, is_trusted: true },
        slashes: EscapedSlashes::Keep,
    };
    let wrong = |reason| node.error(format!("{}: {reason}", quoted(url)), "write a path such as /v1/orders?a=b");
    let Received { host, path, query, .. } = incoming.read().map_err(wrong)?;
    let (host, path, query) = (host.into_owned(), path.into_owned(), query.map(str::to_owned));
    Ok(Told { method: method.to_owned(), host, path, query, headers })
}

/// Reads a map of claims, each with a value that becomes what it would be in JSON.
fn claims(node: &Node) -> ReadResult<Vec<TokenClaims>> {
    let values = json(node);
    if !values.is_object() {
        return Err(node.error("expected a map of claims", "write `claims: { sub: user-1, plan: free }`"));
    }
    let values = Arc::new(values);
    // A test does not say which issuer a token is of.
    Ok((0..MOST_ISSUERS).map(|issuer| TokenClaims { issuer, values: Some(values.clone()) }).collect())
}

fn json(node: &Node) -> Json {
    match &node.value {
        Value::Map(entries) => entries.iter().map(|(key, value)| (key.text.clone(), json(value))).collect(),
        Value::List(items) => items.iter().map(json).collect(),
        _ if node.is_null() => Json::Null,
        Value::Scalar { text, plain: true } if matches!(text.as_str(), "true" | "false") => (text == "true").into(),
        Value::Scalar { text, plain: true } => text.parse::<i64>().map_or_else(|_| text.as_str().into(), Json::from),
        Value::Scalar { text, .. } => text.as_str().into(),
    }
}

/// Reads `get: /path`, `get: http://host/path` or `request: GET /path`.
fn method_and_target<'a>(key: &str, node: &'a Node) -> ReadResult<(&'a str, &'a str)> {
    let text = node.text()?;
    match METHODS.iter().find(|(known, _)| *known == key) {
        Some((_, method)) => Ok((*method, text)),
        None => text.split_once(' ').ok_or_else(|| {
            node.error(format!("{} is not a method and a target", quoted(text)), "write `request: PURGE /path`")
        }),
    }
}

/// Reads a map of names, each with a value or a list of values.
fn header_lines(node: &Node) -> ReadResult<Headers> {
    let mut lines = Headers::new();
    let read = node.map("`headers`", "write `headers: { x-account-id: 12345678 }`")?.iter().map(|(name, values)| {
        if !headers::is_name(name.text.as_bytes()) {
            return Err(
                name.error(format!("invalid header name {}", quoted(&name.text)), "use a name such as x-api-key")
            );
        }
        values.each(|value| {
            let text = value.text()?.trim();
            if !headers::is_value(text.as_bytes()) {
                return Err(value.error("a header value must not contain control characters", ""));
            }
            lines.append(&name.text, text);
            Ok(())
        })
    });
    all(read)?;
    Ok(lines)
}

fn response(node: &Node) -> ReadResult<(u16, Headers, String)> {
    let map = Mapping::of(node, "`response`", &RESPONSE_KEYS)?;
    let status = map.read("status", status);
    let lines = map.read("headers", header_lines);
    let body = map.read("body", |node| node.text().map(str::to_owned));
    let (mut lines, body) = (lines?.unwrap_or_default(), body?.unwrap_or_default());
    if !body.is_empty() && !lines.contains("content-type") {
        lines.append("content-type", "application/json");
    }
    Ok((status?.unwrap_or(200), lines, body))
}

/// Reads an HTTP status.
pub(super) fn status(node: &Node) -> ReadResult<u16> {
    let status = u16::try_from(node.whole()?).ok().filter(|status| (100..600).contains(status));
    status.ok_or_else(|| node.error("not an HTTP status", "use one such as 200 or 429"))
}

fn charge(map: &Mapping<'_>, limits: Known<'_>) -> ReadResult<TestCharge> {
    let limit = map.need("limit", "").and_then(|node| limits.name(node));
    let id = map.read("id", |node| match &node.value {
        Value::List(parts) => {
            let texts = parts.iter().map(|part| part.text().map(str::to_owned));
            all(texts).map(GivenId::Parts)
        }
        _ => node.text().map(|text| GivenId::Text(text.to_owned())),
    });
    let (cost, mode) = (map.read("cost", Node::whole), map.read("mode", one_of(&CHARGE_MODES)));
    if let (Ok(Some(Mode::Reset)), Some((key, _))) = (&mode, map.get("cost")) {
        return Err(key.error("a reset has no `cost`: it makes the bucket full", "remove it"));
    }
    Ok(TestCharge {
        limit: limit?,
        id: id?.unwrap_or(GivenId::Absent),
        cost: cost?,
        mode: mode?.unwrap_or(Mode::Spend),
    })
}

fn descriptors(map: &Mapping<'_>) -> ReadResult<TestDescriptors> {
    const HELP: &str = "write `descriptor: { key: value }`, or a list of them under `descriptors`";
    let domain = map.need("domain", "").and_then(|node| node.text().map(str::to_owned));
    let hits = map.read("hits", Node::whole);
    let found = match map.all(&["descriptor", "descriptors"])[..] {
        [(key, node)] if key.text == "descriptor" => entries(node).map(|entries| vec![entries]),
        [(_, node)] => node.list("`descriptors`", HELP).and_then(|list| {
            node.check_count("`descriptors`", list.len(), "descriptors", MOST_ENTRIES)?;
            all(list.iter().map(entries))
        }),
        _ => Err(map.node.error("the call needs `descriptor` or `descriptors`", HELP)),
    };
    Ok(TestDescriptors { domain: domain?, descriptors: found?, hits: hits?.unwrap_or(1) })
}

/// Reads the entries of a descriptor: a map, or a list of maps where a key comes twice.
fn entries(node: &Node) -> ReadResult<Vec<(String, String)>> {
    const HELP: &str = "write `{ key: value }`, or a list of such maps to repeat a key";
    let maps = if let Value::List(items) = &node.value { items.as_slice() } else { std::slice::from_ref(node) };
    let read = maps.iter().map(|map| {
        let entries = map.map("a descriptor", HELP)?;
        all(entries.iter().map(|(key, value)| {
            let text = if value.is_null() { "" } else { value.text()? };
            Ok((key.text.clone(), text.to_owned()))
        }))
    });
    let entries: Vec<_> = all(read)?.into_iter().flatten().collect();
    node.check_count("a descriptor", entries.len(), "entries", MOST_ENTRIES)?;
    Ok(entries)
}
