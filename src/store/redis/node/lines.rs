//! Requests that wait for a place among the outstanding calls, those of each client in a line of their own: a flood of one client
//! delays no other.
//!
//! The lines of a tag take turns, and so do the tags: one request of each line is served, then another one of each.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use crate::engine::algorithms::by_fingerprint::ByFingerprint;
use crate::engine::algorithms::charge::Charge;

/// One line may hold this part of `--store-queue`: a flood leaves room for others.
pub(super) const SHARE: usize = 4;

/// The most lines that one call passes over because their first requests cannot be in it: those of user scripts, or of other rules.
const MOST_PASSED: usize = 128;

/// The line of a request: requests that charge the same buckets wait in the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::store::redis) struct Line(u128);

impl Line {
    /// `charges` are all those of the request, wherever they are decided: a client whose requests also charge a bucket that everybody
    /// shares must not wait behind everybody.
    pub(in crate::store::redis) fn of(charges: &[Charge]) -> Self {
        Self(charges.iter().fold(0, |sum, charge| sum.wrapping_add(charge.bucket.fingerprint)))
    }
}

/// Those that wait, by tag and line.
pub(super) struct Lines<T> {
    /// Those of tags with lines, in the order of their turns.
    tags: VecDeque<LinesOfTag<T>>,
}

struct LinesOfTag<T> {
    tag: u8,
    /// None is empty.
    lines: ByFingerprint<u128, VecDeque<T>>,
    /// Each line once, in the order of their turns.
    turns: VecDeque<u128>,
}

/// The fate of something whose turn it is.
pub(super) enum Offer<T> {
    Taken,
    /// It keeps its turn, and others may be taken before.
    Unlike(T),
    /// It keeps its turn, and nothing more is taken.
    Full(T),
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { tags: VecDeque::new() }
    }
}

