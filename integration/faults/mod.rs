//! Faults of the store while several gateways share it.

mod groups;
