//! What Weir reports about itself: metrics, the access log, traces and the log of denials.

pub mod access_log;
pub mod denials;
pub mod http_counters;
pub mod metrics;
pub mod traces;
