//! Lines of text by a template: values with text between them.
//!
//! A value ends where the text behind it begins. Servers escape quotes in values, so a value between quotes ends at the
//! first quote that is not escaped.

use super::Unreadable;
use super::escape::Escapes;
use super::field::{Draft, Field};
use super::instant::Instants;
use super::tells::{self, Tells};
use super::told::Told;
use crate::engine::request::part::Source;
use crate::logs::LogEntry;

mod apache;
mod envoy;
mod haproxy;
mod nginx;

pub(super) use self::haproxy::json_members;
pub(super) use self::nginx::variable;

/// The longest template, in bytes.
const MAX_LENGTH: usize = 4096;

/// A compiled template.
#[derive(Clone, Debug)]
pub(super) struct Template {
    start: Box<[u8]>,
    values: Vec<Value>,
    escapes: Escapes,
    tells: Tells,
    /// The parts that lines have no place for, though earlier lines of the log had one.
    lacking: Vec<Field>,
    /// The parts for which the first lines of the log have no place.
    late: Vec<Source>,
    /// More text may follow, after a space.
    is_open: bool,
}

#[derive(Clone, Debug)]
struct Value {
    field: Field,
    /// The text behind the value. Only the last value has none: it ends with the line.
    end: Box<[u8]>,
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Value(Field),
}

/// Moves the text up to the next variable to the pieces, `%%` as one percent sign. Returns false if there is no variable left.
fn text_before_variable(pieces: &mut Vec<Piece>, rest: &mut &str) -> bool {
    while let Some((text, behind)) = rest.split_once('%') {
        pieces.push(Piece::Text(text.into()));
        *rest = behind;
        let Some(behind) = rest.strip_prefix('%') else { return true };
        pieces.push(Piece::Text(b"%".into()));
        *rest = behind;
    }
    false
}

impl Template {
    /// Compiles a template as nginx, Apache, Envoy or HAProxy write it. The error says what is wrong.
    pub(super) fn compile(template: &str) -> Result<Self, String> {
        if template.len() > MAX_LENGTH {
            return Err(format!("a format must not be longer than {MAX_LENGTH} bytes"));
        }
        let (pieces, escapes) = if haproxy::is_haproxy(template) {
            (haproxy::pieces(template)?, Escapes::Hash)
        } else if nginx::is_nginx(template) {
            (nginx::pieces(template)?, Escapes::Backslash)
        } else if envoy::is_envoy(template) {
            (envoy::pieces(template)?, Escapes::None)
        } else {
            (apache::pieces(template)?, Escapes::Backslash)
        };
        Self::of(pieces, escapes)
    }

    fn of(pieces: Vec<Piece>, escapes: Escapes) -> Result<Self, String> {
        let (mut start, mut values) = (Vec::new(), Vec::<Value>::new());
        for piece in with_whole_targets(pieces) {
            match (piece, values.last_mut()) {
                (Piece::Text(text), None) => start.extend(text),
                (Piece::Text(text), Some(value)) => value.end = [&*value.end, &text].concat().into(),
                (Piece::Value(_), Some(value)) if value.end.is_empty() => {
                    return Err("two values without text between them cannot be told apart".to_owned());
                }
                (Piece::Value(field), _) => values.push(Value { field, end: Box::default() }),
            }
        }
        if values.iter().all(|value| !matches!(value.field, Field::Arrival | Field::End)) {
            return Err("a format must tell the time of a request, such as `$msec`, `%t` or `%START_TIME%`".to_owned());
        }
        let tells = Tells::of(values.iter().map(|value| &value.field));
        Ok(Self { start: start.into(), values, escapes, tells, lacking: Vec::new(), late: Vec::new(), is_open: false })
    }

    /// The template of values with the same text between all of them.
    pub(super) fn separated(fields: Vec<Field>, separator: u8, escapes: Escapes) -> Result<Self, String> {
        let mut pieces: Vec<Piece> =
            fields.into_iter().flat_map(|field| [Piece::Value(field), Piece::Text(vec![separator])]).collect();
        pieces.pop();
        Self::of(pieces, escapes)
    }

