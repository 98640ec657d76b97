//! What an operator does with buckets: looks at one, gives back, makes it full, says what remains, and blocks its id.
//!
//! A process has one operator, on the control thread, with a connection to the store of its own. It is also the one that
//! keeps this process' copy of what is blocked up to date: with Redis any gateway may block, and each asks now and then.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use smallvec::SmallVec;
use tokio::sync::Mutex;

use super::{Limiter, Shared};
use crate::clock::Clock;
use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::decision::Decision;
use crate::engine::algorithms::micros::{EXACT, Micros};
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::rules::allowance::Allowance;
use crate::engine::rules::blocks::{Block, Blocks, MOST_BLOCKS};
use crate::engine::rules::bucket_info::{BucketInfo, BucketInfoError};
use crate::engine::rules::limit::LimitMode;
use crate::store::{Batch, SharedBlocks, Store, StoreError, StoredBlock, StoredBlocks};

/// How often other gateways' blocks are asked for: so often that they hold everywhere within a second.
const INTERVAL: Duration = Duration::from_millis(500);

/// How soon that is tried again before it has worked for the first time: the connection is only being made.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);

/// An operator of this process.
pub struct Operator {
    limiter: Limiter,
    clock: Clock,
    /// One change of what is blocked at a time.
    known: Mutex<Known>,
}

/// What was heard of the store's blocks.
#[derive(Debug, Default)]
struct Known {
    version: Option<u64>,
    /// Whether it was logged that the store does not tell.
    complained: bool,
}

/// What is done to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is made full.
    Reset,
    /// So many tokens are given back, up to a full bucket.
    Refund(u64),
    /// So many tokens remain; in each window of several, or all that it holds if that is less.
    Set(u64),
}

/// Why an operator is not obeyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    /// There is no such limit.
    #[error("{0}")]
    Unknown(String),
    /// What is asked for is a mistake.
    #[error("{0}")]
    Mistaken(String),
    /// It cannot be done with this bucket.
    #[error("{0}")]
    Impossible(String),
    /// The store gave no answer. It may have been done if [`StoreError::is_ambiguous`].
    #[error("{0}")]
    Store(#[from] StoreError),
}

/// How the buckets of an id stand.
#[derive(Clone, Debug)]
pub struct State {
    /// `Name:id`, in canonical text.
    pub bucket: String,
    /// What the limit does for all ids.
    pub mode: LimitMode,
    /// Whether it may refuse this one.
    pub enforced: bool,
    /// What it allows this one.
    pub allowance: Allowance,
    /// The override that says so: the file with the line, and its comment.
    pub given_by: Option<(String, Option<String>)>,
    /// The block that holds, and for how long yet.
    pub blocked: Option<(Block, Micros)>,
    /// One for each window; none if the id has no bucket.
    pub windows: Vec<WindowState>,
}

/// How one window stands.
#[derive(Clone, Debug)]
pub struct WindowState {
    /// The numbers that hold.
    pub numbers: Numbers,
    /// The capacity that holds: of elevated numbers while those are on.
    pub limit: u64,
    /// Whole tokens left.
    pub remaining: u64,
    /// Until a request fits; `None` if it never will.
    pub retry_after: Option<Micros>,
    /// Until the bucket is full, or its window ends; `None` for never.
    pub reset_after: Option<Micros>,
}

impl Operator {
    /// An operator who decides by `clock`, the one that the listeners have. To be called inside the runtime that it works on.
    pub fn new(shared: Arc<Shared>, store: Store, clock: Clock) -> Self {
        Self { limiter: Limiter::new(shared, store), clock, known: Mutex::default() }
    }

