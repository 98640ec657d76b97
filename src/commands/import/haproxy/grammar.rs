//! HAProxy's configuration as sections of lines.

use std::cell::Cell;
use std::str::Chars;

use super::super::document::Origin;
use super::super::settings::SettingState;
use crate::config::{Place, Source};

#[derive(Debug)]
pub(super) struct Line {
    pub(super) words: Vec<String>,
    pub(super) origin: Origin,
    /// The line of the `.if` around it.
    pub(super) branch: Option<u32>,
    pub(super) state: Cell<SettingState>,
}

#[derive(Debug)]
pub(super) struct Section {
    /// `frontend`, `backend`, `listen`, `defaults` or another word.
    pub(super) kind: String,
    pub(super) name: String,
    /// The `defaults` section that it names.
    pub(super) from: Option<String>,
    pub(super) origin: Origin,
    pub(super) lines: Vec<Line>,
}

/// The order in which HAProxy applies the rules of a section to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Connection,
    Session,
    Content,
    /// The request counts for the keys that `tcp-request` tracks.
    Counted,
    Http,
}

/// The phase of a rule, and its place in the section.
pub(super) type Moment = (Phase, usize);

const KINDS: [&str; 16] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "peers",
    "resolvers",
    "userlist",
    "mailers",
    "cache",
    "program",
    "ring",
    "http-errors",
    "fcgi-app",
    "log-forward",
    "crt-store",
];

impl Line {
    pub(super) fn text(&self) -> String {
        self.words.join(" ")
    }

    /// The word behind another.
    pub(super) fn after(&self, word: &str) -> Option<&str> {
        let place = self.words.iter().position(|known| known == word)?;
        self.words.get(place + 1).map(String::as_str)
    }

    pub(super) fn starts_with(&self, words: &[&str]) -> bool {
        self.words.len() >= words.len() && self.words.iter().zip(words).all(|(own, word)| own == word)
    }

    /// The phase of a rule, its action and the words behind it; `None` if the line is no rule for requests.
    pub(super) fn rule(&self) -> Option<(Phase, &str, &[String])> {
        let words: Vec<&str> = self.words.iter().take(2).map(String::as_str).collect();
        let (phase, place) = match words.as_slice() {
            ["http-request", _] => (Phase::Http, 1),
            ["tcp-request", "connection"] => (Phase::Connection, 2),
            ["tcp-request", "session"] => (Phase::Session, 2),
            ["tcp-request", "content"] => (Phase::Content, 2),
            _ => return None,
        };
        Some((phase, self.words.get(place)?, self.words.get(place + 1..)?))
    }

    /// The action of a rule, or nothing.
    pub(super) fn action(&self) -> &str {
        self.rule().map_or("", |(_, action, _)| action)
    }
}

impl Section {
    /// The rules for requests, with their moments.
    pub(super) fn rules(&self) -> impl Iterator<Item = (Moment, &Line)> {
        self.lines.iter().enumerate().filter_map(|(place, line)| Some(((line.rule()?.0, place), line)))
    }

    pub(super) fn is_frontend(&self) -> bool {
        ["frontend", "listen"].contains(&self.kind.as_str())
    }

    /// The section itself, and the `defaults` that hold for it.
    pub(super) fn with_defaults<'s>(&'s self, all: &'s [Self]) -> impl Iterator<Item = &'s Self> {
        let before = all.iter().take_while(|other| !std::ptr::eq(*other, self));
        let is_it =
            |other: &&Self| other.kind == "defaults" && self.from.as_ref().is_none_or(|from| *from == other.name);
        std::iter::once(self).chain(before.filter(is_it).last())
    }

    /// The first line of the section, or of its `defaults`, that begins so.
    pub(super) fn setting<'s>(&'s self, words: &[&str], all: &'s [Self]) -> Option<&'s Line> {
        self.with_defaults(all).flat_map(|section| &section.lines).find(|line| line.starts_with(words))
    }
}

pub(super) fn sections(source: &Source) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut branches: Vec<u32> = Vec::new();
    for (line, text) in (1..).zip(source.text.lines()) {
        let words = words(text);
        let Some(first) = words.first() else { continue };
        let origin = Origin::of(&source.name, Place { line, ..Place::default() });
        match first.as_str() {
            ".if" => branches.push(line),
            ".endif" => drop(branches.pop()),
            _ => {}
        }
        if first.starts_with('.') {
            continue;
        }
        if KINDS.contains(&first.as_str()) {
            let from = words.iter().skip_while(|word| *word != "from").nth(1).cloned();
            sections.push(Section {
                kind: first.clone(),
                name: words.get(1).cloned().unwrap_or_default(),
                from,
                origin,
                lines: Vec::new(),
            });
        } else if let Some(section) = sections.last_mut() {
            section.lines.push(Line { words, origin, branch: branches.first().copied(), state: Cell::default() });
        }
    }
    sections
}

/// The words of a line: quotation marks and backslashes keep spaces.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, quote) {
            (mark, Some(open)) if mark == open => quote = None,
            ('\\', open) if open != Some('\'') => {
                word.get_or_insert_default().push(escaped(&mut characters, open.is_some()));
            }
            ('"' | '\'', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            ('#', None) => break,
            (space, None) if space.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

/// The character that a backslash stands for with those behind it. Before others, such as those of a regular expression, it stays.
fn escaped(rest: &mut Chars<'_>, is_quoted: bool) -> char {
    let hex = rest.as_str().strip_prefix('x').and_then(|rest| rest.get(..2));
    if let Some(code) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        rest.nth(2);
        return char::from(code);
    }
    let found = match rest.clone().next() {
        Some('n') => '\n',
        Some('r') => '\r',
        Some('t') => '\t',
        Some(same @ (' ' | '#' | '\\' | '"' | '\'')) => same,
        Some('$') if is_quoted => '$',
        _ => return '\\',
    };
    rest.next();
    found
}
