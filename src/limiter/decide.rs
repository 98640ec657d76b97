//! The way from a request to its verdict: plan the charges, ask the store, make the verdict, count it.

use std::rc::Rc;

use tokio::task::spawn_local;
use tokio_util::task::AbortOnDropHandle;

use super::decision_request::{DecisionRequest, LimiterVerdict};
use super::delays::DelayPlace;
use super::settlement::Job;
use super::slots::HeldSlots;
use super::{Limiter, View};
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::deciding::{Decided, Deciding, DecisionSubject, InvalidSubject, Notices};
use crate::engine::limit::ban::NewBan;
use crate::engine::request::Request;
use crate::engine::request::claims::{TokenClaims, TokenResult};
use crate::store::StoreError;
use crate::telemetry::metrics::{BanResult, DecisionResult, StoreReport};

/// A request that is being decided.
#[derive(Default)]
struct OpenDecision {
    deciding: Deciding,
    /// Held for an allowed request that has to wait.
    place: Option<DelayPlace>,
    slots: Option<Box<HeldSlots>>,
    bans: Vec<NewBan>,
}

impl Limiter {
    /// Decides in one call to the store, or by the limits' `on_store_error` if that fails. Waits no longer than the store's
    /// timeout. With [`Patience::Held`](super::Patience::Held), the caller must call [`Self::hold`] then.
    pub async fn decide(&self, asked: DecisionRequest<'_>) -> Result<LimiterVerdict, InvalidSubject> {
        let view = self.view();
        let claims = self.claims(&view, &asked);
        let with_claims = with_claims(&asked, &claims);
        let asked = with_claims
            .as_deref()
            .map_or(asked, |request| DecisionRequest { subject: DecisionSubject::Request(request), ..asked });
        let mut open = OpenDecision::default();
        self.prepare(&view, &asked, &mut open)?;
        if let Some(round) = open.deciding.round() {
            let answer = self.ask_store(&view, round, &asked).await;
            self.answered(&view, &mut open, answer, asked.now());
        }
        let mut decided = self.conclude(view, &asked, &mut open);
        let (bans, now, deadline) = (open.bans, asked.now(), asked.deadline);
        decided.claims = claims;
        if !bans.is_empty() {
            // In a box, as few denials ban.
            let LimiterVerdict { view, verdict, .. } = &mut decided;
            Box::pin(self.ban(view, bans, (now, deadline), verdict)).await;
        }
        Ok(decided)
    }

    /// Begins the decision.
    fn prepare(&self, view: &View, asked: &DecisionRequest<'_>, open: &mut OpenDecision) -> Result<(), InvalidSubject> {
        let blocks = self.blocks();
        let DecisionRequest { subject, intent, can_accept, .. } = asked;
        let afterwards = &view.snapshot.afterwards;
        let notices = Notices { blocks: blocks.as_deref(), afterwards, can_accept: *can_accept };
        open.deciding.begin(view.rules(), subject, intent, &notices)?;
        let plan = &mut open.deciding.plan;
        if let Some(reservation) = asked.reservation {
            plan.add_reservation(view.rules(), reservation)?;
        }
        if asked.is_decision() {
            plan.unlimited.iter().for_each(|limit| view.count(*limit, DecisionResult::Unlimited));
            plan.exempt.iter().for_each(|limit| view.count(*limit, DecisionResult::Exempt));
            for (limit, result) in plan.request_numbers.drain(..) {
                self.shared.metrics.count_request_numbers(view.rules().name(limit), result);
            }
        }
        if view.rules().has_delays() {
            open.place = self.bound_delays(plan, asked);
        }
        if open.deciding.round().is_some() {
            let plan = &mut open.deciding.plan;
            self.bound_new_keys(view, plan, asked.now());
            open.slots = self.name_slots(view, plan, asked);
        }
        Ok(())
    }

    /// Takes the store's answer, or decides without it.
    fn answered(&self, view: &View, open: &mut OpenDecision, answer: Result<Decisions, StoreError>, now: Micros) {
        let OpenDecision { deciding, slots, .. } = open;
        match answer {
            Ok(decisions) => {
                *slots = slots.take().and_then(|slots| slots.decided(&deciding.plan.charges, &decisions));
                deciding.answered(decisions);
            }
            Err(error) => self.decide_without_store(view, (deciding, slots.as_deref_mut()), now, error),
        }
    }

