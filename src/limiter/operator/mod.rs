//! Operators' commands on buckets: show, reset, refund and set them, and block their ids.
//!
//! A process has one operator, on the control thread, with a store connection of its own.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use self::noticeboard::{Notice, Noticeboard};
use super::{Limiter, Shared, View};
use crate::clock::Clock;
use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::decision::Decision;
use crate::engine::algorithms::micros::{EXACT, Micros};
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::LimitMode;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::blocks::Block;
use crate::engine::limit::live::LiveOverride;
use crate::engine::limit::resets::LimitReset;
use crate::engine::telling::bucket_info::{BucketInfo, BucketInfoError};
use crate::store::{Batch, Store, StoreError};

mod blocks;
mod change;
mod noticeboard;
mod overrides;
mod resets;
mod top;
mod would_deny;

pub use change::BucketChange;
pub use overrides::{NewOverride, kept_overrides};
pub use top::{TopId, TopIds};
pub use would_deny::WouldBeDeniedIds;

pub struct Operator {
    limiter: Limiter,
    clock: Clock,
    board: Noticeboard,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    /// There is no such limit or block.
    #[error("{0}")]
    Unknown(String),
    #[error("{0}")]
    Invalid(String),
    /// The bucket does not support it.
    #[error("{0}")]
    Unsupported(String),
    /// The file that keeps the change cannot be written.
    #[error("{0}")]
    File(String),
    /// It may have been done if [`StoreError::is_ambiguous`].
    #[error("{0}")]
    Store(#[from] StoreError),
}

/// The state of an id's buckets.
#[derive(Clone, Debug)]
pub struct BucketReport {
    /// `Name:id`, in canonical text.
    pub bucket: String,
    pub mode: LimitMode,
    /// True if the limit may deny this id.
    pub enforced: bool,
    /// The limit's allowance for this id.
    pub allowance: Allowance,
    /// The override that applies: its file and line or `live`, and its comment.
    pub given_by: Option<(String, Option<String>)>,
    /// The block in force, and the time left.
    pub blocked: Option<(Block, Micros)>,
    /// Each window with the decision on a cost of 0, but for `retry_after`, the time until a request fits, and `delay`, the time that
    /// it would be held. Empty if the id has no bucket.
    pub windows: Vec<(Numbers, Decision)>,
    /// Those that are decided for the id.
    pub candidates: Vec<CandidateReport>,
}

/// The state of an id's buckets of one candidate.
#[derive(Clone, Debug)]
pub struct CandidateReport {
    pub name: Option<Arc<str>>,
    pub windows: Vec<(Numbers, Decision)>,
}

impl Operator {
    /// `clock` must be that of the listeners. Must be called inside the runtime that the operator works on.
    pub fn new(shared: Arc<Shared>, store: Store, clock: Clock) -> Self {
        let board = Noticeboard::new(shared.clone(), store.clone(), clock.clone());
        Self { limiter: Limiter::new(shared, store), clock, board }
    }

    /// The rules in force.
    pub fn view(&self) -> Rc<View> {
        self.limiter.view()
    }

    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Learns other gateways' notices, and drops those that have ended. Then waits until that is due again.
    pub async fn keep_up(&self) {
        self.post_bans().await;
        let kinds = [Block::NOTES, LiveOverride::NOTES, LimitReset::NOTES];
        let [blocks, overrides, resets] = self.board.versions(kinds).await;
        let next = self.board.keep_up::<Block>(blocks).await.min(self.board.keep_up::<LiveOverride>(overrides).await);
        let next = next.min(self.board.keep_up::<LimitReset>(resets).await);
        tokio::select! {
            () = self.board.wait(next) => {}
            () = self.limiter.shared.bans.added.notified() => self.board.gather().await,
        }
    }

    /// Returns the state of the bucket `Name:id`.
    pub async fn look(&self, bucket: &str) -> Result<BucketReport, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = BucketInfo::find(view.rules(), bucket, now)?;
        self.state(&found, None, now).await
    }

