//! Flags for limits with `delay`.

use std::time::Duration;

use super::store_flags::parse_at_least_one;
use super::values::parse_duration_or_zero;
use crate::limiter::{DEFAULT_MAX_DELAYED, DelayBounds};

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Delay")]
pub(super) struct DelayArgs {
    /// Requests that each worker may hold for limits with `delay`, a quarter of them for one id; beyond that, requests that do not
    /// fit are denied
    #[arg(long, value_name = "N", env = "WEIR_MAX_DELAYED", default_value_t = DEFAULT_MAX_DELAYED, value_parser = parse_at_least_one)]
    max_delayed: usize,

    /// Longest time that the check and gRPC listeners hold an answer for limits with `delay` if the call has no `grpc-timeout`. Must be
    /// below the gateway's timeout
    #[arg(long, value_name = "DURATION", env = "WEIR_MAX_ANSWER_DELAY", default_value = "0s", value_parser = parse_duration_or_zero)]
    max_answer_delay: Duration,
}

impl DelayArgs {
    pub(super) fn bounds(&self) -> DelayBounds {
        DelayBounds { most: self.max_delayed, answers: self.max_answer_delay }
    }
}
