//! Patterns in which `*` matches any characters, or none.

use std::fmt;

/// A pattern with at least one `*`, for which there is no escape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Glob {
    text: String,
}

impl Glob {
    /// Parses a pattern; `None` if it has no `*`.
    pub fn parse(text: &str) -> Option<Self> {
        text.contains('*').then(|| Self { text: text.to_owned() })
    }

    /// Returns true if the whole text matches.
    ///
    /// Each part matches at the first possible place, which leaves the most for the parts that follow. There is no
    /// backtracking, so a hostile value costs its length times the pattern's at most.
    pub fn matches(&self, text: &str) -> bool {
        let Some((first, rest)) = self.text.split_once('*') else { return self.text == text };
        let Some(mut left) = text.strip_prefix(first) else { return false };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        for part in middle.split('*') {
            let Some(place) = left.find(part) else { return false };
            left = &left[place + part.len()..];
        }
        left.ends_with(last)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases of envoyproxy/ratelimit's `wildcard` tests, and the ends of a pattern.
    #[test]
    fn a_star_is_any_characters_or_none() {
        for (pattern, fits, misses) in [
            ("foo*", &["foo", "foo1", "foo*"][..], &["bar", "fo", "xfoo"][..]),
            ("bar*b", &["barb", "barab", "bar123b"], &["bara", "bar", "xbarb", "barbx"]),
            ("foo*bar*baz", &["foobarbaz", "foo123bar456baz"], &["foo123baz", "bar456baz", "foobaz"]),
            ("*", &["", "x"], &[]),
            ("**", &["", "x"], &[]),
            ("*a*", &["a", "xay"], &["", "x"]),
            ("aa*a", &["aaa", "aaxa"], &["aa", "a"]),
            ("a*b*b", &["abb", "axbxb"], &["ab"]),
        ] {
            let pattern = Glob::parse(pattern).unwrap();
            for text in fits {
                assert!(pattern.matches(text), "{pattern} {text}");
            }
            for text in misses {
                assert!(!pattern.matches(text), "{pattern} {text}");
            }
        }
        assert_eq!(Glob::parse("foo"), None);
    }
}
