//! Envoy's rate limit quota service, `envoy.service.rate_limit_quota.v3`.

use bytes::Bytes;

use super::{Duration, MapEntry, UInt32Value, make_text};

/// An Envoy's requests since its last report.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimitQuotaUsageReports {
    /// The namespace of the rules.
    #[prost(bytes = "bytes", tag = "1")]
    pub domain: Bytes,
    #[prost(message, repeated, tag = "2")]
    pub bucket_quota_usages: Vec<BucketQuotaUsage>,
}

impl RateLimitQuotaUsageReports {
    /// Converts everything that is read as text.
    pub fn make_text(&mut self) {
        make_text(&mut self.domain);
        let ids = self.bucket_quota_usages.iter_mut().filter_map(|usage| usage.bucket_id.as_mut());
        for entry in ids.flat_map(|id| &mut id.bucket) {
            make_text(&mut entry.key);
            make_text(&mut entry.value);
        }
    }
}

/// `RateLimitQuotaUsageReports.BucketQuotaUsage`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BucketQuotaUsage {
    #[prost(message, optional, tag = "1")]
    pub bucket_id: Option<BucketId>,
    #[prost(uint64, tag = "3")]
    pub num_requests_allowed: u64,
    #[prost(uint64, tag = "4")]
    pub num_requests_denied: u64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BucketId {
    /// In any order.
    #[prost(message, repeated, tag = "1")]
    pub bucket: Vec<MapEntry>,
}

/// The answer to Envoy.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimitQuotaResponse {
    #[prost(message, repeated, tag = "1")]
    pub bucket_action: Vec<BucketAction>,
}

/// `RateLimitQuotaResponse.BucketAction`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BucketAction {
    #[prost(message, optional, tag = "1")]
    pub bucket_id: Option<BucketId>,
    #[prost(oneof = "Action", tags = "2, 3")]
    pub bucket_action: Option<Action>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Action {
    #[prost(message, tag = "2")]
    QuotaAssignmentAction(QuotaAssignmentAction),
    #[prost(message, tag = "3")]
    AbandonAction(AbandonAction),
}

/// `RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct QuotaAssignmentAction {
    /// Envoy reads whole seconds.
    #[prost(message, optional, tag = "2")]
    pub assignment_time_to_live: Option<Duration>,
    #[prost(message, optional, tag = "3")]
    pub rate_limit_strategy: Option<RateLimitStrategy>,
}

/// `RateLimitQuotaResponse.BucketAction.AbandonAction`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AbandonAction {}

/// `envoy.type.v3.RateLimitStrategy`, without `requests_per_time_unit`, by which Envoy limits nothing.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RateLimitStrategy {
    #[prost(oneof = "Strategy", tags = "1, 3")]
    pub strategy: Option<Strategy>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Strategy {
    #[prost(enumeration = "BlanketRule", tag = "1")]
    BlanketRule(i32),
    #[prost(message, tag = "3")]
    TokenBucket(TokenBucket),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum BlanketRule {
    AllowAll = 0,
    DenyAll = 1,
}

/// `envoy.type.v3.TokenBucket`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TokenBucket {
    #[prost(uint32, tag = "1")]
    pub max_tokens: u32,
    #[prost(message, optional, tag = "2")]
    pub tokens_per_fill: Option<UInt32Value>,
    #[prost(message, optional, tag = "3")]
    pub fill_interval: Option<Duration>,
}
