//! nginx' configuration as a tree of directives, with the files that it includes.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use super::super::document::Origin;
use super::super::settings::SettingState;
use crate::config::foreign::{Findings, ReadResult};
use crate::config::{self, Place, Report, Source};
use crate::engine::request::glob::Glob;

/// The deepest nesting of blocks and includes.
const DEEPEST: usize = 32;

/// The most files of one import.
const MOST_FILES: usize = 1_000;

#[derive(Debug)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
    pub(super) block: Vec<Directive>,
    pub(super) origin: Origin,
    pub(super) state: Cell<SettingState>,
}

impl Directive {
    pub(super) fn use_it(&self) -> &Self {
        self.state.set(SettingState::Used);
        self
    }

    /// An argument; empty if it is missing.
    pub(super) fn argument(&self, place: usize) -> &str {
        self.arguments.get(place).map_or("", String::as_str)
    }

    pub(super) fn text(&self) -> String {
        [std::slice::from_ref(&self.name), &self.arguments].concat().join(" ")
    }
}

/// The files of a configuration.
pub(super) struct Tree {
    pub(super) directives: Vec<Directive>,
    /// Includes that cannot be read.
    pub(super) unread: Vec<String>,
    pub(super) report: Report,
    files: usize,
}

impl Tree {
    pub(super) fn read(sources: &[Source]) -> Self {
        let mut tree = Self { directives: Vec::new(), unread: Vec::new(), report: Report::default(), files: 0 };
        for source in sources {
            let folder = Path::new(&source.name).parent().unwrap_or(Path::new("")).to_owned();
            let directives = tree.file(source, &folder, 0);
            tree.directives.extend(directives);
        }
        tree
    }

    fn file(&mut self, source: &Source, folder: &Path, depth: usize) -> Vec<Directive> {
        self.files += 1;
        let findings = Findings::new(&source.name);
        let mut reader = Reader { text: &source.text, at: 0, line: 1, findings: &findings };
        let read = reader.block(depth, false);
        self.report.add(&findings, &source.text);
        read.map(|directives| self.included(directives, folder, depth)).unwrap_or_default()
    }

    /// Replaces each `include` by the directives in its files. Their names are relative to the folder of the first file.
    fn included(&mut self, directives: Vec<Directive>, folder: &Path, depth: usize) -> Vec<Directive> {
        let mut all = Vec::new();
        for mut directive in directives {
            if directive.name != "include" {
                directive.block = self.included(directive.block, folder, depth);
                all.push(directive);
                continue;
            }
            let files = matching(&folder.join(directive.argument(0)));
            let mut is_read = false;
            for file in files {
                if let Ok(source) = config::read(&file)
                    && depth < DEEPEST
                    && self.files < MOST_FILES
                {
                    is_read = true;
                    all.extend(self.file(&source, folder, depth + 1));
                }
            }
            if !is_read {
                self.unread.push(
                    directive
                        .origin
                        .note(format!("`{}` finds no file, so what is in it is not converted.", directive.text())),
                );
            }
        }
        all
    }
}

/// The files that a path with `*` names, sorted.
fn matching(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for part in path {
        let text = part.to_string_lossy();
        if !text.contains('*') {
            for path in &mut found {
                path.push(part);
            }
            continue;
        }
        let Some(glob) = Glob::parse(&text) else { return Vec::new() };
        let entries = found.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        // As in glob(3), `*` does not stand for the dot of a hidden file.
        let named = entries.filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            glob.matches(&name) && (text.starts_with('.') || !name.starts_with('.'))
        });
        found = named.map(|entry| entry.path()).collect();
        found.sort();
    }
    found
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    line: u32,
    findings: &'t Findings,
}

enum Token {
    Word(String),
    End,
    Open,
    Close,
}

impl Reader<'_> {
    /// Reads directives up to the end of a block or of the file.
    fn block(&mut self, depth: usize, is_inner: bool) -> ReadResult<Vec<Directive>> {
        let mut directives = Vec::new();
        loop {
            let mut words = Vec::new();
            let (mut line, mut block) = (self.line, Vec::new());
            loop {
                match self.token()? {
                    Some(Token::Word(word)) => {
                        line = if words.is_empty() { self.line } else { line };
                        words.push(word);
                    }
                    Some(Token::End) if !words.is_empty() => break,
                    Some(Token::Open) if !words.is_empty() && depth < DEEPEST => {
                        if words.first().is_some_and(|name: &String| name.ends_with("_by_lua_block")) {
                            self.skip_block();
                        } else {
                            block = self.block(depth + 1, true)?;
                        }
                        break;
                    }
                    Some(Token::Close) if words.is_empty() && is_inner => return Ok(directives),
                    None if words.is_empty() && !is_inner => return Ok(directives),
                    None => {
                        return Err(self
                            .error("the file ends within a directive or block", "add the `;` or `}` that is missing"));
                    }
                    Some(_) => {
                        return Err(self
                            .error("a `;`, `{` or `}` that nginx does not expect here", "let `nginx -t` pass first"));
                    }
                }
            }
            let file = Origin::of(self.findings.file(), Place { line, ..Place::default() });
            let name = words.remove(0);
            directives.push(Directive { name, arguments: words, block, origin: file, state: Cell::default() });
        }
    }

    fn error(&self, what: &str, help: &str) -> crate::config::foreign::ReportedError {
        self.findings.error(Place { line: self.line, ..Place::default() }, what, help)
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += character.len_utf8();
        self.line += u32::from(character == '\n');
        Some(character)
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at..)?.chars().next()
    }

    /// Code of another language, whose braces are balanced.
    fn skip_block(&mut self) {
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Some('{') => depth += 1,
                Some('}') => depth -= 1,
                Some(_) => {}
                None => return,
            }
        }
    }

    fn token(&mut self) -> ReadResult<Option<Token>> {
        loop {
            match self.peek() {
                Some('#') => while self.next().is_some_and(|character| character != '\n') {},
                Some(space) if space.is_whitespace() => drop(self.next()),
                _ => break,
            }
        }
        let Some(first) = self.next() else { return Ok(None) };
        let quote = match first {
            ';' => return Ok(Some(Token::End)),
            '{' => return Ok(Some(Token::Open)),
            '}' => return Ok(Some(Token::Close)),
            '"' | '\'' => Some(first),
            _ => None,
        };
        let mut word = String::new();
        let mut current = if quote.is_some() { self.next() } else { Some(first) };
        while let Some(character) = current {
            match character {
                _ if Some(character) == quote => return Ok(Some(Token::Word(word))),
                '\\' => match self.next() {
                    Some(escaped @ ('"' | '\'' | '\\')) => word.push(escaped),
                    Some('t') => word.push('\t'),
                    Some('n') => word.push('\n'),
                    Some('r') => word.push('\r'),
                    Some(other) => word.extend(['\\', other]),
                    None => break,
                },
                _ => word.push(character),
            }
            let is_variable = quote.is_none() && word.ends_with('$') && self.peek() == Some('{');
            if is_variable {
                while self.peek().is_some_and(|inner| inner != '}') {
                    word.extend(self.next());
                }
                word.extend(self.next());
            }
            if quote.is_none() && self.peek().is_none_or(|next| next.is_whitespace() || ";{".contains(next)) {
                return Ok(Some(Token::Word(word)));
            }
            current = self.next();
        }
        Err(self.error("a quotation mark is not closed", "add the second one"))
    }
}
