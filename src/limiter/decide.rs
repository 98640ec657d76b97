//! The way from an ask to its ruling: plan the charges, ask the store, make the verdict, count it.

use std::rc::Rc;

use tokio::task::spawn_local;
use tokio_util::task::AbortOnDropHandle;

use super::ask::{Ask, AskError, AskSubject, Ruling};
use super::delays::Place;
use super::settlement::Job;
use super::slots::HeldSlots;
use super::{Limiter, View};
use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::engine::answer::descriptors::DescriptorVerdicts;
use crate::engine::answer::verdict::{Standing, Verdict};
use crate::engine::rules::claims::{TokenClaims, TokenResult};
use crate::engine::rules::plan::Plan;
use crate::engine::rules::request::Request;
use crate::engine::rules::terms::Intent;
use crate::store::StoreError;
use crate::telemetry::metrics::{DecisionResult, StoreReport};

/// A request that is being decided.
#[derive(Default)]
struct Question {
    plan: Plan,
    /// Held for an allowed request that has to wait.
    place: Option<Place>,
    slots: Option<Box<HeldSlots>>,
}

impl Limiter {
    /// Decides in one call to the store, or by the limits' `on_store_error` if that fails. Waits no longer than the store's
    /// timeout. With [`Patience::Held`](super::Patience::Held), the caller must call [`Self::hold`] then.
    pub async fn decide(&self, ask: Ask<'_>) -> Result<Ruling, AskError> {
        let view = self.view();
        let claims = self.claims(&view, &ask);
        let with_claims = with_claims(&ask, &claims);
        let ask = with_claims.as_deref().map_or(ask, |request| Ask { subject: AskSubject::Request(request), ..ask });
        let mut question = Question::default();
        let mut answer = None;
        if self.prepare(&view, &ask, &mut question)? {
            answer = Some(self.ask_store(&view, &question.plan, &ask).await);
        }
        let mut ruling = self.conclude(view, &ask, question, answer);
        ruling.claims = claims;
        Ok(ruling)
    }

    /// Makes the plan. Returns whether it asks the store.
    fn prepare(&self, view: &View, ask: &Ask<'_>, question: &mut Question) -> Result<bool, AskError> {
        let plan = &mut question.plan;
        self.plan(view, ask, plan)?;
        if ask.is_decision() {
            plan.unlimited.iter().for_each(|limit| view.count(*limit, DecisionResult::Unlimited));
        }
        if view.rules().has_delays() {
            question.place = self.bound_delays(plan, ask);
        }
        if plan.is_denied() {
            self.count_denied(view, plan.charges.iter(), ask.now(), false);
            return Ok(false);
        }
        if plan.charges.is_empty() {
            return Ok(false);
        }
        self.bound_new_keys(view, plan, ask.now());
        question.slots = self.name_slots(view, plan, ask);
        Ok(true)
    }

    /// Makes the ruling from the store's answer; `None` if it was not asked.
    fn conclude(
        &self,
        view: Rc<View>,
        ask: &Ask<'_>,
        question: Question,
        answer: Option<Result<Decisions, StoreError>>,
    ) -> Ruling {
        let Question { mut plan, place, mut slots } = question;
        let (mut decisions, mut failure) = (Decisions::default(), None);
        match answer {
            Some(Ok(decided)) => {
                slots = slots.and_then(|slots| slots.decided(&plan.charges, &decided));
                decisions = decided;
                plan.correct(&mut decisions);
            }
            Some(Err(error)) => {
                let without = self.without_store(&view, &mut plan, ask.now(), &error, slots.as_deref_mut());
                decisions = without.0;
                failure = Some(without.1);
                plan.correct(&mut decisions);
            }
            None => {}
        }
        let (mut verdict, descriptors) = match &plan.joint {
            None => (Verdict::decided(&plan, &decisions), Vec::new()),
            Some(joint) => {
                let DescriptorVerdicts { whole, members } =
                    DescriptorVerdicts::new(view.rules(), &plan, joint, &decisions);
                (whole, members)
            }
        };
        let is_local = failure.is_some();
        if let Some(failure) = failure {
            verdict = failure.apply(verdict);
        }
        if verdict.standing == Standing::Denied && !verdict.candidates.is_empty() && ask.is_decision() {
            let charges = verdict.candidate_charges(&plan);
            self.charge(&view, StoreReport::Candidate, charges, ask.now(), is_local);
        }
        // A request that takes slots only when it has waited is counted then.
        let is_final = place.is_none() || slots.is_none() || verdict.delay() == Micros(0);
        let is_counted = is_final && ask.is_decision();
        let denials = if is_counted { view.count_verdict(&verdict, &plan, ask.start) } else { Vec::new() };
        self.record(&view, ask, &verdict);
        view.snapshot.warn_of_values(&verdict);
        let settlement = self.settlement(&view, (&plan, &decisions), &verdict, ask, is_local);
        self.seconds[ask.listener as usize].observe(ask.start.elapsed());
        let slots = slots.filter(|_| verdict.is_allowed());
        let (held, listener) = (None, ask.listener);
        let mut ruling =
            Ruling { view, verdict, descriptors, slots, settlement, held, listener, denials, claims: Vec::new() };
        if let Some(place) = place.filter(|_| ruling.verdict.delay() > Micros(0)) {
            ruling.held = Some(Self::held(place, (plan, &decisions), &mut ruling, ask, is_local));
        }
        ruling
    }

