//! The conditions and variables of limitador: those expressions that a `match` of ours can say.
//!
//! Each is a CEL expression over `descriptors`, or of the older syntax, in which a key of the descriptor stands for its
//! value. What is more than one test of one entry of the descriptor is not read, and said to be so by the caller.

use super::text::Value;

/// A test of one entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    /// The key of the entry.
    pub(super) key: String,
    /// What its value must be.
    pub(super) test: Test,
}

/// What the value of an entry must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Exactly this.
    Value(String),
    /// It fits a pattern with `*`.
    Glob(String),
    /// The entry is there.
    Present,
}

impl Test {
    /// As a `match` has it.
    pub(super) fn value(&self) -> Value {
        match self {
            // Plain text with `*` would be a pattern.
            Self::Value(value) if value.contains('*') => Value::map([("value", Value::Text(value.clone()))]),
            Self::Value(value) | Self::Glob(value) => Value::Text(value.clone()),
            Self::Present => Value::map([("present", Value::word(&true))]),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    Text(String),
    Sign(&'static str),
}

/// What one expression tests: several entries where it has `&&`. `None` if it says more than a `match` can.
pub(super) fn conditions(expression: &str) -> Option<Vec<Condition>> {
    let tokens = tokens(expression)?;
    tokens.split(|token| *token == Token::Sign("&&")).map(condition).collect()
}

/// The key that a variable stands for.
pub(super) fn variable(expression: &str) -> Option<String> {
    match operand(&tokens(expression)?)? {
        (key, []) => Some(key),
        _ => None,
    }
}

fn condition(tokens: &[Token]) -> Option<Condition> {
    if let [Token::Text(key), Token::Name(within), rest @ ..] = tokens
        && within == "in"
        && is_descriptor(rest) == Some(&[])
    {
        return Some(Condition { key: key.clone(), test: Test::Present });
    }
    if let [Token::Text(value), Token::Sign("=="), rest @ ..] = tokens {
        let (key, rest) = operand(rest)?;
        return rest.is_empty().then(|| Condition { key, test: Test::Value(value.clone()) });
    }
    // `key.startsWith` of the older syntax would be a name like any other.
    let (key, rest) = operand(tokens)?;
    let test = match rest {
        [Token::Sign("=="), Token::Text(value)] => Test::Value(value.clone()),
        [Token::Sign("."), Token::Name(call), Token::Sign("("), Token::Text(part), Token::Sign(")")]
            if !part.contains('*') =>
        {
            match call.as_str() {
                "startsWith" => Test::Glob(format!("{part}*")),
                "endsWith" => Test::Glob(format!("*{part}")),
                "contains" => Test::Glob(format!("*{part}*")),
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(Condition { key, test })
}

/// What stands behind `descriptors[0]`. The others are those of a request, each of which we judge by itself.
fn is_descriptor(tokens: &[Token]) -> Option<&[Token]> {
    match tokens {
        [Token::Name(name), Token::Sign("["), Token::Name(index), Token::Sign("]"), rest @ ..]
            if name == "descriptors" && index == "0" =>
        {
            Some(rest)
        }
        _ => None,
    }
}

/// The key of an entry, and what follows.
fn operand(tokens: &[Token]) -> Option<(String, &[Token])> {
    if let Some(rest) = is_descriptor(tokens) {
        return match rest {
            [Token::Sign("["), Token::Text(key), Token::Sign("]"), rest @ ..]
            | [Token::Sign("."), Token::Name(key), rest @ ..] => Some((key.clone(), rest)),
            _ => None,
        };
    }
    // The older syntax: a key, which may have dots in it.
    let [Token::Name(first), rest @ ..] = tokens else { return None };
    if matches!(first.as_str(), "descriptors" | "limit" | "request") {
        return None;
    }
    let (mut key, mut rest) = (first.clone(), rest);
    while let [Token::Sign("."), Token::Name(part), after @ ..] = rest
        && after.first() != Some(&Token::Sign("("))
    {
        key.push('.');
        key.push_str(part);
        rest = after;
    }
    Some((key, rest))
}

/// The tokens of an expression; `None` if there is something else in it. A text with an escape is something else, as CEL
/// and the older syntax differ in what it means.
fn tokens(expression: &str) -> Option<Vec<Token>> {
    const SIGNS: [&str; 7] = ["==", "&&", "[", "]", "(", ")", "."];
    let is_name = |byte: char| byte.is_ascii_alphanumeric() || byte == '_' || byte == '-';
    let mut tokens = Vec::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        if first == '\'' || first == '"' {
            let (text, after) = rest[1..].split_once(first)?;
            if text.contains('\\') {
                return None;
            }
            tokens.push(Token::Text(text.to_owned()));
            rest = after;
        } else if is_name(first) {
            let (name, after) = rest.split_at(rest.find(|byte| !is_name(byte)).unwrap_or(rest.len()));
            tokens.push(Token::Name(name.to_owned()));
            rest = after;
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign))?;
            tokens.push(Token::Sign(sign));
            rest = &rest[sign.len()..];
        }
        rest = rest.trim_start();
    }
    Some(tokens)
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
            Test::Present => condition.key,
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
        check("descriptors[0].a == 'x' && descriptors[0].b == 'y && z'", "a=x b=y && z");
        check("descriptors[0]['path'].startsWith('/v1/')", "path~/v1/*");
        check("descriptors[0].path.endsWith('.js')", "path~*.js");
        check("path.contains('admin')", "path~*admin*");
        check("'user' in descriptors[0]", "user");
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
            "a != 'x'",
            "a == 'x' || b == 'y'",
            "!(a == 'x')",
            "a == 'x",
            "a == 'x\\'y'",
            "a == 'x' &&",
            "descriptors[1].a == 'x'",
            "descriptors[0] == 'x'",
            "descriptors[0].a.b == 'x'",
            "descriptors[0].a.matches('x')",
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
