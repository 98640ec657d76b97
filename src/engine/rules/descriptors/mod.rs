//! Envoy's rate limit service: a domain, and descriptors of ordered entries.

mod metadata;
mod name;
mod plan;
mod rule;
mod tree;

pub use metadata::Metadata;
pub use name::limit_name;
pub use plan::{Descriptor, DescriptorMode, DescriptorRequest, Hits};
pub use rule::{DescriptorRule, PerUnit, RateUnit};
pub use tree::Tree;
