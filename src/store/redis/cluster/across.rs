//! A request whose charges are in several hash slots, which no single call can decide.
//!
//! All charges that can deny are checked at once. If they pass, all are spent at once, each hash slot's by the rule of taking; queues
//! and scripts follow one by one. If one of those denies, because another request came first, the rest is given back. So is what a
//! limit in shadow has taken in one hash slot and not in another.
//!
//! So a request takes two round trips. It never admits too much, because each bucket is spent under its own numbers. It may deny
//! a concurrent request too much from a spend until it is given back, which takes two round trips.
//!
//! Each charge has the answer of its own node. Where a node does not answer, its charges stay undecided, and those of the other nodes are
//! decided and made as if they were all there are. A node that is late because of our own load makes the whole request busy.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::Nodes;
use super::follow::is_split;
use crate::engine::algorithms::charge::{Charge, ChargeOrigin, Mode, Role};
use crate::engine::algorithms::decision::{Decision, Decisions, Detail, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::tag::tag_of;
use crate::engine::algorithms::taking::Taking;
use crate::store::redis::node::{Line, Route, within};
use crate::store::redis::request::Request;
use crate::store::{PartialAnswer, StoreAnswer, StoreError};

/// A request on its way, and what is known of its charges, in their order.
struct Progress<'a> {
    nodes: &'a Arc<Nodes>,
    line: Line,
    request: &'a Request,
    charges: Vec<ChargeState>,
    begun: Instant,
}

/// What is known of a charge.
#[derive(Clone, Default)]
struct ChargeState {
    /// The last decision.
    decision: Option<Decision>,
    detail: Option<Detail>,
    /// True if it has taken tokens.
    is_spent: bool,
    /// Why it is undecided. It is asked for no more.
    failed: Option<StoreError>,
}

/// Charges of one tag, decided in one call, and their places in the request.
struct Group {
    route: Route,
    places: Vec<usize>,
    request: Request,
}

/// The decisions on a group's charges.
type GroupAnswer = Result<Decisions, StoreError>;

