//! Blocks ids.

use std::sync::Arc;

use serde_json::{Value, json};

use super::noticeboard::Notice;
use super::{BucketReport, Operator, OperatorError};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::LimitMode;
use crate::engine::limit::blocks::{Block, Blocks};
use crate::engine::telling::bucket_info::BucketInfo;
use crate::limiter::Shared;
use crate::telemetry::metrics::SharedNote;

impl Notice for Block {
    const KIND: SharedNote = SharedNote::Block;
    const NOTES: &'static str = "blocked";
    const PLURAL: &'static str = "blocks";

    fn key(&self) -> &str {
        &self.key
    }

    fn until(&self) -> Micros {
        self.until
    }

    fn text(&self) -> Value {
        json!({ "bucket": self.bucket, "reason": self.reason, "by": self.by, "ban": self.is_ban })
    }

    /// The key and the end are all that a block needs.
    fn read(key: &str, until: Micros, text: &Value) -> Option<Self> {
        let member = |name: &str| text[name].as_str().map(str::to_owned);
        let bucket = member("bucket").unwrap_or_else(|| key.to_owned());
        let (reason, by) = (member("reason"), member("by").unwrap_or_default());
        let is_ban = text["ban"].as_bool().unwrap_or_default();
        Some(Self { key: key.to_owned(), until, bucket, reason, by, is_ban })
    }

    fn posted(shared: &Shared) -> Vec<Self> {
        shared.blocks.load().list().iter().map(|block| Self::clone(block)).collect()
    }

    /// From the next request on.
    fn apply(shared: &Shared, list: Vec<Self>, _since: Micros) {
        shared.put_blocks(list);
    }
}

impl Operator {
    /// Posts the bans that gateways have made here. Those that cannot be posted stay in force here, and are tried again.
    pub(super) async fn post_bans(&self) {
        let bans = self.limiter.shared.unposted_bans(self.clock.now());
        if bans.is_empty() {
            return;
        }
        let posted = match self.board.open::<Block>().await {
            Ok(board) => board.post(&bans).await,
            Err(error) => Err(error.into()),
        };
        // Beyond the bound nobody else learns of them, and trying again would not help.
        if !matches!(posted, Err(OperatorError::Store(_))) {
            self.limiter.shared.posted_bans(&bans);
        }
    }

    /// Blocks an id, or all ids that begin with it, for a time from now on. Replaces an earlier block of the id. `by` is the
    /// operator's name.
    pub async fn block(
        &self,
        bucket: &str,
        span: Micros,
        reason: Option<String>,
        by: String,
    ) -> Result<BucketReport, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = BucketInfo::find(view.rules(), bucket, now)?;
        if !found.is_in_use() {
            let reason = if found.limit.mode == LimitMode::Off { "it is `mode: off`" } else { "it has no numbers" };
            let name = &found.limit.name;
            return Err(OperatorError::Unsupported(format!("{name} applies to no request: {reason}")));
        }
        let block =
            Block { key: found.key.clone(), until: now.after(span), bucket: found.name(), reason, by, is_ban: false };
        self.limiter.shared.drop_unposted_ban(&found.key);
        self.board.open().await?.post(&[block]).await?;
        self.state(&found, None, now).await
    }

    /// Ends the block of exactly this id or beginning, not one that covers more.
    pub async fn unblock(&self, bucket: &str) -> Result<BucketReport, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = BucketInfo::find(view.rules(), bucket, now)?;
        // Another gateway may end it at the same time.
        let is_known = self.board.in_force::<Block>(now).iter().any(|block| block.key == found.key);
        self.limiter.shared.drop_unposted_ban(&found.key);
        if !self.board.open::<Block>().await?.remove(&found.key).await? && !is_known {
            let name = found.name();
            let covering = self.blocks().covering(&found.key, now).map(|block| block.bucket.clone());
            let help = covering.map_or_else(String::new, |by| format!("; the block of {by} covers it"));
            return Err(OperatorError::Unknown(format!("{name} is not blocked{help}")));
        }
        self.forget_bans(&found, now).await?;
        self.state(&found, None, now).await
    }

    /// The blocks in force, each with the time left, the longest last.
    pub fn blocked(&self) -> Vec<(Block, Micros)> {
        let now = self.clock.now();
        let mut list: Vec<Block> = self.board.in_force(now);
        list.sort_by(|a, b| (a.until, &a.key).cmp(&(b.until, &b.key)));
        let with_time_left = |block: Block| {
            let left = block.until.since(now);
            (block, left)
        };
        list.into_iter().map(with_time_left).collect()
    }

    pub fn blocks(&self) -> Arc<Blocks> {
        self.limiter.shared.blocks.load_full()
    }
}
