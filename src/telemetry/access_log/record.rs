//! A request in the access log.

use std::net::IpAddr;
use std::time::Duration;

use http::{Method, Version};

use super::parts::LoggedHeader;
use crate::engine::algorithms::decision::Detail;
use crate::engine::algorithms::micros::Micros;
use crate::engine::answer::accepted;
use crate::engine::deciding::candidate::CandidateDecision;
use crate::engine::deciding::verdict::Verdict;
use crate::engine::limit::rules::Rules;
use crate::message::connection::{Cut, UpstreamFailure};
use crate::message::trace_context::TraceContext;
use crate::telemetry::RequestHead;
use crate::telemetry::metrics::DecisionResult;
use crate::telemetry::summary::Summary;

/// The upstream's part in a response.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamUse {
    /// The last address that was tried.
    pub(crate) address: String,
    /// From the first attempt to the response's headers, or to the failure.
    pub(crate) time: Duration,
    pub(crate) attempts: u32,
}

/// A request and its response. Bytes are as the client sent them. It has no ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// The time at which the request's headers had arrived.
    pub(crate) received: Micros,
    /// The client's address for limits; `None` if a load balancer did not name the client.
    pub(crate) client: Option<IpAddr>,
    /// The subject of the client's certificate.
    pub(crate) subject: Option<Box<str>>,
    /// `None` if the head is malformed.
    pub(crate) method: Option<Method>,
    /// `None` if the head is malformed.
    pub(crate) target: Option<Box<str>>,
    pub(crate) version: Version,
    pub(crate) host: Option<Box<[u8]>>,
    pub(crate) referer: Option<Box<[u8]>>,
    pub(crate) user_agent: Option<Box<[u8]>>,
    pub(crate) request_id: Option<Box<[u8]>>,
    pub(crate) trace_id: Option<u128>,
    /// 0 until there is a response.
    pub(crate) status: u16,
    /// Bytes of the response's body that went to the client.
    pub(crate) sent: u64,
    /// Until the end of the response.
    pub(crate) duration: Duration,
    pub(crate) upstream: Option<UpstreamUse>,
    /// Set if the upstream failed.
    pub(crate) upstream_error: Option<UpstreamFailure>,
    /// The cause of the response's early end.
    pub(crate) cut: Option<Cut>,
    /// `None` if the request was rejected before the limits were asked.
    pub(crate) result: Option<DecisionResult>,
    /// The name of the limit that binds.
    pub(crate) limit: Option<Box<str>>,
    /// The tokens, slots or entries left of that limit.
    pub(crate) remaining: Option<u64>,
    /// The time for which the request was held.
    pub(crate) delay: Micros,
    /// The [labels](crate::engine::limit::candidate::Candidate::label) of candidates that would have denied the request.
    pub(crate) candidate_denied: Vec<Box<str>>,
    /// The id of the entry that was added to a queue.
    pub(crate) entry: Option<Box<str>>,
    /// The values that scripts returned for the log.
    pub(crate) script_output: Vec<Box<str>>,
    /// The headers that rules read, if the log has them.
    pub(crate) headers: Vec<LoggedHeader>,
    /// Why the head is malformed.
    pub(crate) rejected: Option<Box<str>>,
}

impl Record {
    pub(crate) fn new(received: Micros, client: Option<IpAddr>, subject: Option<&str>, request: &RequestHead) -> Self {
        let value = |name| request.headers.get(name).map(Box::from);
        Self {
            received,
            client,
            subject: subject.map(Box::from),
            method: Some(request.method.clone()),
            target: Some(request.target.into()),
            version: request.version,
            host: value("host"),
            referer: value("referer"),
            user_agent: value("user-agent"),
            request_id: value("x-request-id"),
            trace_id: TraceContext::of(request.headers).map(|context| context.trace_id),
            ..Self::default()
        }
    }

    /// Adds the verdict.
    pub(crate) fn decided(&mut self, rules: &Rules, verdict: &Verdict) {
        let Summary { result, limit, answer } = Summary::of(verdict);
        self.result = Some(result);
        self.limit = limit.and_then(|limit| rules.limit(limit)).map(|limit| limit.name.as_str().into());
        self.remaining = answer.filter(|answer| !answer.is_script()).map(|answer| answer.decision.remaining);
        self.delay = verdict.delay();
        let denying = verdict.candidate_decisions().filter(|decision| decision.is_denied);
        let label = |CandidateDecision { limit, candidate, .. }| {
            Some(rules.candidate(limit, candidate)?.label(rules.name(limit)).into())
        };
        self.candidate_denied = denying.filter_map(label).collect();
        self.entry = accepted::entries(rules, verdict).next().map(|(_, id)| id.as_str().into());
        let extras = verdict.details.iter().filter_map(|(_, detail)| match detail {
            Detail::Script(output) => Some(output.extras.iter()),
            _ => None,
        });
        self.script_output = extras.flatten().map(|extra| extra.as_str().into()).collect();
    }
}
