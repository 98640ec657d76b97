//! One limit or one override as text.

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

use super::super::amount::{Amount, Elevated};
use super::super::text::{Value, comment, key};
use crate::config::{Place, Source};

/// A place in a file that is read.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The name of the file.
    pub(crate) file: String,
    /// Counted from 1.
    pub(crate) line: u32,
}

/// A limit to be written.
#[derive(Debug)]
pub(crate) struct Limit {
    /// The name that it would have if all names were possible.
    pub(crate) name: String,
    /// What the other limiter counts it by, in lines of which the first is for readers. It stays when the limit is renamed
    /// there.
    pub(crate) identity: String,
    /// Where it comes from.
    pub(crate) origin: Origin,
    /// What has no equal.
    pub(crate) notes: Vec<String>,
    /// All fields that come before how much.
    pub(crate) fields: Vec<(&'static str, Value)>,
    /// How much.
    pub(crate) amount: Amount,
    /// `elevated`
    pub(crate) elevated: Option<Elevated>,
}

/// An override to be written.
#[derive(Debug)]
pub(crate) struct Override {
    /// Which limit, as [`super::Document::add_limit`] has numbered it.
    pub(crate) limit: usize,
    /// Where it comes from.
    pub(crate) origin: Origin,
    /// What has no equal.
    pub(crate) notes: Vec<String>,
    /// Whom it is for.
    pub(crate) subject: Subject,
    /// How much.
    pub(crate) amount: Amount,
    /// `elevated`
    pub(crate) elevated: Option<Elevated>,
    /// `until`
    pub(crate) until: Option<String>,
    /// `comment`
    pub(crate) comment: Option<String>,
}

/// Whom an override is for.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// These ids, each with its comment.
    Ids(Vec<(String, Option<String>)>),
    /// The ids in which a regular expression finds something.
    Regex(String),
}

/// What becomes of a limit or an override.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is written.
    Written,
    /// It is written as a comment, for this reason.
    LeftOut(String),
    /// Nothing of it is left but its notes.
    Gone,
}

impl Origin {
    /// The place in a file, which is named without its folder: only the first comment of the document has the folder.
    pub(crate) fn of(source: &Source, place: Place) -> Self {
        let name = Path::new(&source.name).file_name().and_then(OsStr::to_str);
        Self { file: name.unwrap_or(&source.name).to_owned(), line: place.line }
    }

    /// What a comment about this place says.
    pub(crate) fn note(&self, what: impl AsRef<str>) -> String {
        format!("{}:{}: {}", self.file, self.line, what.as_ref())
    }
}

impl Subject {
    /// How many overrides it makes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Regex(_) => 1,
        }
    }
}

impl Override {
    /// Its key with its id in it, if it has one that fits.
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

/// Adds an entry with what is said of it; as a comment if it is left out.
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