    /// Verifies the tokens of a request if limits need their claims.
    fn claims(&self, view: &View, ask: &Ask<'_>) -> Vec<TokenClaims> {
        match ask.subject {
            // Tests state the claims themselves.
            AskSubject::Request(request) if request.claims.is_empty() && view.rules().needs_claims(request) => {
                let tokens = &self.shared.metrics.server.jwt_tokens;
                let count = |result: TokenResult| tokens[result as usize].inc();
                self.checker.borrow_mut().claims(view.rules(), request.headers, request.now, count)
            }
            _ => Vec::new(),
        }
    }

    fn plan(&self, view: &View, ask: &Ask<'_>, plan: &mut Plan) -> Result<(), AskError> {
        let rules = view.rules();
        let blocks = self.blocks();
        match ask.subject {
            AskSubject::Request(request) => {
                let intent = Intent { mode: ask.mode, cost: ask.cost, can_probe: ask.can_probe };
                rules.add_charges(request, &intent, blocks.as_deref(), plan)?;
                if !ask.can_accept
                    && let Some(limit) = plan.accepting(rules)
                {
                    return Err(AskError::Accept(limit.name.clone()));
                }
                rules.check_plan(plan, ask.mode, ask.cost)?;
            }
            AskSubject::Named { charges, now } => *plan = rules.named(charges, ask.mode, now, blocks.as_deref())?,
            AskSubject::Descriptors(question) => {
                *plan = rules.plan(question, blocks.as_deref(), &view.snapshot.afterwards)?;
            }
        }
        Ok(())
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

    /// Counts a denied request in those of these buckets that have `count_denied`. Nobody waits for it. `is_local`: the
    /// buckets are in the memory that replaces the store.
    pub(super) fn count_denied<'c>(
        &self,
        view: &View,
        charges: impl Iterator<Item = &'c Charge>,
        now: Micros,
        is_local: bool,
    ) {
        let counting = charges.filter(|charge| charge.counts_denied());
        let charges: Vec<Charge> = counting.map(|charge| Charge { mode: Mode::SpendOnly, ..charge.clone() }).collect();
        self.charge(view, StoreReport::Denied, charges, now, is_local);
    }

    /// Makes charges that nobody waits for.
    fn charge(&self, view: &View, kind: StoreReport, charges: Vec<Charge>, now: Micros, is_local: bool) {
        if !charges.is_empty() {
            let effective_from = view.rules().effective_from;
            self.settler.run(Job { kind, charges, effective_from, now, counters: Vec::new() }, is_local);
        }
    }
}

/// Returns the request with its claims, if it has any. In a box, as few requests do.
fn with_claims<'a>(ask: &Ask<'a>, claims: &'a [TokenClaims]) -> Option<Box<Request<'a>>> {
    match ask.subject {
        AskSubject::Request(request) if !claims.is_empty() => Some(Box::new(Request { claims, ..*request })),
        _ => None,
    }
}
