//! The script with scripts of the user in it: what calls that charge some send instead.
//!
//! A script of the user is a function in the source of the call. One that the server cannot compile is so the trouble of
//! those calls alone; all others send the script without any.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use redis::Script;

use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::details::Terms;
use crate::engine::algorithms::script::ScriptSource;

/// Sources that are kept: one for each set of scripts that some request is charged by. Whoever has more than that, after
/// reloads perhaps, has them put together anew.
const MOST_KEPT: usize = 64;

/// The line of `lua/decide.lua` in whose place they come.
const PLACE: &str = "local scripts = {}\n";

/// Scripts of one call, in the order of their names, no two alike.
pub(super) type Scripts = Vec<Arc<ScriptSource>>;

/// A source, and the SHA-1 under which a server keeps it.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) source: String,
    pub(super) hash: String,
}

/// The scripts that some charges run.
pub(super) fn of(charges: &[Charge]) -> Scripts {
    let sources = charges.iter().filter_map(|charge| match charge.terms.as_deref() {
        Some(Terms::Script(run)) => Some(Arc::clone(&run.source)),
        _ => None,
    });
    let mut scripts: Scripts = sources.collect();
    scripts.sort_by(|a, b| a.name().cmp(b.name()));
    scripts.dedup_by(|a, b| a.name() == b.name());
    scripts
}

/// `plain` with these scripts in it. It is put together once, since hashing it takes longer than a decision.
pub(super) fn assembled(plain: &str, scripts: &Scripts) -> Arc<Assembled> {
    static KEPT: LazyLock<Mutex<HashMap<String, Arc<Assembled>>>> = LazyLock::new(Mutex::default);
    let names = scripts.iter().map(|script| script.name()).collect::<Vec<_>>().join(" ");
    if let Some(kept) = KEPT.lock().get(&names) {
        return Arc::clone(kept);
    }
    let source = plain.replacen(PLACE, &format!("local scripts = {{{}}}\n", functions(scripts)), 1);
    let hash = Script::new(&source).get_hash().to_owned();
    let made = Arc::new(Assembled { source, hash });
    let mut kept = KEPT.lock();
    if kept.len() >= MOST_KEPT {
        kept.clear();
    }
    kept.insert(names, Arc::clone(&made));
    made
}

/// A source that compiles if a script does, and runs nothing of it.
pub(super) fn probe(script: &ScriptSource) -> String {
    format!("local scripts = {{{}}}\nreturn 1", function(script))
}

fn functions(scripts: &Scripts) -> String {
    scripts.iter().map(|script| function(script)).collect()
}

/// The text begins in a line of its own, so that a comment at its end does not hide what comes after it.
fn function(script: &ScriptSource) -> String {
    format!("['{}'] = function(KEYS, ARGV)\n{}\nend,", script.name(), script.text())
}

#[cfg(test)]
mod tests {
    use super::super::script::SOURCE;
    use super::*;

    #[test]
    fn scripts_come_before_all_names_of_ours() {
        let (a, b) = (ScriptSource::new("a", "return 1 -- a"), ScriptSource::new("b", "return 2"));
        let both = vec![Arc::new(a), Arc::new(b)];
        let made = assembled(&SOURCE, &both);
        let names: Vec<_> = both.iter().map(|script| script.name()).collect();
        let start = format!(
            "local scripts = {{['{}'] = function(KEYS, ARGV)\nreturn 1 -- a\nend,['{}'] = function(KEYS, ARGV)\n",
            names[0], names[1]
        );
        assert!(made.source.starts_with(&start), "{:.300}", made.source);
        assert!(made.source.ends_with(SOURCE.strip_prefix(PLACE).expect("the table comes first")));
        assert!(Arc::ptr_eq(&made, &assembled(&SOURCE, &both)), "it is put together once");
        assert!(!Arc::ptr_eq(&made, &assembled(&SOURCE, &both[..1].to_vec())));
    }
}
