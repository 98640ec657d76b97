//! gRPC's health checking protocol, `grpc.health.v1`.

/// Asks for a service.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HealthCheckRequest {
    /// The full name; empty for the process.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// The status of a service.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// `HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    /// The process starts or drains.
    NotServing = 2,
    /// Only sent to watches.
    ServiceUnknown = 3,
}

/// Asks for all services.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HealthListRequest {}

/// The statuses of all services.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HealthListResponse {
    #[prost(message, repeated, tag = "1")]
    pub statuses: Vec<ServiceStatus>,
}

/// An entry of [`HealthListResponse`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ServiceStatus {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<HealthCheckResponse>,
}
