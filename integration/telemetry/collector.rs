//! A collector for OTLP over HTTP that reads exports by OTLP 1.9 (`opentelemetry/proto/trace/v1/trace.proto`), without
//! the code of the library that sends them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use prost::Message as _;

use crate::support::eventually;
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;
use crate::support::wire::Message;

#[derive(Clone, PartialEq, prost::Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<SpanMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Integer(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Internal,
    Server,
    Client,
}

#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) trace_id: String,
    pub(super) id: String,
    /// Empty for a root.
    pub(super) parent: String,
    pub(super) state: String,
    pub(super) name: String,
    pub(super) kind: Kind,
    /// In nanoseconds since the Unix epoch.
    pub(super) start: u64,
    pub(super) end: u64,
    /// Numbers as text.
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) is_error: bool,
    /// The process' attributes.
    pub(super) resource: BTreeMap<String, String>,
}

impl Span {
    /// An attribute's value, empty if missing.
    pub(super) fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

pub(super) struct Collector {
    upstream: Upstream,
}

impl Collector {
    pub(super) fn start() -> Self {
        // An empty message accepts everything.
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        Self { upstream: Upstream::answering(move |_| answer.to_owned()) }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.upstream.address
    }

    /// The base URL.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The received exports.
    pub(super) fn exports(&self) -> Vec<Message> {
        self.upstream.requests()
    }

    /// The received spans.
    pub(super) fn spans(&self) -> Vec<Span> {
        self.exports().iter().flat_map(|export| spans(&export.body)).collect()
    }

    /// Waits for this many spans.
    #[track_caller]
    pub(super) fn until(&self, count: usize) -> Vec<Span> {
        eventually("the spans are exported", || match self.spans() {
            spans if spans.len() >= count => Ok(spans),
            spans => Err(spans),
        })
    }

    /// Ends a process and returns all its spans.
    #[track_caller]
    pub(super) fn all_of(&self, mut weir: Weir) -> Vec<Span> {
        weir.signal("TERM");
        assert!(weir.wait().success(), "{}", weir.log());
        self.spans()
    }
}

fn spans(body: &[u8]) -> Vec<Span> {
    let export = Export::decode(body).unwrap();
    let of_resource = |spans: ResourceSpans| {
        let resource = attributes(spans.resource.unwrap_or_default().attributes);
        let spans = spans.scopes.into_iter().flat_map(|scope| scope.spans);
        spans.map(|span| read(span, &resource)).collect::<Vec<_>>()
    };
    export.resources.into_iter().flat_map(of_resource).collect()
}

fn read(span: SpanMessage, resource: &BTreeMap<String, String>) -> Span {
    assert!(span.trace_id.len() == 16 && span.span_id.len() == 8, "{span:?}");
    Span {
        trace_id: hexadecimal(&span.trace_id),
        id: hexadecimal(&span.span_id),
        parent: hexadecimal(&span.parent_span_id),
        state: span.trace_state,
        name: span.name,
        kind: match span.kind {
            1 => Kind::Internal,
            2 => Kind::Server,
            3 => Kind::Client,
            other => panic!("kind {other}"),
        },
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        attributes: attributes(span.attributes),
        is_error: span.status.is_some_and(|status| status.code == 2),
        resource: resource.clone(),
    }
}

fn attributes(pairs: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::Text(text)) => text,
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Integer(value)) => value.to_string(),
        Some(Value::Double(value)) => value.to_string(),
        None => "(something else)".to_owned(),
    };
    let count = pairs.len();
    let attributes: BTreeMap<_, _> = pairs.into_iter().map(|pair| (pair.key, text(pair.value))).collect();
    assert_eq!(attributes.len(), count, "each name comes once: {attributes:?}");
    attributes
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
