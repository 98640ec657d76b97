//! The beginning of a decision: what it is about, and the charges that follow from the rules.

use super::Deciding;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::algorithm_input::UnsupportedOperation;
use crate::engine::charging::descriptors::{ChargedAfterwards, DescriptorRequest};
use crate::engine::charging::named::{NamedCharge, NamedChargeError};
use crate::engine::charging::plan::Plan;
use crate::engine::charging::terms::Intent;
use crate::engine::limit::blocks::Blocks;
use crate::engine::limit::queue::InvalidInput;
use crate::engine::limit::rules::Rules;
use crate::engine::request::Request;

/// The subject of a decision.
#[derive(Clone, Copy, Debug)]
pub enum DecisionSubject<'a> {
    Request(&'a Request<'a>),
    /// Charges that name their limits.
    Named {
        charges: &'a [NamedCharge],
        now: Micros,
    },
    /// Decided together: if one descriptor is denied, none is charged. They have purposes of their own in place of an intent.
    Descriptors(&'a DescriptorRequest<'a>),
}

/// The circumstances of a decision beside its subject.
#[derive(Clone, Copy, Debug)]
pub struct Notices<'a> {
    /// The ids that operators have blocked, if there are any.
    pub blocks: Option<&'a Blocks>,
    pub afterwards: &'a ChargedAfterwards,
    /// True if the caller can answer 202 to a request that a queue has taken.
    pub can_accept: bool,
}

/// A subject that cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSubject {
    #[error(transparent)]
    Entry(#[from] InvalidInput),
    /// A limit does not support the mode.
    #[error(transparent)]
    Mode(#[from] UnsupportedOperation),
    #[error(transparent)]
    Charge(#[from] NamedChargeError),
    /// A limit answers 202, and the caller cannot.
    #[error("limit {0} has `then: accept`, but this gateway would forward the request; use `then: forward`")]
    Accept(String),
}

impl DecisionSubject<'_> {
    pub const fn now(&self) -> Micros {
        match self {
            Self::Request(request) => request.now,
            Self::Named { now, .. } => *now,
            Self::Descriptors(question) => question.now,
        }
    }
}

impl Deciding {
    /// Begins the decision of a subject. Must be called once, first.
    #[inline]
    pub fn begin(
        &mut self,
        rules: &Rules,
        subject: &DecisionSubject<'_>,
        intent: &Intent,
        notices: &Notices<'_>,
    ) -> Result<(), InvalidSubject> {
        let plan = &mut self.plan;
        match subject {
            DecisionSubject::Request(request) => {
                plan.charge_request(rules, request, intent, notices.blocks)?;
                if !notices.can_accept
                    && let Some(limit) = plan.accepting(rules)
                {
                    return Err(InvalidSubject::Accept(limit.name.clone()));
                }
                plan.check_modes(rules, intent)?;
            }
            DecisionSubject::Named { charges, now } => {
                *plan = Plan::of_named(rules, charges, intent.mode, *now, notices.blocks)?;
            }
            DecisionSubject::Descriptors(question) => {
                *plan = Plan::of_descriptors(rules, question, notices.blocks, notices.afterwards)?;
            }
        }
        Ok(())
    }
}
