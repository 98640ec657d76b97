//! YAML text as a stream of entries, each a small tree that knows its places.
//!
//! The events of the parser are used directly, for two reasons: a deserialiser stops at the first type error, while
//! all mistakes should be reported at once; and a file with a million overrides must not become one tree in memory.
//! Only what the rules need is taken: anchors, aliases, tags and keys that are no text are refused.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::problem::{Findings, Place, Reported, quoted};

/// Nothing in the rules is nested deeper than nine levels. In the files of envoyproxy/ratelimit each entry of a
/// descriptor takes two, and nobody has a dozen entries.
const DEEPEST: usize = 32;

/// The tags that files of others may have begin so, `!!`.
const TAGS: &str = "tag:yaml.org,2002:";

/// The tag that js-yaml gives to the regular expressions of JavaScript.
const REGEXP: &str = "js/regexp";

/// The tag of an instant (YAML 1.1).
const TIMESTAMP: &str = "timestamp";

/// Up to so many keys are compared one by one.
const FEW: usize = 16;

/// A value and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) value: Value,
}

/// A scalar, a map or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Text as written; only plain text can be a number, a truth value or nothing.
    Scalar { text: String, plain: bool },
    /// In the order of the file, each key once.
    Map(Vec<(Key, Node)>),
    /// In the order of the file.
    List(Vec<Node>),
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) place: Place,
}

/// What a value begins as, when its entries are to be read one by one.
pub(super) enum Opened {
    /// [`Reader::key`] gives its keys.
    Map(Place),
    /// [`Reader::item`] tells whether there is another item.
    List(Place),
    /// It is a scalar and has been read.
    Scalar(Node),
    /// The document has no content at all.
    Nothing,
}

/// Reads one document. After an error nothing further can be read: the reason is among the findings.
pub(super) struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    depth: usize,
    last: Place,
    /// Takes values with the tags [`REGEXP`] and [`TIMESTAMP`].
    takes_tags: bool,
}

