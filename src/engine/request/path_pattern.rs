//! Patterns over normalised paths, and the options for reading a path.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use crate::message::path::{EscapedSlashes, check, normalise};

/// The reading of paths, for upstreams that treat different paths as equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReading {
    /// `path_case: ignore`, for ASCII letters.
    pub ignores_case: bool,
    /// `path_params: strip`: drops what follows a `;` in a segment.
    pub strips_parameters: bool,
}

impl PathReading {
    /// Applies the reading to a normalised path.
    pub fn of(self, path: &str) -> Cow<'_, str> {
        let mut read = Cow::Borrowed(path);
        if self.strips_parameters && path.contains(';') {
            let segments: Vec<&str> = path.split('/').map(|segment| segment.split(';').next().unwrap_or("")).collect();
            // `/a/..;x/b` is `/b` now.
            read = normalise(&segments.join("/")).into_owned().into();
        }
        if self.ignores_case && read.bytes().any(|byte| byte.is_ascii_uppercase()) {
            read = read.to_ascii_lowercase().into();
        }
        read
    }

    /// The places, in a normalised path, of the segments that the reading leaves.
    pub fn places(self, path: &str) -> Vec<usize> {
        let mut places = Vec::new();
        for (place, segment) in segments(path).enumerate() {
            match segment.split(';').next().filter(|_| self.strips_parameters) {
                Some("" | ".") => {}
                Some("..") => drop(places.pop()),
                _ => places.push(place),
            }
        }
        places
    }
}

/// A path pattern: literal segments, `{parameter}` for any one segment, and a trailing `/**` for everything at and below
/// the path before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    pub segments: Vec<Segment>,
    /// True if it ends with `/**`.
    pub is_open: bool,
}

const WHAT_IT_IS: &str =
    "a pattern has literal segments, `{name}` for any one segment, and `/**` at its end for all below";

/// One segment of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    Literal(String),
    /// Any one segment, by this name.
    Parameter(String),
}

impl PathPattern {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with('^') || text.contains(".*") || text.contains('\\') {
            let example = meant_by_regex(text).unwrap_or_else(|| "/api/**".to_owned());
            return Err(format!(
                "this looks like a regular expression; write `{{ regex: '{text}' }}`, or a pattern such as `{example}`"
            ));
        }
        if matches!(text, "*" | "**") {
            return Err("write `/**` for every path".into());
        }
        if !text.starts_with('/') {
            return Err(if text.contains("://") {
                "write the path alone; a host has a key of its own, `host`".into()
            } else {
                format!("a path must begin with `/`; write `/{text}`")
            });
        }
        if text.contains('?') || text.contains('#') {
            return Err("a path pattern cannot have a query or fragment".into());
        }
        let (body, is_open) = match text.strip_suffix("/**") {
            Some(body) => (body, true),
            None => (text, false),
        };
        let mut segments = Vec::new();
        for part in body.split('/').skip(1).filter(|part| !part.is_empty()) {
            segments.push(Self::segment(part).map_err(|why| instead_of_star(text).unwrap_or(why))?);
        }
        for (place, segment) in segments.iter().enumerate() {
            if let Segment::Parameter(name) = segment
                && segments[..place].contains(segment)
            {
                return Err(format!("`{{{name}}}` appears twice in the pattern"));
            }
        }
        Ok(Self { segments, is_open })
    }

    fn segment(part: &str) -> Result<Segment, String> {
        if let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            return if name.is_empty() || !name.bytes().all(plain) {
                Err(format!("`{part}`: a parameter's name may have only letters, digits, `_` and `-`"))
            } else {
                Ok(Segment::Parameter(name.to_owned()))
            };
        }
        if part.contains(['{', '}', '*']) {
            return Err(format!("`{part}`: {WHAT_IT_IS}"));
        }
        // Such a request is rejected, so the pattern would never match.
        check(part, EscapedSlashes::Keep).map_err(|reason| format!("`{part}`: {reason}"))?;
        let normal = normalise(part);
        match normal.strip_prefix('/') {
            Some(literal) if !literal.is_empty() && !literal.contains('/') => Ok(Segment::Literal(literal.to_owned())),
            _ if normal == part => Ok(Segment::Literal(part.to_owned())),
            _ => Err(format!("`{part}`: a pattern cannot have dot segments")),
        }
    }

    /// Applies a reading to the pattern. Fails if it would then never match.
    pub fn read_as(mut self, reading: PathReading) -> Result<Self, String> {
        for segment in &mut self.segments {
            if let Segment::Literal(literal) = segment {
                if reading.strips_parameters && literal.contains(';') {
                    return Err(format!("`{literal}` never matches: with `path_params: strip` no path has a `;`"));
                }
                *literal = reading.of(literal).into_owned();
            }
        }
        Ok(self)
    }

    /// The index of the segment `{name}`.
    pub fn parameter(&self, name: &str) -> Option<usize> {
        self.segments.iter().position(|segment| matches!(segment, Segment::Parameter(given) if given == name))
    }

    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Parameter(name) => Some(name.as_str()),
            Segment::Literal(_) => None,
        })
    }

    /// The beginning of all paths that it matches.
    pub fn beginning(&self) -> String {
        let literals = self.segments.iter().map_while(|segment| match segment {
            Segment::Literal(literal) => Some(format!("/{literal}")),
            Segment::Parameter(_) => None,
        });
        literals.collect()
    }

    /// Returns true if it matches a normalised path.
    pub fn matches(&self, path: &str) -> bool {
        let mut given = segments(path);
        let fits = self.segments.iter().all(|segment| match (segment, given.next()) {
            (Segment::Literal(literal), Some(part)) => literal == part,
            (Segment::Parameter(_), Some(_)) => true,
            (_, None) => false,
        });
        fits && (self.is_open || given.next().is_none())
    }

    /// Returns true if a path may match both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let fits = self.segments.iter().zip(&other.segments).all(|pair| match pair {
            (Segment::Literal(one), Segment::Literal(other)) => one == other,
            _ => true,
        });
        fits && match self.segments.len().cmp(&other.segments.len()) {
            Ordering::Less => self.is_open,
            Ordering::Equal => true,
            Ordering::Greater => other.is_open,
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                // Characters with a meaning in patterns are escaped.
                Segment::Literal(literal) => {
                    write!(f, "/{}", literal.replace('{', "%7B").replace('}', "%7D").replace('*', "%2A"))?;
                }
                Segment::Parameter(name) => write!(f, "/{{{name}}}")?,
            }
        }
        match (self.is_open, self.segments.is_empty()) {
            (true, _) => f.write_str("/**"),
            (false, true) => f.write_str("/"),
            (false, false) => Ok(()),
        }
    }
}

