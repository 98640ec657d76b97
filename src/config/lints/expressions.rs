//! Regular expressions of overrides. `unanchored-regex`: they match a part of an id. `override-never-applies`: they match none.

use regex_syntax::hir::{Class, Dot, Hir, HirKind, Look};

use crate::engine::limit::Limit;
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;

/// Returns whether a regular expression that was meant for whole ids matches parts of them. One with an anchor at one end is meant
/// for the beginnings or the ends of ids, and one with `.*` at both ends for a part of them.
pub(in crate::config) fn is_unanchored(pattern: &str) -> bool {
    let Ok(parsed) = regex_syntax::parse(pattern) else { return false };
    alternatives(&parsed).iter().any(|one| !is_anchored(one) && !is_within_anything(one))
}

/// The alternatives of which each is a whole expression.
fn alternatives(parsed: &Hir) -> &[Hir] {
    match parsed.kind() {
        HirKind::Capture(capture) => alternatives(&capture.sub),
        HirKind::Alternation(all) => all,
        _ => std::slice::from_ref(parsed),
    }
}

/// Returns whether it begins or ends with an anchor, also one among others: `(^|-)`.
fn is_anchored(parsed: &Hir) -> bool {
    let properties = parsed.properties();
    properties.look_set_prefix_any().contains(Look::Start) || properties.look_set_suffix_any().contains(Look::End)
}

/// Returns whether it is `.*` at both ends.
fn is_within_anything(parsed: &Hir) -> bool {
    let is_anything = |part: &Hir| {
        matches!(part.kind(), HirKind::Repetition(repeated) if repeated.min == 0
            && repeated.max.is_none()
            && [Dot::AnyChar, Dot::AnyCharExceptLF].map(Hir::dot).contains(&repeated.sub))
    };
    match parsed.kind() {
        HirKind::Concat(parts) => parts.first().is_some_and(is_anything) && parts.last().is_some_and(is_anything),
        _ => is_anything(parsed),
    }
}

/// Returns whether no id of a limit can match: the expression needs text before its beginning or after its end, or characters that
/// such ids do not have.
pub(in crate::config) fn matches_no_id(limit: &Limit, pattern: &str) -> bool {
    let Ok(parsed) = regex_syntax::parse(pattern) else { return false };
    let characters: Option<Vec<&[_]>> = limit.by.iter().map(characters).collect();
    let characters = characters.map(|mut of_parts| {
        of_parts.push(&BETWEEN_PARTS);
        of_parts.concat()
    });
    !can_match(&parsed, characters.as_deref())
}

/// Characters of ids: the first and the last one of each range.
type Ranges<'a> = &'a [(char, char)];

/// Also the marks for parts that are missing or malformed.
const BETWEEN_PARTS: [(char, char); 3] = [(':', ':'), ('*', '*'), ('!', '!')];

/// The characters of a part's canonical text, where its kind bounds them.
fn characters(by: &TypedPart) -> Option<Ranges<'static>> {
    const DIGITS: (char, char) = ('0', '9');
    match (&by.part, by.form) {
        (Part::Ip { .. }, _) | (_, ValueType::Address) => {
            Some(&[DIGITS, ('a', 'f'), ('.', '.'), (':', ':'), ('/', '/')])
        }
        (_, ValueType::Integer) => Some(&[DIGITS]),
        (Part::Host, ValueType::Text) | (_, ValueType::Hostname | ValueType::RegisteredDomain) => {
            // Everything but capitals: hosts also have `_`, and addresses brackets.
            Some(&[('\0', '@'), ('[', char::MAX)])
        }
        _ => None,
    }
}

/// In doubt, it can.
fn can_match(parsed: &Hir, characters: Option<Ranges<'_>>) -> bool {
    let is_possible =
        |first, last| characters.is_none_or(|all| all.iter().any(|(from, to)| first <= *to && *from <= last));
    match parsed.kind() {
        HirKind::Empty | HirKind::Look(_) => true,
        HirKind::Literal(literal) => std::str::from_utf8(&literal.0)
            .map_or(true, |text| text.chars().all(|character| is_possible(character, character))),
        HirKind::Class(Class::Unicode(class)) => class.iter().any(|range| is_possible(range.start(), range.end())),
        HirKind::Class(Class::Bytes(class)) => class.iter().next().is_some(),
        HirKind::Repetition(repeated) => repeated.min == 0 || can_match(&repeated.sub, characters),
        HirKind::Capture(capture) => can_match(&capture.sub, characters),
        HirKind::Alternation(all) => all.iter().any(|one| can_match(one, characters)),
        HirKind::Concat(parts) => {
            let is_needed = |part: &Hir| part.properties().minimum_len().is_none_or(|length| length > 0);
            let begins = |part: &Hir| part.properties().look_set_prefix().contains(Look::Start);
            let ends = |part: &Hir| part.properties().look_set_suffix().contains(Look::End);
            let is_outside = |place: usize| {
                let (before, after) = (&parts[..place], &parts[place + 1..]);
                begins(&parts[place]) && before.iter().any(is_needed)
                    || ends(&parts[place]) && after.iter().any(is_needed)
            };
            parts.iter().all(|part| can_match(part, characters)) && !(0..parts.len()).any(is_outside)
        }
    }
}
