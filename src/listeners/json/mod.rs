//! JSON bodies: values as they were written, and readers of objects.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use crate::engine::algorithms::micros::Micros;
use crate::engine::text::quote::quoted;

pub(crate) mod headers;
mod object;

pub(crate) use object::{Mistake, Mistakes, Object, list, path_of};

/// A value. Members keep their order. Duplicate keys are errors, because parsers differ on which one counts (RFC 8259
/// section 4).
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Json>),
    Map(Vec<(String, Json)>),
}

impl Json {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(|error| error.to_string())
    }

    /// Describes the value for messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(truth) => truth.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => format!("the text {}", quoted(text)),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "an object".to_owned(),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Json, E> {
        Ok(Json::Bool(truth))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        Ok(Number::from_f64(number).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut members: Vec<(String, Json)> = Vec::new();
        while let Some(key) = entries.next_key::<String>()? {
            // The search below is quadratic, so the number of members is bounded.
            if members.len() == MAX_MEMBERS {
                return Err(A::Error::custom(format_args!("an object has more than {MAX_MEMBERS} members")));
            }
            if members.iter().any(|(given, _)| *given == key) {
                return Err(A::Error::custom(format_args!("duplicate key {}", quoted(&key))));
            }
            members.push((key, entries.next_value()?));
        }
        Ok(Json::Map(members))
    }
}

/// Members of an object: no fewer than the headers of a request.
const MAX_MEMBERS: usize = 256;

/// Returns a time as replies have it, rounded up.
pub(crate) fn milliseconds(time: Micros) -> u64 {
    time.0.div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written() {
        for (text, expected) in [
            (r#"{"b": 1, "a": [null, true, -1.5, "x"]}"#, Ok(())),
            (r#"{"a": 1, "b": 2, "a": 1}"#, Err("duplicate key `a` at line 1")),
            (r#"{"a": {"b": 2, "b": 1}}"#, Err("duplicate key `b`")),
            ("{\"a\": 1\n,}", Err("at line 2")),
            ("", Err("EOF")),
            ("{} {}", Err("trailing characters")),
            ("\u{feff}{}", Err("expected value")),
            (&"[".repeat(10_000), Err("recursion limit")),
        ] {
            match (Json::parse(text.as_bytes()), expected) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(part)) => assert!(error.contains(part), "{text:.40}: {error}"),
                (found, _) => panic!("{text:.40}: {found:?}"),
            }
        }
        let value = Json::parse(br#"{"b": 1, "a": "x"}"#).unwrap();
        assert_eq!(value, Json::Map(vec![("b".into(), Json::Number(1.into())), ("a".into(), Json::Text("x".into()))]));
        let many: Vec<String> = (0..=MAX_MEMBERS).map(|key| format!("\"{key}\": 0")).collect();
        assert!(Json::parse(format!("{{{}}}", many.join(",")).as_bytes()).unwrap_err().contains("more than 256"));
        assert!(Json::parse(b"\"\xff\"").is_err());
    }
}
