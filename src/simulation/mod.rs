//! Decides the requests of a log by rules, on the log's own clock, and sums up the denials.
//!
//! The charges come from [`Rules`](crate::engine::limit::rules::Rules) and the decisions from the memory store, so a
//! simulation agrees with `weir serve` to the request. One thread reads and decompresses, several parse and match the rules,
//! and one decides in the order of arrival, because the limits of a request are decided together.
//!
//! Memory is bounded: buckets and ids by [`Options::max_keys`], requests that wait for earlier ones by
//! [`order::MOST_HELD`], the [`record`] for [`suggestion`] and [`curve`] by [`record::MOST_CHARGES`], the list of denied ids by [`Options::max_keys`]
//! and [`impact::MOST_DETAILED`].

pub mod against;
mod calls;
mod clients;
pub mod coverage;
pub mod curve;
mod ids;
pub mod impact;
pub mod load;
mod most_denied;
pub mod order;
mod pipeline;
pub mod record;
mod replay;
pub mod report;
mod requests;
pub mod series;
mod settlements;
mod sides;
mod slots;
pub mod suggestion;
mod tally;

pub use pipeline::{Options, run};
