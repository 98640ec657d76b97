//! Envoy's rate limit service: a domain, and descriptors of ordered entries.

mod plan;
mod rule;
mod tree;

pub use plan::{ChargedAfterwards, Descriptor, DescriptorMode, DescriptorRequest, Hits};
pub use rule::{DescriptorRule, Metadata, PerUnit, RateUnit, limit_name};
pub use tree::Tree;
