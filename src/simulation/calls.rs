//! The calls of the rate limit service in a recording.

use super::report::LeftOut;
use super::requests::{Asked, Line, Side};
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::descriptors::{self, DescriptorMode, DescriptorRequest};
use crate::engine::deciding::DecisionSubject;
use crate::engine::request::{DescriptorEntry, Request};
use crate::logs::{Descriptor, Descriptors};
use crate::message::headers::Headers;

impl Side {
    /// The charges of a call, which are decided together.
    pub(super) fn ask_call(
        &self,
        call: &Descriptors<'_>,
        domain: &str,
        now: Micros,
        log: usize,
    ) -> Result<Box<Asked>, LeftOut> {
        let each: Vec<Vec<DescriptorEntry<'_>>> = call.each.iter().map(entries).collect();
        let descriptors: Vec<descriptors::Descriptor<'_>> = call
            .each
            .iter()
            .zip(&each)
            .map(|(recorded, entries)| descriptors::Descriptor { entries, hits: recorded.hits, carried: None })
            .collect();
        let purpose = if call.only_checks { DescriptorMode::Check } else { DescriptorMode::Decide };
        let question = DescriptorRequest { domain, descriptors: &descriptors, purpose, now };
        let headers = Headers::new();
        let requests: Vec<Request<'_>> =
            descriptors.iter().map(|descriptor| question.request(descriptor, &headers)).collect();
        self.asked(&DecisionSubject::Descriptors(&question), &requests, Line { log, lacks: &[], late: &[] }, false)
    }
}

pub(super) fn entries<'a>(descriptor: &'a Descriptor<'_>) -> Vec<DescriptorEntry<'a>> {
    descriptor.entries.iter().map(|(key, value)| DescriptorEntry { key, value }).collect()
}