    /// Accepts more values at the end of lines, without reading them.
    pub(super) fn open(self) -> Self {
        Self { is_open: true, ..self }
    }

    /// Goes on with a log that has begun with lines of another template.
    pub(super) fn go_on(&mut self, first: &Self) {
        let before = first.values.iter().map(|value| &value.field).chain(&first.lacking);
        let gone = before.filter(|field| self.values.iter().all(|value| value.field != **field));
        self.lacking = gone.cloned().collect();
        let values = first.values.iter().map(|value| &value.field).chain(&first.lacking);
        let known: Vec<Source> = values.flat_map(tells::sources).filter(|part| !first.late.contains(part)).collect();
        let own = self.values.iter().flat_map(|value| tells::sources(&value.field));
        self.late = own.filter(|part| !known.contains(part)).collect();
        self.tells = first.tells;
    }

    /// Ignores headers, as if their values were not there.
    pub(super) fn ignore_headers(&mut self, is_ignored: impl Fn(&str) -> bool) {
        for Value { field, .. } in &mut self.values {
            if let Field::Header(name) = field
                && is_ignored(name)
            {
                *field = Field::Ignored;
            }
        }
    }

    pub(super) fn told(&self) -> Told {
        tells::told(self.values.iter().map(|value| &value.field))
    }

    /// Returns the entry of a line.
    pub(super) fn parse<'a>(&'a self, line: &'a [u8], instants: &mut Instants) -> Result<LogEntry<'a>, Unreadable> {
        let expected_text =
            |text: &[u8], at| Unreadable { expected: format!("`{}`", String::from_utf8_lossy(text)).into(), at };
        let mut draft = Draft::default();
        let mut rest = line.strip_prefix(&*self.start).ok_or_else(|| expected_text(&self.start, 0))?;
        for (place, Value { field, end }) in self.values.iter().enumerate() {
            let at = line.len() - rest.len();
            let is_last = place + 1 == self.values.len();
            let length = match (is_last, self.is_open) {
                (true, false) => rest.strip_suffix(&**end).map(<[u8]>::len),
                (true, true) if end.is_empty() => Some(memchr::memchr(b' ', rest).unwrap_or(rest.len())),
                _ => find(rest, end, self.escapes),
            };
            let mut length = length.ok_or_else(|| expected_text(end, line.len()))?;
            if matches!(field, Field::Arrival | Field::End) {
                length = instant_length(rest, length, end, instants);
            }
            let (value, behind) = rest.split_at(length);
            draft
                .add(field, value, self.escapes, instants)
                .map_err(|expected| Unreadable { expected: expected.into(), at })?;
            rest = behind.get(end.len()..).unwrap_or_default();
        }
        if self.is_open && !rest.is_empty() && rest[0] != b' ' {
            return Err(expected_text(b" ", line.len() - rest.len()));
        }
        self.lacking.iter().for_each(|field| draft.add_lack(field));
        draft.add_late(&self.late);
        draft.finish(self.tells).map_err(|expected| Unreadable { expected: expected.into(), at: 0 })
    }
}

/// The length of an instant, of which a space in it may have cut off the end: `$time_local $status`, or a date and a time.
fn instant_length(rest: &[u8], first: usize, end: &[u8], instants: &mut Instants) -> usize {
    /// A date, a time and a zone have two.
    const MOST_SPACES: usize = 2;
    let mut length = first;
    if !matches!(end, [b' ' | b'\t', ..]) {
        return length;
    }
    for _ in 0..MOST_SPACES {
        let more = rest.get(length + 1..).and_then(|behind| find(behind, end, Escapes::None));
        let Some(longer) = more.map(|more| length + 1 + more) else { break };
        if instants.read(&rest[..longer]).is_none() {
            break;
        }
        length = longer;
    }
    length
}

