//! User scripts, as functions in the script of the calls that charge them.
//!
//! All other calls send the script without any, so one that the server cannot compile fails only the calls that charge it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use super::source::{HashedScript, PLAIN};
use crate::engine::algorithms::charge::{Charge, Input};
use crate::engine::algorithms::script::ScriptSource;

/// The most sources that are cached: one for each set of scripts that a request charges. Beyond that, perhaps after reloads, they
/// are assembled again.
const MOST_KEPT: usize = 64;

/// The line of `lua/decide.lua` that they replace.
const PLACE: &str = "local scripts = {}\n";

/// The scripts of one call, ordered by name, without duplicates.
pub(super) type Scripts = Vec<Arc<ScriptSource>>;

/// The scripts that some charges run.
pub(super) fn of(charges: &[Charge]) -> Scripts {
    let sources = charges.iter().filter_map(|charge| match charge.input.as_deref() {
        Some(Input::Script(run)) => Some(Arc::clone(&run.source)),
        _ => None,
    });
    let mut scripts: Scripts = sources.collect();
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    scripts.dedup_by(|a, b| a.name == b.name);
    scripts
}

/// Returns the script with these user scripts.
pub(super) fn with_scripts(scripts: &Scripts) -> Arc<HashedScript> {
    static KEPT: LazyLock<Mutex<HashMap<String, Arc<HashedScript>>>> = LazyLock::new(Mutex::default);
    let names = scripts.iter().map(|script| script.name.as_str()).collect::<Vec<_>>().join(" ");
    if let Some(kept) = KEPT.lock().get(&names) {
        return Arc::clone(kept);
    }
    let functions: String = scripts.iter().map(|script| function(script)).collect();
    let source = PLAIN.source.replacen(PLACE, &format!("local scripts = {{{functions}}}\n"), 1);
    let made = Arc::new(HashedScript::new(source));
    let mut kept = KEPT.lock();
    if kept.len() >= MOST_KEPT {
        kept.clear();
    }
    kept.insert(names, Arc::clone(&made));
    made
}

/// The text has its own lines, so that a comment at its end hides nothing that follows.
fn function(script: &ScriptSource) -> String {
    format!("['{}'] = function(KEYS, ARGV)\n{}\nend,", script.name, script.text)
}

/// Returns a script that compiles a user script and does not run it.
pub(in super::super) fn probe(script: &ScriptSource) -> String {
    format!("local scripts = {{{}}}\nreturn 1", function(script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_come_before_all_names_of_ours() {
        let (a, b) = (ScriptSource::new("a", "return 1 -- a"), ScriptSource::new("b", "return 2"));
        let both = vec![Arc::new(a), Arc::new(b)];
        let made = with_scripts(&both);
        let names: Vec<_> = both.iter().map(|script| script.name.as_str()).collect();
        let start = format!(
            "local scripts = {{['{}'] = function(KEYS, ARGV)\nreturn 1 -- a\nend,['{}'] = function(KEYS, ARGV)\n",
            names[0], names[1]
        );
        assert!(made.source.starts_with(&start), "{:.300}", made.source);
        assert!(made.source.ends_with(PLAIN.source.strip_prefix(PLACE).expect("the table comes first")));
        assert!(Arc::ptr_eq(&made, &with_scripts(&both)), "it is put together once");
        assert!(!Arc::ptr_eq(&made, &with_scripts(&both[..1].to_vec())));
    }
}
