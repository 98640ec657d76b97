//! The effect of each limit on a request, for `weir explain`.

use std::borrow::Cow;
use std::sync::Arc;

use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::request_cost::cost;
use crate::engine::charging::terms::Terms;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::blocks::Blocks;
use crate::engine::limit::candidate::Candidate;
use crate::engine::limit::identity::{IdError, Lacking, describe};
use crate::engine::limit::ids;
use crate::engine::limit::matching::Mismatch;
use crate::engine::limit::overrides::OverrideOrigin;
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
    /// It does not cover the request, but its ban of the id does, for so long.
    Banned(Micros),
    /// The exemption, with its place and comment.
    Exempt(String),
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
        /// Empty if the id has an override.
        candidates: Vec<CandidateUse>,
        /// The origin of the override that the allowance is from.
        given_by: Option<OverrideOrigin>,
        cost: u64,
        /// True if the limit can deny this id.
        enforced: bool,
        /// The time for which the id is blocked from now on, by an operator or a ban.
        blocked: Option<Micros>,
        /// The part that the request lacks, if the limit denies it for that.
        denied_for: Option<IdError>,
    },
}

/// The part of a candidate in the decision on an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateUse {
    pub name: Option<Arc<str>>,
    pub allowance: Allowance,
    /// True if the id has its numbers in place of the limit's; otherwise it is decided beside those that the id has.
    pub is_in_force: bool,
}

impl Explanation {
    /// Returns how each limit applies to `request`, in the order of the files.
    pub fn of_limits(rules: &Rules, request: &Request<'_>, blocks: Option<&Blocks>) -> Vec<Self> {
        let candidates = rules.candidates(request);
        let exempt = rules.exemptions_met(request);
        let banned = blocks.map(|blocks| rules.bans_elsewhere(request, blocks)).unwrap_or_default();
        let explain = |(place, limit): (u32, &Limit)| {
            let is_candidate = candidates.contains(&place);
            if is_candidate
                && limit.conditions.check(request).is_ok()
                && let Some((index, exemption)) = exempt.as_ref().and_then(|met| met.from(place))
            {
                let comment = exemption.origin.comment.as_ref().map(|text| format!(" ({text})")).unwrap_or_default();
                return Self::Exempt(format!("exempt[{index}] at {}{comment}", rules.place_of(&exemption.origin)));
            }
            let explanation = Self::of_limit(rules, place, limit, request, blocks.filter(|_| is_candidate));
            let applies = matches!(&explanation, Self::Applies { allowance, .. } if *allowance != Allowance::Disabled);
            match applies && !is_candidate {
                _ if let Some((_, left)) = banned.iter().find(|(banned, _)| *banned == place) => Self::Banned(*left),
                true if limit.conditions.is_whole => Self::Outranked,
                true => Self::Undescribed,
                false => explanation,
            }
        };
        (0..).zip(rules.limits()).map(explain).collect()
    }

    fn of_limit(rules: &Rules, place: u32, limit: &Limit, request: &Request<'_>, blocks: Option<&Blocks>) -> Self {
        if limit.mode == LimitMode::Off {
            return Self::Off;
        }
        if let Err(mismatch) = limit.conditions.check(request) {
            return Self::Unmatched(mismatch);
        }
        let terms = match Terms::of_request(rules, place, limit, request, blocks) {
            Err(error) if !error.is_denied => return Self::NoId(error),
            terms => terms,
        };
        let cost = cost(limit, request);
        let lacks_cost = |reason| IdError { lacking: Lacking::Cost, reason, is_denied: true };
        let denied_for = match &terms {
            Ok(terms) => cost.err().filter(|_| terms.allowance.windows().is_some()).map(lacks_cost),
            Err(error) => Some(*error),
        };
        let terms_in_force = terms.as_ref().ok().filter(|_| denied_for.is_none());
        let parts = describe(&limit.by, request);
        let text = |part: &Result<Cow<'_, str>, PartError>| {
            part.as_ref().map(|text| shown(text).into_owned()).map_err(|error| *error)
        };
        Self::Applies {
            id: parts.iter().map(text).collect(),
            bucket: limit.bucket_name(&parts),
            allowance: terms_in_force.map_or(Allowance::Deny, |terms| terms.allowance_of(request)),
            candidates: terms_in_force.map(CandidateUse::of).unwrap_or_default(),
            given_by: terms_in_force.and_then(|terms| terms.given).map(|given| given.origin.clone()),
            cost: cost.unwrap_or(limit.cost_fallback.default),
            enforced: terms.as_ref().map_or_else(|_| is_enforced_without_id(limit, request), |terms| terms.enforced),
            blocked: terms.as_ref().ok().and_then(|terms| terms.blocked),
            denied_for,
        }
    }
}

