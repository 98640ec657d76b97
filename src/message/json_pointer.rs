//! JSON pointers (RFC 6901).

use std::fmt;

/// The most bytes of a pointer.
pub const LONGEST_POINTER: usize = 256;

/// The place of a value in a JSON document, such as `/usage/total_tokens`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPointer {
    text: String,
    pub(super) tokens: Vec<PointerToken>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PointerToken {
    /// An object's key, or an array's index.
    Name(String),
    /// Every element of an array; the last one that has the value counts. Has no text.
    EachElement,
}

/// A text that is not a JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    #[error("a JSON pointer starts with `/`")]
    NoSlash,
    #[error("a JSON pointer with only `/` names an empty key")]
    Empty,
    #[error("in a JSON pointer, `~` must be followed by 0 or 1 (`~0` is `~`, `~1` is `/`)")]
    Escape,
    #[error("the JSON pointer is longer than {LONGEST_POINTER} bytes")]
    TooLong,
}

impl JsonPointer {
    /// Parses a pointer to a value below the root.
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        let rest = text.strip_prefix('/').ok_or(PointerError::NoSlash)?;
        if rest.is_empty() {
            return Err(PointerError::Empty);
        }
        if text.len() > LONGEST_POINTER {
            return Err(PointerError::TooLong);
        }
        let tokens = rest.split('/').map(|token| unescape(token).map(PointerToken::Name));
        Ok(Self::of(tokens.collect::<Result<_, _>>()?))
    }

    /// A pointer of these keys.
    pub fn of_keys<const N: usize>(keys: [&str; N]) -> Self {
        Self::of(keys.map(|key| PointerToken::Name(key.to_owned())).into())
    }

    fn of(tokens: Vec<PointerToken>) -> Self {
        let text = tokens.iter().map(PointerToken::to_string).collect();
        Self { text, tokens }
    }

    /// The text in a rules file.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The key that it begins with; empty if it begins with each element.
    pub fn first_name(&self) -> &str {
        match self.tokens.first() {
            Some(PointerToken::Name(name)) => name,
            _ => "",
        }
    }

    /// The same place in each element of an array.
    #[must_use]
    pub fn in_each_element(mut self) -> Self {
        self.tokens.insert(0, PointerToken::EachElement);
        Self::of(self.tokens)
    }
}

fn unescape(token: &str) -> Result<String, PointerError> {
    let mut parts = token.split('~');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (character, rest) = match part.as_bytes().first() {
            Some(b'0') => ('~', &part[1..]),
            Some(b'1') => ('/', &part[1..]),
            _ => return Err(PointerError::Escape),
        };
        text.push(character);
        text.push_str(rest);
    }
    Ok(text)
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for PointerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "/{}", name.replace('~', "~0").replace('/', "~1")),
            Self::EachElement => f.write_str("/*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_read_as_they_are_written() {
        for text in ["/model", "/usage/total_tokens", "/a~1b/m~0n", "/messages/0/role", "/a//b"] {
            assert_eq!(JsonPointer::parse(text).map(|pointer| pointer.to_string()).as_deref(), Ok(text));
        }
        assert_eq!(JsonPointer::parse("/a~1b~01"), Ok(JsonPointer::of_keys(["a/b~1"])));
        for (text, expected) in [
            ("", PointerError::NoSlash),
            ("model", PointerError::NoSlash),
            ("$.model", PointerError::NoSlash),
            ("/", PointerError::Empty),
            ("/a~2", PointerError::Escape),
            ("/a~", PointerError::Escape),
        ] {
            assert_eq!(JsonPointer::parse(text), Err(expected), "{text}");
        }
        assert_eq!(JsonPointer::parse(&format!("/{}", "a".repeat(300))), Err(PointerError::TooLong));
    }
}
