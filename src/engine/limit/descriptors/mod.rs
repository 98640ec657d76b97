//! Limits for descriptors of Envoy's rate limit service: a domain, and ordered entries.

mod rule;
mod tree;

pub use rule::{DescriptorRule, Metadata, PerUnit, RateUnit, limit_name};
pub use tree::Tree;
