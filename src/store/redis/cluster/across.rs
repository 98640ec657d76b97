//! A request whose charges are in several hash slots, which no single call can decide.
//!
//! All charges that can deny are checked at once. If they pass, all are spent at once, each hash slot's by the rule of taking; queues
//! and scripts follow one by one. If one of those denies or fails, because another request came first, the rest is refunded. So is
//! what a limit in shadow has taken in one hash slot and not in another.
//!
//! So a request takes two round trips. It never admits too much, because each bucket is spent under its own numbers. It may deny
//! a concurrent request too much from a spend to its refund, which takes two round trips.

use std::sync::Arc;

use tokio::time::Instant;

use super::follow::is_split;
use super::{Nodes, Request};
use crate::engine::algorithms::charge::{Charge, Input, Mode};
use crate::engine::algorithms::decision::{Decision, Decisions, Detail, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::tag::tag_of;
use crate::engine::algorithms::taking::Taking;
use crate::store::{StoreAnswer, StoreError};

/// A request on its way, and what is known of its charges, in their order.
struct Progress<'a> {
    nodes: &'a Arc<Nodes>,
    request: &'a Request,
    charges: Vec<ChargeState>,
}

/// What is known of a charge.
#[derive(Clone, Default)]
struct ChargeState {
    /// The last decision.
    decision: Option<Decision>,
    detail: Option<Detail>,
    /// True if it has taken tokens.
    is_spent: bool,
}

/// Charges of one tag, decided in one call, and their places in the request.
struct Group {
    tag: u8,
    places: Vec<usize>,
    request: Request,
}

/// Decides a request across hash slots. Nothing is spent once the store's timeout has passed.
pub(super) async fn decide(nodes: &Arc<Nodes>, request: &Request) -> Result<Decisions, StoreError> {
    let begun = Instant::now();
    let charges = vec![ChargeState::default(); request.charges.len()];
    let mut progress = Progress { nodes, request, charges };
    progress.ask(|_, charge| check(charge)).await?;
    if progress.is_denied() {
        progress.count_denial().await;
        return Ok(progress.into_decisions());
    }
    if begun.elapsed() >= nodes.timeout {
        return Err(StoreError::Late(nodes.timeout));
    }
    if let Err(error) = progress.spend().await {
        progress.refund(None).await;
        return Err(error);
    }
    let taking = progress.taking();
    progress.refund(Some(&taking)).await;
    Ok(progress.into_decisions())
}

/// The question whether a charge would pass; `None` for one that never denies, and for scripts, which only decide as they charge.
fn check(charge: &Charge) -> Option<Charge> {
    let is_checked = charge.mode.can_deny() && !charge.numbers.is_script();
    is_checked.then(|| Charge { mode: Mode::Check, ..charge.clone() })
}

/// True for charges that follow when all others have passed.
fn is_last(charge: &Charge) -> bool {
    charge.numbers.algorithm().is_final()
}