impl<T> Lines<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    /// Returns true if something waits at this tag.
    pub(super) fn has(&self, tag: u8) -> bool {
        self.tags.iter().any(|of_tag| of_tag.tag == tag)
    }

    /// The number of those in a line.
    pub(super) fn length(&self, tag: u8, line: Line) -> usize {
        let of_tag = self.tags.iter().find(|of_tag| of_tag.tag == tag);
        of_tag.and_then(|of_tag| of_tag.lines.get(&line.0)).map_or(0, VecDeque::len)
    }

    /// Adds something to the end of a line.
    pub(super) fn push(&mut self, tag: u8, line: Line, item: T) {
        let at = self.tags.iter().position(|of_tag| of_tag.tag == tag).unwrap_or_else(|| {
            self.tags.push_back(LinesOfTag { tag, lines: ByFingerprint::default(), turns: VecDeque::new() });
            self.tags.len() - 1
        });
        let LinesOfTag { lines, turns, .. } = &mut self.tags[at];
        let waiting = lines.entry(line.0).or_insert_with(|| {
            turns.push_back(line.0);
            VecDeque::new()
        });
        waiting.push_back(item);
    }

    /// Offers the first of each line of the tag whose turn it is, round after round, until all are taken or one does not fit.
    pub(super) fn serve(&mut self, mut offer: impl FnMut(T) -> Offer<T>) {
        let Some(mut of_tag) = self.tags.pop_front() else { return };
        let LinesOfTag { lines, turns, .. } = &mut of_tag;
        let mut passed = Vec::new();
        while passed.len() < MOST_PASSED
            && let Some(line) = turns.pop_front()
        {
            let Entry::Occupied(mut waiting) = lines.entry(line) else { continue };
            let Some(first) = waiting.get_mut().pop_front() else { continue };
            match offer(first) {
                Offer::Taken if waiting.get().is_empty() => drop(waiting.remove()),
                Offer::Taken => turns.push_back(line),
                Offer::Unlike(first) => {
                    waiting.get_mut().push_front(first);
                    passed.push(line);
                }
                Offer::Full(first) => {
                    waiting.get_mut().push_front(first);
                    turns.push_front(line);
                    break;
                }
            }
        }
        passed.into_iter().rev().for_each(|line| turns.push_front(line));
        if !turns.is_empty() {
            self.tags.push_back(of_tag);
        }
    }

    /// Removes those that have waited too long. In each line the first has waited longest.
    pub(super) fn expire(&mut self, is_out: impl Fn(&T) -> bool) -> Vec<T> {
        let mut expired = Vec::new();
        self.tags.retain_mut(|LinesOfTag { lines, turns, .. }| {
            lines.retain(|_, waiting| {
                while let Some(first) = waiting.pop_front_if(|first| is_out(first)) {
                    expired.push(first);
                }
                !waiting.is_empty()
            });
            turns.retain(|line| lines.contains_key(line));
            !turns.is_empty()
        });
        expired
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Something that waits: its number, and whether it may be in a call with others.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Item {
        number: usize,
        tag: u8,
        line: u128,
        kind: u8,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push { tag: u8, line: u128, kind: u8 },
        Serve { room: usize },
        Expire { before: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        let kind = prop_oneof![9 => Just(0_u8), 1 => Just(1)];
        prop_oneof![
            12 => (0..3_u8, 0..6_u128, kind).prop_map(|(tag, line, kind)| Step::Push { tag, line, kind }),
            3 => (1..6_usize).prop_map(|room| Step::Serve { room }),
            1 => (0..6_usize).prop_map(|before| Step::Expire { before }),
        ]
    }

    /// Takes what fits in one call: `room` of one kind.
    fn serve(lines: &mut Lines<Item>, room: usize) -> Vec<Item> {
        let mut call: Vec<Item> = Vec::new();
        lines.serve(|item| match call.first() {
            Some(first) if first.kind != item.kind => Offer::Unlike(item),
            Some(_) if call.len() == room => Offer::Full(item),
            _ => {
                call.push(item);
                Offer::Taken
            }
        });
        call
    }

    /// The lines of each tag, and the calls since each was served or began.
    #[derive(Default)]
    struct Model {
        lines: BTreeMap<(u8, u128), (VecDeque<Item>, usize)>,
    }

    impl Model {
        fn push(&mut self, item: Item) {
            self.lines.entry((item.tag, item.line)).or_default().0.push_back(item);
        }

        /// Checks that the first of lines of one tag were taken, in turn.
        fn check(&mut self, call: &[Item], room: usize) {
            let Some(first) = call.first() else { return assert!(self.lines.is_empty(), "nobody was served") };
            let of_tag = self.lines.range((first.tag, 0)..=(first.tag, u128::MAX));
            let waiting: Vec<_> = of_tag.map(|(key, (line, _))| (*key, line.clone())).collect();
            for item in call {
                assert_eq!((item.tag, item.kind), (first.tag, first.kind));
                let (line, calls) = self.lines.get_mut(&(item.tag, item.line)).expect("it waits");
                assert_eq!(line.pop_front(), Some(*item), "the order of asking");
                *calls = 0;
            }
            let served = |line| call.iter().filter(|item| item.line == line).count();
            for ((tag, line), before) in &waiting {
                let (now, calls) = self.lines.get_mut(&(*tag, *line)).expect("it waits");
                // Another line has a second turn only if this one had a first, or cannot be in this call.
                let is_passed = now.front().is_some_and(|next| next.kind != first.kind);
                let most = waiting.iter().map(|((_, other), _)| served(*other)).max().unwrap_or(0);
                assert!(now.is_empty() || is_passed || most <= served(*line) + 1, "{call:?} of {waiting:?}");
                if now.len() == before.len() {
                    *calls += 1;
                    // Each call serves the line whose turn it is, and there are six.
                    assert!(*calls < 6, "line {line} starves");
                }
            }
            assert!(call.len() <= room);
            self.lines.retain(|_, (line, _)| !line.is_empty());
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_served_twice_and_lines_take_turns(steps in vec(step(), 1..200)) {
            let (mut lines, mut model) = (Lines::default(), Model::default());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push { tag, line, kind } => {
                        let item = Item { number, tag, line, kind };
                        lines.push(tag, Line(line), item);
                        model.push(item);
                    }
                    Step::Serve { room } => model.check(&serve(&mut lines, room), room),
                    Step::Expire { before } => {
                        let before = number.saturating_sub(before * 10);
                        let mut expired = lines.expire(|item| item.number < before);
                        let mut expected = Vec::new();
                        for (line, _) in model.lines.values_mut() {
                            while let Some(item) = line.pop_front_if(|item| item.number < before) {
                                expected.push(item);
                            }
                        }
                        model.lines.retain(|_, (line, _)| !line.is_empty());
                        expired.sort_by_key(|item| item.number);
                        expected.sort_by_key(|item| item.number);
                        prop_assert_eq!(expired, expected);
                    }
                }
                for ((tag, line), (waiting, _)) in &model.lines {
                    prop_assert!(lines.has(*tag));
                    prop_assert_eq!(lines.length(*tag, Line(*line)), waiting.len());
                }
                prop_assert_eq!(lines.is_empty(), model.lines.is_empty());
            }
            while !lines.is_empty() {
                model.check(&serve(&mut lines, 3), 3);
            }
            prop_assert!(model.lines.is_empty());
        }
    }

    #[test]
    fn tags_take_turns() {
        let mut lines = Lines::default();
        for (number, tag) in [5, 5, 5, 9, 5, 2].into_iter().enumerate() {
            lines.push(tag, Line(1), Item { number, tag, line: 1, kind: 0 });
        }
        let tags: Vec<u8> = (0..6).map(|_| serve(&mut lines, 1)[0].tag).collect();
        assert_eq!(tags, [5, 9, 2, 5, 5, 5]);
        assert!(lines.is_empty());
    }
}
