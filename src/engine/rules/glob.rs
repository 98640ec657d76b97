//! Text with `*` in it: each stands for any characters, or none.

use std::fmt;

/// A pattern with at least one `*`. There is no escape: what has no `*` is compared as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    /// As it is written.
    text: String,
}

impl Glob {
    /// The pattern that a text is; `None` if it has no `*`.
    pub fn parse(text: &str) -> Option<Self> {
        text.contains('*').then(|| Self { text: text.to_owned() })
    }

    /// Whether all of `text` fits.
    ///
    /// The first place that fits is taken for each part, which leaves the most for the parts that follow: no part is
    /// tried twice, so a hostile value costs no more than its length times the pattern's.
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

/// As it is written.
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