/// Decides a request across hash slots, within the store's timeout.
pub(super) async fn decide(nodes: &Arc<Nodes>, line: Line, request: &Request) -> Result<Decisions, StoreError> {
    let charges = vec![ChargeState::default(); request.charges.len()];
    let mut progress = Progress { nodes, line, request, charges, begun: Instant::now() };
    // A quarter of the time is left to spend what a silent node does not have.
    progress.ask(nodes.timeout * 3 / 4, |_, charge| check(charge)).await;
    if progress.is_denied() {
        progress.count_denial().await;
        return progress.into_answer();
    }
    progress.fail_if_busy()?;
    progress.spend().await;
    let taking = progress.taking();
    if !taking.denies()
        && let Err(busy) = progress.fail_if_busy()
    {
        progress.give_back(None).await;
        return Err(busy);
    }
    progress.give_back(Some(&taking)).await;
    progress.into_answer()
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
    /// Asks all nodes at once, and notes the answers that come within `span`. `asked` returns the charge to ask for in place of the one
    /// at a place, if any.
    async fn ask(&mut self, span: Duration, asked: impl Fn(usize, &Charge) -> Option<Charge>) {
        let mut groups: Vec<Group> = Vec::new();
        for (place, charge) in self.request.charges.iter().enumerate() {
            if self.charges[place].failed.is_some() {
                continue;
            }
            let Some(charge) = asked(place, charge) else { continue };
            let route = Route::new(tag_of(&charge.bucket), self.line);
            match groups.iter_mut().find(|group| group.route == route) {
                Some(group) => {
                    group.places.push(place);
                    group.request.charges.push(charge);
                }
                None => groups.push(Group { route, places: vec![place], request: self.request.with(vec![charge]) }),
            }
        }
        let (nodes, begun) = (self.nodes, Instant::now());
        let waiting: Vec<usize> = groups.iter().map(|group| nodes.waiting(group.route.tag)).collect();
        let mut answers: Vec<Option<GroupAnswer>> = groups.iter().map(|_| None).collect();
        let asking = groups.iter().enumerate().map(|(index, group)| {
            let answer = nodes.ask(group.route, &group.request.batch(), group.request.set_now);
            // A redirect that comes until the end is the reason, rather than silence.
            async move { (index, group.answer(nodes, answer, span * 7 / 8).await) }
        });
        let mut asking: FuturesUnordered<_> = asking.collect();
        let all = async {
            while let Some((index, answer)) = asking.next().await {
                answers[index] = Some(answer);
            }
        };
        // What has not come then is late.
        let _ = within(span, pin!(all)).await;
        drop(asking);
        for ((group, answer), waiting) in groups.iter().zip(answers).zip(waiting) {
            match answer.unwrap_or_else(|| Err(nodes.late(group.route.tag, begun, waiting))) {
                Ok(decisions) => self.note(group, &decisions),
                Err(StoreError::Partial(partial)) => {
                    self.note(group, &partial.decisions);
                    let undecided = partial.undecided.iter().map(|at| group.places[*at]);
                    undecided.for_each(|place| self.charges[place].failed = Some(partial.error.clone()));
                }
                Err(error) => {
                    group.places.iter().for_each(|place| self.charges[*place].failed = Some(error.clone()));
                }
            }
        }
    }

    fn note(&mut self, group: &Group, decisions: &Decisions) {
        let charges = group.places.iter().zip(&group.request.charges);
        for (at, ((place, charge), decision)) in charges.zip(decisions.iter()).enumerate() {
            let takes = matches!(charge.mode, Mode::Spend | Mode::SpendOnly) && charge.cost > 0;
            let known = &mut self.charges[*place];
            *known = ChargeState {
                decision: Some(*decision),
                detail: decisions.detail(at).cloned(),
                is_spent: known.is_spent || takes && decision.outcome == Outcome::Allowed,
                failed: None,
            };
        }
    }

    /// The rest of the store's timeout, and at least a quarter of it: less would be lost to a worker that was held up meanwhile.
    fn rest(&self) -> Duration {
        let timeout = self.nodes.timeout;
        timeout.saturating_sub(self.begun.elapsed()).max(timeout / 4)
    }

    /// Spends all charges, until one denies.
    async fn spend(&mut self) {
        self.ask(self.rest(), |_, charge| (!is_last(charge)).then(|| reserved(charge))).await;
        for place in 0..self.request.charges.len() {
            if is_last(&self.request.charges[place]) && !self.is_denied() {
                self.ask(self.rest(), |at, charge| (at == place).then(|| charge.clone())).await;
            }
        }
    }

    /// Returns an error if a node is late because of our own load.
    fn fail_if_busy(&self) -> Result<(), StoreError> {
        let mut failed = self.charges.iter().filter_map(|known| known.failed.as_ref());
        failed.find(|error| matches!(error, StoreError::Busy { .. })).cloned().map_or(Ok(()), Err)
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
    async fn give_back(&mut self, taking: Option<&Taking>) {
        let takes = |charge: &Charge| taking.is_some_and(|taking| taking.takes(charge));
        if self.request.charges.iter().all(takes) {
            return;
        }
        let known = self.charges.clone();
        let given_back = |place: usize, charge: &Charge| {
            let ChargeState { is_spent, detail, .. } = &known[place];
            let is_due = *is_spent && !charge.counts_denied() && !takes(charge);
            is_due.then(|| charge.undo(detail.as_ref())).flatten()
        };
        self.ask(self.rest(), given_back).await;
        let is_lost = |(now, then): &(&ChargeState, &ChargeState)| now.failed.is_some() && then.failed.is_none();
        self.nodes.counts.count_lost(self.charges.iter().zip(&known).filter(is_lost).count() as u64);
        let untouched = |place: usize, charge: &Charge| {
            let ChargeState { is_spent, .. } = known[place];
            let is_known = is_spent || known[place].is_short() || is_prevented(&known[place]);
            (!is_known).then(|| state(charge)).flatten()
        };
        self.ask(self.rest(), untouched).await;
        self.keep_failures(&known);
    }

    /// Forgets failures since `known`: what was decided then stays so.
    fn keep_failures(&mut self, known: &[ChargeState]) {
        for (now, then) in self.charges.iter_mut().zip(known) {
            now.failed.clone_from(&then.failed);
        }
    }

    /// Counts a request that was denied by its checks in the buckets that count denied requests, charges the candidate of the limit
    /// that alone denies it, and learns the state of the others.
    async fn count_denial(&mut self) {
        let (known, taking) = (self.charges.clone(), self.taking());
        let asked = |place: usize, charge: &Charge| match known[place].is_denied() {
            _ if charge.counts_denied() => Some(Charge { mode: Mode::SpendOnly, ..charge.clone() }),
            true => None,
            false if charge.origin.is_strike() && taking.takes(charge) => {
                // Alone it has no limit that does not fit.
                let origin = ChargeOrigin { role: Role::Shadow, group: u32::MAX, ..charge.origin };
                Some(Charge { origin, mode: Mode::SpendOnly, ..charge.clone() })
            }
            false if charge.origin.is_candidate() && taking.takes(charge) => Some(charge.clone()),
            false if charge.can_deny() => state(charge),
            false => look(charge).or_else(|| state(charge)),
        };
        self.ask(self.rest(), asked).await;
        self.keep_failures(&known);
        for (now, then) in self.charges.iter_mut().zip(&known) {
            if let (Some(decision), true) = (&mut now.decision, then.is_denied()) {
                decision.outcome = Outcome::Denied;
            }
        }
    }

    fn into_answer(self) -> Result<Decisions, StoreError> {
        let taking = self.taking();
        let each = self.request.charges.iter().zip(self.charges).map(|(charge, known)| {
            let ChargeState { mut decision, mut detail, failed, .. } = known;
            if let Some(error) = failed {
                return Err(error);
            }
            if let Some(decision) = &mut decision
                && !taking.takes(charge)
                && !decision.is_short()
            {
                // The state of its bucket.
                let wait = decision.retry_after.filter(|wait| *wait > Micros(0) && charge.counts_denied());
                if let Some(wait) = wait.filter(|_| decision.is_allowed()) {
                    detail = Some(Detail::Counted(wait));
                }
                (decision.outcome, decision.retry_after) = (Outcome::Unchanged, Some(Micros(0)));
            }
            // As a script's bucket, whose state only the script knows.
            let decision = decision.unwrap_or_else(|| Decision::unknown(charge.numbers.burst()));
            let mut decisions = Decisions::from_iter([decision]);
            decisions.details.extend(detail.map(|detail| (0, detail)));
            Ok(decisions)
        });
        PartialAnswer::joined(self.request.charges.chunks(1).zip(each))
    }
}

impl Group {
    /// Waits for an answer. The keys are at two nodes while their hash slot moves, so each is asked for alone then.
    async fn answer(&self, nodes: &Arc<Nodes>, answer: StoreAnswer, span: Duration) -> GroupAnswer {
        let Self { route, request, .. } = self;
        let answered = nodes.follow(answer, *route, &request.batch(), request.set_now, span).await;
        if !answered.as_ref().is_err_and(|error| is_split(error, &request.charges)) {
            return answered;
        }
        let alone: Vec<Request> = request.charges.iter().map(|charge| request.with(vec![charge.clone()])).collect();
        let asked = alone.iter().map(|request| (request, nodes.ask(*route, &request.batch(), request.set_now)));
        let mut answers = Vec::with_capacity(alone.len());
        for (request, answer) in asked.collect::<Vec<_>>() {
            answers.push(nodes.follow(answer, *route, &request.batch(), request.set_now, span).await);
        }
        PartialAnswer::joined(request.charges.chunks(1).zip(answers))
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

/// The same charge, which may have to be given back if it spends.
fn reserved(charge: &Charge) -> Charge {
    let mut charge = charge.clone();
    if matches!(charge.mode, Mode::Spend | Mode::SpendOnly) {
        charge.reserve();
    }
    charge
}
