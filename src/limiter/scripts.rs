//! What the log is told of scripts of the user: one that does not compile, and values that are no headers.

use std::sync::atomic::Ordering;

use super::Snapshot;
use crate::engine::algorithms::decision::Detail;
use crate::engine::algorithms::script::{Script, ScriptOutput};
use crate::engine::answer::verdict::Verdict;
use crate::engine::rules::rule_set::Rules;
use crate::store::Store;

impl Snapshot {
    /// Asks the store once whether it can run the scripts of the rules, when it can be asked; it logs the answer.
    pub(super) fn check_scripts(&self, store: &Store) {
        // Once told, whoever has told it: workers share the rules.
        if store.is_remote() && store.ready().is_ok() && !self.scripts_checked.swap(true, Ordering::Relaxed) {
            let scripts = self.rules.limits().iter().filter_map(|limit| limit.script.as_deref());
            store.check_scripts(scripts.map(|script| script.source.clone()).collect());
        }
    }

    /// Warns of values that no header was made of, once for each limit: they would come with every request.
    pub(super) fn warn_of_values(&self, verdict: &Verdict) {
        for (limit, detail) in &verdict.details {
            let Detail::Script(said) = detail else { continue };
            let Some((name, script)) = script_of(&self.rules, *limit) else { continue };
            if let Some(value) = script.headers(said).find_map(Result::err)
                && self.warned_of_values.lock().insert(*limit)
            {
                let what = match &value.name {
                    Some(name) => format!("it cannot set the header {name:?}"),
                    None => beyond(script, said),
                };
                tracing::warn!(limit = name, file = script.source.file(), "a value of a script is ignored: {what}");
            }
        }
    }
}

fn beyond(script: &Script, said: &ScriptOutput) -> String {
    format!("it gives {} values, and `headers` has {} names", said.values.len(), script.headers.len())
}

fn script_of(rules: &Rules, limit: u32) -> Option<(&str, &Script)> {
    let limit = rules.limit(limit)?;
    Some((limit.name.as_str(), limit.script.as_deref()?))
}