impl Progress<'_> {
    /// Asks all nodes at once, and notes the decisions; the first error if there is one. `asked` returns the charge to ask for in
    /// place of the one at a place, if any.
    async fn ask(&mut self, asked: impl Fn(usize, &Charge) -> Option<Charge>) -> Result<(), StoreError> {
        let mut groups: Vec<Group> = Vec::new();
        for (place, charge) in self.request.charges.iter().enumerate() {
            let Some(charge) = asked(place, charge) else { continue };
            let tag = tag_of(&charge.bucket);
            match groups.iter_mut().find(|group| group.tag == tag) {
                Some(group) => {
                    group.places.push(place);
                    group.request.charges.push(charge);
                }
                None => groups.push(Group { tag, places: vec![place], request: self.request.with(vec![charge]) }),
            }
        }
        let mut result = Ok(());
        for (group, answer) in self.send(groups) {
            let answered = self.answer(&group, answer).await;
            let answered = match answered {
                // The keys are at two nodes while their hash slot moves, so each is asked for alone.
                Err(error) if is_split(&error, &group.request.charges) => self.ask_alone(&group).await,
                answered => answered,
            };
            result = result.and(answered);
        }
        result
    }

    fn send(&self, groups: Vec<Group>) -> Vec<(Group, StoreAnswer)> {
        let send = |group: Group| {
            let answer = self.nodes.ask(group.tag, &group.request.batch(), self.request.set_now);
            (group, answer)
        };
        groups.into_iter().map(send).collect()
    }

    async fn ask_alone(&mut self, group: &Group) -> Result<(), StoreError> {
        let alone = group.places.iter().zip(&group.request.charges).map(|(place, charge)| Group {
            tag: group.tag,
            places: vec![*place],
            request: self.request.with(vec![charge.clone()]),
        });
        let mut result = Ok(());
        for (group, answer) in self.send(alone.collect()) {
            result = result.and(self.answer(&group, answer).await);
        }
        result
    }

    /// Waits for an answer and notes it.
    async fn answer(&mut self, group: &Group, answer: StoreAnswer) -> Result<(), StoreError> {
        let Group { tag, places, request } = group;
        let decisions = self.nodes.follow(answer, *tag, &request.batch(), request.set_now).await?;
        for (at, ((place, charge), decision)) in places.iter().zip(&request.charges).zip(decisions.iter()).enumerate() {
            let takes = matches!(charge.mode, Mode::Spend | Mode::SpendOnly) && charge.cost > 0;
            let known = &mut self.charges[*place];
            *known = ChargeState {
                decision: Some(*decision),
                detail: decisions.detail(at).cloned(),
                is_spent: known.is_spent || takes && decision.outcome == Outcome::Allowed,
            };
        }
        Ok(())
    }

    /// Spends all charges, until one denies.
    async fn spend(&mut self) -> Result<(), StoreError> {
        self.ask(|_, charge| (!is_last(charge)).then(|| reserved(charge))).await?;
        for place in 0..self.request.charges.len() {
            if is_last(&self.request.charges[place]) && !self.is_denied() {
                self.ask(|at, charge| (at == place).then(|| charge.clone())).await?;
            }
        }
        Ok(())
    }

    fn is_denied(&self) -> bool {
        self.charges.iter().any(ChargeState::is_denied)
    }

    /// The charges that take their cost, by what is known.
    fn taking(&self) -> Taking {
        Taking::new(&self.request.charges, |place| self.charges[place].is_short())
    }

    /// Gives back what was spent by charges that take nothing, `taking` being `None` if all has failed; but for charges that count
    /// denied requests. Learns the state of their buckets. What fails stays spent: it cannot be repeated without the risk of giving
    /// back twice.
    async fn refund(&mut self, taking: Option<&Taking>) {
        let takes = |charge: &Charge| taking.is_some_and(|taking| taking.takes(charge));
        if self.request.charges.iter().all(takes) {
            return;
        }
        let known = self.charges.clone();
        let refunded = |place: usize, charge: &Charge| {
            let ChargeState { is_spent, detail, .. } = &known[place];
            let is_refunded = *is_spent && !charge.counts_denied() && !takes(charge);
            is_refunded.then(|| refund(charge, detail.as_ref())).flatten()
        };
        let _ = self.ask(refunded).await;
        let untouched = |place: usize, charge: &Charge| {
            let ChargeState { is_spent, .. } = known[place];
            let is_known = is_spent || known[place].is_short() || is_prevented(&known[place]);
            (!is_known).then(|| state(charge)).flatten()
        };
        let _ = self.ask(untouched).await;
    }

    /// Counts a request that was denied by its checks in the buckets that count denied requests, charges the candidate of the limit
    /// that alone denies it, and learns the state of the others.
    async fn count_denial(&mut self) {
        let (known, taking) = (self.charges.clone(), self.taking());
        let asked = |place: usize, charge: &Charge| match known[place].is_denied() {
            _ if charge.counts_denied() => Some(Charge { mode: Mode::SpendOnly, ..charge.clone() }),
            true => None,
            false if charge.origin.is_candidate() && taking.takes(charge) => Some(charge.clone()),
            false if charge.can_deny() => state(charge),
            false => look(charge).or_else(|| state(charge)),
        };
        let _ = self.ask(asked).await;
        for (now, then) in self.charges.iter_mut().zip(&known) {
            if let (Some(decision), true) = (&mut now.decision, then.is_denied()) {
                decision.outcome = Outcome::Denied;
            }
        }
    }

    fn into_decisions(mut self) -> Decisions {
        let taking = self.taking();
        let mut decisions = Decisions::with_capacity(self.charges.len());
        for (place, charge) in self.request.charges.iter().enumerate() {
            let ChargeState { decision, detail, .. } = &mut self.charges[place];
            if let Some(decision) = decision
                && !taking.takes(charge)
                && !decision.is_short()
            {
                // The state of its bucket.
                let wait = decision.retry_after.filter(|wait| *wait > Micros(0) && charge.counts_denied());
                if let Some(wait) = wait.filter(|_| decision.is_allowed()) {
                    *detail = Some(Detail::Counted(wait));
                }
                (decision.outcome, decision.retry_after) = (Outcome::Unchanged, Some(Micros(0)));
            }
            // As a script's bucket, whose state only the script knows.
            let burst = charge.numbers.burst();
            let unknown = Decision { outcome: Outcome::Unchanged, limit: burst, remaining: burst, ..Decision::never() };
            decisions.push(decision.unwrap_or(Decision { retry_after: Some(Micros(0)), ..unknown }));
            decisions.details.extend(detail.take().map(|detail| (place, detail)));
        }
        decisions
    }
}

impl ChargeState {
    fn is_denied(&self) -> bool {
        self.decision.is_some_and(|decision| decision.is_denied())
    }

    fn is_short(&self) -> bool {
        self.decision.is_some_and(|decision| decision.is_short())
    }
}

/// True if the decision is the state of a bucket, because another charge of the same call prevents this one.
fn is_prevented(known: &ChargeState) -> bool {
    known.decision.is_some_and(|decision| decision.outcome == Outcome::Unchanged)
}

/// The question whether tokens would fit.
fn look(charge: &Charge) -> Option<Charge> {
    let is_spend = matches!(charge.mode, Mode::Spend | Mode::SpendOnly) && charge.cost > 0;
    (is_spend && charge.numbers.algorithm().has_tokens()).then(|| {
        let mut charge = charge.clone();
        charge.look();
        charge
    })
}

/// The question for the state of a charge's bucket; `None` for scripts.
fn state(charge: &Charge) -> Option<Charge> {
    let asked = || Charge { mode: Mode::Check, cost: 0, ..charge.clone() };
    (!charge.numbers.is_script()).then(asked)
}

/// The same charge, which may have to be given back.
fn reserved(charge: &Charge) -> Charge {
    let mut charge = charge.clone();
    charge.reserve();
    charge
}

/// The refund of a charge that was spent; `None` for scripts.
fn refund(charge: &Charge, detail: Option<&Detail>) -> Option<Charge> {
    let mut refund = charge.refund(charge.cost, detail.and_then(Detail::taken));
    match refund.input.as_deref_mut() {
        Some(Input::Script(_)) => return None,
        Some(Input::Queue(work)) => {
            work.given_back = match detail {
                Some(Detail::Entry(id)) => Some(id.clone()),
                _ => return None,
            };
        }
        Some(Input::Lease(_)) => refund.input = None,
        Some(Input::Elevated(_) | Input::Slot(_) | Input::Delay(_)) | None => {}
    }
    Some(refund)
}
