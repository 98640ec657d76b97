//! Paths, and the normalised copy that rules are matched on.
//!
//! A limiter that matches the raw path can be bypassed by spelling the path differently (`//v1`, `/v1/`, `/%761`), so
//! rules see one spelling (RFC 3986 section 6.2.2). The request itself is forwarded unchanged.

use std::borrow::Cow;

use super::percent;

/// The treatment of paths that contain `%2F` or `%5C`. Some servers decode these and then see other segments than the
/// rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// They are ordinary text of their segment.
    #[default]
    Keep,
    /// The request is rejected.
    Reject,
}

/// Checks that all servers read a path the same way; the error is the reason. Differences are a way around rules: some
/// servers take a backslash for a slash, an invalid escape for text or an error, and a NUL for the end of the path.
pub fn check(path: &str, slashes: EscapedSlashes) -> Result<(), &'static str> {
    let is_allowed = |byte: u8| matches!(byte, b'!'..=b'~') && !matches!(byte, b'\\' | b'#');
    // Nearly every path has no escape, which the same pass over the bytes shows.
    if path.bytes().all(|byte| is_allowed(byte) && byte != b'%') {
        return Ok(());
    }
    if !path.bytes().all(is_allowed) {
        return Err("a path must be printable ASCII without a backslash or fragment");
    }
    let mut rest = path;
    while let Some(place) = rest.find('%') {
        let digits = rest.as_bytes().get(place + 1..place + 3).unwrap_or_default();
        let byte = if let [high, low] = digits { percent::byte(*high, *low) } else { None };
        let Some(byte) = byte else { return Err("`%` must begin an escape of two hexadecimal digits") };
        if byte.is_ascii_control() {
            return Err("a path must not have control characters, escaped or not");
        }
        if slashes == EscapedSlashes::Reject && matches!(byte, b'/' | b'\\') {
            return Err("a path must not have escaped slashes here");
        }
        rest = &rest[place + 3..];
    }
    Ok(())
}

/// The path in the spelling that rules are matched on.
///
/// Escapes of printable ASCII are decoded and the others get upper-case digits, dot segments are resolved (`%2e` too),
/// slashes merge, and one trailing slash is dropped. Escapes whose meaning would change stay: `%2F` and `%5C`, which some
/// upstreams take for separators, `%25`, so that nothing is decoded twice, `%3F` and `%23`. An empty path becomes `/`.
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

/// Returns true if `path` is already normalised, as nearly every path is.
fn is_normal(path: &str) -> bool {
    let bytes = path.as_bytes();
    if bytes.first() != Some(&b'/') || (bytes.len() > 1 && bytes.ends_with(b"/")) || bytes.contains(&b'%') {
        return false;
    }
    // Only a segment that begins with a dot can be a dot segment; `/.well-known` just takes the slow path.
    bytes.windows(2).all(|pair| pair[0] != b'/' || (pair[1] != b'/' && pair[1] != b'.'))
}

fn decode_printable(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(place) = rest.find('%') {
        decoded.push_str(&rest[..place]);
        rest = &rest[place..];
        let escape = if let [_, high, low, ..] = rest.as_bytes() { percent::byte(*high, *low) } else { None };
        match escape {
            Some(byte) if byte.is_ascii_graphic() && !b"/\\%?#".contains(&byte) => decoded.push(char::from(byte)),
            Some(_) => decoded.push_str(&rest[..3].to_ascii_uppercase()),
            None => decoded.push('%'),
        }
        rest = &rest[if escape.is_some() { 3 } else { 1 }..];
    }
    decoded.push_str(rest);
    decoded
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
            assert_eq!(check(path, EscapedSlashes::Keep).is_ok(), keep, "{path}");
            assert_eq!(check(path, EscapedSlashes::Reject).is_ok(), reject, "{path}");
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
}
