//! The rules in force: limits, overrides, and how a request becomes charges.

pub mod blocks;
pub mod by;
pub mod descriptors;
pub mod duration;
pub mod fingerprint;
pub mod glob;
pub mod ids;
pub mod index;
pub mod inputs;
pub mod inspect;
pub mod key;
pub mod limit;
pub mod matching;
pub mod named;
pub mod overrides;
pub mod quote;
mod renumber;
pub mod request;
pub mod response_cost;
pub mod rule_set;
pub mod suggest;
pub mod value_type;