    /// Changes all windows of a bucket at once. Returns the new state.
    pub async fn change(&self, bucket: &str, change: BucketChange) -> Result<BucketReport, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = BucketInfo::find(view.rules(), bucket, now)?;
        change.check(&found)?;
        if matches!(change, BucketChange::Reset) {
            self.forget_bans(&found, now).await?;
            self.forget_warnings(&found, now).await?;
        }
        self.state(&found, Some(change), now).await
    }

    /// Lets the denials so far lead to no ban, and the bans to no longer one.
    async fn forget_bans(&self, found: &BucketInfo<'_>, now: Micros) -> Result<(), StoreError> {
        let (charges, effective_from) = (&found.forget_bans[..], self.limiter.view().rules().effective_from);
        if charges.is_empty() {
            return Ok(());
        }
        let batch = Batch { charges, effective_from, now };
        let _ = self.limiter.shared.local.decide(&batch);
        self.limiter.store.decide(&batch).await.map(|_| ())
    }

    /// The id may be warned of again. What other gateways have seen warned, they remember until its window is over.
    async fn forget_warnings(&self, found: &BucketInfo<'_>, now: Micros) -> Result<(), StoreError> {
        let (charges, effective_from) = (&found.forget_warnings[..], self.limiter.view().rules().effective_from);
        if charges.is_empty() {
            return Ok(());
        }
        let batch = Batch { charges, effective_from, now };
        self.limiter.shared.warnings.forget(&batch);
        if !self.limiter.store.is_remote() {
            return Ok(());
        }
        self.limiter.store.decide(&batch).await.map(|_| ())
    }

    /// Changes and reads all windows of an id in one call.
    async fn decide(
        &self,
        found: &BucketInfo<'_>,
        change: Option<BucketChange>,
        now: Micros,
    ) -> Result<Vec<(Numbers, Decision)>, OperatorError> {
        let charges = &found.plan.charges;
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        let each = |mode, cost| -> SmallVec<[Charge; 1]> {
            charges.iter().map(|charge| Charge { cost, mode, ..charge.clone() }).collect()
        };
        let mut steps = match change {
            None => Vec::new(),
            Some(BucketChange::Reset) => vec![each(Mode::Reset, 0)],
            Some(BucketChange::Refund(tokens)) => vec![each(Mode::Refund, tokens)],
            // A refund to an empty bucket: whether elevated numbers are on, and so what the bucket holds, is not known here.
            Some(BucketChange::Set(remaining)) => {
                vec![each(Mode::Reset, 0), each(Mode::SpendUpTo, EXACT - 1), each(Mode::Refund, remaining)]
            }
        };
        steps.push(each(Mode::Check, 0));
        steps.push(each(Mode::Check, found.cost));
        let effective_from = self.limiter.view().rules().effective_from;
        let batches: Vec<Batch<'_>> = steps.iter().map(|charges| Batch { charges, effective_from, now }).collect();
        let decided = self.limiter.store.decide_in_turn(&batches).await;
        if change.is_some() {
            // Also after an error: the store may have made the change.
            self.limiter.shared.give_back();
        }
        let decided = decided?;
        if change.is_some() && self.limiter.store.is_remote() {
            // The memory that replaces a failed store must know the change, too.
            let _ = self.limiter.shared.local.decide_in_turn(&batches);
        }
        let decided: Vec<&[Decision]> = decided.chunks(charges.len()).collect();
        let [.., standing, asking] = decided.as_slice() else { return Ok(Vec::new()) };
        let window = |(charge, (standing, asking)): (&Charge, (&Decision, &Decision))| {
            // If only another window is short, the cost would fit this one. One that would be held fits when its turn comes.
            let retry_after = if asking.is_short() { asking.retry_after } else { Some(asking.delay()) };
            (charge.numbers.clone(), Decision { retry_after, delay: asking.delay, ..*standing })
        };
        Ok(charges.iter().zip(standing.iter().zip(asking.iter())).map(window).collect())
    }

    /// Applies a change, if any, and returns the state after it.
    async fn state(
        &self,
        found: &BucketInfo<'_>,
        change: Option<BucketChange>,
        now: Micros,
    ) -> Result<BucketReport, OperatorError> {
        let mut windows = self.decide(found, change, now).await?;
        let charges = found.plan.charges.chunk_by(|one, other| one.origin.role == other.origin.role);
        let mut candidates = Vec::new();
        for charges in charges.rev() {
            let Some(place) = charges.first().and_then(|charge| charge.origin.role.candidate()) else { continue };
            let name = found.limit.candidates.get(usize::from(place)).and_then(|candidate| candidate.name.clone());
            let windows = windows.split_off(windows.len().saturating_sub(charges.len()));
            candidates.push(CandidateReport { name, windows });
        }
        candidates.reverse();
        let view = self.limiter.view();
        let given_by = found.given_by.map(|origin| {
            let comment = origin.comment.as_deref().map(str::to_owned);
            (view.rules().place_of(origin), comment)
        });
        let now = self.clock.now();
        let blocked = self.blocks().covering(&found.key, now).map(|block| (block.clone(), block.until.since(now)));
        Ok(BucketReport {
            bucket: found.name(),
            mode: found.limit.mode,
            enforced: found.enforced,
            allowance: found.allowance.clone(),
            given_by,
            blocked,
            windows,
            candidates,
        })
    }
}

impl From<BucketInfoError> for OperatorError {
    fn from(error: BucketInfoError) -> Self {
        match error {
            BucketInfoError::Limit(reason) => Self::Unknown(reason),
            BucketInfoError::Id(reason) => Self::Invalid(reason),
        }
    }
}
