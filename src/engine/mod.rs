//! Deciding, as a pure computation: no input, no output, no clock. Time is an argument.
//!
//! A request becomes charges ([`rules`]), a store applies [`meter::decide`] or [`content::decide`] to each of them, and the
//! decisions become a [`verdict`] and a [`reply`]. Nothing in here can wait or fail for a reason outside its arguments, so all of it is
//! tested in microseconds and replayed at will.

pub mod accept;
pub mod address;
pub mod blocks;
pub mod calendar;
pub mod charge;
pub mod client_address;
pub mod content;
pub mod descriptors;
pub mod domain;
pub mod duration;
pub mod elevated;
pub mod equip;
pub mod fields;
pub mod fingerprint;
pub mod form;
pub mod glob;
pub mod id;
pub mod identity;
pub mod index;
pub mod inspect;
pub mod key;
pub mod limit;
pub mod log;
mod look;
pub mod lossless;
pub mod matching;
pub mod meter;
pub mod named;
pub mod numbers;
pub mod overrides;
pub mod path;
pub mod queue;
pub mod quote;
pub mod refill;
mod renumber;
pub mod reply;
pub mod request;
pub mod response_cost;
pub mod rules;
pub mod script;
pub mod settle;
pub mod sliding;
pub mod slots;
pub mod suggest;
pub mod target;
pub mod terms;
pub mod trace_context;
pub mod underscores;
pub mod verdict;
mod window;