/// Returns the pattern that is meant by a regular expression, if its beginning is literal.
fn meant_by_regex(text: &str) -> Option<String> {
    let text = text.trim_start_matches('^');
    let (text, is_whole) = text.strip_suffix('$').map_or((text, false), |text| (text, true));
    let literal = match text.find(['^', '$', '*', '+', '?', '(', ')', '[', ']', '{', '}', '|', '\\']) {
        None if is_whole => return text.starts_with('/').then(|| text.to_owned()),
        None => text,
        Some(end) if text[..end].ends_with('.') => &text[..end - 1],
        Some(end) => &text[..text[..end].rfind('/')?],
    };
    let literal = literal.trim_end_matches('/');
    (literal.is_empty() || literal.starts_with('/')).then(|| format!("{literal}/**"))
}

/// Returns help for a pattern with one `*` or `**` as a segment: what it means elsewhere.
fn instead_of_star(text: &str) -> Option<String> {
    let mut stars = text.split('/').filter(|segment| segment.contains('*'));
    let (star, None) = (stars.next()?, stars.next()) else { return None };
    let (above, below) = text.split_once(&format!("/{star}"))?;
    match (star, above, below) {
        (star, ..) if text.ends_with(star) && star.ends_with('*') && !star.starts_with('*') => Some(format!(
            "write `{{ prefix: {} }}` for all paths that begin with this text",
            text.trim_end_matches('*')
        )),
        ("*" | "**", "", "" | "/") => Some("write `/{id}` for any one segment, or `/**` for every path".to_owned()),
        ("*" | "**", _, "" | "/") => {
            Some(format!("write `{above}/{{id}}` for any one segment there, or `{above}/**` for all below"))
        }
        ("*", ..) => Some(format!("write `{above}/{{id}}{below}` for any one segment there")),
        _ => None,
    }
}

