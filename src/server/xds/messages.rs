//! The messages of the discovery service (`envoy.service.discovery.v3`) and of the rate limit configuration
//! (`ratelimit.config.ratelimit.v3`). Each has only the fields that are read or written here.

use bytes::Bytes;

use crate::listeners::grpc::messages::{Status, Struct};

/// The type of the resources.
pub(super) const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The method whose stream carries resources of every type.
pub(super) const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// `envoy.service.discovery.v3.DiscoveryRequest`: subscribes, acknowledges or rejects.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DiscoveryRequest {
    /// The last version that was accepted, or empty.
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, optional, tag = "2")]
    pub(super) node: Option<Node>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    /// That of the response which this acknowledges or rejects; empty in the first request of a stream.
    #[prost(string, tag = "5")]
    pub(super) response_nonce: String,
    /// Why the response is rejected.
    #[prost(message, optional, tag = "6")]
    pub(super) error_detail: Option<Status>,
}

/// `envoy.config.core.v3.Node`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Node {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "3")]
    pub(super) metadata: Option<Struct>,
    #[prost(string, tag = "6")]
    pub(super) user_agent_name: String,
}

/// `envoy.service.discovery.v3.DiscoveryResponse`: all resources of a type.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) resources: Vec<Any>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
}

/// `google.protobuf.Any`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Any {
    #[prost(string, tag = "1")]
    pub(super) type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// The descriptors of a domain.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RateLimitConfig {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) domain: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) descriptors: Vec<RateLimitDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RateLimitDescriptor {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(message, optional, tag = "3")]
    pub(super) rate_limit: Option<RateLimitPolicy>,
    #[prost(message, repeated, tag = "4")]
    pub(super) descriptors: Vec<Self>,
    #[prost(bool, tag = "5")]
    pub(super) shadow_mode: bool,
    #[prost(bool, tag = "6")]
    pub(super) detailed_metric: bool,
    #[prost(bool, tag = "7")]
    pub(super) quota_mode: bool,
    #[prost(message, optional, tag = "8")]
    pub(super) metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct RateLimitPolicy {
    /// A `RateLimitUnit`, numbered as in [`crate::listeners::grpc::messages::rate_limit::Unit`].
    #[prost(int32, tag = "1")]
    pub(super) unit: i32,
    #[prost(uint32, tag = "2")]
    pub(super) requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    pub(super) unlimited: bool,
    #[prost(string, tag = "4")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) replaces: Vec<RateLimitReplace>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct RateLimitReplace {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}
