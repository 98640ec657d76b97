//! What rules tell people: which limits cover a request and why the others do not, what a bucket holds, which limits share tags.

pub mod bucket_info;
pub mod explanation;
pub mod reasons;
mod tag_groups;
