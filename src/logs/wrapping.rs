//! What collectors put around the lines of a log: text before each line, or an object that has the line as a member.

use std::borrow::Cow;

use regex::bytes::Regex;

use super::escape::unescaped;
use super::json;
use super::lines::lines;

/// How one collector wraps a line.
struct Shape {
    name: &'static str,
    holder: Holder,
    parts: Parts,
    /// Lines that match this belong to a record, and are none of the log.
    beside: Option<&'static str>,
}

/// The place of the line.
enum Holder {
    /// Behind text that matches this.
    Behind(&'static str),
    /// In this member of an object, as a text.
    Member(&'static str),
}

/// How a line that is longer than the collector's buffer goes on in the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    Never,
    /// `P` stands before a part that goes on, and `F` before the last one.
    Marked,
    /// The last part ends with a newline.
    UntilNewline,
}

const fn behind(name: &'static str, pattern: &'static str) -> Shape {
    Shape { name, holder: Holder::Behind(pattern), parts: Parts::Never, beside: None }
}

const fn member(name: &'static str, member: &'static str) -> Shape {
    Shape { name, holder: Holder::Member(member), parts: Parts::Never, beside: None }
}

/// The order is that of trial.
const SHAPES: [Shape; 12] = [
    Shape {
        parts: Parts::Marked,
        ..behind("CRI", r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP](?::\S*)? ")
    },
    Shape { parts: Parts::UntilNewline, ..member("Docker's JSON", "log") },
    member("JSON with `log`", "log"),
    member("journald's JSON", "MESSAGE"),
    member("JSON with `message`", "message"),
    member("Google Cloud's JSON", "textPayload"),
    Shape { beside: Some("^[A-Z_][A-Z0-9_]*="), ..behind("journald's export", "^MESSAGE=") },
    behind("docker compose", r"^(?:\x1b\[[\d;]*m)*[\w.-]+ *\| (?:\x1b\[[\d;]*m)*"),
    behind("kubectl --prefix", r"^\[pod/[^\] ]+\] "),
    behind("syslog (RFC 5424)", r"^<\d{1,3}>1 (?:\S+ ){5}(?:-|(?:\[(?:[^\]\\]|\\.)*\])+) (?:\xEF\xBB\xBF)?"),
    behind(
        "syslog",
        r"^(?:<\d{1,3}>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) (?:\S+ )?[^\s:\[]+(?:\[[^\]]*\])?: ",
    ),
    behind("a time", r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) "),
];

/// The most shapes around each other, such as those of `kubectl logs --prefix --timestamps`.
const MOST_LAYERS: usize = 3;

/// The ways in which lines may be wrapped that are tried, at most.
const MOST_TRIED: usize = 32;

/// The shapes around the lines of a file, the outermost first.
#[derive(Clone, Debug, Default)]
pub struct Wrapping(Vec<Layer>);

#[derive(Clone, Debug)]
struct Layer {
    /// In [`SHAPES`].
    shape: usize,
    behind: Option<Regex>,
    beside: Option<Regex>,
}

/// A line without a layer, or a part of it.
struct Held<'a> {
    text: Cow<'a, [u8]>,
    goes_on: bool,
    /// Each stream of a container has its own parts.
    is_stderr: bool,
}

impl Layer {
    fn new(shape: usize) -> Self {
        // The patterns are constants, and a test compiles them.
        let regex = |pattern: &str| Regex::new(&format!("(?-u){pattern}")).ok();
        let Shape { holder, beside, .. } = &SHAPES[shape];
        let behind = if let Holder::Behind(pattern) = holder { regex(pattern) } else { None };
        Self { shape, behind, beside: beside.and_then(regex) }
    }

    /// What the layer holds; `None` for a line without it.
    fn held<'a>(&self, line: &'a [u8]) -> Option<Held<'a>> {
        let Shape { holder, parts, .. } = &SHAPES[self.shape];
        let (head, text) = match holder {
            Holder::Behind(_) => {
                let (head, text) = line.split_at(self.behind.as_ref()?.find(line)?.end());
                (head, Cow::Borrowed(text))
            }
            Holder::Member(name) => (line, unescaped(json::text_member(line, name.as_bytes())?)),
        };
        let goes_on = match parts {
            Parts::Never => false,
            Parts::Marked => memchr::memmem::find(head, b" P").is_some(),
            Parts::UntilNewline => text.last() != Some(&b'\n'),
        };
        let stderr: &[u8] = if *parts == Parts::Marked { b" stderr " } else { b"\"stream\":\"stderr\"" };
        let is_stderr = *parts != Parts::Never && memchr::memmem::find(head, stderr).is_some();
        Some(Held { text, goes_on, is_stderr })
    }

    /// Takes the layer off lines. Each keeps its number: the parts of a line are empty but for the last. A line without the layer stays.
    fn taken_off(&self, bytes: &[u8]) -> Vec<u8> {
        let mut unwrapped = Vec::with_capacity(bytes.len());
        let mut parts = [Vec::new(), Vec::new()];
        for line in lines(bytes) {
            match self.held(line) {
                Some(Held { text, goes_on, is_stderr }) => {
                    let text = text.strip_suffix(b"\n").unwrap_or(&text);
                    let part = &mut parts[usize::from(is_stderr)];
                    let start = if goes_on { part.len() } else { unwrapped.len() };
                    let into = if goes_on { &mut *part } else { &mut unwrapped };
                    into.extend_from_slice(text);
                    into[start..].iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
                    if !goes_on && !part.is_empty() {
                        unwrapped.splice(start..start, part.drain(..));
                    }
                }
                None if self.beside.as_ref().is_some_and(|beside| beside.is_match(line)) => {}
                None => unwrapped.extend_from_slice(line),
            }
            unwrapped.push(b'\n');
        }
        // What the file lacks the end of.
        for part in parts.iter().filter(|part| !part.is_empty()) {
            unwrapped.pop();
            unwrapped.extend_from_slice(part);
            unwrapped.push(b'\n');
        }
        unwrapped
    }
}

