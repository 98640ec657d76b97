//! Readers of JSON objects, which collect every mistake with its place.

use std::cell::RefCell;

use serde_json::{Map, Value};

use super::describe;
use crate::engine::algorithms::micros::EXACT;
use crate::engine::text::duration;
use crate::engine::text::quote::{quoted, shown};

const MAX_MISTAKES: usize = 20;

/// In characters: ids may be long.
const MAX_DETAIL: usize = 300;

/// Something wrong in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// A JSON Pointer (RFC 6901); empty for the whole body.
    pub(crate) pointer: String,
    pub(crate) detail: String,
}

impl Mistake {
    pub(crate) fn new(pointer: impl Into<String>, detail: &str) -> Self {
        Self { pointer: pointer.into(), detail: shown(detail, MAX_DETAIL) }
    }
}

/// The mistakes in a body, up to [`MAX_MISTAKES`].
#[derive(Debug, Default)]
pub(crate) struct Mistakes(RefCell<Vec<Mistake>>);

impl Mistakes {
    /// Returns the value if there are no mistakes.
    pub(crate) fn check<T>(self, value: Option<T>) -> Result<T, Vec<Mistake>> {
        let mistakes = self.0.into_inner();
        value.filter(|_| mistakes.is_empty()).ok_or(mistakes)
    }

    fn add(&self, pointer: String, detail: &str) {
        let mut mistakes = self.0.borrow_mut();
        if mistakes.len() < MAX_MISTAKES {
            mistakes.push(Mistake::new(pointer, detail));
        }
    }

    fn expected(&self, pointer: String, what: &str, found: &Value) {
        self.add(pointer, &format!("expected {what}, found {}", describe(found)));
    }
}

/// An object in a body. A member that is not as expected is a mistake and reads as absent.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    pointer: String,
    pub(crate) members: &'a Map<String, Value>,
    mistakes: &'a Mistakes,
}

impl<'a> Object<'a> {
    pub(crate) fn root(json: &'a Value, mistakes: &'a Mistakes) -> Option<Self> {
        Self::at(String::new(), json, mistakes)
    }

    fn at(pointer: String, json: &'a Value, mistakes: &'a Mistakes) -> Option<Self> {
        if let Value::Object(members) = json {
            return Some(Self { pointer, members, mistakes });
        }
        mistakes.expected(pointer, "an object", json);
        None
    }

    /// Reads an object at a path below this one.
    pub(crate) fn nested(&self, path: &str, json: &'a Value) -> Option<Self> {
        Self::at(format!("{}{path}", self.pointer), json, self.mistakes)
    }

    pub(crate) fn object(&self, key: &str) -> Option<Self> {
        self.nested(&format!("/{key}"), self.get(key)?)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.members.get(key)
    }

    /// Adds a mistake at a path below this object.
    pub(crate) fn wrong(&self, path: &str, detail: &str) {
        self.mistakes.add(format!("{}{path}", self.pointer), detail);
    }

    pub(crate) fn expected(&self, path: &str, what: &str, found: &Value) {
        self.mistakes.expected(format!("{}{path}", self.pointer), what, found);
    }

    /// Reports members with other keys.
    pub(crate) fn known(&self, keys: &[&str]) {
        for (key, _) in self.members.iter().filter(|(key, _)| !keys.contains(&key.as_str())) {
            let expected = if keys.is_empty() { "no members".to_owned() } else { list(keys) };
            self.wrong(&path_of(key), &format!("unknown member {}; expected {expected}", quoted(key)));
        }
    }

    /// Reports a missing member.
    pub(crate) fn require(&self, key: &str, help: &str) {
        if self.get(key).is_none() {
            self.wrong("", &format!("`{key}` is missing; {help}"));
        }
    }

    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        match self.get(key)? {
            Value::String(text) => Some(text),
            other => {
                self.expected(&path_of(key), "text", other);
                None
            }
        }
    }

    /// Returns a whole number that counting is exact for.
    pub(crate) fn whole(&self, key: &str, least: u64) -> Option<u64> {
        let value = self.get(key)?;
        let number = value.as_u64().filter(|number| (least..EXACT).contains(number));
        if number.is_none() {
            self.expected(&path_of(key), &format!("a whole number from {least} to {}", EXACT - 1), value);
        }
        number
    }

    pub(crate) fn truth(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(value) => Some(*value),
            other => {
                self.expected(&path_of(key), "true or false", other);
                None
            }
        }
    }

    /// Returns a duration in nanoseconds.
    pub(crate) fn duration(&self, key: &str) -> Option<u64> {
        let parsed = duration::parse(self.text(key)?);
        parsed.map_err(|(message, help)| self.wrong(&path_of(key), &format!("{message}; {help}"))).ok()
    }
}

/// Returns the JSON Pointer of a member (RFC 6901 section 3).
pub(crate) fn path_of(key: &str) -> String {
    format!("/{}", shown(key, MAX_DETAIL).replace('~', "~0").replace('/', "~1"))
}

/// Lists words for a message.
pub(crate) fn list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
