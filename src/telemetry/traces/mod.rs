//! Traces, exported over OpenTelemetry's protocol.
//!
//! A request with a `traceparent` header (W3C Trace Context) continues that trace; others start one if the sampler says so. A
//! sampled request has a span for itself, one for its verdict and, at the proxy, one for the upstream, which receives that
//! span as its parent. The trace headers of requests that are not sampled are forwarded unchanged.
//!
//! Needs the cargo feature `otel`. Without it, a [`Trace`] has no size.

#[cfg(not(feature = "otel"))]
mod absent;
#[cfg(feature = "otel")]
mod export;
#[cfg(feature = "otel")]
mod settings;
#[cfg(feature = "otel")]
mod trace;

#[cfg(not(feature = "otel"))]
pub(crate) use absent::Trace;
#[cfg(not(feature = "otel"))]
pub use absent::Traces;
#[cfg(feature = "otel")]
pub(crate) use trace::Trace;
#[cfg(feature = "otel")]
pub use trace::Traces;
