//! The answer to a request: its verdict, the rate limit headers and the problem body.

pub mod accepted;
mod candidate;
pub mod descriptors;
pub mod headers;
pub mod problem;
pub mod told;
pub mod verdict;

#[cfg(test)]
mod tests;
