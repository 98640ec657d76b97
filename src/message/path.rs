//! Paths: the normalised copy that rules are matched on, and patterns over it.
//!
//! A limiter that matches the raw path can be walked around by spelling it differently (`//v1`, `/v1/`, `/%761`), so
//! rules see one spelling (RFC 3986 section 6.2.2). The request itself is forwarded as it came.

use std::borrow::Cow;
use std::fmt;

use crate::engine::rules::request::hex;

/// What is done with a path that has `%2F` or `%5C` in it. Some servers decode them and then see other segments than the
/// rules do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// They are text of their segment.
    #[default]
    Keep,
    /// The request is refused.
    Reject,
}

/// Whether a path is one that all servers read alike, or why it is not. What differs between them is a way around rules:
/// a backslash is a slash to some, an escape that is none is text or an error, and a NUL ends the path.
pub fn check(path: &str, slashes: EscapedSlashes) -> Result<(), &'static str> {
    let is_allowed = |byte: u8| matches!(byte, b'!'..=b'~') && !matches!(byte, b'\\' | b'#');
    // Nearly every path has no escape either, which is seen with the same look.
    if path.bytes().all(|byte| is_allowed(byte) && byte != b'%') {
        return Ok(());
    }
    if !path.bytes().all(is_allowed) {
        return Err("a path has printable ASCII, without a backslash and a fragment");
    }
    let mut rest = path;
    while let Some(place) = rest.find('%') {
        let digits = rest.as_bytes().get(place + 1..place + 3).unwrap_or_default();
        let [high, low] = digits else { return Err("`%` begins an escape of two hexadecimal digits") };
        if !high.is_ascii_hexdigit() || !low.is_ascii_hexdigit() {
            return Err("`%` begins an escape of two hexadecimal digits");
        }
        let byte = hex(*high) << 4 | hex(*low);
        if byte.is_ascii_control() {
            return Err("a path has no control characters, escaped or not");
        }
        if slashes == EscapedSlashes::Reject && matches!(byte, b'/' | b'\\') {
            return Err("a path has no escaped slashes here");
        }
        rest = &rest[place + 3..];
    }
    Ok(())
}

/// The path in the one spelling that rules are matched on.
///
/// Escapes of printable ASCII are decoded and the others get upper-case digits, dot segments are resolved (`%2e` too),
/// slashes merge, and one trailing slash is dropped. What means something else once it is decoded stays: `%2F` and `%5C`,
/// which some upstreams take for separators, `%25`, so that nothing is decoded twice, `%3F` and `%23`. An empty path is
/// `/`.
pub fn normalise(path: &str) -> Cow<'_, str> {
    if is_normal(path) {
        return Cow::Borrowed(path);
    }
    let decoded = decode_printable(path);
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let mut normal = String::with_capacity(path.len() + 1);
    for segment in segments {
        normal.push('/');
        normal.push_str(segment);
    }
    if normal.is_empty() {
        normal.push('/');
    }
    Cow::Owned(normal)
}

/// Whether nothing in `path` needs a change: what nearly every request has.
fn is_normal(path: &str) -> bool {
    let bytes = path.as_bytes();
    if bytes.first() != Some(&b'/') || (bytes.len() > 1 && bytes.ends_with(b"/")) || bytes.contains(&b'%') {
        return false;
    }
    // Only a segment that begins with a dot can be a dot segment; `/.well-known` merely takes the slower way.
    bytes.windows(2).all(|pair| pair[0] != b'/' || (pair[1] != b'/' && pair[1] != b'.'))
}

fn decode_printable(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(place) = rest.find('%') {
        decoded.push_str(&rest[..place]);
        rest = &rest[place..];
        match rest.as_bytes() {
            [_, high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let byte = hex(*high) << 4 | hex(*low);
                if byte.is_ascii_graphic() && !b"/\\%?#".contains(&byte) {
                    decoded.push(char::from(byte));
                } else {
                    decoded.push_str(&rest[..3].to_ascii_uppercase());
                }
                rest = &rest[3..];
            }
            _ => {
                decoded.push('%');
                rest = &rest[1..];
            }
        }
    }
    decoded.push_str(rest);
    decoded
}

