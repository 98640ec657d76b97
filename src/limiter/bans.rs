//! Bans: the ids that a limit with `ban` has denied too often are blocked, here at once and by other gateways once they have learnt it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Limiter, Shared, View};
use crate::engine::algorithms::decision::{Decisions, Detail};
use crate::engine::algorithms::micros::Micros;
use crate::engine::deciding::verdict::Verdict;
use crate::engine::limit::ban::{MOST_BANS, NewBan};
use crate::engine::limit::blocks::{Block, Blocks};
use crate::engine::limit::key::fingerprint_of;
use crate::store::Batch;
use crate::telemetry::metrics::BanResult;

/// The most bans that are in force here and that other gateways do not know yet. Each is put in force by a copy of all blocks.
const MOST_UNPOSTED: usize = 1_000;

/// The bans that are in force here and not on the noticeboard yet.
#[derive(Default)]
pub(super) struct UnpostedBans {
    list: Mutex<Vec<Block>>,
    pub(super) added: Notify,
}

impl Limiter {
    /// Bans ids that have their last strike, and notes in the verdict how long they are banned. A ban that cannot be counted has the
    /// length of a first one.
    pub(super) async fn ban(
        &self,
        view: &View,
        bans: Vec<NewBan>,
        (now, deadline): (Micros, Option<Instant>),
        verdict: &mut Verdict,
    ) {
        let rules = view.rules();
        for ban in bans {
            let batch = |charges| Batch { charges, effective_from: rules.effective_from, now };
            let claim = ban.claim(rules);
            let claimed = self.ask_of_ban(&[batch(&claim)], deadline).await;
            let Some((block, counting)) = ban.block(rules, &claimed, now) else { continue };
            if let [reset, spend] = &counting[..] {
                // A ban that is not counted makes no other one longer.
                let batches = [reset, spend].map(std::slice::from_ref).map(batch);
                self.ask_of_ban(&batches, deadline).await;
            }
            let result = match ban.is_enforced {
                false => BanResult::WouldBan,
                true if self.shared.add_ban(block.clone(), now) => BanResult::Banned,
                true => BanResult::Dropped,
            };
            if result == BanResult::Banned {
                verdict.details.push((ban.limit, Detail::Counted(block.until.since(now))));
            }
            self.shared.metrics.count_ban(rules.name(ban.limit), result);
            self.log_ban(rules.name(ban.limit), &block, result, now);
        }
    }

    /// Asks the store, or the memory that replaces it, where a failed store's strikes are counted, too.
    async fn ask_of_ban(&self, batches: &[Batch<'_>], deadline: Option<Instant>) -> Decisions {
        let answer = self.wait(self.store.decide_in_turn(batches), deadline).await;
        answer.or_else(|_| self.shared.local.decide_in_turn(batches).map(Decisions::joined)).unwrap_or_default()
    }

    fn log_ban(&self, limit: &str, block: &Block, result: BanResult, now: Micros) {
        let reason = block.reason.as_deref().unwrap_or_default();
        let fingerprint = || fingerprint_of(&block.key, &self.view().rules().fingerprinter);
        let id = self.shared.denial_log.ids.id(|| Some((block.bucket.clone(), fingerprint())), None);
        let (id, seconds) = (id.unwrap_or_default(), block.until.since(now).ceil_seconds());
        match result {
            BanResult::Banned => tracing::info!(limit, id, seconds, "banned an id: {reason}"),
            BanResult::WouldBan => tracing::info!(limit, id, seconds, "would have banned an id: {reason}"),
            BanResult::Dropped | BanResult::Uncounted => {
                tracing::warn!(
                    limit,
                    id,
                    "did not ban an id: at most {MOST_BANS} are banned, and {MOST_UNPOSTED} whose ban other gateways do not know yet"
                );
            }
        }
    }
}

impl Shared {
    /// Puts a ban in force here, and has it posted. Returns false if there are too many.
    fn add_ban(&self, ban: Block, now: Micros) -> bool {
        let mut unposted = self.bans.list.lock();
        unposted.retain(|ban| ban.until > now);
        let (blocks, fingerprinter) = (self.blocks.load(), self.snapshot.load().rules.fingerprinter);
        let known = blocks.end_of(&ban.key, &fingerprinter);
        if known.is_some_and(|end| end >= ban.until) {
            return true;
        }
        // What has ended is removed twice a second.
        if known.is_none() && (blocks.bans() >= MOST_BANS || unposted.len() >= MOST_UNPOSTED) {
            return false;
        }
        unposted.retain(|other| other.key != ban.key);
        unposted.push(ban.clone());
        self.set_blocks(blocks.with(ban, &fingerprinter));
        self.bans.added.notify_one();
        true
    }

