//! Finds one value or object in a JSON document that comes in parts.
//!
//! The document is never kept: its bytes are looked at once, whatever their number. The memory is bounded by the pointer and
//! [`LONGEST_VALUE`] or [`LONGEST_OBJECT`], and nested arrays and objects cost a bit each.

use super::json_pointer::{JsonPointer, PointerToken};

/// The most bytes of a value, as written.
pub const LONGEST_VALUE: usize = 1024;

/// The most bytes of an object, as written.
pub const LONGEST_OBJECT: usize = 16 * 1024;

/// The deepest nesting of a document. `serde_json` has the same bound.
const MOST_NESTED: usize = 128;

/// Why a document has no usable value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// It is not a whole JSON document.
    Invalid,
    /// The value is an object, an array, too long, or there are several: parsers differ in which of two equal keys counts.
    Unusable,
}

/// A search for the value at a pointer.
#[derive(Clone, Debug)]
pub struct JsonLookup {
    pointer: JsonPointer,
    state: LookupState,
    lexeme: Lexeme,
    /// A bit for each open container: 1 for an object.
    kinds: u128,
    /// Open containers.
    depth: usize,
    /// The number of the outermost open containers that are on the way to the value.
    on_way: usize,
    /// For each container on the way: the key was seen, and the index of the next element.
    seen: Vec<(bool, u32)>,
    /// True if the next value is on the way.
    is_next: bool,
    /// The key or value that is being read, as written.
    text: Vec<u8>,
    /// The bytes that `text` may have; 0 if it is not kept.
    most: usize,
    found: Result<Option<String>, LookupError>,
    /// Looks for an object instead of a value.
    wants_object: bool,
    /// The last byte read belongs to the object.
    is_in_target: bool,
    /// The object, as written.
    object: Vec<u8>,
}

/// The parts of a document that may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookupState {
    Value,
    FirstElement,
    FirstKey,
    Key,
    Colon,
    /// A comma or the end of the container.
    After,
    Done,
    Invalid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lexeme {
    None,
    String {
        is_key: bool,
        is_escaped: bool,
    },
    /// A number, `true`, `false` or `null`.
    Plain,
}

impl JsonLookup {
    pub fn new(pointer: JsonPointer) -> Self {
        Self {
            seen: vec![(false, 0); pointer.tokens.len()],
            pointer,
            state: LookupState::Value,
            lexeme: Lexeme::None,
            kinds: 0,
            depth: 0,
            on_way: 0,
            is_next: true,
            text: Vec::new(),
            most: 0,
            found: Ok(None),
            wants_object: false,
            is_in_target: false,
            object: Vec::new(),
        }
    }

    /// A search for the text of an object. Another value counts as absent.
    pub fn of_object(pointer: JsonPointer) -> Self {
        Self { wants_object: true, ..Self::new(pointer) }
    }

    /// Finds the value in a whole document. `null` counts as absent; a number, `true` and `false` are their text.
    pub fn find(pointer: &JsonPointer, document: &[u8]) -> Result<Option<String>, LookupError> {
        let mut lookup = Self::new(pointer.clone());
        lookup.push(document);
        lookup.finish()
    }