/// How the paths of a limit are read, whose upstream takes more paths for one than others do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// ASCII letters in either case are the same: `path_case: ignore`.
    pub ignores_case: bool,
    /// What follows a `;` in a segment is dropped: `path_params: strip`.
    pub strips_parameters: bool,
}

impl Reading {
    /// A normalised path in this reading.
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
}

/// A path pattern: literal segments, `{parameter}` for one segment, and a trailing `/**` for the path before it and
/// everything below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    segments: Vec<Segment>,
    open: bool,
}

/// One segment of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// This text.
    Literal(String),
    /// Any one segment, under this name.
    Parameter(String),
}

impl Pattern {
    /// Parses a pattern; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err(format!("a path begins with `/`; write `/{text}`"));
        }
        if text.contains('?') || text.contains('#') {
            return Err("a path pattern has no query and no fragment".into());
        }
        let (body, open) = match text.strip_suffix("/**") {
            Some(body) => (body, true),
            None => (text, false),
        };
        let mut segments = Vec::new();
        for part in body.split('/').skip(1).filter(|part| !part.is_empty()) {
            segments.push(Self::segment(part)?);
        }
        for (place, segment) in segments.iter().enumerate() {
            if let Segment::Parameter(name) = segment
                && segments[..place].contains(segment)
            {
                return Err(format!("`{{{name}}}` stands in the pattern twice"));
            }
        }
        Ok(Self { segments, open })
    }

    fn segment(part: &str) -> Result<Segment, String> {
        if let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            return if name.is_empty() || !name.bytes().all(plain) {
                Err(format!("`{part}`: a parameter's name has letters, digits, `_` and `-`"))
            } else {
                Ok(Segment::Parameter(name.to_owned()))
            };
        }
        if part.contains(['{', '}', '*']) {
            return Err(format!(
                "`{part}`: a segment is literal or one whole `{{parameter}}`; `/**` stands only at the end"
            ));
        }
        // No request has such a path, so nothing would ever match.
        check(part, EscapedSlashes::Keep).map_err(|reason| format!("`{part}`: {reason}"))?;
        let normal = normalise(part);
        match normal.strip_prefix('/') {
            Some(literal) if !literal.is_empty() && !literal.contains('/') => Ok(Segment::Literal(literal.to_owned())),
            _ if normal == part => Ok(Segment::Literal(part.to_owned())),
            _ => Err(format!("`{part}`: a pattern has no dot segments")),
        }
    }

    /// The pattern for paths in a reading. The error says why it would never match.
    pub fn read_as(mut self, reading: Reading) -> Result<Self, String> {
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

    /// The segments, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether it ends in `/**`.
    pub const fn is_open(&self) -> bool {
        self.open
    }

    /// The index of the segment that `{name}` stands for.
    pub fn parameter(&self, name: &str) -> Option<usize> {
        self.segments.iter().position(|segment| matches!(segment, Segment::Parameter(given) if given == name))
    }

    /// The names of its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Parameter(name) => Some(name.as_str()),
            Segment::Literal(_) => None,
        })
    }

    /// Whether it matches a normalised path.
    pub fn matches(&self, path: &str) -> bool {
        let mut given = segments(path);
        let fits = self.segments.iter().all(|segment| match (segment, given.next()) {
            (Segment::Literal(literal), Some(part)) => literal == part,
            (Segment::Parameter(_), Some(_)) => true,
            (_, None) => false,
        });
        fits && (self.open || given.next().is_none())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                // What would be read as a parameter is written as an escape.
                Segment::Literal(literal) => {
                    write!(f, "/{}", literal.replace('{', "%7B").replace('}', "%7D").replace('*', "%2A"))?;
                }
                Segment::Parameter(name) => write!(f, "/{{{name}}}")?,
            }
        }
        match (self.open, self.segments.is_empty()) {
            (true, _) => f.write_str("/**"),
            (false, true) => f.write_str("/"),
            (false, false) => Ok(()),
        }
    }
}

