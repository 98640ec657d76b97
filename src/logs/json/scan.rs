//! A scanner of JSON that copies nothing and takes any bytes in strings, as servers write what clients sent.

/// A value, borrowed from its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned<'a> {
    /// Between its quotes, with its escapes.
    Text(&'a [u8]),
    /// A number, `true`, `false` or `null`.
    Plain(&'a [u8]),
    /// An object or an array, whole.
    Nested(&'a [u8]),
}

impl<'a> Scanned<'a> {
    pub(super) fn bytes(self) -> &'a [u8] {
        match self {
            Self::Text(bytes) | Self::Plain(bytes) | Self::Nested(bytes) => bytes,
        }
    }
}

/// The deepest nesting that is read.
const MAX_DEPTH: u32 = 32;

/// Scans one object or array, member by member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scanner<'a> {
    whole: &'a [u8],
    at: usize,
    is_first: bool,
    end: u8,
}

/// The reason why a text is not JSON: what was expected, and at which byte.
pub(super) type Mistake = (&'static str, usize);

impl<'a> Scanner<'a> {
    pub(super) fn object(text: &'a [u8]) -> Result<Self, Mistake> {
        Self::open(text, b'{', b'}', "an object of JSON")
    }

    pub(super) fn array(text: &'a [u8]) -> Result<Self, Mistake> {
        Self::open(text, b'[', b']', "an array of JSON")
    }

    fn open(whole: &'a [u8], start: u8, end: u8, expected: &'static str) -> Result<Self, Mistake> {
        let mut scanner = Self { whole, at: 0, is_first: true, end };
        scanner.skip_space();
        scanner.eat(start).then_some(scanner).ok_or((expected, 0))
    }

    /// The next name and value of an object.
    pub(super) fn member(&mut self) -> Result<Option<(&'a [u8], Scanned<'a>)>, Mistake> {
        if self.ended()? {
            return Ok(None);
        }
        let name = self.text().ok_or(("a name between quotes", self.at))?;
        self.skip_space();
        if !self.eat(b':') {
            return Err(("`:`", self.at));
        }
        Ok(Some((name, self.value()?)))
    }

    /// The next value of an array.
    pub(super) fn item(&mut self) -> Result<Option<Scanned<'a>>, Mistake> {
        if self.ended()? { Ok(None) } else { self.value().map(Some) }
    }

    fn ended(&mut self) -> Result<bool, Mistake> {
        self.skip_space();
        if self.eat(self.end) {
            self.skip_space();
            return if self.at == self.whole.len() { Ok(true) } else { Err(("the end of the line", self.at)) };
        }
        if !std::mem::take(&mut self.is_first) && !self.eat(b',') {
            return Err((if self.end == b'}' { "`,` or `}`" } else { "`,` or `]`" }, self.at));
        }
        self.skip_space();
        Ok(false)
    }

    fn value(&mut self) -> Result<Scanned<'a>, Mistake> {
        self.skip_space();
        match self.whole.get(self.at) {
            Some(b'"') => self.text().map(Scanned::Text).ok_or(("the closing quote", self.whole.len())),
            Some(b'{' | b'[') => self.nested(),
            _ => {
                let rest = &self.whole[self.at..];
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                let length = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
                if length == 0 {
                    return Err(("a value", self.at));
                }
                self.at += length;
                Ok(Scanned::Plain(&rest[..length]))
            }
        }
    }

    /// A string, from its opening quote on.
    fn text(&mut self) -> Option<&'a [u8]> {
        if self.whole.get(self.at) != Some(&b'"') {
            return None;
        }
        let start = self.at + 1;
        let mut at = start;
        loop {
            at += memchr::memchr2(b'"', b'\\', self.whole.get(at..)?)?;
            if self.whole[at] == b'"' {
                self.at = at + 1;
                return Some(&self.whole[start..at]);
            }
            at += 2;
        }
    }

    /// An object or an array. What is in it is checked when it is scanned.
    fn nested(&mut self) -> Result<Scanned<'a>, Mistake> {
        let (start, mut depth) = (self.at, 0);
        loop {
            match self.whole.get(self.at) {
                Some(b'"') => {
                    self.text().ok_or(("the closing quote", self.whole.len()))?;
                    continue;
                }
                Some(b'{' | b'[') if depth == MAX_DEPTH => return Err(("less nesting", self.at)),
                Some(b'{' | b'[') => depth += 1,
                Some(b'}' | b']') => depth -= 1,
                Some(_) => {}
                None => return Err(("`}` or `]`", self.whole.len())),
            }
            self.at += 1;
            if depth == 0 {
                return Ok(Scanned::Nested(&self.whole[start..self.at]));
            }
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.whole.get(self.at) == Some(&byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn skip_space(&mut self) {
        while matches!(self.whole.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(text: &[u8]) -> Result<Vec<(&[u8], Scanned<'_>)>, Mistake> {
        let mut scanner = Scanner::object(text)?;
        std::iter::from_fn(|| scanner.member().transpose()).collect()
    }

    #[test]
    fn members_are_found_whatever_bytes_their_strings_have() {
        let text = b" { \"a\" : \"x\\\"\xff\" ,\"b\":-1.5e3,\"c\":{\"d\":[\"}\"]} , \"e\":null,\"f\":[] } ";
        let expected: Vec<(&[u8], Scanned<'_>)> = vec![
            (b"a", Scanned::Text(b"x\\\"\xff")),
            (b"b", Scanned::Plain(b"-1.5e3")),
            (b"c", Scanned::Nested(b"{\"d\":[\"}\"]}")),
            (b"e", Scanned::Plain(b"null")),
            (b"f", Scanned::Nested(b"[]")),
        ];
        assert_eq!(members(text), Ok(expected));
        assert_eq!(members(b"{}"), Ok(vec![]));
    }

    #[test]
    fn a_mistake_says_what_was_expected_and_where() {
        for (text, expected) in [
            ("", ("an object of JSON", 0)),
            ("{", ("a name between quotes", 1)),
            ("{\"a\" 1}", ("`:`", 5)),
            ("{\"a\":}", ("a value", 5)),
            ("{\"a\":1 \"b\":2}", ("`,` or `}`", 7)),
            ("{\"a\":\"b}", ("the closing quote", 8)),
            ("{\"a\":[1}", ("`,` or `}`", 8)),
            ("{\"a\":[[1]", ("`}` or `]`", 9)),
            ("{} {}", ("the end of the line", 3)),
        ] {
            assert_eq!(members(text.as_bytes()), Err(expected), "{text}");
        }
        let deep = format!("{{\"a\":{}", "[".repeat(100));
        assert_eq!(members(deep.as_bytes()).unwrap_err().0, "less nesting");
    }

    proptest::proptest! {
        #[test]
        fn what_serde_reads_is_read_alike(values: Vec<(String, String)>) {
            let object: serde_json::Map<_, _> = values.into_iter().map(|(name, value)| (name, value.into())).collect();
            let text = serde_json::to_string(&object).unwrap();
            let unescaped = |text: &[u8]| String::from_utf8(crate::logs::escape::unescaped(text).into_owned()).unwrap();
            let read = members(text.as_bytes()).unwrap().into_iter().map(|(name, value)| match value {
                Scanned::Text(value) => (unescaped(name), unescaped(value).into()),
                other => panic!("{other:?}"),
            });
            proptest::prop_assert_eq!(read.collect::<serde_json::Map<_, serde_json::Value>>(), object);
        }
    }
}
