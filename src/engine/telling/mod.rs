//! Facts about rules for people: the limits that cover a request and the reasons of the others, the contents of a bucket, and limits
//! that share requests under different hash tags. And the order of limits: which one is stricter, and which one covers more.

pub mod bucket_info;
pub(crate) mod coverage;
pub mod explanation;
pub mod order;
pub mod reasons;
pub mod tag_groups;
