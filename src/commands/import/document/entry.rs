//! Limits and overrides as text.

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

use super::super::amount::Fields;
use super::super::text::{comment, key, map, quoted};
use crate::config::Place;

/// A place in an imported file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) file: String,
    /// Counted from 1.
    pub(crate) line: u32,
}

/// A limit to write.
#[derive(Debug)]
pub(crate) struct Limit {
    /// The name in the other file, which may be invalid here.
    pub(crate) name: String,
    /// The other limiter's key of counters, which stays when the limit is renamed there. The first line is for readers.
    pub(crate) identity: String,
    pub(crate) origin: Origin,
    /// The setting in the other file, for readers. A limit with one may get a number behind its name.
    pub(crate) source: Option<String>,
    /// Comments on what cannot be expressed.
    pub(crate) notes: Vec<String>,
    pub(crate) fields: Fields,
    /// The keys of the amount, which come last.
    pub(crate) amount: Fields,
}

/// An override to write.
#[derive(Debug)]
pub(crate) struct Override {
    /// The index of its limit, from [`super::Document::add_limit`].
    pub(crate) limit: usize,
    pub(crate) origin: Origin,
    /// Comments on what cannot be expressed.
    pub(crate) notes: Vec<String>,
    pub(crate) subject: Subject,
    pub(crate) fields: Fields,
}

/// The ids of an override.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// Ids with their comments.
    Ids(Ids),
    Regex(String),
}

pub(crate) type Ids = Vec<(String, Option<String>)>;

/// The result for a limit or an override.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ImportState {
    Written,
    /// Written as a comment, for this reason.
    LeftOut(String),
    /// Only its notes are written.
    Gone,
}

impl Origin {
    /// The place in a file, which is named without its folder: only the first comment of the document has the folder.
    pub(crate) fn of(file: &str, place: Place) -> Self {
        let name = Path::new(file).file_name().and_then(OsStr::to_str);
        Self { file: name.unwrap_or(file).to_owned(), line: place.line }
    }

    /// A comment about this place.
    pub(crate) fn note(&self, what: impl AsRef<str>) -> String {
        format!("{}:{}: {}", self.file, self.line, what.as_ref())
    }
}

impl Override {
    /// The number of overrides in the rules.
    pub(super) fn len(&self) -> usize {
        if let Subject::Ids(ids) = &self.subject { ids.len() } else { 1 }
    }

    /// Its key with the id, if it has exactly one id that is short enough.
    pub(super) fn key(&self, name: &str) -> Option<String> {
        match &self.subject {
            Subject::Ids(ids) if ids.len() == 1 => ids.first().and_then(|(id, _)| key(name, id)),
            _ => None,
        }
    }

    pub(super) fn text(&self, name: &str, in_list: bool) -> String {
        let dash = if in_list { "- " } else { "" };
        let mut fields = self.fields.clone();
        match (&self.subject, self.key(name)) {
            (Subject::Ids(ids), Some(key)) => {
                let comments = ids.iter().filter_map(|(_, comment)| comment.as_ref());
                fields.extend(comments.map(|comment| ("comment", quoted(comment))));
                format!("  {dash}{key}: {}\n", map(&fields))
            }
            (Subject::Ids(ids), None) => {
                let mut text = format!(
                    "  {dash}{name}:
"
                );
                for (name, value) in fields {
                    let _ = writeln!(text, "      {name}: {value}");
                }
                text.push_str(
                    "      ids:
",
                );
                for (id, own) in ids {
                    let id = quoted(id);
                    let item = own.as_ref().map(|own| map(&[("id", id.clone()), ("comment", quoted(own))]));
                    let _ = writeln!(text, "        - {}", item.unwrap_or(id));
                }
                text
            }
            (Subject::Regex(regex), _) => {
                fields.insert(0, ("regex", quoted(regex)));
                format!("  {dash}{name}: {}\n", map(&fields))
            }
        }
    }
}

/// The text of a limit.
pub(super) fn block(name: &str, limit: &Limit) -> String {
    if limit.fields.is_empty() && limit.amount.is_empty() {
        return format!("  {name}: {{}}\n");
    }
    let lines = limit.fields.iter().chain(&limit.amount).map(|(key, value)| format!("    {key}: {value}\n"));
    format!("  {name}:\n{}", lines.collect::<String>())
}

/// Adds an entry with its notes; as a comment if it is left out.
pub(super) fn entry(notes: &[String], state: &ImportState, text: &str, out: &mut String) {
    for note in notes {
        comment(2, note, out);
    }
    match state {
        ImportState::Written => out.push_str(text),
        ImportState::LeftOut(reason) => {
            comment(2, &format!("left out: {reason}"), out);
            for line in text.lines() {
                out.push_str("  #   ");
                out.push_str(line.get(2..).unwrap_or_default());
                out.push('\n');
            }
        }
        ImportState::Gone => {}
    }
}
