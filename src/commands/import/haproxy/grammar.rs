//! HAProxy's configuration as sections of lines.

use std::cell::Cell;

use super::super::document::Origin;
use super::super::settings::SettingState;
use crate::config::{Place, Source};

#[derive(Debug)]
pub(super) struct Line {
    pub(super) words: Vec<String>,
    pub(super) origin: Origin,
    pub(super) state: Cell<SettingState>,
}

#[derive(Debug)]
pub(super) struct Section {
    /// `frontend`, `backend`, `listen`, `defaults` or another word.
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) lines: Vec<Line>,
}

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
}

pub(super) fn sections(source: &Source) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for (line, text) in (1..).zip(source.text.lines()) {
        let words = words(text);
        let Some(first) = words.first() else { continue };
        let origin = Origin::of(&source.name, Place { line, ..Place::default() });
        if KINDS.contains(&first.as_str()) {
            sections.push(Section {
                kind: first.clone(),
                name: words.get(1).cloned().unwrap_or_default(),
                lines: Vec::new(),
            });
        } else if let Some(section) = sections.last_mut() {
            section.lines.push(Line { words, origin, state: Cell::default() });
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
            ('\\', open) if open != Some('\'') => word.get_or_insert_default().extend(characters.next()),
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
