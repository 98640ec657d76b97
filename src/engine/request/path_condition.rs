//! Conditions on normalised paths.

use std::fmt;

use regex::Regex;

use crate::engine::request::path_pattern::{PathPattern, PathReading};

/// The most bytes of a prefix.
pub const LONGEST_PREFIX: usize = 1_024;

/// A condition on a path that was read as its limit says.
#[derive(Clone, Debug)]
pub enum PathCondition {
    Pattern(PathPattern),
    /// A text that ends inside a segment: normalised paths do not end with `/`, so one that does is a pattern.
    Prefix(String),
    /// Unanchored.
    Regex(Regex),
}

impl PathCondition {
    /// Reads a prefix. The error is what to write instead.
    pub fn prefix(text: &str, reading: PathReading) -> Result<Self, String> {
        if text.len() > LONGEST_PREFIX {
            return Err(format!("use at most {LONGEST_PREFIX} bytes"));
        }
        if text.contains(['{', '}', '*']) {
            return Err("a prefix is plain text; for these characters write `%7B`, `%7D` and `%2A`".to_owned());
        }
        // `/.` alone would be a dot segment, but `/.git` begins with it.
        let more = if text.ends_with('.') { "x" } else { "" };
        let mut pattern = PathPattern::parse(&format!("{text}{more}"))?.read_as(reading)?;
        if text.ends_with('/') {
            pattern.is_open = true;
            return Ok(Self::Pattern(pattern));
        }
        let mut prefix = pattern.beginning();
        prefix.truncate(prefix.len() - more.len());
        Ok(Self::Prefix(prefix))
    }

    pub fn pattern(&self) -> Option<&PathPattern> {
        if let Self::Pattern(pattern) = self { Some(pattern) } else { None }
    }

    /// Returns true if it holds for a normalised path.
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Pattern(pattern) => pattern.matches(path),
            Self::Prefix(prefix) => path.starts_with(prefix.as_str()),
            Self::Regex(regex) => regex.is_match(path),
        }
    }

    /// Returns true if a path may meet both.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pattern(one), Self::Pattern(other)) => one.overlaps(other),
            (Self::Regex(_), _) | (_, Self::Regex(_)) => true,
            (one, other) => {
                let (one, other) = (one.beginning(), other.beginning());
                one.starts_with(&other) || other.starts_with(&one)
            }
        }
    }

    /// The beginning of every path that meets it.
    pub fn beginning(&self) -> String {
        match self {
            Self::Pattern(pattern) => pattern.beginning(),
            Self::Prefix(prefix) => prefix.clone(),
            Self::Regex(_) => "/".to_owned(),
        }
    }
}

/// Writes it as rules files do.
impl fmt::Display for PathCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(pattern) => write!(f, "{pattern}"),
            Self::Prefix(prefix) => write!(f, "{{ prefix: '{}' }}", prefix.replace('\'', "''")),
            Self::Regex(regex) => write!(f, "{{ regex: '{}' }}", regex.as_str().replace('\'', "''")),
        }
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use proptest::prelude::*;

    use super::*;

    fn condition(text: &str, reading: PathReading) -> Option<PathCondition> {
        match text.split_at(1) {
            ("p", text) => PathCondition::prefix(text, reading).ok(),
            ("r", text) => Some(PathCondition::Regex(Regex::new(text).ok()?)),
            (_, text) => PathPattern::parse(text).and_then(|one| one.read_as(reading)).ok().map(PathCondition::Pattern),
        }
    }

    /// Any conditions over few letters, so that they meet often.
    pub(crate) fn conditions() -> impl Strategy<Value = Vec<PathCondition>> {
        let text = "(p(/[ab.]{0,2}){1,3}|=(/([ab]|\\{x\\})){0,3}(/|/\\*\\*)?|r(\\^/)?[ab/.]{1,2}\\$?)";
        let all = prop::collection::vec(text, 0..3);
        all.prop_map(|texts| texts.iter().filter_map(|text| condition(text, PathReading::default())).collect())
    }

    /// Normalised paths.
    pub(crate) fn paths() -> impl Strategy<Value = String> {
        "(/[ab.]{0,3}){1,4}".prop_map(|path| crate::message::path::normalise(&path).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::path::normalise;

    #[test]
    fn prefixes_and_regular_expressions_see_the_path_as_patterns_do() {
        let plain = PathReading::default();
        let case = PathReading { ignores_case: true, ..plain };
        let parameters = PathReading { strips_parameters: true, ..plain };
        for (prefix, reading, matching, others) in [
            ("/api", plain, &["/api", "/apix", "/api/x", "//%61pi", "/x/../apiy"][..], &["/ap", "/Api", "/x/api"][..]),
            ("/%61pi//v", plain, &["/api/v1"], &["/api", "/api/"]),
            ("/api/", plain, &["/api", "/api/", "/api/x"], &["/apix"]),
            ("/", plain, &["/", "/x", "/*"], &[]),
            ("/.", plain, &["/.git", "/..x"], &["/a", "/./a"]),
            ("/%7B%2A", plain, &["/{*}"], &["/x"]),
            ("/a%2f", plain, &["/a%2Fb"], &["/a/b"]),
            ("/API/V", case, &["/api/v1", "/Api/Vx"], &["/api"]),
            ("/API/", case, &["/api/v1"], &["/apix"]),
            ("/api/v", parameters, &["/api;x=1/v1", "/b/..;y/api/v"], &["/api;x"]),
        ] {
            let condition = PathCondition::prefix(prefix, reading).unwrap();
            let matches = |path: &&str| condition.matches(&reading.of(&normalise(path)));
            assert_eq!(matching.iter().find(|path| !matches(path)), None, "{prefix}");
            assert_eq!(others.iter().find(|path| matches(path)), None, "{prefix}");
        }
    }

    #[test]
    fn conditions_are_shown_as_a_file_has_them() {
        let prefix = PathCondition::prefix("/it's", PathReading::default()).unwrap();
        assert_eq!(prefix.to_string(), "{ prefix: '/it''s' }");
        assert_eq!(PathCondition::Regex(Regex::new(r"\.php$").unwrap()).to_string(), r"{ regex: '\.php$' }");
    }
}
