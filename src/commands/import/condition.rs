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
    /// It is there and none of these.
    Not(Vec<String>),
}

impl Test {
    /// As a `match` has it.
    pub(super) fn value(&self) -> Value {
        match self {
            Self::Value(value) => exactly(value),
            Self::Glob(value) => Value::Text(value.clone()),
            Self::Present => Value::map([("present", Value::word(&true))]),
            Self::Not(values) => {
                let excluded = match values.as_slice() {
                    [only] => exactly(only),
                    several => Value::List(several.iter().map(|value| exactly(value)).collect()),
                };
                Value::map([("not", excluded), ("present", Value::word(&true))])
            }
        }
    }

    /// Both tests in one; `None` if a `match` has no such test.
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

/// A text that stands for itself: a plain one with `*` would be a pattern.
fn exactly(text: &str) -> Value {
    let plain = Value::Text(text.to_owned());
    if text.contains('*') { Value::map([("value", plain)]) } else { plain }
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
    if let [Token::Text(value), Token::Sign(sign), rest @ ..] = tokens {
        let (key, rest) = operand(rest)?;
        let test = compared(sign, value).filter(|_| rest.is_empty())?;
        return Some(Condition { key, test });
    }
    // `key.startsWith` of the older syntax would be a name like any other.
    let (key, rest) = operand(tokens)?;
    let test = match rest {
        [Token::Sign(sign), Token::Text(value)] => compared(sign, value)?,
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

/// A comparison with a text. An entry that is absent is an error in CEL and meets neither.
fn compared(sign: &str, value: &str) -> Option<Test> {
    match sign {
        "==" => Some(Test::Value(value.to_owned())),
        "!=" => Some(Test::Not(vec![value.to_owned()])),
        _ => None,
    }
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
    const SIGNS: [&str; 8] = ["==", "!=", "&&", "[", "]", "(", ")", "."];
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
