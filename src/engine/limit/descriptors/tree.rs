//! The lookup of a descriptor's limits in a domain, as in envoyproxy/ratelimit.

use std::collections::HashMap;

use crate::engine::limit::matching::{Candidates, ValueTest};
use crate::engine::request::DescriptorEntry;
use crate::engine::request::glob::Glob;

/// The rules of one domain: a level for each entry of a descriptor.
///
/// At each level the exact value takes precedence, then the first pattern in file order, then the key alone, without
/// backtracking. A limit covers descriptors with exactly as many entries as its path.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    root: Level,
}

type Level = HashMap<String, Branches>;

/// The rules for one key at one level.
#[derive(Clone, Debug, Default)]
struct Branches {
    values: HashMap<String, Node>,
    globs: Vec<(Glob, Node)>,
    any: Option<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    limits: Vec<u32>,
    next: Level,
}

impl Tree {
    /// Adds a rule. One without a limit exempts descriptors that the key alone would cover.
    pub fn insert(&mut self, path: &[(String, ValueTest)], limit: Option<u32>) {
        let Some((last, first)) = path.split_last() else { return };
        let mut level = &mut self.root;
        for (key, test) in first {
            level = &mut level.entry(key.clone()).or_default().branch(test).next;
        }
        let (key, test) = last;
        level.entry(key.clone()).or_default().branch(test).limits.extend(limit);
    }

    /// Adds the limits that cover a descriptor to `found`.
    pub fn find(&self, descriptor: &[DescriptorEntry<'_>], found: &mut Candidates) {
        let Some((last, first)) = descriptor.split_last() else { return };
        let mut level = &self.root;
        for entry in first {
            let Some(node) = step(level, entry) else { return };
            level = &node.next;
        }
        if let Some(node) = step(level, last) {
            found.extend_from_slice(&node.limits);
        }
    }

    /// Returns these entries in the first order in which a limit covers them.
    pub fn order<'e>(&self, mut entries: Vec<DescriptorEntry<'e>>) -> Option<Vec<DescriptorEntry<'e>>> {
        let mut ordered = Vec::with_capacity(entries.len());
        order(&self.root, &mut entries, &mut ordered).then_some(ordered)
    }
}

/// Moves entries to their places in an order in which a limit covers them. Returns false without such an order.
fn order<'e>(level: &Level, left: &mut Vec<DescriptorEntry<'e>>, ordered: &mut Vec<DescriptorEntry<'e>>) -> bool {
    for place in 0..left.len() {
        let Some(node) = step(level, &left[place]) else { continue };
        let entry = left.remove(place);
        ordered.push(entry);
        let is_covered = if left.is_empty() { !node.limits.is_empty() } else { order(&node.next, left, ordered) };
        if is_covered {
            return true;
        }
        ordered.pop();
        left.insert(place, entry);
    }
    false
}

fn step<'t>(level: &'t Level, entry: &DescriptorEntry<'_>) -> Option<&'t Node> {
    let branches = level.get(entry.key)?;
    let glob = || branches.globs.iter().find(|(glob, _)| glob.matches(entry.value)).map(|(_, node)| node);
    branches.values.get(entry.value).or_else(glob).or(branches.any.as_ref())
}

impl Branches {
    fn branch(&mut self, test: &ValueTest) -> &mut Node {
        match test {
            ValueTest::Value(value) => self.values.entry(value.clone()).or_default(),
            ValueTest::Glob(glob) => {
                let place = self.globs.iter().position(|(known, _)| known == glob).unwrap_or_else(|| {
                    self.globs.push((glob.clone(), Node::default()));
                    self.globs.len() - 1
                });
                &mut self.globs[place].1
            }
            _ => self.any.get_or_insert_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path as people write it: `key=value/key`.
    fn path(text: &str) -> Vec<(String, ValueTest)> {
        let level = |level: &str| {
            let (key, test) = match level.split_once('=') {
                None => (level, ValueTest::Present(true)),
                Some((key, value)) => (key, Glob::parse(value).map_or(ValueTest::Value(value.into()), ValueTest::Glob)),
            };
            (key.to_owned(), test)
        };
        text.split('/').map(level).collect()
    }

    /// The path whose limit covers a descriptor; `none` if there is none.
    #[track_caller]
    fn check(rules: &[(&str, bool)], cases: &[(&str, &str)]) {
        let mut tree = Tree::default();
        for (limit, (text, is_limit)) in (0..).zip(rules) {
            tree.insert(&path(text), is_limit.then_some(limit));
        }
        for (descriptor, expected) in cases {
            let entries: Vec<DescriptorEntry<'_>> = descriptor
                .split('/')
                .map(|entry| entry.split_once('=').unwrap_or((entry, "")))
                .map(|(key, value)| DescriptorEntry { key, value })
                .collect();
            let mut found = Candidates::new();
            tree.find(&entries, &mut found);
            let names: Vec<&str> = found.iter().map(|limit| rules[*limit as usize].0).collect();
            let expected: Vec<&str> = Some(*expected).filter(|name| *name != "none").into_iter().collect();
            assert_eq!(names, expected, "{descriptor}");
        }
    }

    #[test]
    fn the_value_goes_before_patterns_and_patterns_before_the_key() {
        let rules = [
            ("k", true),
            ("k=a*c", true),
            ("k=a*", true),
            ("k=abc", true),
            ("k=white", false),
            ("k=deep", false),
            ("k=deep/s", true),
            ("e/e", true),
        ];
        let cases = [
            ("k=x", "k"),
            ("k", "k"),
            ("k=abc", "k=abc"),
            ("k=axc", "k=a*c"),
            ("k=ax", "k=a*"),
            ("k=a*", "k=a*"),
            ("k=white", "none"),
            ("K=x", "none"),
            ("k=x/s=1", "none"),
            ("k=deep", "none"),
            ("k=deep/s=1", "k=deep/s"),
            ("k=deep/s=1/t=1", "none"),
            ("s=1", "none"),
            ("e=1/e=2", "e/e"),
            ("e=1", "none"),
        ];
        check(&rules, &cases);
    }

    #[test]
    fn entries_without_an_order_are_found_in_that_of_a_rule() {
        let mut tree = Tree::default();
        for (limit, text) in (0..).zip(["b/a", "b/c=1/a", "a"]) {
            tree.insert(&path(text), Some(limit));
        }
        for (given, expected) in [
            ("a b", Some("b a")),
            ("a", Some("a")),
            ("a b c=1", Some("b c a")),
            ("a b c=2", None),
            ("b", None),
            ("a d", None),
        ] {
            let entries = given.split(' ').map(|entry| entry.split_once('=').unwrap_or((entry, "x")));
            let entries = entries.map(|(key, value)| DescriptorEntry { key, value }).collect();
            let ordered = tree.order(entries);
            let keys = ordered.map(|all| all.iter().map(|entry| entry.key).collect::<Vec<_>>().join(" "));
            assert_eq!(keys.as_deref(), expected, "{given}");
        }
    }

    /// kgateway-dev/kgateway#3801: keys of `key` and `value` joined by `_` take one for the other.
    #[test]
    fn a_key_is_never_taken_for_a_key_and_a_value() {
        check(&[("a_b", true), ("c=d", true)], &[("a=b", "none"), ("a_b=x", "a_b"), ("c_d=x", "none"), ("c=d", "c=d")]);
    }
}
