//! Envoy's external authorization, `envoy.service.auth.v3`.

use bytes::Bytes;

use super::{BoolValue, HeaderValue, MapEntry, Status, Struct};

/// What Envoy asks.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CheckRequest {
    /// The request that it is about.
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<AttributeContext>,
}

/// A request at Envoy.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AttributeContext {
    /// Who is at the other end of Envoy's connection.
    #[prost(message, optional, tag = "1")]
    pub source: Option<Peer>,
    /// What was sent.
    #[prost(message, optional, tag = "4")]
    pub request: Option<AttributeRequest>,
    /// What the route says beside it.
    #[prost(message, repeated, tag = "10")]
    pub context_extensions: Vec<MapEntry>,
}

/// `AttributeContext.Peer`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Peer {
    /// The address of the socket; with the PROXY protocol what that says. Never from `X-Forwarded-For`.
    #[prost(message, optional, tag = "1")]
    pub address: Option<Address>,
    /// A name of the verified certificate: URI SAN, else DNS SAN, else subject.
    #[prost(bytes = "bytes", tag = "4")]
    pub principal: Bytes,
    /// The certificate, PEM and then percent-encoded; only with `include_peer_certificate`.
    #[prost(bytes = "bytes", tag = "5")]
    pub certificate: Bytes,
}

/// `envoy.config.core.v3.Address`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Address {
    /// An address of IP. There are others, which are no client's.
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<SocketAddress>,
}

/// `envoy.config.core.v3.SocketAddress`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SocketAddress {
    /// The address without the port.
    #[prost(bytes = "bytes", tag = "2")]
    pub address: Bytes,
}

/// `AttributeContext.Request`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AttributeRequest {
    /// The request, if it is one of HTTP.
    #[prost(message, optional, tag = "2")]
    pub http: Option<HttpRequest>,
}

/// `AttributeContext.HttpRequest`. Clients choose what is in it, and Envoy passes on bytes that are not UTF-8.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HttpRequest {
    /// The method.
    #[prost(bytes = "bytes", tag = "2")]
    pub method: Bytes,
    /// The fields: names in lower case, `:method` and its like among them, values of one name joined by commas.
    #[prost(message, repeated, tag = "3")]
    pub headers: Vec<MapEntry>,
    /// Instead of `headers` with `encode_raw_headers`: each line by itself.
    #[prost(message, optional, tag = "13")]
    pub header_map: Option<HeaderMap>,
    /// The path with its query, as it was sent.
    #[prost(bytes = "bytes", tag = "4")]
    pub path: Bytes,
    /// The authority.
    #[prost(bytes = "bytes", tag = "5")]
    pub host: Bytes,
}

/// `envoy.config.core.v3.HeaderMap`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderMap {
    /// The fields in their order.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// What Envoy is told.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CheckResponse {
    /// Code 0 lets the request pass.
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    /// What to do with it.
    #[prost(oneof = "HttpResponse", tags = "2, 3, 5")]
    pub http_response: Option<HttpResponse>,
    /// What Envoy's access log and other filters may see of the decision.
    #[prost(message, optional, tag = "4")]
    pub dynamic_metadata: Option<Struct>,
}

/// What Envoy is to do with a request.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum HttpResponse {
    /// Deny it.
    #[prost(message, tag = "2")]
    Denied(DeniedHttpResponse),
    /// Let it pass.
    #[prost(message, tag = "3")]
    Ok(OkHttpResponse),
    /// Go by `failure_mode_allow`, for there is no decision. Envoy before 1.37 does not know it and answers 403.
    #[prost(message, tag = "5")]
    Error(DeniedHttpResponse),
}

/// What the client gets instead of the upstream's response.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeniedHttpResponse {
    /// The status; 403 if there is none.
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    /// The fields.
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    /// The body; UTF-8, as the field is a string.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
}

/// `envoy.type.v3.HttpStatus`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HttpStatus {
    /// The status of HTTP.
    #[prost(int32, tag = "1")]
    pub code: i32,
}

/// What changes in a request that passes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct OkHttpResponse {
    /// Fields for the upstream.
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    /// Names of fields that the upstream does not get.
    #[prost(string, repeated, tag = "5")]
    pub headers_to_remove: Vec<String>,
    /// Fields for the response to the client.
    #[prost(message, repeated, tag = "6")]
    pub response_headers_to_add: Vec<HeaderValueOption>,
}

/// `envoy.config.core.v3.HeaderValueOption`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValueOption {
    /// The field.
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// Whether it stands beside one of its name. Older than `append_action`, and still the one that counts in places.
    #[prost(message, optional, tag = "2")]
    pub append: Option<BoolValue>,
    /// What to do if there is one of its name.
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub append_action: i32,
}

/// `HeaderValueOption.HeaderAppendAction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum AppendAction {
    /// Stand beside it.
    AppendIfExistsOrAdd = 0,
    /// Leave it.
    AddIfAbsent = 1,
    /// Replace it.
    OverwriteIfExistsOrAdd = 2,
    /// Replace it, and add nothing if there is none.
    OverwriteIfExists = 3,
}
