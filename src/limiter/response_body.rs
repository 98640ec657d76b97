//! Reads costs out of the bodies of responses on their way to the client.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::limit::response_cost::CostSource;
use crate::engine::request::body_cost::{BodyCost, BodyForm, CostReader, UnreadBody};
use crate::message::headers::Headers;
use crate::telemetry::metrics::{Metrics, UninspectedBody};

/// Reads what the limits of a request need of its response's body.
pub(super) struct ResponseBody {
    /// One for each place of a cost, however many limits read it.
    readers: Vec<(BodyCost, CostReader)>,
    /// The costs, once the body has ended.
    costs: Vec<(BodyCost, Option<String>)>,
    bytes: u64,
    /// `bytes`, once the body has ended.
    counted: String,
}

/// Remembers which kinds of bodies that cannot be read were logged.
#[derive(Debug, Default)]
pub(super) struct UninspectedLog {
    encoded: AtomicBool,
    other_type: AtomicBool,
}

impl ResponseBody {
    /// Returns `None` if no source is in the body.
    pub(super) fn new<'s>(
        sources: impl Iterator<Item = &'s CostSource>,
        headers: &Headers,
        metrics: &Metrics,
        log: &UninspectedLog,
    ) -> Option<Box<Self>> {
        let (mut needed, mut counts) = (Vec::<&BodyCost>::new(), false);
        for source in sources {
            match source {
                CostSource::Header(_) | CostSource::RequestBytes => {}
                CostSource::Bytes => counts = true,
                CostSource::Body(cost) if needed.contains(&cost) => {}
                CostSource::Body(cost) => needed.push(cost),
            }
        }
        if needed.is_empty() && !counts {
            return None;
        }
        let mut readers = Vec::new();
        if !needed.is_empty() {
            match BodyForm::of(headers) {
                Ok(form) => readers.extend(needed.iter().map(|cost| ((*cost).clone(), CostReader::new(cost, form)))),
                Err(reason) => log.add(reason, headers, metrics),
            }
        }
        Some(Box::new(Self { readers, costs: Vec::new(), bytes: 0, counted: String::new() }))
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        for (_, reader) in &mut self.readers {
            reader.push(bytes);
        }
    }

    /// The body has ended, or the client has left.
    pub(super) fn finish(&mut self) {
        self.counted = self.bytes.to_string();
        self.costs = self.readers.drain(..).map(|(cost, mut reader)| (cost, reader.finish())).collect();
    }

    /// The cost at a source. Must be called after [`Self::finish`].
    pub(super) fn cost(&self, source: Option<&CostSource>) -> Option<&[u8]> {
        match source? {
            CostSource::Header(_) | CostSource::RequestBytes => None,
            CostSource::Bytes => Some(self.counted.as_bytes()),
            CostSource::Body(cost) => {
                let (_, told) = self.costs.iter().find(|(other, _)| other == cost)?;
                told.as_deref().map(str::as_bytes)
            }
        }
    }
}

impl UninspectedLog {
    /// Counts a body that is not read, and logs the first of its kind.
    fn add(&self, reason: UnreadBody, headers: &Headers, metrics: &Metrics) {
        let (label, logged, help) = match reason {
            UnreadBody::Encoded => (
                UninspectedBody::ResponseEncoded,
                &self.encoded,
                "the upstream compresses it although Weir asks for `identity`; turn compression off there",
            ),
            UnreadBody::OtherType => (
                UninspectedBody::ResponseType,
                &self.other_type,
                "costs are read from `application/json`, `+json` and `text/event-stream`",
            ),
        };
        metrics.listeners.uninspected_bodies[label].inc();
        if !logged.swap(true, Ordering::Relaxed) {
            let encoding = headers.text("content-encoding");
            let kind = headers.text("content-type");
            tracing::warn!(encoding, "type" = kind, help, "a response's body is not read, so it has no readable cost");
        }
    }
}
