//! Resolves paths to the files that define what they name.

use std::collections::BTreeMap;

use super::source::{Crate, Kind, Module, ModuleId, Reference, folder_of_children};

/// The item that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Module(ModuleId),
    /// An item of this module, or something inside such an item.
    Item(ModuleId),
    /// A path into another crate.
    External(Vec<String>),
}

/// Names that are being resolved: `use redis;` names the crate, not itself.
type Pending<'a> = Vec<(ModuleId, &'a str)>;

/// For each file the files that it imports, each with the first line that does.
pub(super) type Imports = BTreeMap<String, BTreeMap<String, usize>>;

impl Crate {
    pub(super) fn resolve(&self, reference: &Reference) -> Vec<Target> {
        self.follow(reference.module, &reference.path, &mut Pending::new())
    }

    /// The imports between files. Each path counts as an import of the file that defines what it names, however many
    /// re-exports lie between. Not counted: paths that lead to a module, since those through it are; and re-exports of a
    /// module's own descendants, since the module does not use them.
    pub(super) fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for reference in &self.references {
            let from = &self.modules[reference.module].file;
            for target in self.resolve(reference) {
                let Target::Item(module) = target else { continue };
                let to = &self.modules[module].file;
                let own = reference.kind == Kind::ReExport && to.starts_with(&folder_of_children(from));
                if from != to && !own {
                    let line = imports.entry(from.clone()).or_default().entry(to.clone()).or_insert(reference.line);
                    *line = reference.line.min(*line);
                }
            }
        }
        imports
    }

    /// The top-level modules that a path names or leads to, each with the file there.
    pub(super) fn layers(&self, reference: &Reference) -> BTreeMap<&str, &str> {
        let written = match reference.path.as_slice() {
            [root, name, ..] if matches!(root.as_str(), "crate" | "weir") => self
                .lib
                .and_then(|lib| self.modules[lib].children.get(name).map(|module| self.modules[*module].file.as_str())),
            _ => None,
        };
        let reached = self.resolve(reference).into_iter().filter_map(|target| match target {
            Target::Module(module) | Target::Item(module) => Some(self.modules[module].file.as_str()),
            Target::External(_) => None,
        });
        written.into_iter().chain(reached).filter(|file| *file != "lib.rs").map(|file| (layer(file), file)).collect()
    }

    fn follow<'a>(&'a self, from: ModuleId, path: &'a [String], pending: &mut Pending<'a>) -> Vec<Target> {
        let Some((first, rest)) = path.split_first() else { return Vec::new() };
        let start = match first.as_str() {
            "crate" => vec![Target::Module(self.root(from))],
            "self" => vec![Target::Module(from)],
            "super" => self.modules[from].parent.map(Target::Module).into_iter().collect(),
            "Self" => return Vec::new(),
            "::" => return vec![Target::External(rest.to_vec())],
            name => match self.look_up(from, name, pending) {
                found if !found.is_empty() => found,
                _ if name == "weir" => self.lib.map(Target::Module).into_iter().collect(),
                _ => vec![Target::External(vec![first.clone()])],
            },
        };
        start.into_iter().flat_map(|target| self.descend(target, rest, pending)).collect()
    }

    fn descend<'a>(&'a self, target: Target, rest: &'a [String], pending: &mut Pending<'a>) -> Vec<Target> {
        let Some((next, rest_of_it)) = rest.split_first() else { return vec![target] };
        match target {
            Target::Module(module) => {
                let found = match next.as_str() {
                    "self" => vec![target],
                    "super" => self.modules[module].parent.map(Target::Module).into_iter().collect(),
                    name => self.look_up(module, name, pending),
                };
                if found.is_empty() {
                    // Made by a macro: it is in this module.
                    return vec![Target::Item(module)];
                }
                found.into_iter().flat_map(|target| self.descend(target, rest_of_it, pending)).collect()
            }
            Target::Item(_) => vec![target],
            Target::External(path) => vec![Target::External([path.as_slice(), rest].concat())],
        }
    }

    fn look_up<'a>(&'a self, module: ModuleId, name: &'a str, pending: &mut Pending<'a>) -> Vec<Target> {
        let Module { children, names, globs, items, .. } = &self.modules[module];
        let mut found: Vec<Target> = children.get(name).map(|child| Target::Module(*child)).into_iter().collect();
        if items.contains(name) {
            found.push(Target::Item(module));
        }
        if pending.contains(&(module, name)) {
            return found;
        }
        pending.push((module, name));
        for path in names.get(name).into_iter().flatten() {
            found.extend(self.follow(module, path, pending));
        }
        if found.is_empty() {
            for glob in globs {
                for target in self.follow(module, glob, pending) {
                    match target {
                        Target::Module(module) => found.extend(self.look_up(module, name, pending)),
                        Target::Item(_) | Target::External(_) => {}
                    }
                }
            }
        }
        pending.pop();
        found
    }

    fn root(&self, mut module: ModuleId) -> ModuleId {
        while let Some(parent) = self.modules[module].parent {
            module = parent;
        }
        module
    }
}

/// The top-level module of a file.
pub(super) fn layer(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap_or(file)
}