/// The segments of a normalised path; `/` has none.
pub fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').skip(1).filter(|segment| !segment.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_servers_read_differently_are_refused() {
        for (path, keep, reject) in [
            ("/a/b;c=d,e", true, true),
            ("/%41%c3%a9", true, true),
            ("/a%2Fb", true, false),
            ("/a%5cb", true, false),
            ("/a%252Fb", true, true),
            ("/a\\b", false, false),
            ("/a#b", false, false),
            ("/a b", false, false),
            ("/\u{e9}", false, false),
            ("/a%00", false, false),
            ("/a%0d%0ab", false, false),
            ("/a%", false, false),
            ("/a%4", false, false),
            ("/a%zz", false, false),
        ] {
            assert_eq!(super::check(path, EscapedSlashes::Keep).is_ok(), keep, "{path}");
            assert_eq!(super::check(path, EscapedSlashes::Reject).is_ok(), reject, "{path}");
        }
    }

    #[test]
    fn every_spelling_of_a_path_is_one() {
        for (path, expected) in [
            ("/v1/orders", "/v1/orders"),
            ("//v1///orders/", "/v1/orders"),
            ("/v1/./x/../orders", "/v1/orders"),
            ("/v1/x/%2e%2E/orders", "/v1/orders"),
            ("/%76%31/orders", "/v1/orders"),
            ("/../../v1/orders", "/v1/orders"),
            ("/a%2fb", "/a%2Fb"),
            ("/%2576", "/%2576"),
            ("/v1/orders%3acancel", "/v1/orders:cancel"),
            ("/%40%2C%3B%3D%24%21%27%28%29%2A%2B%26", "/@,;=$!'()*+&"),
            ("/%22%3C%3E%5B%5D%5E%60%7B%7C%7D", "/\"<>[]^`{|}"),
            ("/a%5cb%3f%23%20", "/a%5Cb%3F%23%20"),
            ("/100%", "/100%"),
            ("/.well-known", "/.well-known"),
            ("", "/"),
            ("/", "/"),
            ("*", "/*"),
        ] {
            assert_eq!(normalise(path), expected, "{path}");
            assert_eq!(normalise(&normalise(path)), expected, "{path} twice");
        }
    }

    #[track_caller]
    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let pattern = Pattern::parse(pattern).unwrap();
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
        let case = Reading { ignores_case: true, ..Reading::default() };
        let parameters = Reading { strips_parameters: true, ..Reading::default() };
        let both = Reading { ignores_case: true, strips_parameters: true };
        for (reading, path, expected) in [
            (Reading::default(), "/V1/a;x", "/V1/a;x"),
            (case, "/V1/Orders;X", "/v1/orders;x"),
            (parameters, "/V1;a=b/orders;x;y", "/V1/orders"),
            (parameters, "/a/..;x/b", "/b"),
            (parameters, "/;x/a/;", "/a"),
            (parameters, "/;", "/"),
            (both, "/A;X/%2F", "/a/%2f"),
        ] {
            assert_eq!(reading.of(path), expected, "{path}");
            assert_eq!(reading.of(&reading.of(path)), expected, "{path} twice");
        }
        let pattern = Pattern::parse("/V1/%2F{Id}").unwrap_err();
        assert!(pattern.contains("whole"), "{pattern}");
        let pattern = Pattern::parse("/V1/{Id}/a%2Fb").unwrap().read_as(case).unwrap();
        assert!(pattern.matches(&case.of("/v1/X/A%2FB")) && pattern.parameter("Id") == Some(1));
        assert!(Pattern::parse("/a;x").unwrap().read_as(parameters).is_err());
    }

    #[test]
    fn mistaken_patterns_say_what_is_right() {
        for (pattern, part) in [
            ("v1", "write `/v1`"),
            ("/a?b", "no query"),
            ("/a*", "`/**` stands only at the end"),
            ("/{a}/{a}", "twice"),
            ("/{a b}", "name"),
            ("/a/../b", "dot segments"),
            ("/100%", "two hexadecimal digits"),
            ("/%a%41", "two hexadecimal digits"),
            ("/caf\u{e9}", "printable ASCII"),
        ] {
            let error = Pattern::parse(pattern).unwrap_err();
            assert!(error.contains(part), "{pattern}: {error}");
        }
    }
}
