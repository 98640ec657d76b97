//! Traces, exported over OpenTelemetry's protocol.
//!
//! A request with a `traceparent` header (W3C Trace Context) continues that trace; others start one if the sampler says so. A
//! sampled request has a span for itself, one for its verdict and, at the proxy, one for the upstream, which receives that
//! span as its parent. The trace headers of requests that are not sampled are forwarded unchanged.

mod export;
mod settings;
mod trace;

pub(crate) use trace::Trace;
pub use trace::Traces;