    /// Puts these blocks in force, and the bans that are not posted yet.
    pub(super) fn put_blocks(&self, mut list: Vec<Block>) {
        let unposted = self.bans.list.lock();
        let known: HashSet<&str> = list.iter().map(|block| block.key.as_str()).collect();
        let is_unknown = |ban: &&Block| !known.contains(ban.key.as_str());
        let unknown: Vec<Block> = unposted.iter().filter(is_unknown).cloned().collect();
        list.extend(unknown);
        self.set_blocks(Blocks::new(list, &self.snapshot.load().rules.fingerprinter));
    }

    /// Ends all bans and blocks, without telling other gateways.
    pub(crate) fn forget_blocks(&self) {
        self.bans.list.lock().clear();
        self.put_blocks(Vec::new());
    }

    /// The bans in force that are to be posted.
    pub(super) fn unposted_bans(&self, now: Micros) -> Vec<Block> {
        let mut unposted = self.bans.list.lock();
        unposted.retain(|ban| ban.until > now);
        unposted.clone()
    }

    /// Forgets that these are to be posted.
    pub(super) fn posted_bans(&self, posted: &[Block]) {
        self.bans.list.lock().retain(|ban| !posted.contains(ban));
    }

    /// Forgets that a ban of the id with this key is to be posted: an operator has blocked it, or ended its ban.
    pub(super) fn drop_unposted_ban(&self, key: &str) {
        self.bans.list.lock().retain(|ban| ban.key != key);
    }

    /// The caller holds the lock of the unposted bans.
    fn set_blocks(&self, blocks: Blocks) {
        self.metrics.listeners.blocks.set(i64::try_from(blocks.list().len()).unwrap_or(i64::MAX));
        self.blocks.store(Arc::new(blocks));
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Borrow;

    use super::*;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::rules::Rules;
    use crate::store::memory::MemoryStore;
    use crate::telemetry::metrics::Metrics;

    fn shared() -> Shared {
        let rules = Rules::new(Vec::new(), Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        Shared::new(rules, Arc::new(Metrics::new().unwrap()), MemoryStore::new(10))
    }

    fn ban(key: &str, until: u64) -> Block {
        Block {
            key: key.into(),
            until: Micros(until),
            bucket: key.into(),
            reason: None,
            by: "limit L".into(),
            is_ban: true,
        }
    }

    fn keys<B: Borrow<Block>>(blocks: &[B]) -> Vec<&str> {
        blocks.iter().map(|block| block.borrow().key.as_str()).collect()
    }

    #[test]
    fn bans_that_have_ended_before_they_could_be_posted_make_room() {
        let shared = shared();
        for id in 0..MOST_UNPOSTED {
            assert!(shared.add_ban(ban(&format!("L:{id}"), 10), Micros(1)));
        }
        assert!(!shared.add_ban(ban("L:last", 20), Micros(9)));
        assert!(shared.add_ban(ban("L:last", 20), Micros(10)));
        assert_eq!(keys(&shared.unposted_bans(Micros(19))), ["L:last"]);
        assert_eq!(keys(&shared.unposted_bans(Micros(20))), [""; 0]);
    }

    #[test]
    fn what_an_operator_says_of_an_id_precedes_a_ban_that_is_not_posted() {
        let shared = shared();
        assert!(shared.add_ban(ban("L:a", 10), Micros(1)) && shared.add_ban(ban("L:b", 10), Micros(1)));
        shared.put_blocks(Vec::new());
        assert_eq!(keys(shared.blocks.load().list()), ["L:a", "L:b"], "others' notices do not end them");
        shared.drop_unposted_ban("L:a");
        assert_eq!(keys(&shared.unposted_bans(Micros(1))), ["L:b"]);
        shared.put_blocks(Vec::new());
        assert_eq!(keys(shared.blocks.load().list()), ["L:b"]);
    }
}
