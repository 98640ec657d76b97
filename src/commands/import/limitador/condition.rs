//! Conditions and variables of limitador that a `match` can express.
//!
//! Each is a CEL expression over `descriptors`, or in the older syntax, where a key of the descriptor stands for its value.
//! Only tests of single entries are supported.

use regex::Regex;

use super::super::text::{map, one_or_list, quoted};

/// A test of one entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) key: String,
    pub(super) test: Test,
}

/// A test of an entry's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Value(String),
    /// A pattern with `*`.
    Glob(String),
    Regex(String),
    /// Several values, patterns or regular expressions, of which one is enough.
    OneOf(Vec<Test>),
    Present,
    /// The entry is present and has none of these values.
    Not(Vec<String>),
}

impl Test {
    /// The test in a `match`.
    pub(super) fn value(&self) -> String {
        match self {
            Self::Value(value) => exactly(value),
            Self::Glob(pattern) => quoted(pattern),
            Self::Regex(regex) => map(&[("regex", quoted(regex))]),
            Self::OneOf(tests) => one_or_list(&tests.iter().map(Self::value).collect::<Vec<_>>()),
            Self::Present => "{ present: true }".to_owned(),
            Self::Not(values) => {
                let excluded: Vec<_> = values.iter().map(|value| exactly(value)).collect();
                map(&[("not", one_or_list(&excluded)), ("present", "true".to_owned())])
            }
        }
    }

    /// Returns the test that one of two is met; `None` if a `match` cannot express it.
    fn or(self, other: Self) -> Option<Self> {
        let mut tests = match self {
            Self::OneOf(tests) => tests,
            test => vec![test],
        };
        if !tests.contains(&other) {
            tests.push(other);
        }
        let are_of_values = !tests.iter().any(|test| matches!(test, Self::Present | Self::Not(_)));
        are_of_values.then(|| if let [test] = &tests[..] { test.clone() } else { Self::OneOf(tests) })
    }

    /// Joins two tests. Returns `None` if a `match` cannot express both.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            _ if self == other => Some(self.clone()),
            (Self::Present, test) | (test, Self::Present) => Some(test.clone()),
            (Self::Not(values), Self::Not(others)) => {
                let new = others.iter().filter(|other| !values.contains(other));
                Some(Self::Not(values.iter().chain(new).cloned().collect()))
            }
            (Self::Value(value), Self::Not(others)) | (Self::Not(others), Self::Value(value)) => {
                (!others.contains(value)).then(|| Self::Value(value.clone()))
            }
            _ => None,
        }
    }
}

/// A value to compare with. Plain text with `*` would be a pattern.
fn exactly(text: &str) -> String {
    if text.contains('*') { map(&[("value", quoted(text))]) } else { quoted(text) }
}

/// Reads conditions joined by `&&`, or some on one key joined by `||`. Returns `None` if a `match` cannot express them.
pub(super) fn conditions(expression: &str) -> Option<Vec<Condition>> {
    let mut rest = expression.trim_start();
    let mut whole = rest;
    // `&&` binds tighter than `||`.
    if let Some(condition) = alternatives(&mut whole).filter(|_| whole.is_empty()) {
        return Some(vec![condition]);
    }
    let mut conditions = vec![operand(&mut rest)?];
    while !rest.is_empty() {
        sign(&mut rest, "&&")?;
        conditions.push(operand(&mut rest)?);
    }
    Some(conditions)
}

fn operand(rest: &mut &str) -> Option<Condition> {
    if sign(rest, "(").is_none() {
        return condition(rest);
    }
    let joined = alternatives(rest)?;
    sign(rest, ")").map(|()| joined)
}

/// Reads a condition, or several on one key joined by `||`.
fn alternatives(rest: &mut &str) -> Option<Condition> {
    let Condition { key, mut test } = condition(rest)?;
    while sign(rest, "||").is_some() {
        let other = condition(rest).filter(|other| other.key == key)?;
        test = test.or(other.test)?;
    }
    Some(Condition { key, test })
}

