//! Decides, as a pure computation: no I/O, no clock. Time is an argument.
//!
//! Its rooms, each of which imports only those before it: [`algorithms`], [`text`], [`request`], [`limit`], [`charging`], which turns a
//! request into charges, [`deciding`], which says what a store is to decide and makes the verdict of its decisions, [`telling`] and
//! [`answer`]. Nothing here waits or fails for a reason outside its arguments, so all of it is tested in microseconds and replayed at
//! will.

pub mod algorithms;
pub mod answer;
pub mod charging;
pub mod deciding;
pub(crate) mod digest;
pub mod frequent_ids;
pub mod limit;
pub mod request;
pub mod stable_hash;
pub mod telling;
pub mod text;
