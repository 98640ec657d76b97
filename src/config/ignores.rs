//! `ignore_lints`: the lints that a rules file silences, for the whole file or for one limit and its overrides.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};

use super::lints::Lint;
use super::mapping::all;
use super::node::{Node, Value};
use super::problem::{Findings, Place, ReadResult, ReportedError, quoted};
use super::suggest::did_you_mean;
use super::yaml::{List, Reader};

/// The key, of the file and of a limit.
pub(super) const KEY: &str = "ignore_lints";

/// The silenced lints of the file, under `None`, and of each limit, under its index.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ignores {
    scopes: RefCell<BTreeMap<Option<usize>, Vec<Ignore>>>,
    /// The limit that findings are about at present.
    current: Cell<Option<usize>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Ignore {
    lint: Lint,
    place: Place,
    is_used: bool,
}

impl Ignores {
    /// Returns those of a whole file. Mistakes are reported when the file is read for its limits.
    pub(super) fn of_file(text: &str) -> Self {
        let ignores = Self::default();
        // Few files have the key, and a file with a million overrides should not be read twice.
        if text.contains(KEY)
            && let Ok(Some(found)) = find(text)
        {
            ignores.add(None, found);
        }
        ignores
    }

    /// Silences lints, for the file or for the limit with this index.
    pub(super) fn add(&self, limit: Option<usize>, lints: Vec<(Lint, Place)>) {
        let ignores = lints.into_iter().map(|(lint, place)| Ignore { lint, place, is_used: false });
        self.scopes.borrow_mut().entry(limit).or_default().extend(ignores);
    }

    /// Takes the findings from now on as those of a limit, or of the file.
    pub(super) fn enter(&self, limit: Option<usize>) {
        self.current.set(limit);
    }

    pub(super) fn current(&self) -> Option<usize> {
        self.current.get()
    }

    /// Returns whether a finding is silenced. What silences it is then used.
    pub(super) fn silences(&self, lint: Lint) -> bool {
        let mut scopes = self.scopes.borrow_mut();
        // The narrower scope silences, so that the wider one is unused if it silences nothing else.
        [self.current.get(), None].into_iter().any(|scope| {
            let found = scopes.get_mut(&scope).and_then(|of| of.iter_mut().find(|ignore| ignore.lint == lint));
            found.is_some_and(|ignore| {
                ignore.is_used = true;
                true
            })
        })
    }

    /// Returns those that silenced nothing, with their limits.
    pub(super) fn unused(&self) -> Vec<(Option<usize>, Lint, Place)> {
        // The flags of `serve` decide about headers with underscores, it may be the next run that reports an unused one, and not every
        // run runs the tests.
        let depends = |lint| matches!(lint, Lint::UnderscoreHeader | Lint::UnusedIgnore | Lint::UntestedLimit);
        let scopes = self.scopes.borrow();
        let each = scopes.iter().flat_map(|(scope, ignores)| ignores.iter().map(|ignore| (*scope, ignore)));
        let unused = each.filter(|(_, ignore)| !ignore.is_used && !depends(ignore.lint));
        unused.map(|(scope, ignore)| (scope, ignore.lint, ignore.place)).collect()
    }

    /// Returns the names of the limits that silence lints, and the lints; `file` stands for the file.
    pub(super) fn by_name(&self, file: &str, name: impl Fn(usize) -> String) -> HashSet<(String, Lint)> {
        let scopes = self.scopes.borrow();
        let named = |scope: &Option<usize>| scope.map_or_else(|| file.to_owned(), &name);
        let each = scopes.iter().flat_map(|(scope, ignores)| ignores.iter().map(move |ignore| (scope, ignore)));
        each.map(|(scope, ignore)| (named(scope), ignore.lint)).collect()
    }
}

fn find(text: &str) -> ReadResult<Option<Vec<(Lint, Place)>>> {
    let mut reader = Reader::new(text, &Findings::new(""));
    reader.root("", List::Rejected, "")?;
    if reader.find(KEY)?.is_none() {
        return Ok(None);
    }
    read(&reader.node()?).map(Some)
}

/// Reads the value of the key: a name or a list of names.
pub(super) fn read(node: &Node) -> ReadResult<Vec<(Lint, Place)>> {
    let mut seen = HashSet::new();
    let Value::List(items) = &node.value else {
        return Err(node.error(format!("`{KEY}` must be a list, found {}", node.kind()), "write `[NAME, ...]`"));
    };
    all(items.iter().map(|item| {
        let name = item.text()?;
        let lint = Lint::named(name).ok_or_else(|| {
            let help = did_you_mean(name, Lint::ALL.iter().map(|lint| lint.name()));
            item.error(format!("unknown lint {}", quoted(name)), help)
        })?;
        if !seen.insert(lint) {
            return Err::<_, ReportedError>(item.error(format!("duplicate lint {}", quoted(name)), "remove it"));
        }
        Ok((lint, item.place))
    }))
}
