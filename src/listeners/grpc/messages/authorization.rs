//! Envoy's external authorization, `envoy.service.auth.v3`.

use bytes::Bytes;

use super::{BoolValue, HeaderValue, MapEntry, Status, Struct};

/// Envoy's question.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<AttributeContext>,
}

/// A request at Envoy.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AttributeContext {
    /// The peer of Envoy's connection.
    #[prost(message, optional, tag = "1")]
    pub source: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    pub request: Option<AttributeRequest>,
    /// Set by the route.
    #[prost(message, repeated, tag = "10")]
    pub context_extensions: Vec<MapEntry>,
}

/// `AttributeContext.Peer`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Peer {
    /// The socket's address, or that of the PROXY protocol; never from `X-Forwarded-For`.
    #[prost(message, optional, tag = "1")]
    pub address: Option<Address>,
    /// From the verified certificate: URI SAN, else DNS SAN, else subject.
    #[prost(bytes = "bytes", tag = "4")]
    pub principal: Bytes,
    /// PEM, percent-encoded; only with `include_peer_certificate`.
    #[prost(bytes = "bytes", tag = "5")]
    pub certificate: Bytes,
}

/// `envoy.config.core.v3.Address`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Address {
    /// Absent for addresses other than IP.
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<SocketAddress>,
}

/// `envoy.config.core.v3.SocketAddress`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SocketAddress {
    /// Without the port.
    #[prost(bytes = "bytes", tag = "2")]
    pub address: Bytes,
}

/// `AttributeContext.Request`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AttributeRequest {
    #[prost(message, optional, tag = "2")]
    pub http: Option<HttpRequest>,
}

/// `AttributeContext.HttpRequest`. Clients choose what is in it, and Envoy passes on bytes that are not UTF-8.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HttpRequest {
    #[prost(bytes = "bytes", tag = "2")]
    pub method: Bytes,
    /// Names in lower case, pseudo-headers included; values of one name are joined by commas.
    #[prost(message, repeated, tag = "3")]
    pub headers: Vec<MapEntry>,
    /// In place of `headers` with `encode_raw_headers`: one entry per line.
    #[prost(message, optional, tag = "13")]
    pub header_map: Option<HeaderMap>,
    /// With its query, as it was sent.
    #[prost(bytes = "bytes", tag = "4")]
    pub path: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    pub host: Bytes,
}

/// `envoy.config.core.v3.HeaderMap`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// The answer to Envoy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CheckResponse {
    /// Code 0 allows the request.
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(oneof = "HttpResponse", tags = "2, 3, 5")]
    pub http_response: Option<HttpResponse>,
    /// For Envoy's access log and other filters.
    #[prost(message, optional, tag = "4")]
    pub dynamic_metadata: Option<Struct>,
}

/// Envoy's instructions for a request.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum HttpResponse {
    #[prost(message, tag = "2")]
    Denied(DeniedHttpResponse),
    #[prost(message, tag = "3")]
    Ok(OkHttpResponse),
    /// There is no decision: `failure_mode_allow` applies. Envoy before 1.37 answers 403.
    #[prost(message, tag = "5")]
    Error(DeniedHttpResponse),
}

/// The response to the client in place of the upstream's.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeniedHttpResponse {
    /// Defaults to 403.
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    /// Must be UTF-8.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
}

/// `envoy.type.v3.HttpStatus`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}

/// Changes to an allowed request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OkHttpResponse {
    /// For the upstream.
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    /// Removed for the upstream.
    #[prost(string, repeated, tag = "5")]
    pub headers_to_remove: Vec<String>,
    /// For the response to the client.
    #[prost(message, repeated, tag = "6")]
    pub response_headers_to_add: Vec<HeaderValueOption>,
}

/// `envoy.config.core.v3.HeaderValueOption`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// Keeps one of its name. Older than `append_action`, and still the one that counts in places.
    #[prost(message, optional, tag = "2")]
    pub append: Option<BoolValue>,
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub append_action: i32,
}

/// `HeaderValueOption.HeaderAppendAction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum AppendAction {
    AppendIfExistsOrAdd = 0,
    AddIfAbsent = 1,
    OverwriteIfExistsOrAdd = 2,
    /// Never adds one.
    OverwriteIfExists = 3,
}
