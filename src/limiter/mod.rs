//! From a request to its verdict. Every listener uses it.
//!
//! [`Limiter::decide`] plans the charges, asks the store once, applies `on_store_error` if that fails, and counts the
//! decisions. The limiter also holds the slots of requests in flight, settles costs that responses report, and reads and changes
//! buckets for operators.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use tokio_util::task::AbortOnDropHandle;

use self::record::CachedRecording;
use crate::engine::limit::blocks::Blocks;
use crate::jwt::Checker;
use crate::store::Store;
use crate::telemetry::metrics::{DecisionListener, LocalTimer, PerLabel, Timer};
use crate::telemetry::most_denied::WorkerDenials;
use crate::telemetry::throttle::Throttle;

mod bans;
mod decide;
mod decision_request;
mod delays;
mod denials;
mod failure_policy;
mod key_bounds;
mod live;
mod local_store;
mod most_denied;
mod new_keys;
pub mod operator;
mod quota;
mod record;
pub mod recording;
mod remembered_denials;
mod response_body;
mod scripts;
mod settlement;
mod shared;
mod slots;
mod store_call;
mod view;
pub mod warnings;
mod would_deny;

pub use decision_request::{DecisionRequest, LimiterVerdict, Patience};
use delays::DelayTable;
pub use delays::{DEFAULT_MAX_DELAYED, DelayBounds};
pub use key_bounds::{DEFAULT_MAX_NEW_KEYS, KeyBounds};
pub use live::KnownOverride;
use new_keys::RecentKeys;
pub use quota::{QuotaAnswer, QuotaCall, QuotaGroups, QuotaMember, QuotaTreatment, QuotaTurn};
use remembered_denials::RememberedDenials;
pub use settlement::Settlement;
use settlement::Settler;
use shared::Snapshot;
pub use shared::{LimitCounts, Shared};
pub use slots::HeldSlots;
use slots::SlotTable;
pub use view::View;
use warnings::RecentWarnings;

/// A worker's limiter: the shared rules, and the worker's own connection to the store.
pub struct Limiter {
    shared: Arc<Shared>,
    store: Store,
    settler: Arc<Settler>,
    view: RefCell<CachedView>,
    /// The ids that this worker denies.
    denied: Arc<WorkerDenials>,
    blocks: RefCell<Cache<Arc<ArcSwap<Blocks>>, Arc<Blocks>>>,
    recording: RefCell<CachedRecording>,
    slots: Rc<SlotTable>,
    delays: Rc<DelayTable>,
    /// Verifies tokens, for rules that use claims.
    checker: RefCell<Checker>,
    /// The keys that this worker has charged in a remote store.
    recent: Option<RecentKeys>,
    /// Those of a remote store.
    remembered: RememberedDenials,
    warned: RefCell<RecentWarnings>,
    /// Renews slots. Started by the first request that can hold one.
    keeper: OnceCell<AbortOnDropHandle<()>>,
    /// The durations since [`Self::flush`]. Adding to the shared histogram takes
    /// 40 ns of atomics.
    seconds: PerLabel<DecisionListener, LocalTimer>,
    failure_log: Throttle,
    overload_log: Throttle,
    /// Whether the store has answered since [`Self::flush`].
    answered: Cell<bool>,
}

struct CachedView {
    snapshot: Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>,
    view: Rc<View>,
}

impl Limiter {
    pub fn new(shared: Arc<Shared>, store: Store) -> Self {
        let mut snapshot = Cache::new(shared.snapshot.clone());
        let denied = shared.most_denied.join();
        let view = View::new(snapshot.load(), &shared.metrics, &denied);
        Self {
            view: RefCell::new(CachedView { snapshot, view }),
            settler: Settler::new(shared.clone(), store.clone()),
            slots: SlotTable::new(shared.clone(), store.clone()),
            delays: DelayTable::new(&shared),
            denied,
            checker: RefCell::new(Checker::new(shared.keys.clone())),
            blocks: RefCell::new(Cache::new(shared.blocks.clone())),
            recording: RefCell::new(Cache::new(shared.recording.clone())),
            recent: store.is_remote().then(RecentKeys::new),
            remembered: RememberedDenials::default(),
            warned: RefCell::default(),
            keeper: OnceCell::new(),
            seconds: shared.metrics.listeners.decision_seconds.map(Timer::local),
            failure_log: Throttle::default(),
            overload_log: Throttle::default(),
            answered: Cell::default(),
            shared,
            store,
        }
    }

    /// Publishes durations and counts, drops old rules, and has the scripts of new ones compiled. Must be called about once a
    /// second.
    pub fn flush(&self) {
        self.seconds.iter().for_each(|(_, timer)| timer.flush());
        self.delays.flush();
        self.remembered.flush();
        self.note_store();
        let view = self.view();
        view.flush_denials(false);
        view.snapshot.check_scripts(&self.store);
    }

    /// Gives back all slots, and logs the last denials. Must be called at the end, before running requests are dropped.
    pub async fn close(&self) {
        self.view().flush_denials(true);
        self.slots.close().await;
        self.store.close().await;
    }

    /// The rules in force.
    pub fn view(&self) -> Rc<View> {
        let mut cached = self.view.borrow_mut();
        let CachedView { snapshot, view } = &mut *cached;
        let snapshot = snapshot.load();
        if !Arc::ptr_eq(snapshot, &view.snapshot) {
            *view = View::new(snapshot, &self.shared.metrics, &self.denied);
        }
        view.clone()
    }

    /// Returns `None` if nothing is blocked.
    fn blocks(&self) -> Option<Arc<Blocks>> {
        let mut cached = self.blocks.borrow_mut();
        let blocks = cached.load();
        (!blocks.is_empty()).then(|| blocks.clone())
    }

    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

#[cfg(test)]
mod tests;
