//! YAML text as a stream of entries, each a small tree that knows its place in the file.
//!
//! The parser's events are used directly, for two reasons: a deserializer stops at the first type error, while all mistakes
//! are reported at once; and a file with a million overrides must not become one tree in memory. Anchors, aliases, tags and
//! keys that are not text are rejected.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::node::{Key, Node, Value};
use super::problem::{Findings, Place, ReadResult, ReportedError, quoted};

/// The deepest nesting. Rules need nine levels. A file of envoyproxy/ratelimit needs two for each entry of a descriptor.
const DEEPEST: usize = 32;

/// The prefix of the tags that other limiters' files may have, `!!`.
const TAGS: &str = "tag:yaml.org,2002:";

/// js-yaml's tag for JavaScript's regular expressions.
const REGEXP: &str = "js/regexp";

/// YAML 1.1's tag for instants.
const TIMESTAMP: &str = "timestamp";

/// The number of a map's keys that are compared one by one.
const FEW: usize = 16;

/// Reads a text's documents. Nothing can be read after an error, which is among the findings.
pub(super) struct Reader<'t> {
    text: &'t str,
    parser: Parser<'t, StrInput<'t>>,
    findings: Findings,
    depth: usize,
    /// The place of the last event.
    last: Place,
    /// Values may have the tags [`REGEXP`] and [`TIMESTAMP`].
    takes_tags: bool,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str, findings: &Findings) -> Self {
        let parser = Parser::new_from_str(text);
        Self { text, parser, findings: findings.clone(), depth: 0, last: Place::START, takes_tags: false }
    }

    /// Reads a text in block style. Rejects indentation with tabs, which the parser accepts in places: YAML forbids it
    /// (section 6.1), and its meaning depends on the editor.
    pub(super) fn without_tabs(text: &'t str, findings: &Findings) -> ReadResult<Self> {
        let mut outcome = Ok(Self::new(text, findings));
        for (line, content) in (1..).zip(text.lines()) {
            let rest = content.trim_start_matches(' ');
            if rest.starts_with('\t') && !matches!(rest.trim_start().chars().next(), None | Some('#')) {
                let place = Place { line, column: number(content.len() - rest.len() + 1), width: 1 };
                outcome = Err(findings.error(place, "a tab in the indentation", "indent with spaces"));
            }
        }
        outcome
    }

    pub(super) const fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Returns the place of what was read last.
    pub(super) const fn place(&self) -> Place {
        self.last
    }

    /// Goes to the root of the next document. Returns whether there is one.
    pub(super) fn document(&mut self) -> ReadResult<bool> {
        loop {
            match self.next()?.0 {
                Event::DocumentStart(_) => return Ok(true),
                Event::StreamEnd => return Ok(false),
                _ => {}
            }
        }
    }

    /// Opens the root of the file's only document, as [`Self::open`] does.
    pub(super) fn root(&mut self, what: &str, allowed: List, help: &str) -> ReadResult<bool> {
        if self.document()? {
            return self.open(what, None, allowed, help);
        }
        Err(self.findings.error(Place::START, "the file is empty", help))
    }

    /// Ends the document. Rejects a second one, which most programs would ignore.
    pub(super) fn end(&mut self) -> ReadResult<()> {
        if !self.document()? {
            return Ok(());
        }
        let help = "remove the `---` or split the file";
        Err(self.findings.error(self.last, "a second YAML document in the file", help))
    }

    /// Begins the next value: a map, or a list where one is `allowed`. Returns whether it is a list. `what` and `key` name
    /// the value in errors.
    pub(super) fn open(&mut self, what: &str, key: Option<&Key>, allowed: List, help: &str) -> ReadResult<bool> {
        let (event, span) = self.next()?;
        let (is_map, is_list) = (matches!(event, Event::MappingStart(..)), matches!(event, Event::SequenceStart(..)));
        if is_map || is_list && allowed == List::Allowed {
            self.check_extras(&event, span)?;
            self.deeper(span)?;
            return Ok(is_list);
        }
        let (place, kind) = match event {
            Event::SequenceStart(..) => (place(span), "a list"),
            event => {
                let node = self.build(event, span)?;
                (node.place, node.kind())
            }
        };
        let expected = if allowed == List::Allowed { "a map or a list" } else { "a map" };
        let place = key.map_or(place, |key| key.place);
        Err(self.findings.error(place, format!("{what} must be {expected}, found {kind}"), help))
    }

    /// Returns the next key of the map that was opened last, or `None` at its end.
    pub(super) fn key(&mut self) -> ReadResult<Option<Key>> {
        let (event, span) = self.next()?;
        if matches!(event, Event::MappingEnd) {
            self.depth -= 1;
            return Ok(None);
        }
        self.check_extras(&event, span)?;
        let place = place(span);
        match event {
            Event::Scalar(text, ..) if text == "<<" => {
                Err(self.findings.error(place, "merge keys (`<<`) are not supported", "write the keys out"))
            }
            Event::Scalar(text, ..) => {
                Ok(Some(Key { text: text.into_owned(), place, findings: self.findings.clone() }))
            }
            _ => Err(self.findings.error(place, "keys must be text", "quote keys that start with [ or {")),
        }
    }

    /// Goes to the value of a key of the map that was opened last. Returns `None` if the map does not have it.
    pub(super) fn find(&mut self, name: &str) -> ReadResult<Option<Key>> {
        while let Some(key) = self.key()? {
            if key.text == name {
                return Ok(Some(key));
            }
            self.skip()?;
        }
        Ok(None)
    }

    /// Returns whether the list that was opened last has another item; if not, it is closed.
    pub(super) fn item(&mut self) -> ReadResult<bool> {
        // Reading reports an error.
        let ends = matches!(self.parser.peek(), Some(Ok((Event::SequenceEnd, _))));
        if ends {
            self.next()?;
            self.depth -= 1;
        }
        Ok(!ends)
    }

    /// Reads the next value as a tree.
    pub(super) fn node(&mut self) -> ReadResult<Node> {
        let (event, span) = self.next()?;
        self.build(event, span)
    }

    /// Skips the next value.
    pub(super) fn skip(&mut self) -> ReadResult<()> {
        let mut open = 0usize;
        loop {
            match self.next()?.0 {
                Event::MappingStart(..) | Event::SequenceStart(..) => open += 1,
                Event::MappingEnd | Event::SequenceEnd => open = open.saturating_sub(1),
                _ => {}
            }
            if open == 0 {
                return Ok(());
            }
        }
    }

    /// Reads all documents of the text except empty ones.
    pub(super) fn documents(&mut self) -> ReadResult<Vec<Node>> {
        let mut documents = Vec::new();
        while self.document()? {
            documents.push(self.node()?);
        }
        documents.retain(|document| !document.is_null());
        Ok(documents)
    }

    fn next(&mut self) -> ReadResult<(Event<'t>, Span)> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => {
                self.last = place(span);
                Ok((event, span))
            }
            Some(Err(error)) => Err(self.syntax(&error)),
            None => Err(self.findings.error(self.last, "unexpected end of file", "")),
        }
    }

    fn deeper(&mut self, span: Span) -> ReadResult<()> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.findings.error(place(span), format!("nested deeper than {DEEPEST} levels"), ""));
        }
        Ok(())
    }

    /// Recursion is bounded by [`DEEPEST`].
    fn build(&mut self, event: Event<'t>, span: Span) -> ReadResult<Node> {
        let place = place(span);
        let tagged = self.tagged(&event, place)?;
        if tagged.is_none() {
            self.check_extras(&event, span)?;
        }
        let value = match (event, tagged) {
            (_, Some(text)) => Value::Scalar { text, plain: false },
            (Event::Scalar(text, style, ..), _) => {
                Value::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain }
            }
            (Event::MappingStart(..), _) => {
                self.deeper(span)?;
                self.entries()?
            }
            (Event::SequenceStart(..), _) => {
                self.deeper(span)?;
                let mut items = Vec::new();
                while self.item()? {
                    items.push(self.node()?);
                }
                Value::List(items)
            }
            _ => return Err(self.findings.error(place, "missing value", "")),
        };
        Ok(Node { place, value, findings: self.findings.clone() })
    }

    fn entries(&mut self) -> ReadResult<Value> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        let mut seen = SeenKeys::default();
        while let Some(key) = self.key()? {
            let node = self.node()?;
            // Nearly all maps are small, and comparing a few keys is cheaper than a hash table.
            if let Some((first, _)) = entries.iter().take(FEW).find(|(first, _)| first.text == key.text) {
                report_duplicate(&key, first.place.line);
            } else if entries.len() < FEW || seen.is_new(&key) {
                entries.push((key, node));
            }
        }
        Ok(Value::Map(entries))
    }

    /// Returns the text of a value with a tag that other limiters' files may have.
    fn tagged(&self, event: &Event<'_>, place: Place) -> ReadResult<Option<String>> {
        let Event::Scalar(text, _, 0, Some(tag)) = event else { return Ok(None) };
        if !self.takes_tags || tag.handle != TAGS {
            return Ok(None);
        }
        match tag.suffix.as_str() {
            // `/source/flags`
            REGEXP => {
                if let Some((source, _)) = text.strip_prefix('/').and_then(|rest| rest.rsplit_once('/')) {
                    Ok(Some(source.to_owned()))
                } else {
                    let message = format!("invalid regular expression {}", quoted(text));
                    Err(self.findings.error(place, message, "write `/.../`"))
                }
            }
            TIMESTAMP => Ok(Some(text.to_string())),
            _ => Ok(None),
        }
    }

    /// Rejects what gives a value another meaning than its text.
    fn check_extras(&self, event: &Event<'_>, span: Span) -> ReadResult<()> {
        let (anchor, tagged) = match event {
            Event::Alias(_) => (1, false),
            Event::Scalar(_, _, anchor, tag) | Event::MappingStart(anchor, tag) | Event::SequenceStart(anchor, tag) => {
                (*anchor, tag.is_some())
            }
            _ => (0, false),
        };
        let (message, help) = if anchor > 0 {
            let help = "write the value out; quote it if it starts with & or *";
            ("anchors (`&`) and aliases (`*`) are not supported", help)
        } else if tagged {
            ("tags (`!`) are not supported", "write the value without a tag")
        } else {
            return Ok(());
        };
        Err(self.findings.error(place(span), message, help))
    }

    fn syntax(&self, error: &ScanError) -> ReportedError {
        let marker = error.marker();
        let place = Place { line: number(marker.line()), column: number(marker.col() + 1), width: 1 };
        let line = self.text.lines().nth(marker.line().saturating_sub(1)).unwrap_or_default();
        if let Some((start, word)) = unquoted(line, marker.col()) {
            let place = Place { column: number(start + 1), width: number(word.chars().count()), ..place };
            let message = format!("{} needs quotes inside `{{ }}` and `[ ]`", quoted(word));
            return self.findings.error(place, message, format!("write \"{word}\", because of its brackets"));
        }
        let help = match error.info() {
            info if info.contains("unknown anchor") => "a value that starts with `*` needs quotes",
            info if info.contains("mapping values are not allowed") => {
                "check the indentation; a value that contains `: ` needs quotes"
            }
            info if info.contains("flow") => "is a `,`, `}` or `]` missing before?",
            info if info.contains("quoted scalar") => "is the closing quote missing?",
            _ => "",
        };
        self.findings.error(place, format!("YAML: {}", error.info()), help)
    }
}