    /// Makes the verdict of what is decided.
    fn conclude(&self, view: Rc<View>, asked: &DecisionRequest<'_>, open: &mut OpenDecision) -> LimiterVerdict {
        let OpenDecision { deciding, place, slots, bans } = open;
        let Decided { verdict, descriptors, due, bans: made, uncounted } = deciding.conclude(view.rules());
        *bans = made;
        for limit in uncounted {
            self.shared.metrics.count_ban(view.rules().name(limit), BanResult::Uncounted);
        }
        let (plan, decisions) = (&deciding.plan, &deciding.decisions);
        if !due.is_empty() {
            self.charge(&view, due, asked.now());
        }
        // A request that takes slots only when it has waited is counted then.
        let is_final = place.is_none() || slots.is_none() || verdict.delay() == Micros(0);
        let is_counted = is_final && asked.is_decision();
        let denials =
            if is_counted { view.count_verdict(&verdict, plan, (asked.start, asked.now())) } else { Vec::new() };
        if asked.is_decision() {
            self.warn(&view, plan, &verdict, asked.now());
        }
        self.record(&view, asked, &verdict);
        view.snapshot.warn_of_values(&verdict);
        let settlement = self.settlement(&view, (plan, decisions), &verdict, asked);
        self.seconds[asked.listener].observe(asked.start.elapsed());
        let slots = slots.take().filter(|_| verdict.is_allowed());
        let is_decided = verdict.unanswered.is_empty() && !plan.charges.iter().any(|charge| charge.origin.is_local);
        let has_hold = is_decided.then(|| verdict.is_allowed() && plan.has_hold(decisions));
        let mut decided = LimiterVerdict {
            view,
            verdict,
            descriptors,
            slots,
            settlement,
            has_hold,
            held: None,
            listener: asked.listener,
            denials,
            claims: Vec::new(),
        };
        if let Some(place) = place.take().filter(|_| decided.verdict.delay() > Micros(0)) {
            let plan = std::mem::take(&mut deciding.plan);
            decided.held = Some(Self::held(place, (plan, &deciding.decisions), &mut decided, asked));
        }
        decided
    }

    /// Verifies the tokens of a request if limits need their claims.
    fn claims(&self, view: &View, asked: &DecisionRequest<'_>) -> Vec<TokenClaims> {
        match asked.subject {
            // Tests state the claims themselves.
            DecisionSubject::Request(request) if request.claims.is_empty() && view.rules().needs_claims(request) => {
                let tokens = &self.shared.metrics.server.jwt_tokens;
                let count = |result: TokenResult| tokens[result].inc();
                self.checker.borrow_mut().claims(view.rules(), request.headers, request.now, count)
            }
            _ => Vec::new(),
        }
    }

    /// Names the slots that the plan's charges take, so that they can be given back before the store has answered.
    fn name_slots(&self, view: &View, plan: &mut Plan, asked: &DecisionRequest<'_>) -> Option<Box<HeldSlots>> {
        if !asked.sees_response {
            return None;
        }
        let effective_from = view.rules().effective_from;
        let slots = self.slots.name(&mut plan.charges, effective_from, asked.now(), asked.start)?;
        self.keeper.get_or_init(|| AbortOnDropHandle::new(spawn_local(self.slots.clone().keep())));
        Some(slots)
    }

    /// Counts a denied request, or gives back what was taken for it. Nobody waits for that.
    fn charge(&self, view: &View, charges: Vec<Charge>, now: Micros) {
        let (kind, effective_from) = (StoreReport::Denied, view.rules().effective_from);
        self.settler.run(Job { kind, charges, effective_from, now, counters: Vec::new() });
    }
}

/// Returns the request with its claims, if it has any. In a box, as few requests do.
fn with_claims<'a>(asked: &DecisionRequest<'a>, claims: &'a [TokenClaims]) -> Option<Box<Request<'a>>> {
    match asked.subject {
        DecisionSubject::Request(request) if !claims.is_empty() => Some(Box::new(Request { claims, ..*request })),
        _ => None,
    }
}
