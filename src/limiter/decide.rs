//! The way from an ask to its ruling: plan the charges, ask the store, make the verdict, count it.

use std::rc::Rc;

use tokio::task::spawn_local;
use tokio_util::task::AbortOnDropHandle;

use super::ask::{Ask, Ruling};
use super::delays::Place;
use super::settlement::Job;
use super::slots::HeldSlots;
use super::{Limiter, View};
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::deciding::{Decided, Deciding, DecisionSubject, InvalidSubject, Notices};
use crate::engine::request::Request;
use crate::engine::request::claims::{TokenClaims, TokenResult};
use crate::store::StoreError;
use crate::telemetry::metrics::{DecisionResult, StoreReport};

/// A request that is being decided.
#[derive(Default)]
struct Question {
    deciding: Deciding,
    /// Held for an allowed request that has to wait.
    place: Option<Place>,
    slots: Option<Box<HeldSlots>>,
}

impl Limiter {
    /// Decides in one call to the store, or by the limits' `on_store_error` if that fails. Waits no longer than the store's
    /// timeout. With [`Patience::Held`](super::Patience::Held), the caller must call [`Self::hold`] then.
    pub async fn decide(&self, ask: Ask<'_>) -> Result<Ruling, InvalidSubject> {
        let view = self.view();
        let claims = self.claims(&view, &ask);
        let with_claims = with_claims(&ask, &claims);
        let ask =
            with_claims.as_deref().map_or(ask, |request| Ask { subject: DecisionSubject::Request(request), ..ask });
        let mut question = Question::default();
        self.prepare(&view, &ask, &mut question)?;
        if let Some(round) = question.deciding.round() {
            let answer = self.ask_store(&view, round, &ask).await;
            self.answered(&view, &mut question, answer, ask.now());
        }
        let mut ruling = self.conclude(view, &ask, &mut question);
        ruling.claims = claims;
        Ok(ruling)
    }

    /// Begins the decision.
    fn prepare(&self, view: &View, ask: &Ask<'_>, question: &mut Question) -> Result<(), InvalidSubject> {
        let blocks = self.blocks();
        let Ask { subject, intent, can_accept, .. } = ask;
        let afterwards = &view.snapshot.afterwards;
        let notices = Notices { blocks: blocks.as_deref(), afterwards, can_accept: *can_accept };
        question.deciding.begin(view.rules(), subject, intent, &notices)?;
        let plan = &mut question.deciding.plan;
        if ask.is_decision() {
            plan.unlimited.iter().for_each(|limit| view.count(*limit, DecisionResult::Unlimited));
        }
        if view.rules().has_delays() {
            question.place = self.bound_delays(plan, ask);
        }
        if question.deciding.round().is_some() {
            let plan = &mut question.deciding.plan;
            self.bound_new_keys(view, plan, ask.now());
            question.slots = self.name_slots(view, plan, ask);
        }
        Ok(())
    }

    /// Takes the store's answer, or decides without it.
    fn answered(&self, view: &View, question: &mut Question, answer: Result<Decisions, StoreError>, now: Micros) {
        let Question { deciding, slots, .. } = question;
        match answer {
            Ok(decisions) => {
                *slots = slots.take().and_then(|slots| slots.decided(&deciding.plan.charges, &decisions));
                deciding.answered(decisions);
            }
            Err(error) => self.decide_without_store(view, (deciding, slots.as_deref_mut()), now, &error),
        }
    }

    /// Makes the ruling of what is decided.
    fn conclude(&self, view: Rc<View>, ask: &Ask<'_>, question: &mut Question) -> Ruling {
        let Question { deciding, place, slots } = question;
        let Decided { verdict, descriptors, due } = deciding.conclude(view.rules());
        let (is_local, plan, decisions) = (deciding.is_local(), &deciding.plan, &deciding.decisions);
        if !due.is_empty() {
            self.charge(&view, due, ask.now(), is_local);
        }
        // A request that takes slots only when it has waited is counted then.
        let is_final = place.is_none() || slots.is_none() || verdict.delay() == Micros(0);
        let is_counted = is_final && ask.is_decision();
        let denials = if is_counted { view.count_verdict(&verdict, plan, ask.start) } else { Vec::new() };
        self.record(&view, ask, &verdict);
        view.snapshot.warn_of_values(&verdict);
        let settlement = self.settlement(&view, (plan, decisions), &verdict, ask, is_local);
        self.seconds[ask.listener].observe(ask.start.elapsed());
        let slots = slots.take().filter(|_| verdict.is_allowed());
        let (held, listener) = (None, ask.listener);
        let mut ruling =
            Ruling { view, verdict, descriptors, slots, settlement, held, listener, denials, claims: Vec::new() };
        if let Some(place) = place.take().filter(|_| ruling.verdict.delay() > Micros(0)) {
            let plan = std::mem::take(&mut deciding.plan);
            ruling.held = Some(Self::held(place, (plan, &deciding.decisions), &mut ruling, ask, is_local));
        }
        ruling
    }

    /// Verifies the tokens of a request if limits need their claims.
    fn claims(&self, view: &View, ask: &Ask<'_>) -> Vec<TokenClaims> {
        match ask.subject {
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
    fn name_slots(&self, view: &View, plan: &mut Plan, ask: &Ask<'_>) -> Option<Box<HeldSlots>> {
        if !ask.sees_response {
            return None;
        }
        let effective_from = view.rules().effective_from;
        let slots = self.slots.name(&mut plan.charges, effective_from, ask.now(), ask.start)?;
        self.keeper.get_or_init(|| AbortOnDropHandle::new(spawn_local(self.slots.clone().keep())));
        Some(slots)
    }

    /// Counts a denied request, for which nobody waits.
    fn charge(&self, view: &View, charges: Vec<Charge>, now: Micros, is_local: bool) {
        let (kind, effective_from) = (StoreReport::Denied, view.rules().effective_from);
        self.settler.run(Job { kind, charges, effective_from, now, counters: Vec::new() }, is_local);
    }
}

/// Returns the request with its claims, if it has any. In a box, as few requests do.
fn with_claims<'a>(ask: &Ask<'a>, claims: &'a [TokenClaims]) -> Option<Box<Request<'a>>> {
    match ask.subject {
        DecisionSubject::Request(request) if !claims.is_empty() => Some(Box::new(Request { claims, ..*request })),
        _ => None,
    }
}
