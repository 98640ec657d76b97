//! gRPC's health checking protocol, `grpc.health.v1`.

/// Which service is meant.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HealthCheckRequest {
    /// Its full name; empty for the process as a whole.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// How it is.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HealthCheckResponse {
    /// The status.
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// `HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    /// Nothing is known.
    Unknown = 0,
    /// It answers.
    Serving = 1,
    /// It does not want to be asked: it starts or ends.
    NotServing = 2,
    /// There is no such service; only said to one who watches.
    ServiceUnknown = 3,
}

/// Asks for all services.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HealthListRequest {}

/// All services and how they are.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HealthListResponse {
    /// Each by its full name.
    #[prost(message, repeated, tag = "1")]
    pub statuses: Vec<ServiceStatus>,
}

/// An entry of [`HealthListResponse`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ServiceStatus {
    /// The service's full name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// How it is.
    #[prost(message, optional, tag = "2")]
    pub value: Option<HealthCheckResponse>,
}