    /// Reads on.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some((&first, rest)) = bytes.split_first() {
            if self.state == LookupState::Invalid {
                return;
            }
            let was_in_target = self.is_in_target;
            let rest = match self.lexeme {
                Lexeme::None => {
                    self.structure(first);
                    rest
                }
                Lexeme::String { is_key, is_escaped: true } => {
                    self.keep(&[first]);
                    self.lexeme = Lexeme::String { is_key, is_escaped: false };
                    rest
                }
                Lexeme::String { is_key, is_escaped: false } => self.string(is_key, bytes),
                Lexeme::Plain => {
                    let end = bytes.iter().position(|byte| !is_plain(*byte)).unwrap_or(bytes.len());
                    let (plain, rest) = bytes.split_at(end);
                    self.keep(plain);
                    if !rest.is_empty() {
                        self.end_plain();
                    }
                    rest
                }
            };
            if was_in_target || self.is_in_target {
                let read = bytes.get(..bytes.len() - rest.len()).unwrap_or_default();
                keep(&mut self.object, read, LONGEST_OBJECT);
            }
            bytes = rest;
        }
    }

    /// Ends the document and returns the value. A new document may follow.
    pub fn finish(&mut self) -> Result<Option<String>, LookupError> {
        if self.lexeme == Lexeme::Plain {
            self.end_plain();
        }
        let is_whole = self.state == LookupState::Done;
        let mut found = std::mem::replace(&mut self.found, Ok(None));
        let object = std::mem::take(&mut self.object);
        if found.is_ok() && !object.is_empty() {
            found = match object.len() {
                0..=LONGEST_OBJECT => String::from_utf8(object).map(Some).map_err(|_| LookupError::Invalid),
                _ => Err(LookupError::Unusable),
            };
        }
        self.text.clear();
        self.is_in_target = false;
        (self.state, self.lexeme, self.is_next) = (LookupState::Value, Lexeme::None, true);
        (self.kinds, self.depth, self.on_way, self.most) = (0, 0, 0, 0);
        if is_whole { found } else { Err(LookupError::Invalid) }
    }

    /// Reads a string up to its end or the next escape.
    fn string<'b>(&mut self, is_key: bool, bytes: &'b [u8]) -> &'b [u8] {
        let Some(end) = memchr::memchr2(b'"', b'\\', bytes) else {
            self.keep(bytes);
            return &[];
        };
        let (text, rest) = bytes.split_at(end);
        self.keep(text);
        if rest.first() == Some(&b'\\') {
            self.keep(b"\\");
            self.lexeme = Lexeme::String { is_key, is_escaped: true };
        } else if is_key {
            self.end_key();
        } else {
            self.end_value(true);
        }
        rest.get(1..).unwrap_or_default()
    }

    /// Keeps what may be the key or the value.
    fn keep(&mut self, bytes: &[u8]) {
        if self.most > 0 {
            keep(&mut self.text, bytes, self.most);
        }
    }

    fn structure(&mut self, byte: u8) {
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return;
        }
        self.state = match (self.state, byte) {
            (LookupState::FirstElement, b']') | (LookupState::FirstKey, b'}') => self.close(),
            (LookupState::Value | LookupState::FirstElement, _) => {
                if self.state == LookupState::FirstElement {
                    self.begin_element();
                }
                self.begin_value(byte)
            }
            (LookupState::FirstKey | LookupState::Key, b'"') => {
                self.begin_key();
                self.state
            }
            (LookupState::Colon, b':') => LookupState::Value,
            (LookupState::After, b',') if self.is_in_object() => LookupState::Key,
            (LookupState::After, b',') => {
                self.begin_element();
                LookupState::Value
            }
            (LookupState::After, b'}') if self.is_in_object() => self.close(),
            (LookupState::After, b']') if !self.is_in_object() => self.close(),
            _ => LookupState::Invalid,
        };
    }

    fn is_in_object(&self) -> bool {
        self.kinds & 1 == 1
    }

    /// The token that names a child of the innermost container, if the container is on the way.
    fn token(&self) -> Option<&PointerToken> {
        let place = self.depth.checked_sub(1).filter(|_| self.on_way == self.depth)?;
        self.pointer.tokens.get(place)
    }

    fn is_target(&self) -> bool {
        self.is_next && self.depth == self.pointer.tokens.len()
    }

    fn begin_value(&mut self, byte: u8) -> LookupState {
        self.most = 0;
        let is_target = self.is_target();
        match byte {
            b'{' | b'[' => return self.open(byte == b'{', is_target),
            b'"' => self.lexeme = Lexeme::String { is_key: false, is_escaped: false },
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => self.lexeme = Lexeme::Plain,
            _ => return LookupState::Invalid,
        }
        self.text.clear();
        if is_target && !self.wants_object {
            self.most = LONGEST_VALUE;
        }
        if byte != b'"' {
            self.keep(&[byte]);
        }
        LookupState::Value
    }

    fn open(&mut self, is_object: bool, is_target: bool) -> LookupState {
        if self.depth == MOST_NESTED {
            return LookupState::Invalid;
        }
        if is_target && !self.wants_object {
            self.found = Err(LookupError::Unusable);
        } else if is_target && is_object {
            self.object.clear();
            self.is_in_target = true;
        }
        let is_on_way = self.is_next && self.on_way == self.depth;
        if let Some(seen) = self.seen.get_mut(self.depth).filter(|_| is_on_way) {
            *seen = (false, 0);
            self.on_way += 1;
        }
        self.kinds = self.kinds << 1 | u128::from(is_object);
        self.depth += 1;
        self.is_next = false;
        if is_object { LookupState::FirstKey } else { LookupState::FirstElement }
    }

    fn close(&mut self) -> LookupState {
        self.on_way = self.on_way.min(self.depth - 1);
        self.depth -= 1;
        self.is_in_target &= self.depth > self.pointer.tokens.len();
        self.kinds >>= 1;
        self.after()
    }

    const fn after(&self) -> LookupState {
        if self.depth == 0 { LookupState::Done } else { LookupState::After }
    }

    fn begin_key(&mut self) {
        self.lexeme = Lexeme::String { is_key: true, is_escaped: false };
        self.text.clear();
        // Each character of the key may be written as an escape of six bytes.
        self.most = match self.token() {
            Some(PointerToken::Name(name)) => name.len().saturating_mul(6).max(1),
            _ => 0,
        };
    }

    fn end_key(&mut self) {
        self.lexeme = Lexeme::None;
        self.state = LookupState::Colon;
        self.is_next = false;
        let Some(PointerToken::Name(name)) = self.token() else { return };
        if self.text.len() > self.most || !string(&self.text).is_some_and(|key| is_same_key(&key, name)) {
            return;
        }
        self.is_next = true;
        if let Some((was_seen, _)) = self.seen.get_mut(self.depth - 1)
            && std::mem::replace(was_seen, true)
        {
            self.found = Err(LookupError::Unusable);
        }
    }

    fn begin_element(&mut self) {
        self.is_next = false;
        let Some(token) = self.token() else { return };
        let Some((_, index)) = self.seen.get(self.depth - 1) else { return };
        self.is_next = match token {
            PointerToken::EachElement => true,
            PointerToken::Name(name) => *name == index.to_string(),
        };
        if let Some((_, index)) = self.seen.get_mut(self.depth - 1) {
            *index = index.saturating_add(1);
        }
    }

    fn end_plain(&mut self) {
        self.end_value(false);
    }

    /// Ends a string, or a number, `true`, `false` or `null`.
    fn end_value(&mut self, is_string: bool) {
        self.lexeme = Lexeme::None;
        self.state = self.after();
        if self.most == 0 {
            return;
        }
        let value = match is_string {
            _ if self.text.len() > self.most => Err(LookupError::Unusable),
            true => string(&self.text).map(Some).ok_or(LookupError::Invalid),
            false => plain(&self.text),
        };
        self.most = 0;
        match value {
            Err(LookupError::Invalid) => self.state = LookupState::Invalid,
            // A value that is not usable stays that way.
            value if self.found.is_ok() && value != Ok(None) => self.found = value,
            _ => {}
        }
    }
}