impl Node {
    /// Whether nothing is written here, or `null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null"))
    }

    /// What it is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::Scalar { .. } if self.is_null() => "nothing",
            Value::Scalar { .. } => "a single value",
            Value::Map(_) => "a map",
            Value::List(_) => "a list",
        }
    }
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let parser = Parser::new_from_str(text);
        Self { parser, depth: 0, last: Place { line: 1, column: 1, width: 1 }, takes_tags: false }
    }

    /// Refuses indentation with tabs, which the parser lets pass in places: YAML forbids it (section 6.1), and what
    /// it means depends on the editor.
    pub(super) fn refuse_tabs(text: &str, findings: &mut Findings) -> Result<(), Reported> {
        let mut outcome = Ok(());
        for (line, content) in (1..).zip(text.lines()) {
            let rest = content.trim_start_matches(' ');
            if rest.starts_with('\t') && !matches!(rest.trim_start().chars().next(), None | Some('#')) {
                let column = u32::try_from(content.len() - rest.len() + 1).unwrap_or(u32::MAX);
                let place = Place { line, column, width: 1 };
                outcome = Err(findings.error(place, "a tab in the indentation", "indent with spaces"));
            }
        }
        outcome
    }

    /// Begins the document and its root.
    pub(super) fn root(&mut self, findings: &mut Findings) -> Result<Opened, Reported> {
        loop {
            match self.next(findings)? {
                (Event::StreamStart | Event::DocumentStart(_), _) => {}
                (Event::StreamEnd, _) => return Ok(Opened::Nothing),
                (event, span) => return self.opened(event, span, findings),
            }
        }
    }

    /// Begins the next value.
    pub(super) fn open(&mut self, findings: &mut Findings) -> Result<Opened, Reported> {
        let (event, span) = self.next(findings)?;
        self.opened(event, span, findings)
    }

    /// The next key of the map that was opened last, or `None` at its end.
    pub(super) fn key(&mut self, findings: &mut Findings) -> Result<Option<Key>, Reported> {
        match self.next(findings)? {
            (Event::MappingEnd, _) => {
                self.depth -= 1;
                Ok(None)
            }
            (event, span) => Ok(Some(key_of(event, span, findings)?)),
        }
    }

    /// Whether the list that was opened last has another item; if not, it is closed.
    pub(super) fn item(&mut self, findings: &mut Findings) -> Result<bool, Reported> {
        let ends = match self.parser.peek() {
            Some(Ok((event, _))) => matches!(event, Event::SequenceEnd),
            // Reading it reports the error.
            _ => false,
        };
        if ends {
            self.next(findings)?;
            self.depth -= 1;
        }
        Ok(!ends)
    }

    /// The next value, whole.
    pub(super) fn node(&mut self, findings: &mut Findings) -> Result<Node, Reported> {
        let (event, span) = self.next(findings)?;
        self.build(event, span, findings)
    }

    /// Passes over the next value.
    pub(super) fn skip(&mut self, findings: &mut Findings) -> Result<(), Reported> {
        let mut open = 0usize;
        loop {
            match self.next(findings)?.0 {
                Event::MappingStart(..) | Event::SequenceStart(..) => open += 1,
                Event::MappingEnd | Event::SequenceEnd => open = open.saturating_sub(1),
                _ => {}
            }
            if open == 0 {
                return Ok(());
            }
        }
    }

    /// Reads all documents of the text. Those in which nothing is written are left out.
    pub(super) fn documents(&mut self, findings: &mut Findings) -> Result<Vec<Node>, Reported> {
        let mut documents = Vec::new();
        loop {
            match self.next(findings)? {
                (Event::StreamEnd, _) => return Ok(documents),
                (Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd, _) => {}
                (event, span) => {
                    let node = self.build(event, span, findings)?;
                    if !node.is_null() {
                        documents.push(node);
                    }
                }
            }
        }
    }

    /// Ends the document; a second one would be overlooked by most programs.
    pub(super) fn end(&mut self, findings: &mut Findings) -> Result<(), Reported> {
        loop {
            match self.next(findings)? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentStart(_), span) => {
                    return Err(findings.error(
                        place(span),
                        "a second YAML document in the file",
                        "remove the `---` or split the file",
                    ));
                }
                _ => {}
            }
        }
    }

    fn next(&mut self, findings: &mut Findings) -> Result<(Event<'t>, Span), Reported> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => {
                self.last = place(span);
                Ok((event, span))
            }
            Some(Err(error)) => Err(syntax(&error, findings)),
            None => Err(findings.error(self.last, "unexpected end of file", "")),
        }
    }

    fn opened(&mut self, event: Event<'t>, span: Span, findings: &mut Findings) -> Result<Opened, Reported> {
        refuse_extras(&event, span, findings)?;
        match event {
            Event::MappingStart(..) => {
                self.deeper(span, findings)?;
                Ok(Opened::Map(place(span)))
            }
            Event::SequenceStart(..) => {
                self.deeper(span, findings)?;
                Ok(Opened::List(place(span)))
            }
            event => Ok(Opened::Scalar(self.build(event, span, findings)?)),
        }
    }

    fn deeper(&mut self, span: Span, findings: &mut Findings) -> Result<(), Reported> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(findings.error(place(span), format!("nested deeper than {DEEPEST} levels"), ""));
        }
        Ok(())
    }

    /// Recursion is bounded by [`DEEPEST`].
    fn build(&mut self, event: Event<'t>, span: Span, findings: &mut Findings) -> Result<Node, Reported> {
        if let (true, Event::Scalar(text, _, 0, Some(tag))) = (self.takes_tags, &event)
            && tag.handle.as_str() == TAGS
        {
            match tag.suffix.as_str() {
                REGEXP => return regexp(text, place(span), findings),
                TIMESTAMP => {
                    let value = Value::Scalar { text: text.to_string(), plain: false };
                    return Ok(Node { place: place(span), value });
                }
                _ => {}
            }
        }
        refuse_extras(&event, span, findings)?;
        let place = place(span);
        let value = match event {
            Event::Scalar(text, style, ..) => {
                Value::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain }
            }
            Event::MappingStart(..) => {
                self.deeper(span, findings)?;
                let mut entries: Vec<(Key, Node)> = Vec::new();
                let mut seen = Seen::default();
                while let Some(key) = self.key(findings)? {
                    let node = self.node(findings)?;
                    // Nearly all maps are small, and comparing a few keys is cheaper than a table for them.
                    let first = entries.iter().take(FEW).find(|(given, _)| given.text == key.text);
                    if let Some((given, _)) = first {
                        repeated(&key, given.place.line, findings);
                    } else if entries.len() < FEW || seen.is_new(&key, findings) {
                        entries.push((key, node));
                    }
                }
                Value::Map(entries)
            }
            Event::SequenceStart(..) => {
                self.deeper(span, findings)?;
                let mut items = Vec::new();
                while self.item(findings)? {
                    items.push(self.node(findings)?);
                }
                Value::List(items)
            }
            _ => return Err(findings.error(place, "missing value", "")),
        };
        Ok(Node { place, value })
    }
}

