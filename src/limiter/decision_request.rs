//! A request for a decision, and its verdict with what the request holds until its end.

use std::rc::Rc;
use std::time::Instant;

use super::View;
use super::delays::HeldRequest;
use super::denials::Denial;
use super::settlement::Settlement;
use super::slots::HeldSlots;
use crate::engine::algorithms::charge::Mode;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::reservation::Reservation;
use crate::engine::charging::descriptors::DescriptorMode;
use crate::engine::charging::terms::Intent;
use crate::engine::deciding::DecisionSubject;
use crate::engine::deciding::descriptors::DescriptorVerdict;
use crate::engine::deciding::verdict::Verdict;
use crate::engine::request::claims::TokenClaims;
use crate::telemetry::metrics::DecisionListener;

/// A request to [`Limiter::decide`](super::Limiter::decide).
#[derive(Clone, Copy, Debug)]
pub struct DecisionRequest<'a> {
    pub subject: DecisionSubject<'a>,
    /// Descriptors have purposes of their own.
    pub intent: Intent,
    /// The reservation that this makes or settles.
    pub reservation: Option<Reservation>,
    /// True if the caller can answer 202 to a request that a queue has taken.
    pub can_accept: bool,
    pub listener: DecisionListener,
    /// When the request arrived. Its decision is timed from here.
    pub start: Instant,
    /// When the caller stops waiting for the store. `on_store_error` decides from then on.
    pub deadline: Option<Instant>,
    /// The wait that the caller allows for limits with `delay:`.
    pub patience: Patience,
    /// Whether the caller sees the response: it can hold [`LimiterVerdict::slots`] until the end, and settle
    /// [`LimiterVerdict::settlement`]. For others, a concurrency limit only says whether a slot is free, and what a limit
    /// reserves stays charged.
    pub sees_response: bool,
}

/// The wait that a caller allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// A charge that does not fit now is denied.
    None,
    /// The caller has [`Limiter::hold`](super::Limiter::hold) hold the request, at most this long.
    Held(Micros),
    /// The caller waits by itself, at most this long. The verdict tells how long.
    Caller(Micros),
}

/// A verdict, the rules that it comes from, and the slots and the settlement that the request holds until its end.
pub struct LimiterVerdict {
    pub view: Rc<View>,
    /// For descriptors: of all of them together.
    pub verdict: Verdict,
    /// One for each descriptor, in their order.
    pub descriptors: Vec<DescriptorVerdict>,
    /// The slots of an allowed request, if the caller sees its response.
    pub slots: Option<Box<HeldSlots>>,
    /// The settlement that is due with the response.
    pub settlement: Option<Box<Settlement>>,
    /// True if tokens are held for the reservation, or a hold of it has ended. `None` if the store has not decided all of it.
    pub has_hold: Option<bool>,
    /// The bookings of an allowed request that has to wait: see [`Limiter::hold`](super::Limiter::hold).
    pub(super) held: Option<Box<HeldRequest>>,
    pub listener: DecisionListener,
    pub(super) denials: Vec<Denial>,
    /// The verified claims of the request, if limits use any.
    pub(super) claims: Vec<TokenClaims>,
}

impl LimiterVerdict {
    /// Returns true if an allowed request has to wait: see [`Limiter::hold`](super::Limiter::hold).
    pub const fn must_wait(&self) -> bool {
        self.held.is_some()
    }
}

impl<'a> DecisionRequest<'a> {
    /// Spends what the limits cost. The caller waits as long as the store takes, can answer 202, and sees no response.
    pub const fn new(subject: DecisionSubject<'a>, listener: DecisionListener, start: Instant) -> Self {
        Self {
            subject,
            intent: Intent::SPEND,
            reservation: None,
            can_accept: true,
            listener,
            start,
            deadline: None,
            patience: Patience::None,
            sees_response: false,
        }
    }

    pub(super) const fn now(&self) -> Micros {
        self.subject.now()
    }

    /// Returns whether this counts as a decision about a request. A check or a refund does not.
    pub(super) fn is_decision(&self) -> bool {
        match self.subject {
            DecisionSubject::Descriptors(request) => {
                !request.purpose.is_afterwards() && request.purpose != DescriptorMode::Lease
            }
            DecisionSubject::Request(_) | DecisionSubject::Named { .. } => {
                matches!(self.intent.mode, Mode::Spend | Mode::SpendOnly)
            }
        }
    }
}
