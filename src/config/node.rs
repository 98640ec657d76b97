//! The values of a file as a tree. Each knows its place and reports its own mistakes.

use super::lints::Lint;
use super::problem::{Findings, Place, ReportedError};

/// A value in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) value: Value,
    pub(super) findings: Findings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Text as written. Only plain text can be a number, a truth value or null.
    Scalar {
        text: String,
        plain: bool,
    },
    /// In the file's order, each key once.
    Map(Vec<(Key, Node)>),
    List(Vec<Node>),
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) place: Place,
    pub(super) findings: Findings,
}

impl Node {
    /// Returns whether the value is missing or `null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null"))
    }

    /// Names the kind of value, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::Scalar { .. } if self.is_null() => "nothing",
            Value::Scalar { .. } => "a single value",
            Value::Map(_) => "a map",
            Value::List(_) => "a list",
        }
    }

    pub(crate) fn error(&self, message: impl AsRef<str>, help: impl AsRef<str>) -> ReportedError {
        self.findings.error(self.place, message, help)
    }

    pub(super) fn warning(&self, lint: Lint, message: impl AsRef<str>, help: impl AsRef<str>) {
        self.findings.warning(lint, self.place, message, help);
    }
}

impl Key {
    /// Returns a part of the key as a value at its place.
    pub(super) fn scalar(&self, text: &str) -> Node {
        let value = Value::Scalar { text: text.to_owned(), plain: false };
        Node { place: self.place, value, findings: self.findings.clone() }
    }

    pub(crate) fn error(&self, message: impl AsRef<str>, help: impl AsRef<str>) -> ReportedError {
        self.findings.error(self.place, message, help)
    }

    pub(super) fn warning(&self, lint: Lint, message: impl AsRef<str>, help: impl AsRef<str>) {
        self.findings.warning(lint, self.place, message, help);
    }
}
