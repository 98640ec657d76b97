//! The numbers of a limit that a request brings: a verified claim, or a header that a trusted gateway sets.

use crate::engine::algorithms::numbers::Numbers;
use crate::engine::request::part::{Part, PartError};
use crate::engine::request::path_pattern::PathReading;
use crate::engine::request::value_type::{ValueType, lenient};
use crate::engine::request::{Duplicates, Request};

/// The numbers of a limit that are in requests. The others, and those of requests without them, are the limit's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestNumbers {
    /// Also the capacity of a limit on requests in flight.
    pub burst: Option<NumberSource>,
    pub count: Option<NumberSource>,
    /// True if the burst is the count.
    pub burst_is_count: bool,
}

/// The part of a request that has a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberSource {
    pub part: Part,
    /// A larger number is taken for this one.
    pub at_most: u64,
}

label! {
    /// The outcome of reading a request's numbers: the label `result` of `weir_request_numbers_total`.
    pub enum RequestNumbersResult {
        Given = "given",
        /// A number above `at_most`.
        Capped = "capped",
        Missing = "missing",
        /// Not a whole number of at least 1, or a claim of a token that is not valid.
        Malformed = "malformed",
    }
}

impl RequestNumbers {
    /// The sources, each with the key that has it.
    pub fn sources(&self) -> impl Iterator<Item = (&'static str, &NumberSource)> {
        let count = self.count.iter().map(|source| ("count", source));
        self.burst.iter().map(|source| ("burst", source)).chain(count)
    }

    pub fn sources_mut(&mut self) -> impl Iterator<Item = &mut NumberSource> {
        self.burst.iter_mut().chain(&mut self.count)
    }

    /// Returns the numbers for a request in place of `own`, and the worst result of its parts. `None` if they are `own`.
    pub(crate) fn read(&self, own: &Numbers, request: &Request<'_>) -> (Option<Numbers>, RequestNumbersResult) {
        let mut result = RequestNumbersResult::Given;
        let mut read = |source: &Option<NumberSource>| {
            let (number, found) = source.as_ref()?.read(request);
            if found as usize > result as usize {
                result = found;
            }
            number
        };
        let (burst, count) = (read(&self.burst), read(&self.count));
        if burst.is_none() && count.is_none() {
            return (None, result);
        }
        match self.resized(own, burst, count) {
            Some(numbers) => (Some(numbers), result),
            None => (None, RequestNumbersResult::Malformed),
        }
    }

    /// The numbers of a request with these. `None` if a limit cannot have them.
    pub fn resized(&self, own: &Numbers, burst: Option<u64>, count: Option<u64>) -> Option<Numbers> {
        let count = count.unwrap_or(own.count());
        let burst = burst.unwrap_or(if self.burst_is_count { count } else { own.burst() });
        own.resized(burst, count).ok()
    }
}

impl NumberSource {
    fn read(&self, request: &Request<'_>) -> (Option<u64>, RequestNumbersResult) {
        let text = match self.part.text(request, Duplicates::Ambiguous, PathReading::default()) {
            Ok(text) => text,
            Err(PartError::Missing) => return (None, RequestNumbersResult::Missing),
            Err(PartError::Malformed) => return (None, RequestNumbersResult::Malformed),
        };
        let number = lenient(ValueType::Integer, &text).and_then(|number| number.parse::<u64>().ok());
        let is_beyond = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match number.filter(|number| *number > 0) {
            // More than 64 bits hold.
            None if number.is_none() && is_beyond(text.trim()) => (Some(self.at_most), RequestNumbersResult::Capped),
            None => (None, RequestNumbersResult::Malformed),
            Some(number) if number > self.at_most => (Some(self.at_most), RequestNumbersResult::Capped),
            Some(number) => (Some(number), RequestNumbersResult::Given),
        }
    }
}

impl std::fmt::Display for NumberSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { part, at_most } = self;
        write!(f, "the {} `{}`, at most {at_most}", part.word(), part.name().unwrap_or_default())
    }
}
