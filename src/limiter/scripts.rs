//! Logs mistakes in user scripts: scripts that do not compile, and values that are not valid headers.

use std::sync::atomic::Ordering;

use super::Snapshot;
use crate::engine::algorithms::decision::Detail;
use crate::engine::deciding::verdict::Verdict;
use crate::store::Store;

impl Snapshot {
    /// Has the store compile the scripts of the rules once. The store logs errors.
    pub(super) fn check_scripts(&self, store: &Store) {
        // By one worker: the workers share the rules.
        if store.is_remote() && store.ready().is_ok() && !self.scripts_checked.swap(true, Ordering::Relaxed) {
            let scripts = self.rules.limits().iter().filter_map(|limit| limit.script.as_deref());
            store.check_scripts(scripts.map(|script| script.source.clone()).collect());
        }
    }

    /// Warns of values that did not become headers, once per limit: they would come with every request.
    pub(super) fn warn_of_values(&self, verdict: &Verdict) {
        for (number, detail) in &verdict.details {
            let Detail::Script(output) = detail else { continue };
            let Some(limit) = self.rules.limit(*number) else { continue };
            if let Some(script) = &limit.script
                && let Some(value) = script.headers(output).find_map(Result::err)
                && self.warned_of_values.lock().insert(*number)
            {
                let reason = if let Some(name) = &value.name {
                    format!("it cannot set the header {name:?}")
                } else {
                    let (values, names) = (output.values.len(), script.headers.len());
                    format!("it returned {values} values, but `headers` has {names} names")
                };
                let file = script.source.file.as_str();
                tracing::warn!(limit = limit.name, file, "ignoring a value of a script: {reason}");
            }
        }
    }
}