    /// How a bucket stands, `Name:id`. Nothing is changed.
    pub async fn look(&self, bucket: &str) -> Result<State, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = view.rules().inspect(bucket, now)?;
        let windows = self.decide(&found, None, now).await?;
        Ok(self.state(&found, windows, now))
    }

    /// Changes a bucket, all its windows at once, and says how it stands then.
    pub async fn change(&self, bucket: &str, change: Change) -> Result<State, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = view.rules().inspect(bucket, now)?;
        check(&found, change)?;
        let windows = self.decide(&found, Some(change), now).await?;
        Ok(self.state(&found, windows, now))
    }

    /// Blocks an id, or all that begin so, for a time from now on, whatever was left of an earlier block. `by` says who
    /// does.
    pub async fn block(
        &self,
        bucket: &str,
        span: Micros,
        reason: Option<String>,
        by: String,
    ) -> Result<State, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = view.rules().inspect(bucket, now)?;
        if !found.is_in_use() {
            let reason =
                if found.limit.mode == LimitMode::Off { "it is `mode: off`" } else { "it allows nobody anything" };
            let name = &found.limit.name;
            return Err(OperatorError::Impossible(format!("{name} is asked for no request, because {reason}")));
        }
        let until = Micros(now.0.saturating_add(span.0));
        let block = Block { key: found.key.clone(), until, bucket: found.name(), reason, by };
        let full = || OperatorError::Impossible(format!("{MOST_BLOCKS} ids are blocked, and there may not be more"));
        let mut known = self.known.lock().await;
        let shared = self.limiter.store().shared_blocks();
        if let Some(shared) = shared {
            self.catch_up(shared, &mut known).await?;
            let stored = StoredBlock { key: found.key.clone(), left: span, note: note(&block) };
            if !shared.block(&stored, known.version.unwrap_or(0)).await? {
                return Err(full());
            }
        }
        // It holds here at once, even if the store cannot be asked again.
        let mut list = self.others(&found.key, now);
        if shared.is_none() && list.len() >= MOST_BLOCKS {
            return Err(full());
        }
        list.push(block);
        self.apply(list);
        if let Some(shared) = shared {
            let _ = self.catch_up(shared, &mut known).await;
        }
        drop(known);
        let windows = self.decide(&found, None, now).await?;
        Ok(self.state(&found, windows, self.clock.now()))
    }

    /// Ends a block. It is the one of this id or beginning itself that ends, and none that covers more.
    pub async fn unblock(&self, bucket: &str) -> Result<State, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = view.rules().inspect(bucket, now)?;
        let mut known = self.known.lock().await;
        let is_known = self.blocks().list().iter().any(|block| block.key == found.key && block.until > now);
        let shared = self.limiter.store().shared_blocks();
        let mut was_blocked = is_known;
        if let Some(shared) = shared {
            self.catch_up(shared, &mut known).await?;
            was_blocked |= shared.unblock(&found.key, known.version.unwrap_or(0)).await?;
        }
        self.apply(self.others(&found.key, now));
        if let Some(shared) = shared {
            let _ = self.catch_up(shared, &mut known).await;
        }
        drop(known);
        if !was_blocked {
            let name = found.name();
            let covering = self.blocks().covering(&found.key, now).map(|block| block.bucket.clone());
            let help = covering.map_or_else(String::new, |by| format!("; the block of {by} covers it"));
            return Err(OperatorError::Unknown(format!("{name} is not blocked{help}")));
        }
        let windows = self.decide(&found, None, now).await?;
        Ok(self.state(&found, windows, now))
    }

    /// What is blocked, each with the time that is left, the longest last.
    pub fn blocked(&self) -> Vec<(Block, Micros)> {
        let now = self.clock.now();
        let mut list: Vec<(Block, Micros)> = self
            .blocks()
            .list()
            .iter()
            .filter(|block| block.until > now)
            .map(|block| (block.clone(), block.until.since(now)))
            .collect();
        list.sort_by(|(a, _), (b, _)| a.until.cmp(&b.until).then_with(|| a.key.cmp(&b.key)));
        list
    }

    /// Learns of other gateways' blocks and forgets those that have ended; returns how long to wait until the next time.
    pub async fn keep_up(&self) -> Duration {
        let mut known = self.known.lock().await;
        let told = match self.limiter.store().shared_blocks() {
            None => Ok(()),
            Some(shared) => self.catch_up(shared, &mut known).await,
        };
        let now = self.clock.now();
        if self.blocks().list().iter().any(|block| block.until <= now) {
            self.apply(self.blocks().list().iter().filter(|block| block.until > now).cloned().collect());
        }
        match told {
            Ok(()) => {
                known.complained = false;
                INTERVAL
            }
            // The owner of the connection says that.
            Err(StoreError::Down) if known.version.is_none() => FIRST_INTERVAL,
            Err(error) => {
                if !known.complained && error != StoreError::Down {
                    known.complained = true;
                    tracing::warn!("the store does not tell what is blocked: {error}; what is known goes on to hold");
                }
                INTERVAL
            }
        }
    }

    /// Takes over what the store has blocked, if that is another version than the one that is known. A store whose version
    /// is older has lost what was blocked, as one that restarts empty has: then it gets that back.
    async fn catch_up(&self, shared: SharedBlocks<'_>, known: &mut Known) -> Result<(), StoreError> {
        let Some(mut kept) = shared.read(known.version).await? else { return Ok(()) };
        let now = self.clock.now();
        if let Some(version) = known.version.filter(|known| *known > kept.version) {
            let blocks = self.blocks();
            let holding = blocks.list().iter().filter(|block| block.until > now);
            let list: Vec<StoredBlock> = holding
                .map(|block| StoredBlock { key: block.key.clone(), left: block.until.since(now), note: note(block) })
                .collect();
            let ours = StoredBlocks { version, list };
            if !ours.list.is_empty() {
                if shared.restore(&ours).await? {
                    tracing::warn!(blocks = ours.list.len(), "the store had lost what is blocked; it was written back");
                    return Ok(());
                }
                // Another gateway was faster.
                kept = shared.read(None).await?.unwrap_or(kept);
            }
        }
        let read = |block: StoredBlock| {
            let note: serde_json::Value = serde_json::from_str(&block.note).unwrap_or_default();
            let text = |member: &str| note[member].as_str().map(str::to_owned);
            Block {
                until: Micros(now.0.saturating_add(block.left.0)),
                bucket: text("bucket").unwrap_or_else(|| block.key.clone()),
                reason: text("reason"),
                by: text("by").unwrap_or_default(),
                key: block.key,
            }
        };
        self.apply(kept.list.into_iter().take(MOST_BLOCKS).map(read).collect());
        known.version = Some(kept.version);
        Ok(())
    }

    fn blocks(&self) -> Arc<Blocks> {
        self.limiter.shared().blocks.load_full()
    }

    /// The blocks that hold, without that of this key.
    fn others(&self, key: &str, now: Micros) -> Vec<Block> {
        self.blocks().list().iter().filter(|block| block.key != key && block.until > now).cloned().collect()
    }

    fn apply(&self, list: Vec<Block>) {
        let fingerprinter = self.limiter.view().rules().fingerprinter();
        self.limiter.shared().block(Blocks::new(list, &fingerprinter));
    }

    /// Changes the windows of an id and asks how they stand, as one.
    async fn decide(
        &self,
        found: &BucketInfo<'_>,
        change: Option<Change>,
        now: Micros,
    ) -> Result<Vec<WindowState>, OperatorError> {
        let charges = &found.plan.charges;
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        let each = |mode, cost| -> SmallVec<[Charge; 1]> {
            charges.iter().map(|charge| Charge { cost, mode, ..charge.clone() }).collect()
        };
        let mut steps = match change {
            None => Vec::new(),
            Some(Change::Reset) => vec![each(Mode::Reset, 0)],
            Some(Change::Refund(tokens)) => vec![each(Mode::Refund, tokens)],
            // Given back to an empty bucket, as nobody knows before whether elevated numbers are on. What is used is what
            // has just been taken.
            Some(Change::Set(remaining)) => {
                vec![each(Mode::Reset, 0), each(Mode::SpendUpTo, EXACT - 1), each(Mode::Refund, remaining)]
            }
        };
        steps.push(each(Mode::Check, 0));
        steps.push(each(Mode::Check, found.cost));
        let effective_from = self.limiter.view().rules().effective_from();
        let batches: Vec<Batch<'_>> = steps.iter().map(|charges| Batch { charges, effective_from, now }).collect();
        let decided = self.limiter.store().decide_in_turn(&batches).await?;
        if change.is_some() && self.limiter.store().is_remote() {
            // What stands in for the store next time must not go by what was before.
            let _ = self.limiter.shared().local.decide_in_turn(&batches);
        }
        let [.., standing, asking] = decided.as_slice() else { return Ok(Vec::new()) };
        Ok(charges
            .iter()
            .zip(standing.iter().zip(asking))
            .map(|(charge, (standing, asking))| window(charge, standing, asking))
            .collect())
    }

    fn state(&self, found: &BucketInfo<'_>, windows: Vec<WindowState>, now: Micros) -> State {
        let view = self.limiter.view();
        let given_by = found.given_by.map(|origin| {
            let comment = origin.comment.as_deref().map(str::to_owned);
            (format!("{}:{}", view.rules().file(origin.file), origin.line), comment)
        });
        let blocked = self.blocks().covering(&found.key, now).map(|block| (block.clone(), block.until.since(now)));
        State {
            bucket: found.name(),
            mode: found.limit.mode,
            enforced: found.enforced,
            allowance: found.allowance.clone(),
            given_by,
            blocked,
            windows,
        }
    }
}