/// Reads the key that a variable stands for.
pub(super) fn variable(expression: &str) -> Option<String> {
    let mut rest = expression.trim_start();
    key(&mut rest).filter(|_| rest.is_empty())
}

fn condition(rest: &mut &str) -> Option<Condition> {
    if let Some(value) = text(rest) {
        let mut ahead = *rest;
        if name(&mut ahead) == Some("in") {
            *rest = ahead;
            descriptor(rest)?;
            return Some(Condition { key: value, test: Test::Present });
        }
        let is_equal = comparison(rest)?;
        return Some(Condition { key: key(rest)?, test: compared(is_equal, value) });
    }
    let key = key(rest)?;
    if sign(rest, ".").is_none() {
        let is_equal = comparison(rest)?;
        return Some(Condition { key, test: compared(is_equal, text(rest)?) });
    }
    let call = name(rest)?;
    sign(rest, "(")?;
    let part = text(rest)?;
    sign(rest, ")")?;
    let pattern = match call {
        "matches" if Regex::new(&part).is_ok() => return Some(Condition { key, test: Test::Regex(part) }),
        _ if part.contains('*') => return None,
        "startsWith" => format!("{part}*"),
        "endsWith" => format!("*{part}"),
        "contains" => format!("*{part}*"),
        _ => return None,
    };
    Some(Condition { key, test: Test::Glob(pattern) })
}

/// In CEL, comparing an absent entry is an error, so neither test holds for it.
fn compared(is_equal: bool, value: String) -> Test {
    if is_equal { Test::Value(value) } else { Test::Not(vec![value]) }
}

/// Reads `==` or `!=`.
fn comparison(rest: &mut &str) -> Option<bool> {
    let is_equal = sign(rest, "==").is_some();
    (is_equal || sign(rest, "!=").is_some()).then_some(is_equal)
}

/// Reads the key of an entry.
fn key(rest: &mut &str) -> Option<String> {
    let mut ahead = *rest;
    if descriptor(&mut ahead).is_some() {
        *rest = ahead;
        if sign(rest, ".").is_some() {
            return name(rest).map(str::to_owned);
        }
        sign(rest, "[")?;
        let key = text(rest)?;
        return sign(rest, "]").map(|()| key);
    }
    // The older syntax: a key, which may contain dots.
    let first = name(rest).filter(|first| !["descriptors", "limit", "request"].contains(first))?;
    let mut key = first.to_owned();
    loop {
        let mut ahead = *rest;
        let part = sign(&mut ahead, ".").and_then(|()| name(&mut ahead));
        // A call is not part of the key.
        let Some(part) = part.filter(|_| !ahead.starts_with('(')) else { return Some(key) };
        key.push('.');
        key.push_str(part);
        *rest = ahead;
    }
}

/// Reads `descriptors[0]`. Weir decides the descriptors of a request separately, so others cannot be expressed.
fn descriptor(rest: &mut &str) -> Option<()> {
    name(rest).filter(|name| *name == "descriptors")?;
    sign(rest, "[")?;
    name(rest).filter(|index| *index == "0")?;
    sign(rest, "]")
}

/// Reads quoted text. CEL and the older syntax differ in the meaning of escapes, so these are not supported.
fn text(rest: &mut &str) -> Option<String> {
    let quote = rest.chars().next().filter(|first| matches!(first, '\'' | '"'))?;
    let (text, after) = rest[1..].split_once(quote)?;
    *rest = after.trim_start();
    (!text.contains('\\')).then(|| text.to_owned())
}

fn name<'e>(rest: &mut &'e str) -> Option<&'e str> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    let (name, after) = rest.split_at(rest.find(|character| !is_part(character)).unwrap_or(rest.len()));
    *rest = after.trim_start();
    (!name.is_empty()).then_some(name)
}

