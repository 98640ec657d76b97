//! Regular expressions on paths as they are sent, written for paths as Weir has them: escaped, and without the slash at their end.

use std::fmt::Write as _;
use std::sync::LazyLock;

use regex::Regex;

use super::regex_text::{Part, characters};
use super::scope::Test;

/// Its last slash, if what follows may be nothing.
static LAST_SLASH: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^(.*)/((?:\((?:\?P?<\w+>|\?:)?)?(?:(?:\.|\[\^?[^\]]+\])\*\??)?\)?\$?)$").ok());

/// Expressions that take any path up to its last slash.
const ANY: [&str; 8] = ["", ".*", ".+", "(.*)", "(.+)", "/.*", "/.+", "/(.*)"];

/// The regular expression for paths of Weir, with these flags before it. It covers a path if the original does so with or without
/// a slash at its end.
pub(super) fn path_regex(regex: &str, flags: &str) -> Test {
    let regex = for_both(regex).unwrap_or_else(|| regex.to_owned());
    Test::Regex(format!("{flags}{}", escaped_letters(&regex)))
}

/// Returns false if it is invalid, or tells paths apart by the slash at their end alone.
pub(super) fn has_equivalent(regex: &str) -> bool {
    Regex::new(regex).is_ok() && for_both(regex).is_some()
}

fn for_both(regex: &str) -> Option<String> {
    let all = alternatives(regex).into_iter().map(without_slash).collect::<Option<Vec<_>>>()?;
    Some(all.join("|"))
}

/// Its alternatives outside of groups.
fn alternatives(regex: &str) -> Vec<&str> {
    let bars = characters(regex).filter(|(_, character, part)| *character == '|' && *part == Part::Outside(0));
    let ends = bars.map(|(place, ..)| place).chain([regex.len()]);
    let mut start = 0;
    ends.filter_map(|end| regex.get(std::mem::replace(&mut start, end + 1)..end)).collect()
}

fn without_slash(regex: &str) -> Option<String> {
    let Some(found) = LAST_SLASH.as_ref().and_then(|last| last.captures(regex)) else { return Some(regex.to_owned()) };
    let (before, end) = (found.get(1)?.as_str(), found.get(2)?.as_str());
    let backslashes = before.len() - before.trim_end_matches('\\').len();
    let before = if backslashes % 2 == 1 { &before[..before.len() - 1] } else { before };
    match (before.strip_prefix('^'), end) {
        // The path `/` keeps its slash.
        (Some(""), _) => Some(regex.to_owned()),
        (start, "$") if ANY.contains(&start.unwrap_or(before)) => None,
        // No path of Weir has two slashes in a row.
        (None, _) if before.is_empty() || before.ends_with('/') => Some(regex.to_owned()),
        (_, "$") => Some(format!("{before}/?$")),
        _ => Some(format!("{before}(?:/{end}|$)")),
    }
}

/// Writes blanks and letters beyond ASCII as Weir's paths have them. In a class they stay as they are, and never match.
fn escaped_letters(regex: &str) -> String {
    let mut text = String::new();
    for (_, character, part) in characters(regex) {
        if part != Part::Class && (character == ' ' || !character.is_ascii()) {
            let _ = write!(text, "(?:{})", escaped(character.encode_utf8(&mut [0; 4])));
        } else {
            text.push(character);
        }
    }
    text
}

/// A decoded path as the text of a pattern, in which some characters are special.
pub(super) fn escaped(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~!$&'()+,;=:@".contains(&byte);
    path.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_covered_if_it_was_with_or_without_a_slash_at_its_end() {
        let regexes = [
            "^/api/.*",
            "^/api/",
            "^/api/$",
            "/api/",
            r"^\/api\/(.*)",
            "^/(api|login)/(?<rest>.*)$",
            "^/api/[^/]*$",
            "^/login/|^/api/$|^/x",
            "^/(?:api|a b)/",
            "^/api(/|$)(.*)",
            r"\.php$",
            "^/é/",
            "^/",
            "^/.*",
            ".*",
            "^/$",
            "/",
            "^/x/?$",
            r"^/api[/.]v",
        ];
        let paths = [
            "/",
            "/api",
            "/api/",
            "/api/x",
            "/api/x/",
            "/apix",
            "/login",
            "/login/",
            "/login/a/b",
            "/a b",
            "/a b/",
            "/é/",
            "/é",
            "/x",
            "/x/",
            "/y/api/",
            "/a.php",
            "/a.php/",
            "/api.v1",
        ];
        for regex in regexes {
            assert!(has_equivalent(regex), "{regex}");
            let Test::Regex(found) = path_regex(regex, "") else { panic!("{regex}") };
            let (was, is) = (Regex::new(regex).unwrap(), Regex::new(&found).unwrap());
            for path in paths {
                let bare = path.trim_end_matches('/');
                let ours = if bare.is_empty() { "/".to_owned() } else { escaped(bare) };
                let expected = if bare.is_empty() {
                    was.is_match("/")
                } else {
                    was.is_match(bare) || was.is_match(&format!("{bare}/"))
                };
                assert_eq!(is.is_match(&ours), expected, "{path}: {regex} became {found}");
            }
        }
    }

    #[test]
    fn the_slash_at_the_end_alone_cannot_be_said() {
        for regex in ["/$", "^(.*)/$", "^.+/$", "^/.*/$", "^/a/$|/$"] {
            assert!(!has_equivalent(regex), "{regex}");
        }
    }
}