/// What is noted beside a block, for people and other gateways.
fn note(block: &Block) -> String {
    json!({ "bucket": block.bucket, "reason": block.reason, "by": block.by }).to_string()
}

fn window(charge: &Charge, standing: &Decision, asking: &Decision) -> WindowState {
    // Another window may be what refuses; then this one says where it stands, and that the request would fit.
    WindowState {
        numbers: charge.numbers.clone(),
        limit: standing.limit,
        remaining: standing.remaining,
        retry_after: if asking.is_denied() { asking.retry_after } else { Some(Micros(0)) },
        reset_after: standing.reset_after,
    }
}

/// Whether a change means something for a bucket.
fn check(found: &BucketInfo<'_>, change: Change) -> Result<(), OperatorError> {
    let name = found.name();
    let impossible = |reason: &str| Err(OperatorError::Impossible(format!("{name} has no bucket: {reason}")));
    if found.missing > 0 {
        let wanted = found.limit.by.len();
        return Err(OperatorError::Mistaken(format!(
            "{name} gives {} of {wanted} components of an id",
            wanted - found.missing
        )));
    }
    match found.allowance {
        Allowance::Unlimited => return impossible("it is unlimited"),
        Allowance::Deny => return impossible("it is refused by `deny: true`"),
        Allowance::Disabled => return impossible("the limit has no numbers for this id"),
        Allowance::Windows(_) | Allowance::Elevated(_) => {}
    }
    let numbers = found.allowance.windows().into_iter().flat_map(|windows| windows.iter());
    let elevated = found.allowance.elevated().map(|elevated| &elevated.numbers);
    let most = numbers.clone().chain(elevated).map(Numbers::burst).max().unwrap_or(0);
    let elsewhere = numbers.clone().find_map(|numbers| match numbers.algorithm() {
        Algorithm::Concurrency => {
            Some(("counts requests in flight, and those end by themselves; it can be reset", true))
        }
        Algorithm::Queue => Some(("is a queue, and its entries are for its workers to take", false)),
        Algorithm::Script => Some(("is what its script makes of it", false)),
        _ => None,
    });
    match (change, elsewhere) {
        (change, Some((reason, can_reset))) if !can_reset || !matches!(change, Change::Reset) => {
            Err(OperatorError::Impossible(format!("{name} {reason}")))
        }
        (Change::Refund(0), _) => Err(OperatorError::Mistaken("`cost` must be at least 1".to_owned())),
        (Change::Set(remaining), _) if remaining > most => {
            Err(OperatorError::Mistaken(format!("`remaining` is {remaining}, and {name} holds {most} at most")))
        }
        _ => Ok(()),
    }
}

impl From<BucketInfoError> for OperatorError {
    fn from(error: BucketInfoError) -> Self {
        match error {
            BucketInfoError::Limit(reason) => Self::Unknown(reason),
            BucketInfoError::Id(reason) => Self::Mistaken(reason),
        }
    }
}