/// The segments of a normalised path; `/` has none.
pub fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').skip(1).filter(|segment| !segment.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let pattern = PathPattern::parse(pattern).unwrap();
        for path in matching {
            assert!(pattern.matches(path), "{path}");
        }
        for path in others {
            assert!(!pattern.matches(path), "{path}");
        }
    }

    #[test]
    fn patterns_match_whole_segments() {
        check("/v1/orders", &["/v1/orders"], &["/v1/orders/7", "/v1", "/v1/order"]);
        check("/v1/{id}", &["/v1/7"], &["/v1", "/v1/7/8"]);
        check("/v1/**", &["/v1", "/v1/7", "/v1/7/8"], &["/v10", "/"]);
        check("/**", &["/", "/a/b"], &[]);
        check("/", &["/"], &["/a"]);
        check("/%76%31/", &["/v1"], &["/v1/x"]);
        check("/v1/orders%3Acancel", &["/v1/orders:cancel"], &[]);
        check("/%7Bid%7D/%2A%2A", &["/{id}/**"], &["/7/x"]);
    }

    #[test]
    fn a_reading_takes_more_paths_for_one() {
        let case = PathReading { ignores_case: true, ..PathReading::default() };
        let parameters = PathReading { strips_parameters: true, ..PathReading::default() };
        let both = PathReading { ignores_case: true, strips_parameters: true };
        for (reading, path, expected) in [
            (PathReading::default(), "/V1/a;x", "/V1/a;x"),
            (case, "/V1/Orders;X", "/v1/orders;x"),
            (parameters, "/V1;a=b/orders;x;y", "/V1/orders"),
            (parameters, "/a/..;x/b", "/b"),
            (parameters, "/;x/a/;", "/a"),
            (parameters, "/;", "/"),
            (both, "/A;X/%2F", "/a/%2f"),
        ] {
            assert_eq!(reading.of(path), expected, "{path}");
            assert_eq!(reading.of(&reading.of(path)), expected, "{path} twice");
            let given: Vec<&str> = segments(path).collect();
            let places = reading.places(path).into_iter();
            let left: String = places.map(|place| reading.of(&format!("/{}", given[place])).into_owned()).collect();
            assert_eq!(left, expected.trim_end_matches('/'), "{path}");
        }
        let pattern = PathPattern::parse("/V1/%2F{Id}").unwrap_err();
        assert!(pattern.contains("literal segments"), "{pattern}");
        let pattern = PathPattern::parse("/V1/{Id}/a%2Fb").unwrap().read_as(case).unwrap();
        assert!(pattern.matches(&case.of("/v1/X/A%2FB")) && pattern.parameter("Id") == Some(1));
        assert!(PathPattern::parse("/a;x").unwrap().read_as(parameters).is_err());
    }

    #[test]
    fn mistaken_patterns_say_what_is_right() {
        for (pattern, part) in [
            ("v1", "write `/v1`"),
            ("/a?b", "a query"),
            ("/a*", "write `{ prefix: /a }` for all paths that begin with this text"),
            ("/a*b", "`/**` at its end for all below"),
            ("/a/b*", "write `{ prefix: /a/b }`"),
            ("*", "write `/**` for every path"),
            ("/*", "write `/{id}` for any one segment, or `/**` for every path"),
            ("/api/*", "write `/api/{id}` for any one segment there, or `/api/**` for all below"),
            ("/api/**/", "or `/api/**` for all below"),
            ("/api/*/x", "write `/api/{id}/x` for any one segment there"),
            ("/api/**/x", "`**`: a pattern has literal segments"),
            ("/api/*/x/*", "`*`: a pattern has literal segments"),
            ("^/api", "looks like a regular expression; write `{ regex: '^/api' }`"),
            ("^/api", "such as `/api/**`"),
            ("^/api$", "such as `/api`"),
            ("^/api/v[0-9]+/x$", "such as `/api/**`"),
            ("/api.*", "such as `/api/**`"),
            ("/api/.*", "such as `/api/**`"),
            ("^.*/x", "such as `/**`"),
            ("/.*", "such as `/**`"),
            ("^/", "such as `/**`"),
            ("/user/\\d+", "such as `/user/**`"),
            ("https://example.com/x", "`host`"),
            ("/{a}/{a}", "twice"),
            ("/{a b}", "name"),
            ("/a/../b", "dot segments"),
            ("/100%", "two hexadecimal digits"),
            ("/%a%41", "two hexadecimal digits"),
            ("/caf\u{e9}", "printable ASCII"),
        ] {
            let error = PathPattern::parse(pattern).unwrap_err();
            assert!(error.contains(part), "{pattern}: {error}");
        }
    }
}