impl CandidateUse {
    fn of(terms: &Terms<'_>) -> Vec<Self> {
        let of = |(_, candidate, is_in_force): (_, &Candidate, _)| {
            let Candidate { name, allowance, .. } = candidate;
            Self { name: name.clone(), allowance: allowance.clone(), is_in_force }
        };
        terms.candidates.each().map(of).collect()
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::algorithms::algorithm::Algorithm;
    use crate::engine::algorithms::charge::ChargeOrigin;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::charging::plan::{DenialReason, Plan};
    use crate::engine::limit::blocks::Block;
    use crate::engine::limit::candidate::Candidate;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::identity::Fallback;
    use crate::engine::limit::ids::Id;
    use crate::engine::limit::overrides::Override;
    use crate::engine::limit::{Cost, CostFallback, WHOLE_SHARE};
    use crate::engine::request::part::TypedPart;
    use crate::engine::request::sample;
    use crate::engine::request::value_type::ValueType;

    const HASH: Fingerprinter = Fingerprinter::new((3, 4));

    fn windows(bursts: &[u64]) -> Allowance {
        Allowance::Windows(bursts.iter().map(|burst| Numbers::new(*burst, 1, 1_000_000_000).unwrap()).collect())
    }

    fn allowance() -> impl Strategy<Value = Allowance> {
        let kinds = [windows(&[5]), windows(&[6, 7]), Allowance::Deny, Allowance::Unlimited, Allowance::Disabled];
        proptest::sample::select(kinds.to_vec())
    }

    fn fallback() -> impl Strategy<Value = Fallback> {
        proptest::sample::select(vec![Fallback::Skip, Fallback::Deny, Fallback::Shared])
    }

    fn share() -> impl Strategy<Value = u32> {
        proptest::sample::select(vec![0, WHOLE_SHARE / 2, WHOLE_SHARE])
    }

    fn cost_settings() -> impl Strategy<Value = (Cost, CostFallback)> {
        let from_header = Cost::Part(Part::Header("x-cost".parse().unwrap()));
        let costs = proptest::sample::select(vec![Cost::Fixed(2), from_header]);
        (costs, any::<(bool, bool)>()).prop_map(|(cost, (denies_missing, denies_malformed))| {
            (cost, CostFallback { default: 3, denies_missing, denies_malformed })
        })
    }

    fn limit() -> impl Strategy<Value = Limit> {
        let modes = proptest::sample::select(vec![LimitMode::Enforce, LimitMode::Shadow, LimitMode::Off]);
        let by_header = [ValueType::Text, ValueType::Integer]
            .map(|form| vec![TypedPart::new(Part::Header("x-id".parse().unwrap()), form)]);
        let by = proptest::sample::select([&by_header[..], &[Vec::new(), Limit::new("L").by]].concat());
        let overridden = proptest::option::of(allowance());
        let candidates = (0..4_u8, 0..4_u8, share());
        let fallbacks = (fallback(), fallback());
        (allowance(), modes, by, fallbacks, (share(), candidates), overridden, cost_settings()).prop_map(
            |(
                allowance,
                mode,
                by,
                (missing, malformed),
                (enforce_for, (count, enforced, share)),
                overridden,
                (cost, cost_fallback),
            )| {
                let candidate = |place: u8| Candidate {
                    name: Some(place.to_string().into()),
                    allowance: windows(&[8 + u64::from(place)]),
                    enforce_for: if place == enforced { share } else { 0 },
                };
                let count = if allowance.windows().is_some() { count } else { 0 };
                let mut limit = Limit {
                    allowance,
                    mode,
                    by,
                    missing,
                    malformed,
                    enforce_for,
                    candidates: (0..count).map(candidate).collect(),
                    cost,
                    cost_fallback,
                    algorithm: Algorithm::Gcra,
                    ..Limit::new("L")
                };
                if let (Some(allowance), false) = (overridden, limit.by.is_empty()) {
                    let id = if limit.is_by_client() { "192.0.2.1" } else { "7" };
                    let id = Id::parse(&limit.by, id).unwrap();
                    let given = Override { allowance, until: None, origin: OverrideOrigin::default() };
                    limit.overrides.add_id(1, id.fingerprint("L", &HASH), given).unwrap();
                }
                limit
            },
        )
    }

    fn blocks() -> impl Strategy<Value = Option<Blocks>> {
        let key = proptest::sample::select(vec!["L", "L:7", "L:192.0.2.1"]);
        let block = |key: &str| Block {
            key: key.to_owned(),
            until: Micros(50),
            bucket: String::new(),
            reason: None,
            by: String::new(),
            is_ban: false,
        };
        proptest::option::of(key.prop_map(move |key| Blocks::new(vec![block(key)], &HASH)))
    }

    type Lines = Vec<(&'static str, &'static str)>;

    fn lines() -> impl Strategy<Value = Lines> {
        let known = [("x-id", "7"), ("x-id", "8"), ("x-id", "a b"), ("x-cost", "4"), ("x-cost", "much")];
        proptest::collection::vec(proptest::sample::select(known.to_vec()), 0..4)
    }

    proptest! {
        #[test]
        fn explanations_tell_what_a_decision_charges_and_denies(
            limit in limit(), blocks in blocks(), lines in lines(), client in proptest::option::of(1_u8..3),
        ) {
            let rules = Rules::new(vec![limit], HASH, Micros(0), Vec::new());
            let headers = lines.into_iter().collect();
            let client = client.map(|last| [192, 0, 2, last].into());
            let request = Request { client, now: Micros(10), ..sample(&headers) };
            let plan = Plan::of_request(&rules, &request, blocks.as_ref()).unwrap();
            let of_role = |is_candidate: bool| {
                let wanted = move |origin: &ChargeOrigin| origin.is_candidate() == is_candidate;
                plan.charges.iter().filter(move |charge| wanted(&charge.origin))
            };
            let explained = Explanation::of_limits(&rules, &request, blocks.as_ref());
            let [Explanation::Applies { allowance, candidates, cost, enforced, blocked, denied_for, .. }] = &explained[..]
            else {
                prop_assert!(plan.charges.is_empty() && plan.denials.is_empty() && plan.unlimited.is_empty(), "{explained:?}");
                return Ok(());
            };
            let is_denied = blocked.is_some() || *allowance == Allowance::Deny;
            prop_assert_eq!(plan.denials.iter().map(|denial| denial.enforced).next(), is_denied.then_some(*enforced));
            let reason = plan.denials.first().map(|denial| denial.reason);
            prop_assert_eq!(blocked.map(DenialReason::Blocked), reason.filter(|reason| matches!(reason, DenialReason::Blocked(_))));
            if let (Some(error), None) = (denied_for, blocked) {
                prop_assert_eq!(Some(error.reason.into()), reason);
            }
            prop_assert_eq!(!plan.unlimited.is_empty(), *allowance == Allowance::Unlimited && !is_denied);
            let windows_of = |allowance: &Allowance| allowance.windows().map_or_else(Vec::new, |windows| windows.to_vec());
            let charged: Vec<Numbers> = of_role(false).map(|charge| charge.numbers.clone()).collect();
            prop_assert_eq!(charged, if is_denied { Vec::new() } else { windows_of(allowance) });
            prop_assert!(of_role(false).all(|charge| charge.origin.is_enforced() == *enforced && charge.cost == *cost));
            let beside: Vec<(&str, Numbers)> = of_role(true).map(|charge| {
                let name = charge.bucket.key.rsplit_once("#candidate:").unwrap().1;
                (name, charge.numbers.clone())
            }).collect();
            let (in_force, others): (Vec<_>, Vec<_>) = candidates.iter().partition(|candidate| candidate.is_in_force);
            prop_assert!(in_force.len() < 2 && in_force.iter().all(|one| one.allowance == *allowance));
            let expected = others.iter().flat_map(|one| {
                windows_of(&one.allowance).into_iter().map(|numbers| (one.name.as_deref().unwrap(), numbers))
            });
            let expected: Vec<_> = expected.filter(|_| !is_denied).collect();
            prop_assert_eq!(beside, expected);
        }
    }
}
