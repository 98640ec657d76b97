//! What Weir reports about itself: metrics, the access log and traces.

pub mod access_log;
pub mod http_counters;
pub mod metrics;
pub mod traces;
