//! Traces: what became of a request, as spans of the trace that it belongs to, by OpenTelemetry's protocol.
//!
//! A request that says in `traceparent` which trace it belongs to (W3C Trace Context) goes on with it, and one that does not
//! begins one, as the sampler says. Of those that are sampled there is a span for the request, one for the decision of its
//! limits and, at the proxy, one for the upstream, which is told that span as its parent. Of all others there is none, and
//! what they say of their trace is passed on untouched.
//!
//! All of it is behind the cargo feature `otel`; without it there is nothing to start, and a [`Trace`] has no size.

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
