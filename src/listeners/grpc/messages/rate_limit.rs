//! Envoy's rate limit service, `envoy.service.ratelimit.v3`.

use bytes::Bytes;

use super::{Duration, HeaderValue, MapEntry, Struct, UInt64Value, make_text};

/// Envoy's question.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimitRequest {
    /// The namespace of the rules.
    #[prost(bytes = "bytes", tag = "1")]
    pub domain: Bytes,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// For descriptors without their own; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimitDescriptor {
    /// In the order of Envoy's actions.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<MapEntry>,
    /// Replaces the configured limit.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// 0 only checks. Overrides the request's.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<UInt64Value>,
    /// Gives the hits back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

impl RateLimitRequest {
    /// Converts everything that is read as text.
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
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// An `envoy.type.v3.RateLimitUnit`, which lacks the week of [`Unit`].
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// `kuadrant.service.ratelimit.v1.ReserveRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReserveRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub domain: Bytes,
    /// Only the entries count.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint64, tag = "3")]
    pub amount: u64,
    #[prost(message, optional, tag = "4")]
    pub ttl: Option<Duration>,
}

/// `kuadrant.service.ratelimit.v1.ReserveResponse`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReserveResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// Empty if nothing is held.
    #[prost(string, tag = "2")]
    pub reservation_id: String,
}

/// `kuadrant.service.ratelimit.v1.CommitRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CommitRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub domain: Bytes,
    /// Those of the reservation.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(string, tag = "3")]
    pub reservation_id: String,
    #[prost(uint64, tag = "4")]
    pub actual_amount: u64,
}

/// `kuadrant.service.ratelimit.v1.CommitResponse`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CommitResponse {
    /// True for the one call that settles the reservation.
    #[prost(bool, tag = "1")]
    pub reservation_released: bool,
}

/// The answer to Envoy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// Decides the request, alone.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor, in order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// For the response to the client, allowed or denied.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// For the upstream.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body of a denial.
    #[prost(bytes = "bytes", tag = "5")]
    pub raw_body: Bytes,
    /// For Envoy's access log and other filters.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// `RateLimitResponse.Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Envoy allows the request.
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

/// `RateLimitResponse.DescriptorStatus`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// Absent if no limit applies.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimit {
    /// Envoy writes it into `X-RateLimit-Limit` without escaping.
    #[prost(bytes = "bytes", tag = "3")]
    pub name: Bytes,
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    /// 30 days to Envoy.
    Month = 5,
    /// 365 days to Envoy.
    Year = 6,
    Week = 7,
}
