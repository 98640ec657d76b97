//! Decides requests of which leases serve some charges, and gives leases back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::RedisStore;
use super::leases::table::Return;
use super::leases::{Leases, Part, joined};
use super::node::Line;
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::{Decision, Decisions};
use crate::engine::algorithms::taking::{FEW, has_duplicate};
use crate::store::{Batch, PartialAnswer, StoreAnswer, StoreError};

/// The longest wait of a worker that stops, until its tokens are given back.
const LAST_RETURNS: Duration = Duration::from_millis(500);

/// The tokens that a request has taken from leases while its other charges are decided. Dropping this puts them back and forgets
/// the leases that were asked for: the client has left.
struct TakenParts<'a> {
    store: &'a RedisStore,
    batch: Batch<'a>,
    parts: SmallVec<[Part; FEW]>,
    sent: SmallVec<[Charge; FEW]>,
}

impl TakenParts<'_> {
    /// Puts back what charges have taken that take nothing.
    fn put_back(&mut self, decided: Option<&Decisions>) {
        let refunds = self.store.leases.put_back(self.batch.charges, &mut self.parts, decided);
        if !refunds.is_empty() {
            // Nobody waits for the answer. Refunds are sent all the same.
            drop(self.store.ask(&Batch { charges: &refunds, ..self.batch }));
        }
    }

    /// The request is decided.
    fn keep(mut self) -> SmallVec<[Part; FEW]> {
        std::mem::take(&mut self.parts)
    }
}

impl Drop for TakenParts<'_> {
    fn drop(&mut self) {
        if !self.parts.is_empty() {
            self.put_back(None);
            self.store.leases.forget_wishes(&self.sent);
        }
    }
}

impl RedisStore {
    /// Decides the charges of a request of which some may be leased.
    pub(super) async fn decide_with_leases(&self, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        if has_duplicate(batch.charges) {
            return Err(StoreError::Duplicate);
        }
        let (leases, asked) = (&self.leases, self.leases.now());
        let parts = leases.take(batch, asked);
        let mut taken = TakenParts { store: self, batch: *batch, parts, sent: SmallVec::new() };
        if taken.parts.iter().all(|part| matches!(part, Part::Taken(..))) {
            return Ok(joined(&taken.keep(), &Decisions::default()));
        }
        taken.sent = leases.sent(batch, &taken.parts, asked, self.timeout());
        let has_leased = taken.sent.len() < batch.charges.len();
        let (mut answer, gaps) =
            match self.decide_sent(Line::of(batch.charges), &Batch { charges: &taken.sent, ..*batch }).await {
                Err(StoreError::Partial(partial)) => (Ok(partial.decisions), Some((partial.undecided, partial.error))),
                // What leases have decided holds.
                Err(error) if has_leased && !matches!(error, StoreError::Busy { .. }) => {
                    let unknown = taken.sent.iter().map(|charge| Decision::unknown(charge.numbers.burst()));
                    (Ok(unknown.collect()), Some(((0..taken.sent.len()).collect(), error)))
                }
                answer => (answer, None),
            };
        leases.note(&taken.sent, batch.effective_from, asked, &mut answer);
        let decided = answer.as_ref().ok().map(|sent| joined(&taken.parts, sent));
        taken.put_back(decided.as_ref());
        let parts = taken.keep();
        let decisions = joined(&parts, &answer?);
        let Some((gaps, error)) = gaps else { return Ok(decisions) };
        let sent = parts.iter().enumerate().filter(|(_, part)| matches!(part, Part::Sent)).map(|(place, _)| place);
        let undecided = sent.enumerate().filter(|(of, _)| gaps.contains(of)).map(|(_, place)| place).collect();
        Err(StoreError::Partial(Box::new(PartialAnswer { decisions, undecided, error })))
    }

    /// Returns true if leases may serve a request: the time is the server's, not a scenario's.
    pub(super) fn may_lease(&self, batch: &Batch<'_>) -> bool {
        batch.charges.iter().any(|charge| charge.lease.is_some()) && self.clock.set_time().is_none()
    }

    /// Gives back what is left of all leases, and waits for it to arrive.
    pub async fn give_back_leases(&self) {
        let returns = self.leases.table.lock().end_all();
        let answers: Vec<StoreAnswer> = returns.iter().map(|back| self.give_back(back)).collect();
        let arrived = async {
            for answer in answers {
                if let Err(error) = answer.wait().await {
                    tracing::debug!("a lease was not given back: {error}");
                }
            }
        };
        if timeout(LAST_RETURNS, arrived).await.is_err() {
            tracing::warn!("some leases of tokens were not given back; their tokens count as used");
        }
    }

    fn give_back(&self, back: &Return) -> StoreAnswer {
        let charges = std::slice::from_ref(&back.charge);
        self.ask(&Batch { charges, effective_from: back.effective_from, now: self.clock.now() })
    }
}

/// Starts the task that gives back the leases of `store` before they end.
pub(super) fn give_back_in_time(store: Weak<RedisStore>, leases: Arc<Leases>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let next = leases.table.lock().next_look();
            let now = leases.now();
            match next {
                Some(at) if at <= now => {
                    let Some(store) = store.upgrade() else { return };
                    let returns = leases.table.lock().returns(now);
                    // Nobody waits for the answers. Refunds are sent all the same.
                    for back in &returns {
                        drop(store.give_back(back));
                    }
                }
                Some(at) => {
                    let pause = sleep(Duration::from_micros(at.since(now).0));
                    tokio::select! {
                        () = pause => {}
                        () = leases.earlier.notified() => {}
                    }
                }
                None => leases.earlier.notified().await,
            }
        }
    }))
}
