//! The headers of a message: an ordered list of names and values in one buffer.
//!
//! A proxy forwards most headers unchanged, so they keep their order and spelling, each line by itself (RFC 9110 section
//! 5.3: the order of lines with the same name matters). Searching a list of a dozen names costs less than hashing a dozen
//! names that are never looked up. Most names that a proxy looks for are absent, which a 64-bit filter of marks shows
//! without a search.

use std::fmt::{self, Debug};

use bytes::BufMut;

/// The id of the queue entry that a request has become, for its upstream or gateway. Clients' headers of this name are removed.
pub const QUEUE_ENTRY: &str = "x-queue-entry";

/// The headers of a message. Names are tokens and compare case-insensitively. Values have no CR, LF or NUL and no
/// surrounding white space. Callers that append have checked that with [`is_name`] and [`is_value`].
#[derive(Clone, Default)]
pub struct Headers {
    /// Each line as it is sent: `name: value` and CR LF. There may be other bytes between lines that were parts of a head.
    text: Vec<u8>,
    lines: Vec<Line>,
    /// The [`mark`]s of all names that were ever added.
    marks: u64,
}

/// The start and length of a name, and the start and end of its value.
#[derive(Clone, Copy)]
struct Line {
    start: u32,
    name: u16,
    value: u32,
    end: u32,
}

impl Headers {
    pub const fn new() -> Self {
        Self { text: Vec::new(), lines: Vec::new(), marks: 0 }
    }

    /// Reserves room for `lines` with `bytes` of text in all.
    pub fn with_capacity(lines: usize, bytes: usize) -> Self {
        Self { text: Vec::with_capacity(bytes), lines: Vec::with_capacity(lines), marks: 0 }
    }

    /// Reserves room for `lines` more with `bytes` of text in all.
    pub fn reserve(&mut self, lines: usize, bytes: usize) {
        self.text.reserve(bytes);
        self.lines.reserve(lines);
    }

