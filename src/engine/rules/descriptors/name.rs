//! The names of limits from envoyproxy/ratelimit files, made of domain and path.

use super::RateUnit;
use crate::engine::digest::sha256;
use crate::engine::rules::matching::{EntryMatch, ValueTest};
use crate::message::percent;

/// Longer names are cut and get a hash, because names are in every response.
const LONGEST: usize = 128;

/// The length of a cut name without its hash.
const CUT: usize = LONGEST - 17;

/// The name of a limit: `domain/key=value/key`. Further limits of the same path add their unit: `domain/key=value,day`.
///
/// Everything but letters, digits and `-._@+*` is percent-encoded. So names are unique, differ from all names in
/// `limits.yaml`, and need no escapes in headers, labels, JSON and store keys.
pub fn limit_name(domain: &str, path: &[EntryMatch], unit: Option<RateUnit>) -> String {
    let mut name = String::new();
    push(&mut name, domain);
    for entry in path {
        name.push('/');
        push(&mut name, &entry.key);
        match &entry.test {
            ValueTest::Value(value) => {
                name.push('=');
                push(&mut name, value);
            }
            ValueTest::Glob(glob) => {
                name.push('=');
                push(&mut name, &glob.to_string());
            }
            _ => {}
        }
    }
    if let Some(unit) = unit {
        name.push(',');
        name.push_str(unit.name());
    }
    if name.len() > LONGEST {
        let hash = sha256(&name);
        // The name is ASCII.
        name.truncate(CUT);
        name.push('~');
        name.push_str(&hash[..16]);
    }
    name
}

fn push(name: &mut String, text: &str) {
    percent::encode(text.as_bytes(), |byte| byte.is_ascii_alphanumeric() || b"-._@+*".contains(&byte), name);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rules::glob::Glob;

    fn entry(key: &str, test: ValueTest) -> EntryMatch {
        EntryMatch { key: key.to_owned(), test }
    }

    #[test]
    fn a_name_is_the_path_and_no_two_paths_have_one() {
        let value = |value: &str| ValueTest::Value(value.to_owned());
        let any = ValueTest::Present(true);
        let glob = ValueTest::Glob(Glob::parse("files/*").unwrap());
        for (path, unit, expected) in [
            (vec![entry("key1", value("value1")), entry("sub", any.clone())], None, "d/key1=value1/sub"),
            (vec![entry("a/b", value("c=d:e"))], None, "d/a%2Fb=c%3Dd%3Ae"),
            (vec![entry("file", glob)], Some(RateUnit::Day), "d/file=files%2F*,day"),
        ] {
            assert_eq!(limit_name("d", &path, unit), expected);
        }
        let long = |last: &str| limit_name("d", &[entry(&"k".repeat(200), value(last))], None);
        assert_eq!(long("a").len(), LONGEST);
        assert_ne!(long("a"), long("b"));
    }
}