impl Wrapping {
    pub(super) fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// The collectors, for people.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|layer| SHAPES[layer.shape].name)
    }

    pub(super) fn taken_off(&self, bytes: Vec<u8>) -> Vec<u8> {
        self.0.iter().fold(bytes, |bytes, layer| layer.taken_off(&bytes))
    }

    /// Returns true for a part of a line whose rest is in the next one.
    pub(super) fn goes_on(&self, line: &[u8]) -> bool {
        self.0.first().and_then(|layer| layer.held(line)).is_some_and(|held| held.goes_on)
    }

    /// The ways in which some of these lines may be wrapped, with the lines without it, fewer layers first.
    pub(super) fn of(bytes: &[u8]) -> Vec<(Self, Vec<u8>)> {
        let layers: Vec<Layer> = (0..SHAPES.len()).map(Layer::new).collect();
        let mut found = vec![(Self::default(), bytes.to_vec())];
        let mut place = 0;
        while let Some((wrapping, bytes)) = found.get(place).cloned() {
            place += 1;
            let is_new = |layer: &&Layer| wrapping.0.iter().all(|other| other.shape != layer.shape);
            for layer in layers.iter().filter(is_new).filter(|_| wrapping.0.len() < MOST_LAYERS) {
                if found.len() < MOST_TRIED && lines(&bytes).any(|line| layer.held(line).is_some()) {
                    let more = Self([&wrapping.0[..], std::slice::from_ref(layer)].concat());
                    found.push((more, layer.taken_off(&bytes)));
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_taken_off() {
        for (name, wrapped) in [
            ("CRI", "2026-11-27T04:00:00.123456789Z stdout F LINE"),
            ("CRI", "2026-11-27T04:00:00.123456789+01:00 stderr F LINE"),
            ("Docker's JSON", r#"{"log":"LINE\n","stream":"stdout","time":"2026-11-27T04:00:00Z"}"#),
            ("JSON with `log`", r#"{"log":"LINE","kubernetes":{"pod":"a"}}"#),
            ("journald's JSON", r#"{"PRIORITY":"6","MESSAGE":"LINE","_PID":"7"}"#),
            ("JSON with `message`", r#"{"message":"LINE"}"#),
            ("Google Cloud's JSON", r#"{"insertId":"x","textPayload":"LINE"}"#),
            ("journald's export", "MESSAGE=LINE"),
            ("docker compose", "web-1  | LINE"),
            ("docker compose", "\u{1b}[36mweb-1  | \u{1b}[0mLINE"),
            ("kubectl --prefix", "[pod/web-7d4b9c/nginx] LINE"),
            ("syslog (RFC 5424)", "<165>1 2026-11-27T04:00:00.003Z host nginx 8710 - - LINE"),
            ("syslog (RFC 5424)", "<165>1 2026-11-27T04:00:00Z h n - ID47 [a@1 b=\"c \\] d\"][e@2] \u{feff}LINE"),
            ("syslog", "<13>Nov 27 04:00:00 host nginx: LINE"),
            ("syslog", "Nov  7 04:00:00 10.0.0.9 nginx[7]: LINE"),
            ("syslog", "<190>Nov 27 04:00:00 nginx: LINE"),
            ("syslog", "2026-11-27T04:00:00.123456+00:00 host nginx: LINE"),
            ("a time", "2026-11-27T04:00:00.123456789Z LINE"),
        ] {
            let line = r#"192.0.2.7 - - "GET /a b: HTTP/1.1""#;
            let escaped = if wrapped.starts_with('{') { line.replace('"', "\\\"") } else { line.to_owned() };
            let wrapped = wrapped.replace("LINE", &escaped);
            let layer = (0..SHAPES.len()).find(|shape| SHAPES[*shape].name == name).map(Layer::new).unwrap();
            let text = String::from_utf8(layer.taken_off(wrapped.as_bytes())).unwrap();
            assert_eq!(text, format!("{line}\n"), "{name}: {wrapped}");
        }
    }

    #[test]
    fn parts_are_joined_and_lines_keep_their_numbers() {
        let cri = "T stdout P aa\nT stderr P e\nT stdout P bb\nT stdout F cc\nbare\nT stderr F f\nT stdout P cut\n";
        let cri = cri.replace('T', "2026-11-27T04:00:00Z");
        assert_eq!(Layer::new(0).taken_off(cri.as_bytes()), b"\n\n\naabbcc\nbare\nef\ncut\n");
        let docker = "{\"log\":\"aa\"}\n{\"log\":\"bb\\n\"}\n{\"log\":\"c\\n7\\n\"}\n";
        assert_eq!(Layer::new(1).taken_off(docker.as_bytes()), b"\naabb\nc 7\n");
        let export = b"__CURSOR=s\nMESSAGE=line\n_PID=7\n\n";
        assert_eq!(Layer::new(6).taken_off(export), b"\nline\n\n\n");
    }

    #[test]
    fn shapes_may_stand_around_each_other() {
        let line = b"[pod/web/nginx] 2026-11-27T04:00:00Z LINE\n";
        let found = Wrapping::of(line);
        assert!(found[0].0.is_none() && found.len() < 8, "{found:?}");
        let names = ["kubectl --prefix", "a time"];
        assert!(found.iter().any(|(wrapping, text)| wrapping.names().eq(names) && text == b"LINE\n"), "{found:?}");
    }
}
