//! The effect of each limit on a request, for `weir explain`.

use std::borrow::Cow;

use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::request_cost::cost;
use crate::engine::charging::terms::Terms;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::blocks::Blocks;
use crate::engine::limit::identity::{IdError, Lacking, describe, readable};
use crate::engine::limit::ids;
use crate::engine::limit::matching::Mismatch;
use crate::engine::limit::overrides::{OverrideLookup, OverrideOrigin};
use crate::engine::limit::rules::{Rules, is_enforced_without_id};
use crate::engine::limit::{Limit, LimitMode};
use crate::engine::request::Request;
use crate::engine::request::part::{Part, PartError};
use crate::message::lossless::shown;

/// The effect of one limit on a request.
#[derive(Debug)]
pub enum Explanation {
    Off,
    Unmatched(Mismatch),
    /// Another rule of the domain matches the descriptor more specifically.
    Outranked,
    /// It has nothing about descriptors, and the request has nothing else.
    Undescribed,
    /// The request has no id and is not charged.
    NoId(IdError),
    Applies {
        /// By part.
        id: Vec<Result<String, PartError>>,
        /// `Name:id`, as operators and overrides write it; `None` if the id lacks a part.
        bucket: Option<String>,
        allowance: Allowance,
        candidate: CandidateUse,
        /// The origin of the override that the allowance is from.
        given_by: Option<OverrideOrigin>,
        cost: u64,
        /// True if the limit can deny this id.
        enforced: bool,
        /// The time for which an operator has blocked the id from now on.
        blocked: Option<Micros>,
        /// The part that the request lacks, if the limit denies it for that.
        denied_for: Option<IdError>,
    },
}

/// The part of a limit's candidate in the decision on an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CandidateUse {
    /// The limit has none, or the id has an override.
    None,
    /// It is decided beside the limit's numbers.
    Beside(Allowance),
    /// The id is in the share of ids that have its numbers.
    Enforced,
}

impl Rules {
    /// Returns how each limit applies to `request`, in the order of the files.
    pub fn explain(&self, request: &Request<'_>, blocks: Option<&Blocks>) -> Vec<Explanation> {
        let candidates = self.candidates(request);
        let explain = |(place, limit): (u32, &Limit)| {
            let explanation = self.explain_limit(place, limit, request, blocks);
            let applies =
                matches!(&explanation, Explanation::Applies { allowance, .. } if *allowance != Allowance::Disabled);
            let is_whole = limit.conditions.is_whole;
            match applies && !candidates.contains(&place) {
                true if is_whole => Explanation::Outranked,
                true => Explanation::Undescribed,
                false => explanation,
            }
        };
        (0..).zip(self.limits()).map(explain).collect()
    }

    fn explain_limit(&self, place: u32, limit: &Limit, request: &Request<'_>, blocks: Option<&Blocks>) -> Explanation {
        if limit.mode == LimitMode::Off {
            return Explanation::Off;
        }
        if let Err(mismatch) = limit.conditions.check(request) {
            return Explanation::Unmatched(mismatch);
        }
        let id = describe(&limit.by, request);
        let text = readable(&id);
        let shown = |part: Result<Cow<'_, str>, PartError>| part.map(|text| shown(&text).into_owned());
        let bucket = limit.bucket_name(&id);
        let id = id.into_iter().map(shown).collect();
        let identified = match self.identify(limit, request, blocks.is_some() || self.has_overrides(place, limit)) {
            Ok(identified) => identified,
            Err(error) if error.is_denied => {
                return Explanation::Applies {
                    id,
                    bucket,
                    allowance: Allowance::Deny,
                    candidate: CandidateUse::None,
                    given_by: None,
                    cost: cost(limit, request).unwrap_or(limit.cost_fallback.default),
                    enforced: is_enforced_without_id(limit, request),
                    blocked: None,
                    denied_for: Some(error),
                };
            }
            Err(error) => return Explanation::NoId(error),
        };
        let text = || text.clone();
        let id_lookup =
            OverrideLookup { prefixes: &identified.prefixes, client: request.client, text: &text, now: request.now };
        let terms = self.terms(place, limit, identified.bucket, &id_lookup, blocks);
        let Terms { allowance, given, enforced, blocked, .. } = terms;
        let candidate = match (terms.candidate, &limit.candidate) {
            (Some(beside), _) => CandidateUse::Beside(beside.allowance.clone()),
            (None, Some(_)) if given.is_none() => CandidateUse::Enforced,
            (None, _) => CandidateUse::None,
        };
        let cost = cost(limit, request);
        let denies = allowance.windows().is_some();
        let denied_for = cost.err().filter(|_| denies);
        Explanation::Applies {
            allowance: if denied_for.is_some() { Allowance::Deny } else { allowance.clone() },
            candidate: if denied_for.is_some() { CandidateUse::None } else { candidate },
            given_by: given.map(|given| given.origin.clone()).filter(|_| denied_for.is_none()),
            cost: cost.unwrap_or(limit.cost_fallback.default),
            enforced,
            blocked,
            id,
            bucket,
            denied_for: denied_for.map(|reason| IdError { lacking: Lacking::Cost, reason, is_denied: true }),
        }
    }
}

impl Limit {
    fn bucket_name(&self, id: &[Result<Cow<'_, str>, PartError>]) -> Option<String> {
        let mut name = self.name.clone();
        for (part, text) in self.by.iter().zip(id) {
            let text = text.as_ref().ok()?;
            name.push(':');
            match part.part {
                Part::Ip { .. } => name.push_str(text),
                _ => name.push_str(&ids::written(part, text, self.by.len() > 1)),
            }
        }
        Some(name)
    }
}

impl IdError {
    /// The setting that denies the request.
    pub const fn setting(&self) -> &'static str {
        match (self.lacking, self.reason) {
            (Lacking::Cost, PartError::Missing) => "`missing: deny` of the cost",
            (Lacking::Cost, PartError::Malformed) => "`malformed: deny` of the cost",
            (_, PartError::Missing) => "`missing: deny`",
            (_, PartError::Malformed) => "`malformed: deny`",
        }
    }
}
