//! JSON in which no object has a key twice. Parsers differ on which of the two counts (RFC 8259 section 4), so a file or an answer
//! with a duplicate key means one thing to its author and may mean another here.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::lossless;

/// The longest name of a key in a message, in characters.
const LONGEST_NAME: usize = 60;

/// Reads a text. The error names the duplicate key, or says what is wrong with the text, and where.
pub fn parse(text: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(text).map(|Unique(value)| value).map_err(|error| error.to_string())
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(truth.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if members.contains_key(&key) {
                let name: String = lossless::shown(&key).chars().take(LONGEST_NAME).collect();
                return Err(A::Error::custom(format_args!("duplicate key `{name}`")));
            }
            let Unique(value) = entries.next_value()?;
            members.insert(key, value);
        }
        Ok(members.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_duplicate_key_is_named_at_any_depth() {
        for (text, expected) in [
            (r#"{"a": 1, "b": 2, "a": 1}"#, "duplicate key `a` at line 1 column 20"),
            (r#"[0, {"a": {"b": 2, "\u0062": 1}}]"#, "duplicate key `b`"),
            ("{\"\\u001b[2J\": 1,\n\"\\u001b[2J\": 1}", "duplicate key `%1B[2J` at line 2"),
            ("{\"a\": 1\n,}", "at line 2"),
            ("{} {}", "trailing characters"),
            ("", "EOF"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(parse("[".repeat(10_000).as_bytes()).unwrap_err().contains("recursion limit"));
    }

    proptest! {
        #[test]
        fn any_other_text_is_read_as_serde_reads_it(
            members: Vec<(String, i64)>, numbers: Vec<f64>, truth: bool, above: u64,
        ) {
            let members: Map<_, _> = members.into_iter().map(|(key, value)| (key, value.into())).collect();
            let value = serde_json::json!({ "members": members, "list": [numbers, truth, above, null] });
            let text = value.to_string();
            let read: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(parse(text.as_bytes()).unwrap(), read);
        }
    }
}