/// Joins a path with the query that is written directly behind it: `$uri$is_args$args`, `%U%q`.
fn with_whole_targets(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let before = joined.len();
        joined.push(piece);
        let path = match &joined[..] {
            [.., Piece::Value(Field::DecodedPath), Piece::Value(Field::Query)] => before - 1,
            [.., Piece::Value(Field::DecodedPath), Piece::Value(Field::Ignored), Piece::Value(Field::Query)] => {
                before - 2
            }
            _ => continue,
        };
        joined.truncate(path);
        joined.push(Piece::Value(Field::DecodedTarget));
    }
    joined
}

/// The place of a text that ends a value. An escaped quote ends none.
fn find(rest: &[u8], end: &[u8], escapes: Escapes) -> Option<usize> {
    let (first, tail) = end.split_first()?;
    if let (b' ', []) = (first, tail) {
        // Most values that end with a space are short: a search of many bytes at once takes longer to begin.
        return rest.iter().position(|byte| *byte == b' ');
    }
    let is_escaped = |place: usize| {
        *first == b'"'
            && escapes == Escapes::Backslash
            && rest[..place].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
    };
    memchr::memchr_iter(*first, rest).find(|place| rest[place + 1..].starts_with(tail) && !is_escaped(*place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::micros::Micros;

    pub(super) fn parse(template: &str, line: &str) -> Result<LogEntry<'static>, Unreadable> {
        let template = Box::leak(Box::new(Template::compile(template).unwrap()));
        let line = Box::leak(line.to_owned().into_boxed_str());
        template.parse(line.as_bytes(), &mut Instants::new())
    }

    #[test]
    fn an_instant_with_spaces_is_read_whole() {
        let at = |text| parse("$msec", text).unwrap().at;
        for (template, line) in [
            ("$time_local $status", "21/Nov/2026:04:00:06 +0100 200"),
            ("$time_local $request_method", "21/Nov/2026:04:00:06 +0100 GET"),
            ("$remote_addr $time_local $request", "192.0.2.7 21/Nov/2026:04:00:06 +0100 GET /a HTTP/1.1"),
            ("$time_local \"$request\"", "21/Nov/2026:04:00:06 +0100 \"GET /a HTTP/1.1\""),
            ("$time_local $status", "2026-11-21 03:00:06 200"),
            ("$time_local $status", "2026-11-21 04:00:06 +0100 200"),
        ] {
            let entry = parse(template, line).unwrap();
            assert_eq!((entry.at, entry.is_rejected), (at("2026-11-21T03:00:06Z"), false), "{template}: {entry:?}");
        }
        let entry = parse("$msec $status $request_length", "1.5 200 300").unwrap();
        assert_eq!((entry.at, entry.status), (Micros(1_500_000), Some(200)));
    }

    #[test]
    fn a_value_ends_at_the_text_behind_it() {
        let format = "$msec $remote_user \"$http_a\" \"$http_b\"$http_c";
        let entry = parse(format, "1.5 a b \"x\\\" y\" \"\\\\\"z\"").unwrap();
        let values: Vec<_> = entry.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(values, [("a", &b"x\" y"[..]), ("b", b"\\"), ("c", b"z\"")]);
    }

    #[test]
    fn a_broken_line_says_what_was_expected_and_where() {
        for (line, expected) in [
            ("", "expected `[` at byte 0"),
            ("[1.5", "expected `] ` at byte 4"),
            ("[x] 200", "expected an instant at byte 1"),
            ("[1.5] 2000", "expected a status at byte 6"),
        ] {
            assert_eq!(parse("[$msec] $status", line).unwrap_err().to_string(), expected, "{line}");
        }
    }

    #[test]
    fn a_template_that_cannot_be_read_is_refused() {
        for (template, part) in [
            ("$msec$status", "without text between"),
            ("$remote_addr $status", "must tell the time"),
            ("plain", "must tell the time"),
            ("${msec $status", "`${`"),
            ("%h %{Referer %t", "`%{`"),
            ("%START_TIME% %REQ(A", "`%`"),
        ] {
            let error = Template::compile(template).unwrap_err();
            assert!(error.contains(part), "{template}: {error}");
        }
        assert!(Template::compile(&"x".repeat(MAX_LENGTH + 1)).is_err());
    }
}