    /// The lines of a head that was read. Names and values are parts of `head`, which is copied as a whole; `more` is
    /// additional room in lines and bytes.
    pub fn of_head<'a>(
        head: &'a [u8],
        lines: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
        more: (usize, usize),
    ) -> Self {
        let mut headers = Self::new();
        headers.set_head(head, lines, more);
        headers
    }

    /// Replaces all lines with those of a head, as [`Self::of_head`] does. The memory is used again.
    pub fn set_head<'a>(
        &mut self,
        head: &'a [u8],
        lines: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
        more: (usize, usize),
    ) {
        self.clear();
        self.text.reserve(head.len() + more.1);
        self.lines.reserve(lines.len() + more.0);
        self.text.extend_from_slice(head);
        let base = head.as_ptr() as usize;
        for (name, value) in lines {
            let start = (name.as_ptr() as usize).wrapping_sub(base);
            let value_start = (value.as_ptr() as usize).wrapping_sub(base);
            match (u32::try_from(start), u32::try_from(value_start), u32::try_from(value_start + value.len())) {
                (Ok(start), Ok(value), Ok(end)) if end as usize <= head.len() => {
                    self.marks |= mark(name);
                    let name = u16::try_from(name.len()).unwrap_or(u16::MAX);
                    self.lines.push(Line { start, name, value, end });
                }
                _ => self.append(name, value),
            }
        }
    }

    /// Removes all lines and keeps their memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.lines.clear();
        self.marks = 0;
    }

    /// Returns the bytes of memory that it has, used or not.
    pub fn memory(&self) -> usize {
        self.text.capacity() + self.lines.capacity() * size_of::<Line>()
    }

    /// Appends a line.
    pub fn append(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        // The headers of a message take megabytes at most, far below 2^32, and that bounds names as well.
        let place = |text: &Vec<u8>| u32::try_from(text.len()).unwrap_or(u32::MAX);
        let (name, value) = (name.as_ref(), value.as_ref());
        self.marks |= mark(name);
        self.text.reserve(name.len() + value.len() + COLON.len() + CRLF.len());
        let start = place(&self.text);
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(COLON);
        let value_start = place(&self.text);
        self.text.extend_from_slice(value);
        let end = place(&self.text);
        self.text.extend_from_slice(CRLF);
        let name = u16::try_from(name.len()).unwrap_or(u16::MAX);
        self.lines.push(Line { start, name, value: value_start, end });
    }

    /// Appends a line whose value is written in place. An empty value adds no line.
    pub fn append_with(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.text.len();
        self.append(name, b"");
        self.text.truncate(self.text.len() - CRLF.len());
        write(&mut self.text);
        if let Some(line) = self.lines.last_mut() {
            line.end = u32::try_from(self.text.len()).unwrap_or(u32::MAX);
            if line.end == line.value {
                self.lines.pop();
                self.text.truncate(before);
                return;
            }
        }
        self.text.extend_from_slice(CRLF);
    }

    /// Appends a line with the value of the first line of the name `source`, if there is one.
    pub fn append_copy(&mut self, name: &str, source: &str) {
        let source = source.as_bytes();
        let line = self.lines.iter().find(|line| line.name(&self.text).eq_ignore_ascii_case(source));
        if let Some(Line { value, end, .. }) = line.copied() {
            self.append(name, b"");
            self.text.truncate(self.text.len() - CRLF.len());
            self.text.extend_from_within(value as usize..end as usize);
            if let Some(line) = self.lines.last_mut() {
                line.end = u32::try_from(self.text.len()).unwrap_or(u32::MAX);
            }
            self.text.extend_from_slice(CRLF);
        }
    }

    /// Replaces all lines of this name with one.
    pub fn set(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.remove(name.as_ref());
        self.append(name, value);
    }

    /// Removes all lines of this name; returns whether there were any.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) -> bool {
        let before = self.lines.len();
        let name = name.as_ref();
        if self.marks & mark(name) == 0 {
            return false;
        }
        self.retain(|given, _| !given.eq_ignore_ascii_case(name));
        self.lines.len() < before
    }

    /// Keeps the lines for which `wanted(name, value)` holds. The text of the others stays in the buffer.
    pub fn retain(&mut self, mut wanted: impl FnMut(&[u8], &[u8]) -> bool) {
        let text = &self.text;
        self.lines.retain(|line| wanted(line.name(text), line.value(text)));
    }

    /// The names and values of all lines, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> + Clone {
        self.lines.iter().map(|line| (line.name(&self.text), line.value(&self.text)))
    }

    /// The values of all lines of this name, in order.
    pub fn all<'a, 'n>(&'a self, name: &'n str) -> impl DoubleEndedIterator<Item = &'a [u8]> + Clone + use<'a, 'n> {
        let name = name.as_bytes();
        let lines: &[Line] = if self.marks & mark(name) == 0 { &[] } else { &self.lines };
        let lines = lines.iter().filter(move |line| line.name(&self.text).eq_ignore_ascii_case(name));
        lines.map(|line| line.value(&self.text))
    }

    /// The value of the first line of this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.all(name).next()
    }

    /// Returns the value of the first line of this name if it is printable ASCII.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(text)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns false if none of these names is there. Takes no search.
    pub const fn may_contain(&self, names: Names) -> bool {
        self.marks & names.0 != 0
    }

    /// Returns true for a gRPC call, whose client expects errors as gRPC statuses.
    pub fn is_grpc(&self) -> bool {
        self.get("content-type").is_some_and(is_grpc)
    }

    /// Returns whether the content is a stream of server-sent events or of gRPC messages.
    pub fn is_stream(&self) -> bool {
        self.get("content-type").is_some_and(|kind| is_grpc(kind) || is_event_stream(kind))
    }

    pub fn has_underscores(&self) -> bool {
        // One search of the whole text is faster than one of each name. Names are searched only if it finds an underscore.
        memchr::memchr(b'_', &self.text).is_some() && self.iter().any(|(name, _)| name.contains(&b'_'))
    }

    /// Replaces underscores in all names with hyphens.
    pub fn fold_underscores(&mut self) {
        for line in &self.lines {
            let start = line.start as usize;
            let name = self.text.get_mut(start..start + usize::from(line.name)).unwrap_or_default();
            name.iter_mut().filter(|byte| **byte == b'_').for_each(|byte| *byte = b'-');
            self.marks |= mark(name);
        }
    }

    /// Writes all lines, each with its CR LF. Lines that are adjacent in the buffer are copied at once.
    pub fn write(&self, to: &mut impl BufMut) {
        let mut lines = self.lines.iter().peekable();
        while let Some(first) = lines.next() {
            // The bytes between are compared: a tab is as long as a space, and a space and a bare LF are as long as CR LF.
            // Neither may reach a server that reads it differently.
            let between = |from: usize, to: u32| self.text.get(from..to as usize).unwrap_or_default();
            let is_plain = |line: &Line| between(line.start as usize + usize::from(line.name), line.value) == COLON;
            if !is_plain(first) {
                for part in [first.name(&self.text), COLON, first.value(&self.text), CRLF] {
                    to.put_slice(part);
                }
                continue;
            }
            let mut end = first.end;
            while let Some(next) = lines.next_if(|next| between(end as usize, next.start) == CRLF && is_plain(next)) {
                end = next.end;
            }
            to.put_slice(self.text.get(first.start as usize..end as usize).unwrap_or_default());
            to.put_slice(CRLF);
        }
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// Names to look for at once.
#[derive(Clone, Copy, Debug)]
pub struct Names(u64);

impl Names {
    pub const fn new(names: &[&str]) -> Self {
        let (mut marks, mut place) = (0, 0);
        while place < names.len() {
            marks |= mark(names[place].as_bytes());
            place += 1;
        }
        Self(marks)
    }
}

const COLON: &[u8] = b": ";
const CRLF: &[u8] = b"\r\n";

/// One of 64 bits for a name, in any case. If the bit of a name is not among the marks of a list, the name is not in
/// it; a dozen names leave most bits free.
const fn mark(name: &[u8]) -> u64 {
    let (Some(first), Some(last)) = (name.first(), name.last()) else { return 1 };
    let folded = (*first | 0x20) as usize * 3 + (*last | 0x20) as usize;
    1 << ((name.len() * 5 + folded) % 64)
}

impl Line {
    fn name(self, text: &[u8]) -> &[u8] {
        text.get(self.start as usize..self.start as usize + usize::from(self.name)).unwrap_or_default()
    }

    fn value(self, text: &[u8]) -> &[u8] {
        text.get(self.value as usize..self.end as usize).unwrap_or_default()
    }
}

impl Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.iter().map(|(name, value)| (String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
        f.debug_map().entries(lines).finish()
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(lines: I) -> Self {
        let mut headers = Self::new();
        for (name, value) in lines {
            headers.append(name, value);
        }
        headers
    }
}

/// A value as text if it is printable ASCII; other bytes have no agreed encoding (RFC 9110 section 5.5).
pub fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')))
}

/// Returns true for a valid header name: a token (RFC 9110 section 5.6.2).
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

/// Returns true for a valid header value (RFC 9110 section 5.5): no control characters except tab.
pub fn is_value(value: &[u8]) -> bool {
    value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~' | 0x80..))
}

fn is_grpc(content_type: &[u8]) -> bool {
    content_type.starts_with(b"application/grpc")
}

fn is_event_stream(content_type: &[u8]) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    content_type.split_at_checked(EVENTS.len()).is_some_and(|(name, rest)| {
        name.eq_ignore_ascii_case(EVENTS) && matches!(rest.trim_ascii_start().first(), None | Some(b';'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(headers: &Headers, expected: &[(&str, &str)]) {
        let given: Vec<_> = headers.iter().map(|(n, v)| (text(n).unwrap(), text(v).unwrap())).collect();
        assert_eq!(given, expected);
    }

    #[test]
    fn lines_keep_their_order_and_spelling() {
        let mut headers = Headers::from_iter([("Host", "a"), ("x-id", "1"), ("X-ID", "2"), ("Empty", "")]);
        assert_eq!(headers.all("X-Id").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!(
            (headers.text("HOST"), headers.get("empty"), headers.get("none")),
            (Some("a"), Some(&b""[..]), None)
        );
        headers.set("x-id", "3");
        check(&headers, &[("Host", "a"), ("Empty", ""), ("x-id", "3")]);
        assert!(headers.may_contain(Names::new(&["via", "HOST"])) && !headers.may_contain(Names::new(&["via"])));
        assert!(headers.remove("HOST") && !headers.remove("host"));
        headers.retain(|_, value| !value.is_empty());
        check(&headers, &[("x-id", "3")]);
    }

    #[test]
    fn the_lines_of_a_head_share_its_copy() {
        let head = b"Host: a\r\nX-Id: 7\r\n";
        let lines = [(&head[..4], &head[6..7]), (&head[9..13], &head[15..16]), (b"other", b"elsewhere")];
        let headers = Headers::of_head(head, lines.into_iter(), (1, 10));
        check(&headers, &[("Host", "a"), ("X-Id", "7"), ("other", "elsewhere")]);
    }

    #[test]
    fn a_value_is_written_in_its_place() {
        let mut headers = Headers::from_iter([("a", "1")]);
        headers.append_with("b", |value| value.extend_from_slice(b"2"));
        headers.append_with("c", |_| {});
        headers.append("d", "4");
        headers.append_copy("e", "B");
        headers.append_copy("f", "c");
        check(&headers, &[("a", "1"), ("b", "2"), ("d", "4"), ("e", "2")]);
    }

    #[test]
    fn the_memory_of_a_head_is_used_again() {
        let (mut headers, head) = (Headers::from_iter([("a", "1"), ("b", "2")]), b"X-Id: 7\r\n");
        headers.set_head(head, [(&head[..4], &head[6..7])].into_iter(), (1, 10));
        check(&headers, &[("X-Id", "7")]);
        let memory = headers.memory();
        headers.clear();
        assert_eq!((headers.len(), headers.get("x-id"), headers.memory()), (0, None, memory));
    }

    #[test]
    fn lines_are_written_as_they_are_sent() {
        let head = b"GET / HTTP/1.1\r\nHost:a\r\nX: 1\r\nY: 2  \r\nZ: 3\r\n\r\n";
        let at = |start: usize, end: usize| &head[start..end];
        let lines =
            [(at(16, 20), at(21, 22)), (at(24, 25), at(27, 28)), (at(30, 31), at(33, 34)), (at(38, 39), at(41, 42))];
        let mut headers = Headers::of_head(head, lines.into_iter(), (1, 10));
        let written = |headers: &Headers| {
            let mut text = b"begin ".to_vec();
            headers.write(&mut text);
            String::from_utf8(text).unwrap()
        };
        assert_eq!(written(&headers), "begin Host: a\r\nX: 1\r\nY: 2\r\nZ: 3\r\n");
        headers.append("a", "");
        headers.append("b", "5");
        headers.remove("x");
        assert_eq!(written(&headers), "begin Host: a\r\nY: 2\r\nZ: 3\r\na: \r\nb: 5\r\n");
        headers.remove("A");
        headers.set("z", "4");
        assert_eq!(written(&headers), "begin Host: a\r\nY: 2\r\nb: 5\r\nz: 4\r\n");
    }

    #[test]
    fn white_space_of_a_head_is_not_passed_on() {
        let head = b"Content-Length:\t5\r\nX: 1 \nY: 2\r\n";
        let lines = [(&head[..14], &head[16..17]), (&head[19..20], &head[22..23]), (&head[25..26], &head[28..29])];
        let mut text = Vec::new();
        Headers::of_head(head, lines.into_iter(), (0, 0)).write(&mut text);
        assert_eq!(text, b"Content-Length: 5\r\nX: 1\r\nY: 2\r\n");
    }

    #[test]
    fn only_printable_ascii_is_text() {
        let headers = Headers::from_iter([("a", &b"caf\xc3\xa9"[..]), ("b", b"x\ty")]);
        assert_eq!((headers.text("a"), headers.text("b")), (None, Some("x\ty")));
    }

    #[test]
    fn names_are_tokens_and_values_have_no_controls() {
        for (name, fits) in [("x-id", true), ("", false), ("a b", false), ("a:b", false), ("a\n", false), ("~", true)] {
            assert_eq!(is_name(name.as_bytes()), fits, "{name:?}");
        }
        for (value, fits) in
            [("", true), ("a\tb", true), ("a\r", false), ("a\0", false), ("\u{7f}", false), ("é", true)]
        {
            assert_eq!(is_value(value.as_bytes()), fits, "{value:?}");
        }
    }
}
