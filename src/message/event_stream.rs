//! The data of server-sent events (WHATWG HTML section 9.2.6) in a stream that comes in parts.
//!
//! Nothing is kept but the place in a line.

/// Splits an event stream into the data of its events.
#[derive(Clone, Debug, Default)]
pub struct EventStream {
    place: LinePosition,
    /// The last byte was a carriage return: a line feed after it belongs to it.
    is_after_return: bool,
    /// The event has data.
    has_data: bool,
}

/// The place in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinePosition {
    /// At the start of the stream, after this many bytes of a byte order mark.
    Mark(usize),
    /// At the start of a line.
    Start,
    /// After this many bytes of `data:`.
    Name(usize),
    /// After the colon, before the one space that does not belong to the value.
    Colon,
    Data,
    /// In a comment, or in a field other than `data`.
    Other,
}

/// A part of an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPart<'a> {
    /// More of the event's data.
    Data(&'a [u8]),
    /// The event has ended.
    End,
}

impl Default for LinePosition {
    fn default() -> Self {
        Self::Mark(0)
    }
}

const FIELD: &[u8] = b"data";

/// A stream may begin with one (WHATWG HTML section 9.2.5). It does not belong to the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

impl EventStream {
    /// Reads on, and calls `take` with what is found.
    pub fn push(&mut self, mut bytes: &[u8], mut take: impl FnMut(EventPart<'_>)) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if std::mem::take(&mut self.is_after_return) && byte == b'\n' {
                bytes = rest;
                continue;
            }
            if matches!(byte, b'\r' | b'\n') {
                self.is_after_return = byte == b'\r';
                self.end_line(&mut take);
                bytes = rest;
                continue;
            }
            self.place = match (self.place, byte) {
                (LinePosition::Data | LinePosition::Other, _) => {
                    let end = memchr::memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
                    let (text, rest) = bytes.split_at(end);
                    if self.place == LinePosition::Data {
                        take(EventPart::Data(text));
                    }
                    bytes = rest;
                    continue;
                }
                (LinePosition::Colon, b' ') => LinePosition::Data,
                (LinePosition::Colon, _) => {
                    self.place = LinePosition::Data;
                    continue;
                }
                (LinePosition::Mark(read), _) if BYTE_ORDER_MARK[read] == byte => match read + 1 {
                    read if read == BYTE_ORDER_MARK.len() => LinePosition::Start,
                    read => LinePosition::Mark(read),
                },
                (LinePosition::Mark(1..), _) => LinePosition::Other,
                (LinePosition::Mark(0) | LinePosition::Start | LinePosition::Name(_), _) => self.name(byte, &mut take),
            };
            bytes = rest;
        }
    }

    /// Ends the stream. An event without an empty line after it counts, too: some servers omit the line.
    pub fn finish(&mut self, mut take: impl FnMut(EventPart<'_>)) {
        if std::mem::take(&mut self.has_data) {
            take(EventPart::End);
        }
    }

    fn name(&mut self, byte: u8, take: &mut impl FnMut(EventPart<'_>)) -> LinePosition {
        let length = if let LinePosition::Name(length) = self.place { length } else { 0 };
        if length == FIELD.len() && byte == b':' {
            // The lines of an event's data are joined by line feeds.
            if std::mem::replace(&mut self.has_data, true) {
                take(EventPart::Data(b"\n"));
            }
            return LinePosition::Colon;
        }
        if FIELD.get(length) == Some(&byte) { LinePosition::Name(length + 1) } else { LinePosition::Other }
    }

    fn end_line(&mut self, take: &mut impl FnMut(EventPart<'_>)) {
        if std::mem::replace(&mut self.place, LinePosition::Start) == LinePosition::Start
            && std::mem::take(&mut self.has_data)
        {
            take(EventPart::End);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of the events of these parts.
    fn events(parts: &[&[u8]]) -> Vec<String> {
        let (mut stream, mut events, mut data) = (EventStream::default(), Vec::new(), Vec::new());
        let mut take = |part: EventPart<'_>| match part {
            EventPart::Data(text) => data.extend_from_slice(text),
            EventPart::End => events.push(String::from_utf8(std::mem::take(&mut data)).unwrap()),
        };
        for part in parts {
            stream.push(part, &mut take);
        }
        stream.finish(take);
        events
    }

    #[test]
    fn events_are_the_same_wherever_the_stream_is_split() {
        for (stream, expected) in [
            ("data: a\n\ndata: b\n\n", &["a", "b"][..]),
            ("data:a\r\n\r\ndata:  b\r\n\r\n", &["a", " b"]),
            ("data: a\r\rdata: b\r\r", &["a", "b"]),
            ("event: x\nid: 1\ndata: {\"a\":\ndata: 1}\n\n", &["{\"a\":\n1}"]),
            (": comment\n\n\n\ndata: a\nretry: 3\n\n", &["a"]),
            ("data: a\n\ndata: [DONE]", &["a", "[DONE]"]),
            ("database: a\ndat: b\nDATA: c\n data: d\n\n", &[]),
            ("data:\n\n", &[""]),
            ("event: x\n\ndata: b\n\n", &["b"]),
            ("\u{feff}data: a\n\ndata: b\n\n", &["a", "b"]),
            ("\u{feff}\u{feff}data: a\n\n\u{feff}data: b\n\ndata: c\n\n", &["c"]),
            ("\u{feff}\n\ndata: a\n\n", &["a"]),
            ("\u{fefe}data: a\n\ndata: b\n\n", &["b"]),
            ("\u{fefe}\ndata: b\n\n", &["b"]),
            ("\u{feff}", &[]),
        ] {
            for split in 0..=stream.len() {
                let (first, second) = stream.as_bytes().split_at(split);
                assert_eq!(events(&[first, second]), expected, "{stream:?} at {split}");
            }
            let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
            assert_eq!(events(&bytes), expected, "{stream:?}");
        }
    }
}
