//! Envoy's rate limit service, `envoy.service.ratelimit.v3`.

use bytes::Bytes;

use super::{Duration, HeaderValue, MapEntry, Struct, UInt64Value, make_text};

/// What Envoy asks.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimitRequest {
    /// Whose rules are meant.
    #[prost(bytes = "bytes", tag = "1")]
    pub domain: Bytes,
    /// What is to be counted.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The hits of each descriptor that says nothing of its own; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimitDescriptor {
    /// Keys and values in the order of Envoy's actions.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<MapEntry>,
    /// A limit that stands in for the configured one.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// The hits; 0 only checks. Wins over the request's.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<UInt64Value>,
    /// Whether the hits are given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

impl RateLimitRequest {
    /// Makes text of everything that is to be read as text.
    pub fn make_text(&mut self) {
        make_text(&mut self.domain);
        for entry in self.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries) {
            make_text(&mut entry.key);
            make_text(&mut entry.value);
        }
    }
}

/// `RateLimitDescriptor.RateLimitOverride`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RateLimitOverride {
    /// Requests in one unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit, an `envoy.type.v3.RateLimitUnit`: as [`Unit`], which adds the week.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// What Envoy is told.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// Whether the request passes; this alone decides.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor, in their order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Fields for the response to the client, whether or not the request passes.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Fields for the upstream.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body of a denial.
    #[prost(bytes = "bytes", tag = "5")]
    pub raw_body: Bytes,
    /// What Envoy's access log and other filters may see of the decision.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// `RateLimitResponse.Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Nothing is said; Envoy lets the request pass.
    Unknown = 0,
    /// It passes.
    Ok = 1,
    /// It is denied.
    OverLimit = 2,
}

/// `RateLimitResponse.DescriptorStatus`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DescriptorStatus {
    /// What this descriptor comes to.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit that was applied; absent if none was.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// Requests that are left.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// Until the whole limit is there again.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimit {
    /// Its name. Envoy writes it into `X-RateLimit-Limit` without an escape.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Requests in one unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// None of the others.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// A month; 30 days to Envoy.
    Month = 5,
    /// A year; 365 days to Envoy.
    Year = 6,
    /// A week.
    Week = 7,
}