/// Adds bytes to a text. One byte beyond the bound shows that there was more.
fn keep(text: &mut Vec<u8>, bytes: &[u8], most: usize) {
    let room = (most + 1).saturating_sub(text.len());
    text.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

/// The text of a string without its quotes.
fn string(written: &[u8]) -> Option<String> {
    serde_json::from_slice(&[b"\"", written, b"\""].concat()).ok()
}

/// The canonical text of a number, `true` or `false`; `None` for `null`.
fn plain(written: &[u8]) -> Result<Option<String>, LookupError> {
    serde_json::from_slice::<serde::de::IgnoredAny>(written).map_err(|_| LookupError::Invalid)?;
    let text = std::str::from_utf8(written).map_err(|_| LookupError::Invalid)?;
    Ok((text != "null").then(|| number(text).unwrap_or_else(|| text.to_owned())))
}

/// The canonical text of a number with a fraction or an exponent: `7` of `7.0` and `70e-1`, which are the same to upstreams.
/// Whole numbers keep their digits, however many.
fn number(text: &str) -> Option<String> {
    if text == "-0" {
        return Some("0".to_owned());
    }
    let has_fraction =
        text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) && text.contains(['.', 'e', 'E']);
    let value = text.parse::<f64>().ok().filter(|value| has_fraction && value.is_finite())?;
    Some(if value == 0.0 { "0".to_owned() } else { value.to_string() })
}

