//! The methods of the listener, their counters, and the bound on streams.

use std::rc::Rc;

use super::protocol::{Code, Status};
pub(super) use crate::telemetry::metrics::GrpcMethod as Method;
use crate::telemetry::metrics::Metrics;

/// The services that the health service knows.
pub(super) const SERVICES: [&str; 5] = [
    "envoy.service.auth.v3.Authorization",
    "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
    "envoy.service.ratelimit.v3.RateLimitService",
    "grpc.health.v1.Health",
    "kuadrant.service.ratelimit.v1.RateLimitService",
];

/// Concurrent streams per worker: watches of the health service and reports of usage. A gateway needs one of each.
const MAX_STREAMS: usize = 256;

impl Method {
    pub(super) fn of(path: &str) -> Self {
        match path {
            "/envoy.service.auth.v3.Authorization/Check" => Self::Check,
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => Self::ShouldRateLimit,
            "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas" => {
                Self::StreamRateLimitQuotas
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit" => Self::CheckRateLimit,
            "/kuadrant.service.ratelimit.v1.RateLimitService/Report" => Self::Report,
            "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve" => Self::Reserve,
            "/kuadrant.service.ratelimit.v1.RateLimitService/Commit" => Self::Commit,
            "/grpc.health.v1.Health/Check" => Self::HealthCheck,
            "/grpc.health.v1.Health/List" => Self::HealthList,
            "/grpc.health.v1.Health/Watch" => Self::HealthWatch,
            _ => Self::Unknown,
        }
    }

    /// Counts a call. A stream is counted when it begins.
    pub(super) fn count(self, code: Code, metrics: &Metrics) {
        metrics.listeners.grpc_calls[self][code].inc();
    }
}

/// A worker's open streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    open: Rc<()>,
}

/// Counts an open stream until it is dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    _open: Rc<()>,
}

impl Streams {
    pub(super) fn begin(&self) -> Result<StreamPermit, Status> {
        if Rc::strong_count(&self.open) > MAX_STREAMS {
            return Err(Status::new(Code::ResourceExhausted, "too many open streams; retry later"));
        }
        Ok(StreamPermit { _open: self.open.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::tests::files;
    use super::*;

    #[test]
    fn every_declared_service_and_method_is_there() {
        let (mut services, mut methods) = (Vec::new(), 0);
        for file in files().file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                for method in &service.method {
                    let path = format!("/{name}/{}", method.name());
                    assert_ne!(Method::of(&path), Method::Unknown, "{path}");
                    methods += 1;
                }
                services.push(name);
            }
        }
        services.sort();
        assert_eq!(services, SERVICES);
        assert_eq!(methods, Method::ALL.len() - 1);
        assert_eq!(Method::of("/grpc.health.v1.Health/Nothing"), Method::Unknown);
    }

    #[test]
    fn each_method_and_code_has_a_counter() {
        let metrics = Metrics::new().unwrap();
        Method::HealthWatch.count(Code::ResourceExhausted, &metrics);
        Method::Unknown.count(Code::Unimplemented, &metrics);
        let text = String::from_utf8(metrics.render().unwrap()).unwrap();
        for line in [
            "weir_grpc_calls_total{code=\"resource_exhausted\",method=\"health_watch\"} 1",
            "weir_grpc_calls_total{code=\"unimplemented\",method=\"unknown\"} 1",
            "weir_grpc_calls_total{code=\"ok\",method=\"check\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        let series = text.lines().filter(|line| line.starts_with("weir_grpc_calls_total{")).count();
        assert_eq!(series, Method::ALL.len() * Code::ALL.len(), "two share a counter");
    }

    #[test]
    fn calls_that_last_are_bounded() {
        let streams = Streams::default();
        let mut open: Vec<_> = (0..MAX_STREAMS).map(|_| streams.begin().unwrap()).collect();
        assert_eq!(streams.begin().unwrap_err().code, Code::ResourceExhausted);
        open.pop();
        assert!(streams.begin().is_ok());
    }
}
