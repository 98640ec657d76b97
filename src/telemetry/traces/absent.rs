//! No traces: what there is in a build without the feature `otel`.

use std::time::Instant;

use crate::engine::answer::verdict::Verdict;
use crate::engine::rules::request;
use crate::engine::rules::rule_set::Rules;
use crate::message::headers::Headers;
use crate::telemetry::RequestHead;
use crate::telemetry::access_log::UpstreamUse;
use crate::telemetry::denials::IdFormat;
use crate::telemetry::metrics::{DecisionListener, HttpListener, Metrics};

/// The traces of the process, of which there are none.
#[derive(Clone, Debug)]
pub enum Traces {}

impl Traces {
    /// Says that there are none to be had, if some are wanted.
    pub fn start(endpoint: Option<&str>, _: IdFormat, _: &Metrics) -> Result<Option<Self>, String> {
        match endpoint {
            None => Ok(None),
            Some(_) => {
                Err("--otlp-endpoint: this binary exports no traces; build it with `--features otel`".to_owned())
            }
        }
    }

    /// Ends the export.
    pub fn finish(&self) {}
}

/// The trace of a request.
#[derive(Debug)]
pub(crate) struct Trace;

#[expect(clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "it stands for one that does something")]
impl Trace {
    pub(crate) const fn begin(_: Option<&Traces>, _: HttpListener, _: &RequestHead, _: bool) -> Self {
        Self
    }

    pub(crate) const fn id(&self) -> Option<u128> {
        None
    }

    pub(crate) const fn judged(
        &mut self,
        _: &Rules,
        _: &Verdict,
        _: DecisionListener,
        _: Instant,
        _: Option<&request::Request<'_>>,
    ) {
    }

    pub(crate) const fn called(&mut self, _: &str, _: &'static str) {}

    pub(crate) const fn pass_on(&mut self, _: &mut Headers) {}

    pub(crate) const fn began(&self) -> Option<Instant> {
        None
    }

    pub(crate) const fn answered(&mut self, _: u16, _: bool, _: Option<&UpstreamUse>) {}
}