fn key_of(event: Event<'_>, span: Span, findings: &mut Findings) -> Result<Key, Reported> {
    refuse_extras(&event, span, findings)?;
    let place = place(span);
    match event {
        Event::Scalar(text, ..) if text == "<<" => {
            Err(findings.error(place, "merge keys (`<<`) are not supported", "write the keys out"))
        }
        Event::Scalar(text, ..) => Ok(Key { text: text.into_owned(), place }),
        _ => Err(findings.error(place, "keys must be text", "quote keys that start with [ or {")),
    }
}

/// The keys of a map that were seen, to find the second of two equal ones.
#[derive(Default)]
pub(super) struct Seen(HashMap<String, u32>);

impl Seen {
    /// Whether the key is new; if not, that is reported.
    pub(super) fn is_new(&mut self, key: &Key, findings: &mut Findings) -> bool {
        if let Some(line) = self.0.get(&key.text) {
            repeated(key, *line, findings);
            return false;
        }
        self.0.insert(key.text.clone(), key.place.line);
        true
    }
}

fn repeated(key: &Key, first: u32, findings: &mut Findings) {
    let message = format!("duplicate key {}", quoted(&key.text));
    findings.error(key.place, message, format!("the first one is on line {first}; keep one of them"));
}

/// The source of `/source/flags`, as text.
fn regexp(text: &str, place: Place, findings: &mut Findings) -> Result<Node, Reported> {
    let source = text.strip_prefix('/').and_then(|rest| rest.rsplit_once('/')).map(|(source, _)| source);
    match source {
        Some(source) => Ok(Node { place, value: Value::Scalar { text: source.to_owned(), plain: false } }),
        None => Err(findings.error(place, format!("invalid regular expression {}", quoted(text)), "write `/.../`")),
    }
}

/// Refuses what gives a value another meaning than its text has.
fn refuse_extras(event: &Event<'_>, span: Span, findings: &mut Findings) -> Result<(), Reported> {
    let (anchor, tagged) = match event {
        Event::Alias(_) => (1, false),
        Event::Scalar(_, _, anchor, tag) | Event::MappingStart(anchor, tag) | Event::SequenceStart(anchor, tag) => {
            (*anchor, tag.is_some())
        }
        _ => (0, false),
    };
    if anchor > 0 {
        let message = "anchors (`&`) and aliases (`*`) are not supported";
        return Err(findings.error(place(span), message, "write the value out; quote it if it starts with & or *"));
    }
    if tagged {
        return Err(findings.error(place(span), "tags (`!`) are not supported", "write the value without a tag"));
    }
    Ok(())
}

fn syntax(error: &ScanError, findings: &mut Findings) -> Reported {
    let marker = error.marker();
    let place = Place { line: number(marker.line()), column: number(marker.col() + 1), width: 1 };
    let help = match error.info() {
        info if info.contains("unknown anchor") => "a value that starts with `*` needs quotes",
        info if info.contains("mapping values are not allowed") => {
            "check the indentation; a value that contains `: ` needs quotes"
        }
        info if info.contains("flow") => "is a `,`, `}` or `]` missing before?",
        info if info.contains("quoted scalar") => "is the closing quote missing?",
        _ => "",
    };
    findings.error(place, format!("YAML: {}", error.info()), help)
}

fn place(span: Span) -> Place {
    let width = if span.start.line() == span.end.line() { span.end.col().saturating_sub(span.start.col()) } else { 1 };
    Place { line: number(span.start.line()), column: number(span.start.col() + 1), width: number(width.max(1)) }
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Reads a whole text as one tree, which takes several times the memory of the text.
///
/// Of the tags that limitd's files have, a value tagged `!!js/regexp` is the source of the expression and one tagged
/// `!!timestamp` is its text. Others are refused.
pub(crate) fn tree(text: &str, findings: &mut Findings) -> Result<Node, Reported> {
    let mut reader = Reader { takes_tags: true, ..Reader::new(text) };
    loop {
        let (event, span) = reader.next(findings)?;
        if !matches!(event, Event::StreamStart | Event::DocumentStart(_)) {
            let node = reader.build(event, span, findings)?;
            reader.end(findings)?;
            return Ok(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::Report;
    use super::*;

    /// Reads `text`, which must be refused with this in the report, soon.
    #[track_caller]
    fn refused(text: &str, expected: &str) {
        let mut findings = Findings::new("f");
        let outcome = tree(text, &mut findings);
        let mut report = Report::default();
        report.add(findings, text);
        assert!(report.errors > 0, "{outcome:?}");
        assert!(report.to_string().contains(expected), "{report}");
    }

    #[test]
    fn values_know_their_places_and_styles() {
        let mut findings = Findings::new("f");
        let Ok(node) = tree("a: 010\nb: ['x', é: 1]\nc:\n", &mut findings) else { panic!("refused") };
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
