//! The memory of answers, which a worker uses for one after the other.

use bytes::Bytes;
use prost::Message;

use super::messages::Memory;
use super::messages::rate_limit::RateLimitResponse;
use super::protocol::frame;
use crate::message::headers::Headers;

#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The answer of the rate limit service.
    pub(super) rate_limit: RateLimitResponse,
    /// Headers for the client.
    pub(super) headers: Headers,
    pub(super) memory: Memory,
}

impl Answers {
    /// Empties what answers are written to. The text of the last one is gone once its message has been sent.
    pub(super) fn clear(&mut self) {
        self.rate_limit.clear();
        self.headers.clear();
    }

    /// Returns the answer of the rate limit service with its prefix.
    pub(super) fn rate_limit(&mut self) -> Bytes {
        let frame = frame(&self.rate_limit, &mut self.memory);
        self.clear();
        frame
    }
}