fn sign(rest: &mut &str, sign: &str) -> Option<()> {
    *rest = rest.strip_prefix(sign)?.trim_start();
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares conditions as `key=value`, `key~pattern` or `key`; `none` if the expression is not read.
    #[track_caller]
    fn check(expression: &str, expected: &str) {
        let shown = |condition: Condition| match condition.test {
            Test::Value(value) => format!("{}={value}", condition.key),
            Test::Glob(pattern) => format!("{}~{pattern}", condition.key),
            Test::Regex(regex) => format!("{}~/{regex}/", condition.key),
            test @ Test::OneOf(_) => format!("{}={}", condition.key, test.value()),
            Test::Present => condition.key,
            Test::Not(values) => format!("{}!={}", condition.key, values.join(",")),
        };
        let found = conditions(expression).map(|found| found.into_iter().map(shown).collect::<Vec<_>>().join(" "));
        assert_eq!(found.as_deref().unwrap_or("none"), expected, "{expression}");
    }

    #[test]
    fn what_tests_one_entry_is_read() {
        check("descriptors[0]['req.method'] == 'GET'", "req.method=GET");
        check("descriptors[0][\"req.method\"]==\"it's\"", "req.method=it's");
        check("descriptors[0].method == 'GET'", "method=GET");
        check("'GET' == descriptors[0].method", "method=GET");
        check("req.method == 'GET'", "req.method=GET");
        check("KEY_A == \" a\"", "KEY_A= a");
        check("a != 'x'", "a!=x");
        check("'x' != descriptors[0]['a'] && b == 'y'", "a!=x b=y");
        check("descriptors[0].a == 'x' && descriptors[0].b == 'y && z'", "a=x b=y && z");
        check("descriptors[0]['path'].startsWith('/v1/')", "path~/v1/*");
        check("descriptors[0].path.endsWith('.js')", "path~*.js");
        check("path.contains('admin')", "path~*admin*");
        check("'user' in descriptors[0]", "user");
        check("descriptors[0].path.matches('^/v[12]/.*')", "path~/^/v[12]/.*/");
        check("a == 'x' || a == \"z\"", "a=[x, z]");
        check("a == 'x' || 'x' == descriptors[0].a", "a=x");
        check("a == 'x' || a.startsWith('y') || a.matches('^z')", "a=[x, \"y*\", { regex: \"^z\" }]");
        check("(a == 'x' || a == 'w') && b != 'z' && (c == 'd')", "a=[x, w] b!=z c=d");
    }

    #[test]
    fn what_says_more_is_not() {
        for expression in [
            "",
            "true",
            "a",
            "a = 'x'",
            "a == x",
            "a == 1",
            "a != b",
            "a == 'x' || b == 'y'",
            "!(a == 'x')",
            "a == 'x",
            "a == 'x\\'y'",
            "a == 'x' &&",
            "descriptors[1].a == 'x'",
            "descriptors[0] == 'x'",
            "descriptors[0].a.b == 'x'",
            "descriptors[0].a.matches('(')",
            "a == 'x' || a == 'y' && b == 'z'",
            "a == 'x' || a != 'y'",
            "a == 'x' || 'a' in descriptors[0]",
            "(a == 'x' || b == 'y') && c == 'z'",
            "(a == 'x' || a == 'y'",
            "((a == 'x') || a == 'y')",
            "descriptors[0].a.startsWith('*')",
            "limit.name == 'x'",
            "a == 'x' 'y'",
            "é == 'x'",
        ] {
            check(expression, "none");
        }
    }

    #[test]
    fn variables_are_keys() {
        for (expression, expected) in [
            ("user_id", Some("user_id")),
            ("auth.identity.user", Some("auth.identity.user")),
            ("descriptors[0]['varA']", Some("varA")),
            ("descriptors[0].varA", Some("varA")),
            ("descriptors[0].varA.size()", None),
            ("a + b", None),
            ("", None),
        ] {
            assert_eq!(variable(expression).as_deref(), expected, "{expression}");
        }
    }
}
