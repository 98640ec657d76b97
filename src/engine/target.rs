//! What rules can be applied to: the method and the target of a request, the same for every door.

use super::path::{self, EscapedSlashes};

/// Whether a method is one that rules can go by, or why it is not.
///
/// A method that everybody knows, in another spelling, is another method (RFC 9110 section 9.1) and no limit for the known
/// one covers it, but frameworks that write what they get in upper case, as Werkzeug does, would serve it all the same.
pub fn check_method(method: &str) -> Result<(), &'static str> {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let is_misspelt = method.bytes().any(|byte| byte.is_ascii_lowercase())
        && KNOWN.iter().any(|known| method.eq_ignore_ascii_case(known));
    if is_misspelt { Err("a method is spelt in upper case") } else { Ok(()) }
}

/// Whether a target in origin form, or `*`, is one that all servers read alike, or why it is not.
pub fn check(method: &str, target: &str, slashes: EscapedSlashes) -> Result<(), &'static str> {
    if target == "*" {
        return if method == "OPTIONS" { Ok(()) } else { Err("only OPTIONS has `*` as its target") };
    }
    let (path, query) = split(target);
    if query.is_some_and(|query| query.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'#')) {
        return Err("a query has printable ASCII and no fragment");
    }
    path::check(path, slashes)
}

/// The path and the query of a target.
pub fn split(target: &str) -> (&str, Option<&str>) {
    // To look for a character, as `split_once` does, takes longer than to look at all bytes of most paths.
    match target.bytes().position(|byte| byte == b'?') {
        Some(place) => (&target[..place], Some(&target[place + 1..])),
        None => (target, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_request(method: &str, target: &str, expected: Option<&str>) {
        let found = check_method(method).and_then(|()| check(method, target, EscapedSlashes::Keep));
        match expected {
            None => assert_eq!(found, Ok(())),
            Some(part) => assert!(found.is_err_and(|error| error.contains(part)), "{found:?}"),
        }
    }

    #[test]
    fn what_servers_may_read_in_two_ways_is_refused() {
        check_request("GET", "/a%2Fb?c=%20", None);
        check_request("OPTIONS", "*", None);
        check_request("PURGE", "/", None);
        check_request("mine", "/", None);
        check_request("get", "/", Some("upper case"));
        check_request("pAtch", "/", Some("upper case"));
        check_request("GET", "*", Some("only OPTIONS"));
        check_request("GET", "/a\\b", Some("backslash"));
        check_request("GET", "/a%zz", Some("escape"));
        check_request("GET", "/a?b#c", Some("fragment"));
        check_request("GET", "/a?b c", Some("printable"));
    }
}
