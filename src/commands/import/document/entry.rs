//! Writes a limit or an override.

use std::fmt::Write;

use super::super::amount::{Amount, Elevated};
use super::super::text::{Value, comment, key};

/// A place in an input file.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) file: String,
    pub(crate) line: u32,
}

/// A limit to be written.
#[derive(Debug)]
pub(crate) struct Limit {
    /// The preferred name, which may be invalid or taken.
    pub(crate) name: String,
    /// What the other limiter counts by; it does not change if the limit is renamed there. The first line is readable.
    pub(crate) identity: String,
    pub(crate) origin: Origin,
    /// Notes on what Weir cannot express.
    pub(crate) notes: Vec<String>,
    /// The keys before the numbers.
    pub(crate) fields: Vec<(&'static str, Value)>,
    pub(crate) amount: Amount,
    pub(crate) elevated: Option<Elevated>,
}

/// An override to be written.
#[derive(Debug)]
pub(crate) struct Override {
    /// The limit's number from [`super::Document::add_limit`].
    pub(crate) limit: usize,
    pub(crate) origin: Origin,
    /// Notes on what Weir cannot express.
    pub(crate) notes: Vec<String>,
    pub(crate) subject: Subject,
    pub(crate) amount: Amount,
    pub(crate) elevated: Option<Elevated>,
    pub(crate) until: Option<String>,
    pub(crate) comment: Option<String>,
}

/// The ids that an override applies to.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// Ids with their comments.
    Ids(Vec<(String, Option<String>)>),
    /// All ids that match a regular expression.
    Regex(String),
}

/// How a limit or an override is written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    Written,
    /// As a comment, with this reason.
    LeftOut(String),
    /// Only its notes are written.
    Gone,
}

impl Origin {
    /// A comment about this place.
    pub(crate) fn note(&self, what: impl AsRef<str>) -> String {
        format!("{}:{}: {}", self.file, self.line, what.as_ref())
    }
}

impl Subject {
    /// The number of overrides.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Regex(_) => 1,
        }
    }
}

impl Override {
    /// An override without notes, `elevated`, `until` and comment.
    pub(in super::super) fn of(limit: usize, origin: Origin, subject: Subject, amount: Amount) -> Self {
        Self { limit, origin, notes: Vec::new(), subject, amount, elevated: None, until: None, comment: None }
    }

    /// The key `Name:id`, if there is one id and it fits.
    pub(super) fn key(&self, name: &str) -> Option<String> {
        match &self.subject {
            Subject::Ids(ids) => match ids.as_slice() {
                [(id, _)] => key(name, id),
                _ => None,
            },
            Subject::Regex(_) => None,
        }
    }

    pub(super) fn text(&self, name: &str, in_list: bool) -> String {
        let dash = if in_list { "- " } else { "" };
        let mut fields = self.amount.fields();
        fields.extend(self.elevated.iter().map(|elevated| ("elevated".to_owned(), elevated.value())));
        fields.extend(self.until.iter().map(|until| ("until".to_owned(), Value::Text(until.clone()))));
        let comment = |comment: &Option<String>| {
            comment.as_ref().map(|comment| ("comment".to_owned(), Value::Text(comment.clone())))
        };
        match (&self.subject, self.key(name)) {
            (Subject::Ids(ids), Some(key)) => {
                fields.extend(ids.iter().filter_map(|(_, own)| comment(own)).chain(comment(&self.comment)).take(1));
                format!("  {dash}{key}: {}\n", Value::Map(fields).flow())
            }
            (Subject::Ids(ids), None) => {
                fields.extend(comment(&self.comment));
                let mut text = format!("  {dash}{name}:\n");
                for (name, value) in fields {
                    let _ = writeln!(text, "      {name}: {}", value.flow());
                }
                text.push_str("      ids:\n");
                for (id, own) in ids {
                    let id = Value::Text(id.clone());
                    let item = match comment(own) {
                        None => id,
                        Some(comment) => Value::Map(vec![("id".to_owned(), id), comment]),
                    };
                    let _ = writeln!(text, "        - {}", item.flow());
                }
                text
            }
            (Subject::Regex(regex), _) => {
                fields.insert(0, ("regex".to_owned(), Value::Text(regex.clone())));
                fields.extend(comment(&self.comment));
                format!("  {dash}{name}: {}\n", Value::Map(fields).flow())
            }
        }
    }
}

/// The text of a limit.
pub(super) fn block(name: &str, limit: &Limit) -> String {
    let fields = limit.fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    let fields = fields.chain(limit.amount.fields());
    let fields: Vec<_> =
        fields.chain(limit.elevated.iter().map(|elevated| ("elevated".to_owned(), elevated.value()))).collect();
    if fields.is_empty() {
        return format!("  {name}: {{}}\n");
    }
    let lines = fields.iter().map(|(name, value)| format!("    {name}: {}\n", value.flow()));
    format!("  {name}:\n{}", lines.collect::<String>())
}

/// Writes an entry with its notes, as a comment if it is left out.
pub(super) fn entry(notes: &[String], state: &State, text: &str, out: &mut String) {
    for note in notes {
        comment(2, note, out);
    }
    match state {
        State::Written => out.push_str(text),
        State::LeftOut(reason) => {
            comment(2, &format!("left out: {reason}"), out);
            for line in text.lines() {
                out.push_str("  #   ");
                out.push_str(line.get(2..).unwrap_or_default());
                out.push('\n');
            }
        }
        State::Gone => {}
    }
}
