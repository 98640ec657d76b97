//! Stands in for traces in a build without the feature `otel`.

use std::time::Instant;

use crate::engine::deciding::verdict::Verdict;
use crate::engine::limit::rules::Rules;
use crate::engine::request;
use crate::message::headers::Headers;
use crate::telemetry::RequestHead;
use crate::telemetry::access_log::UpstreamUse;
use crate::telemetry::denials::IdFormat;
use crate::telemetry::metrics::{DecisionListener, HttpListener, Metrics};

#[derive(Clone, Debug)]
pub enum Traces {}

impl Traces {
    /// Fails if an endpoint is given.
    pub fn start(endpoint: Option<&str>, _: IdFormat, _: &Metrics) -> Result<Option<Self>, String> {
        Self::check(endpoint).map(|()| None)
    }

    pub fn check(endpoint: Option<&str>) -> Result<(), String> {
        let error = "--otlp-endpoint: this binary cannot export traces; build it with `--features otel`";
        if endpoint.is_some() { Err(error.to_owned()) } else { Ok(()) }
    }

    pub fn finish(&self) {}
}

#[derive(Debug)]
pub(crate) struct Trace;

#[expect(clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "the signatures are those with the feature")]
impl Trace {
    pub(crate) const fn begin(_: Option<&Traces>, _: HttpListener, _: &RequestHead, _: bool) -> Self {
        Self
    }

    pub(crate) const fn id(&self) -> Option<u128> {
        None
    }

    pub(crate) const fn decided(
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
