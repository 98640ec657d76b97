//! Decides, as a pure computation: no I/O, no clock. Time is an argument.
//!
//! [`rules`] turn a request into charges. [`deciding`] says what a store is to decide, and makes the verdict and what follows of the
//! decisions that [`algorithms`] make. The verdict becomes an [`answer`]. Nothing here waits or fails for a reason outside its arguments, so all of it is tested in microseconds
//! and replayed at will.

pub mod algorithms;
pub mod answer;
pub mod deciding;
pub(crate) mod digest;
pub mod frequent_ids;
pub mod rules;
pub mod stable_hash;
