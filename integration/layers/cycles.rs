//! Finds cycles of imports that leave their folder.
//!
//! A file's folder is its directory; `NAME.rs` with a directory `NAME/` is in that directory, as `NAME/mod.rs` would be. Files of
//! one folder may import each other. A cycle with files of two folders is a mistake, a parent's with its child included: what
//! both need belongs in a file of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::resolve::Imports;
use super::source::folder_of_children;

/// Files that all import each other, directly or through others, and lie in different folders.
pub(super) struct Cycle {
    pub(super) folders: BTreeSet<String>,
    pub(super) files: BTreeSet<String>,
    /// A shortest way round that leaves its folder: file, line, imported file.
    pub(super) way: Vec<(String, usize, String)>,
}

pub(super) fn across_folders(imports: &Imports) -> Vec<Cycle> {
    let files: BTreeSet<&str> =
        imports.iter().flat_map(|(from, to)| to.keys().chain([from])).map(String::as_str).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> = files.iter().map(|file| (*file, reachable(imports, file))).collect();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut cycles = Vec::new();
    for &file in &files {
        let group: BTreeSet<&str> =
            reached[file].iter().copied().filter(|other| reached[other].contains(file)).collect();
        let folders: BTreeSet<String> = group.iter().map(|file| folder(file, &files)).collect();
        if folders.len() > 1 && seen.insert(file) {
            seen.extend(&group);
            let way = shortest(imports, &group, &files);
            cycles.push(Cycle { folders, files: group.into_iter().map(str::to_owned).collect(), way });
        }
    }
    cycles
}

fn folder(file: &str, files: &BTreeSet<&str>) -> String {
    let below = folder_of_children(file);
    if files.iter().any(|other| *other != file && other.starts_with(&below)) {
        return below;
    }
    file.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"))
}

/// The files that this one imports, directly or through others.
fn reachable<'a>(imports: &'a Imports, start: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = vec![start];
    while let Some(file) = next.pop() {
        for to in imports.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(to.as_str()) {
                next.push(to);
            }
        }
    }
    reached
}

fn shortest(imports: &Imports, group: &BTreeSet<&str>, files: &BTreeSet<&str>) -> Vec<(String, usize, String)> {
    let crossing = group.iter().flat_map(|from| imports[*from].keys().map(move |to| (*from, to.as_str())));
    let crossing = crossing.filter(|(from, to)| group.contains(to) && folder(from, files) != folder(to, files));
    let ways = crossing.map(|(from, to)| {
        let mut way = path(imports, group, to, from);
        way.insert(0, from.to_owned());
        way
    });
    let shortest = ways.min_by_key(Vec::len).unwrap_or_default();
    shortest.windows(2).map(|pair| (pair[0].clone(), imports[&pair[0]][&pair[1]], pair[1].clone())).collect()
}

/// A shortest path from one file of a group to another, both included.
fn path(imports: &Imports, group: &BTreeSet<&str>, from: &str, to: &str) -> Vec<String> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([from]);
    while let Some(file) = queue.pop_front() {
        if file == to {
            break;
        }
        for next in imports.get(file).into_iter().flat_map(BTreeMap::keys) {
            if group.contains(next.as_str()) && next != from && !before.contains_key(next.as_str()) {
                before.insert(next, file);
                queue.push_back(next);
            }
        }
    }
    let mut way = vec![to.to_owned()];
    let mut file = to;
    while file != from {
        file = before[file];
        way.insert(0, file.to_owned());
    }
    way
}
