//! Regular expressions of other gateways as text, character by character.

/// The place of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// After a backslash.
    Literal,
    /// In a class, with its closing bracket.
    Class,
    /// In so many groups. An opening parenthesis is outside its group, a closing one as well.
    Outside(usize),
}

/// The characters of a regular expression, with their offsets in bytes.
pub(super) fn characters(regex: &str) -> impl Iterator<Item = (usize, char, Part)> {
    let (mut depth, mut is_literal) = (0_usize, false);
    // The offset of a class's first member, which may be a closing bracket.
    let mut class: Option<usize> = None;
    regex.char_indices().map(move |(place, character)| {
        if is_literal {
            is_literal = false;
            return (place, character, Part::Literal);
        }
        is_literal = character == '\\';
        if let Some(first) = class {
            match character {
                '^' if place == first => class = Some(first + 1),
                ']' if place > first => class = None,
                _ => {}
            }
            return (place, character, Part::Class);
        }
        match character {
            '[' => class = Some(place + 1),
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let part = Part::Outside(depth);
        depth += usize::from(character == '(');
        (place, character, part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_groups_end_where_they_do() {
        let parts = |regex: &str| -> String {
            let part = |(_, _, part)| match part {
                Part::Literal => 'l',
                Part::Class => 'c',
                Part::Outside(depth) => char::from_digit(u32::try_from(depth).unwrap(), 10).unwrap(),
            };
            characters(regex).map(part).collect()
        };
        assert_eq!(parts(r"a(b[)]|\(c)d"), "0011cc11l100");
        assert_eq!(parts("[]a]b[^]|]c"), "0ccc00cccc0");
        assert_eq!(parts(r"[\]]."), "0clc0");
    }
}
