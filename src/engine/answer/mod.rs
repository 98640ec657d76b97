//! The answer to a request: the rate limit headers and the problem body.

pub mod accepted;
pub mod headers;
pub mod problem;
pub mod told;

#[cfg(test)]
mod tests;