/// Returns the word around a bracket that ends it for YAML, such as `/v1/{id}` in `{ path: /v1/{id} }`, and its column. `column` is
/// that of the bracket; columns count characters, from 0.
fn unquoted(line: &str, column: usize) -> Option<(usize, &str)> {
    let (bracket, _) = line.char_indices().nth(column).filter(|(_, character)| "{[".contains(*character))?;
    let is_outside = |character: char| character.is_whitespace() || "{}[],".contains(character);
    let before = line[..bracket].rsplit(is_outside).next().filter(|before| !before.is_empty())?;
    let mut depth = 0usize;
    let end = line[bracket..].find(|character: char| {
        match character {
            '{' | '[' => depth += 1,
            '}' | ']' if depth > 0 => depth -= 1,
            _ => return depth == 0 && is_outside(character),
        }
        false
    });
    let word = &line[bracket - before.len()..bracket + end?];
    Some((column - before.chars().count(), word))
}

/// A list may replace a map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Allowed,
    Rejected,
}

/// The keys of a map so far, to find duplicates.
#[derive(Default)]
pub(super) struct SeenKeys(HashMap<String, u32>);

impl SeenKeys {
    /// Returns whether the key is new; reports it otherwise.
    pub(super) fn is_new(&mut self, key: &Key) -> bool {
        if let Some(line) = self.0.get(&key.text) {
            report_duplicate(key, *line);
            return false;
        }
        self.0.insert(key.text.clone(), key.place.line);
        true
    }
}