/// Keys are compared as the most tolerant parser does, Go's: without case, and with the two other characters that fold to
/// ASCII letters. An upstream may read any of them.
fn is_same_key(key: &str, name: &str) -> bool {
    let fold = |character: char| match character {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    key == name || key.chars().map(fold).eq(name.chars().map(fold))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks a value up in the whole document, and with the document split at every byte.
    #[track_caller]
    fn check(pointer: &str, document: &str, expected: Result<Option<&str>, LookupError>) {
        let pointer = JsonPointer::parse(pointer).unwrap();
        let mut lookup = JsonLookup::new(pointer);
        for split in 0..=document.len() {
            let (first, second) = document.as_bytes().split_at(split);
            lookup.push(first);
            lookup.push(second);
            let found = lookup.finish();
            assert_eq!(found.as_ref().map(Option::as_deref).map_err(|error| *error), expected, "{document} at {split}");
        }
        for byte in document.bytes() {
            lookup.push(&[byte]);
        }
        assert_eq!(lookup.finish().as_ref().map(Option::as_deref).map_err(|error| *error), expected, "{document}");
    }

    #[test]
    fn a_value_is_found_wherever_the_document_is_split() {
        for (pointer, document, expected) in [
            ("/model", r#"{"model":"gpt-4o"}"#, Some("gpt-4o")),
            ("/model", r#" { "a" : [ { "model" : 1 } , {} , [] ] , "model" : "x" } "#, Some("x")),
            ("/usage/total_tokens", r#"{"usage":{"prompt_tokens":3,"total_tokens":25},"n":[1,2]}"#, Some("25")),
            ("/usage/total_tokens", r#"{"x":{"usage":{"total_tokens":1}},"usage":{"y":{"total_tokens":2}}}"#, None),
            ("/usage/total_tokens", r#"{"usage":null}"#, None),
            ("/usage/total_tokens", r#"{"usage":7,"total_tokens":8}"#, None),
            ("/messages/1/role", r#"{"messages":[{"role":"a"},{"role":"b"},{"role":"c"}]}"#, Some("b")),
            ("/messages/01/role", r#"{"messages":[{"role":"a"},{"role":"b"}]}"#, None),
            ("/1", "[10, 20, 30]", Some("20")),
            ("/0", "[]", None),
            ("/a", r#"{"\u0061":"q\"\\\u00e9\n"}"#, Some("q\"\\\u{e9}\n")),
            ("/a~1b", r#"{"a\/b":-1.5e3}"#, Some("-1500")),
            ("/x", r#"{"x":7.0}"#, Some("7")),
            ("/x", r#"{"x":70e-1}"#, Some("7")),
            ("/x", r#"{"x":7E0}"#, Some("7")),
            ("/x", r#"{"x":1.50}"#, Some("1.5")),
            ("/x", r#"{"x":-0}"#, Some("0")),
            ("/x", r#"{"x":-0.0e9}"#, Some("0")),
            ("/x", r#"{"x":12345678901234567890123}"#, Some("12345678901234567890123")),
            ("/x", r#"{"x":1e400}"#, Some("1e400")),
            ("/x", r#"{"x":"7.0"}"#, Some("7.0")),
            ("/model", r#"{"MODEL":"upper"}"#, Some("upper")),
            ("/usage", "{\"u\u{17f}age\":1}", Some("1")),
            ("/x", r#"{"x":true}"#, Some("true")),
            ("/x", r#"{"x":null}"#, None),
            ("/x", r#""x""#, None),
            ("/x", "12", None),
        ] {
            check(pointer, document, Ok(expected));
        }
    }

    #[test]
    fn an_object_is_found_as_it_is_written() {
        let pointer = || JsonPointer::parse("/a/b").unwrap();
        for (document, expected) in [
            (
                r#"{"b":{},"a":{"b": {"c" : "}\"{", "d":[{}, 1]} ,"e":{"b":{}}}}"#,
                Ok(Some(r#"{"c" : "}\"{", "d":[{}, 1]}"#)),
            ),
            (r#"{"a":{"b":{}}}"#, Ok(Some("{}"))),
            (r#"{"a":{"b":[{"c":1}]}}"#, Ok(None)),
            (r#"{"a":{"b":"{}"}}"#, Ok(None)),
            (r#"{"a":{"b":null}}"#, Ok(None)),
            (r#"{"a":{"b":{"c":1},"B":{}}}"#, Err(LookupError::Unusable)),
            (r#"{"a":{"b":{"c":1}}"#, Err(LookupError::Invalid)),
            (r#"{"a":{"b":{"c":1"#, Err(LookupError::Invalid)),
            (r#"{"a":{"b":{"c":x}}}"#, Err(LookupError::Invalid)),
        ] {
            let mut lookup = JsonLookup::of_object(pointer());
            for split in 0..=document.len() {
                let (first, second) = document.as_bytes().split_at(split);
                lookup.push(first);
                lookup.push(second);
                let found = lookup.finish();
                assert_eq!(found.as_ref().map(Option::as_deref), expected.as_ref().copied(), "{document} at {split}");
            }
        }
        let long = format!(r#"{{"a":{{"b":{{"c":"{}"}}}}}}"#, "x".repeat(LONGEST_OBJECT));
        let mut lookup = JsonLookup::of_object(pointer());
        lookup.push(long.as_bytes());
        assert!(lookup.object.len() <= LONGEST_OBJECT + 1);
        assert_eq!(lookup.finish(), Err(LookupError::Unusable));
        let mut lookup = JsonLookup::of_object(JsonPointer::of_keys(["b"]).in_each_element());
        lookup.push(br#"[{"b":{"c":1}},{"b":{"c":2}},{"b":3},{}]"#);
        assert_eq!(lookup.finish(), Ok(Some(r#"{"c":2}"#.into())));
    }

    #[test]
    fn what_is_not_one_scalar_is_not_used() {
        for document in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"A":2}"#,
            r#"{"a":null,"a":2}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":[]}"#,
            r#"{"a":1,"\u0061":2}"#,
        ] {
            check("/a", document, Err(LookupError::Unusable));
        }
        check("/a/b", r#"{"a":{"b":1},"a":{"c":1}}"#, Err(LookupError::Unusable));
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(LONGEST_VALUE + 1));
        let pointer = JsonPointer::parse("/a").unwrap();
        assert_eq!(JsonLookup::find(&pointer, long.as_bytes()), Err(LookupError::Unusable));
    }

    #[test]
    fn what_is_not_json_has_no_value() {
        for document in [
            "",
            "[DONE]",
            "{",
            r#"{"a":1"#,
            r#"{"a":1}}"#,
            r#"{"a":1} 2"#,
            r#"{"a" 1}"#,
            r#"{"a":1,}"#,
            r#"{"a":01}"#,
            r#"{"a":nul}"#,
            "{'a':1}",
            r#"{"a":"\q"}"#,
            r#"{"a":1]"#,
            "[1,]",
            "{,}",
            "\u{feff}{}",
        ] {
            check("/a", document, Err(LookupError::Invalid));
        }
        let pointer = JsonPointer::parse("/a").unwrap();
        assert_eq!(JsonLookup::find(&pointer, b"{\"a\":\"\xff\"}"), Err(LookupError::Invalid));
    }

    #[test]
    fn nested_bombs_end_at_a_bound() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check("/a", &nested(MOST_NESTED), Ok(None));
        check("/a", &nested(MOST_NESTED + 1), Err(LookupError::Invalid));
        let pointer = JsonPointer::parse("/a").unwrap();
        assert_eq!(JsonLookup::find(&pointer, "{\"a\":".repeat(1_000_000).as_bytes()), Err(LookupError::Invalid));
    }

    #[test]
    fn the_last_element_with_the_value_counts() {
        let pointer = JsonPointer::of_keys(["n"]).in_each_element();
        let find = |document: &str| JsonLookup::find(&pointer, document.as_bytes());
        assert_eq!(find(r#"[{"n":1},{"n":2},{"m":3}]"#), Ok(Some("2".into())));
        assert_eq!(find(r#"{"n":1}"#), Ok(None));
    }
}
