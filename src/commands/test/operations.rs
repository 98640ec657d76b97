//! The changes between the requests of a test: what operators do, and other rules.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::suite::{FINGERPRINTER, load, reloaded};
use crate::clock::Clock;
use crate::config::rule_tests::Change;
use crate::config::{Definitions, Sources};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::live::OverrideReader;
use crate::limiter::Shared;
use crate::limiter::operator::{NewOverride, Operator};
use crate::store::Store;
use crate::store::memory::MemoryStore;

/// The name of who makes changes.
const OPERATOR: &str = "test";

pub(super) struct Operations {
    shared: Arc<Shared>,
    /// Notices stay in this process, also beside buckets in Redis.
    operator: Operator,
    sources: Sources,
    /// The name of the file with the tests.
    file: String,
}

impl Operations {
    pub(super) fn new(shared: &Arc<Shared>, clock: &Arc<AtomicU64>, sources: &Sources, file: &str) -> Self {
        shared.keep_overrides(reader(sources), Vec::new(), None, Micros(0));
        let store = Store::Memory(Arc::new(MemoryStore::new(1)));
        let operator = Operator::new(shared.clone(), store, Clock::Set(Arc::clone(clock)));
        Self { shared: shared.clone(), operator, sources: sources.clone(), file: file.to_owned() }
    }

    /// Makes a change at `now`, which the clock shows as well. The error is the reason why it cannot be made.
    pub(super) async fn change(&self, change: &Change, now: Micros) -> Result<(), String> {
        let operator = &self.operator;
        match change {
            Change::Block { bucket, span } => {
                operator.block(bucket, *span, None, OPERATOR.to_owned()).await.map(drop).map_err(|e| e.to_string())
            }
            Change::Unblock { bucket } => operator.unblock(bucket).await.map(drop).map_err(|e| e.to_string()),
            Change::SetOverride { bucket, numbers, span } => {
                let (numbers, by) = (numbers.clone(), OPERATOR.to_owned());
                let new = NewOverride { numbers, span: *span, comment: None, by };
                operator.set_override(bucket, new).await.map(drop).map_err(|e| e.to_string())
            }
            Change::DeleteOverride { bucket } => {
                operator.delete_override(bucket).await.map(drop).map_err(|e| e.to_string())
            }
            Change::Reload(path) => self.reload(path, now),
            // Requests are asked by it.
            Change::Store(_) => Ok(()),
        }
    }

    fn reload(&self, path: &Path, now: Micros) -> Result<(), String> {
        let sources = reloaded(Path::new(&self.file), path, &self.sources).map_err(|report| report.to_string())?;
        let loaded = load(&sources, now);
        let rules = loaded.rules.ok_or_else(|| loaded.report.to_string())?;
        self.shared.replace(rules, Some(reader(&sources)));
        Ok(())
    }
}

fn reader(sources: &Sources) -> OverrideReader {
    let definitions = Definitions::new(sources, FINGERPRINTER);
    Arc::new(move |texts, now| definitions.read(texts, now))
}