fn report_duplicate(key: &Key, first: u32) {
    let message = format!("duplicate key {}", quoted(&key.text));
    key.error(message, format!("the first one is on line {first}; keep one of them"));
}

fn place(span: Span) -> Place {
    let width = if span.start.line() == span.end.line() { span.end.col().saturating_sub(span.start.col()) } else { 1 };
    Place { line: number(span.start.line()), column: number(span.start.col() + 1), width: number(width.max(1)) }
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Reads a whole text as one tree, which takes several times the text's memory.
///
/// A value tagged `!!js/regexp`, as in limitd's files, is the expression's source; one tagged `!!timestamp` is its text. Other
/// tags are rejected.
pub(crate) fn tree(text: &str, findings: &Findings) -> ReadResult<Node> {
    let mut reader = Reader { takes_tags: true, ..Reader::new(text, findings) };
    if !reader.document()? {
        return Err(findings.error(reader.last, "missing value", ""));
    }
    let node = reader.node()?;
    reader.end()?;
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::super::problem::Report;
    use super::*;

    /// Reads `text`, which must be refused with this in the report, soon.
    #[track_caller]
    fn refused(text: &str, expected: &str) {
        let findings = Findings::new("f");
        let outcome = tree(text, &findings);
        let mut report = Report::default();
        report.add(&findings, text);
        assert!(report.errors > 0, "{outcome:?}");
        assert!(report.to_string().contains(expected), "{report}");
    }

    #[test]
    fn values_know_their_places_and_styles() {
        let findings = Findings::new("f");
        let Ok(node) = tree("a: 010\nb: ['x', é: 1]\nc:\n", &findings) else { panic!("refused") };
        let Value::Map(entries) = node.value else { panic!("no map") };
        assert_eq!(entries[0].1.place, Place { line: 1, column: 4, width: 3 });
        assert_eq!(entries[0].1.value, Value::Scalar { text: "010".into(), plain: true });
        let Value::List(items) = &entries[1].1.value else { panic!("no list") };
        assert_eq!(items[0].value, Value::Scalar { text: "x".into(), plain: false });
        assert_eq!(items[0].place, Place { line: 2, column: 5, width: 3 });
        assert!(entries[2].1.is_null());
    }

    #[test]
    fn what_changes_the_meaning_of_text_is_refused() {
        refused("a: 1\nb: 2\na: 3\n", "duplicate key `a`\n --> f:3:1");
        refused("a: 1\na: 3\n", "the first one is on line 1");
        refused("a: &x 1\n", "anchors");
        refused("a: *x\n", "needs quotes");
        refused("a: !!str 1\n", "tags");
        refused("? [a]\n: 1\n", "keys must be text");
        refused("a: {b: 1\n", "missing before");
        refused(
            "a: { b: /v1/{id} }\n",
            " --> f:1:9\n  |\n1 | a: { b: /v1/{id} }\n  |         ^^^^^^^^\n  = help: write \"/v1/{id}\"",
        );
        refused("a: [/é/{id}/x, b]\n", "`/é/{id}/x` needs quotes");
        refused("a: {b: /v1/{id}}\n", "write \"/v1/{id}\"");
        refused("a: { b: x[1, 2] }\n", "write \"x[1, 2]\"");
        refused("a: b: c\n", "f:1:5");
        refused("a: {<<: {b: 1}}\n", "merge keys");
    }

    #[test]
    fn hostile_texts_end_soon() {
        let bomb = (0..40).fold("a0: &a0 [x]\n".to_owned(), |text, level| {
            format!("{text}a{}: &a{} [*a{level}, *a{level}]\n", level + 1, level + 1)
        });
        refused(&bomb, "aliases");
        // The parser bounds flow collections itself, because it reads ahead to their end.
        refused(&"[".repeat(1_000_000), "recursion limit");
        refused(&"- ".repeat(1_000_000), "nested deeper");
        refused(&"{a: ".repeat(1_000_000), "");
        refused(&format!("{}: 1\n", "k".repeat(10_000)), "mapping values are not allowed");
        refused(&format!("a: \"{}", "x".repeat(1_000_000)), "quote");
    }
}
