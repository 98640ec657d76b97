//! Frames (SPOE.txt section 3.2): reads `HAProxy`'s, writes an agent's.

use std::str;

use super::data::{Data, Reader, write_data, write_integer, write_string};
use super::status::Status;

/// Bytes of a frame's length prefix, which does not count itself.
pub(super) const LENGTH_BYTES: usize = 4;

/// The smallest valid `max-frame-size` (section 3.2).
const MIN_FRAME: u32 = 256;

/// The largest frame. `HAProxy` offers the size of its buffers less four bytes, by default 16380, and a frame has at most
/// the head of a request.
pub(super) const MAX_FRAME: u32 = 65_532;

/// `HAProxy`'s only version since 1.8.
const VERSION: &str = "2.0";

/// The only capability that both sides need. Without it `HAProxy` waits for each ACK before the next NOTIFY, so the agent
/// only announces it.
const PIPELINING: &str = "pipelining";

const FRAGMENT: u8 = 0;
const HAPROXY_HELLO: u8 = 1;
const HAPROXY_DISCONNECT: u8 = 2;
const NOTIFY: u8 = 3;
const AGENT_HELLO: u8 = 101;
const AGENT_DISCONNECT: u8 = 102;
const ACK: u8 = 103;

/// The flag of a complete frame, or of the last fragment. Other flags do not concern complete frames.
const FIN: u32 = 1;

const SET_VARIABLE: u8 = 1;
const SET_VARIABLE_ARGUMENTS: u8 = 3;

/// The scope of variables: a request and its response.
const TRANSACTION: u8 = 2;

const CHECK: &[u8] = b"check";

/// The arguments of a message in order. Unnamed ones have an empty name.
pub(super) type Arguments<'a> = Vec<(&'a [u8], Data<'a>)>;

/// A frame of `HAProxy`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    Hello(Hello),
    Disconnect { code: u64, message: &'a [u8] },
    Notify(Notify<'a>),
}

/// The negotiated parts of a HAPROXY-HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The longest frame for either side, in bytes.
    pub(super) max_frame: u32,
    pub(super) is_healthcheck: bool,
    is_pipelining: bool,
}

/// A question.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Notify<'a> {
    /// The ACK has the same stream and frame numbers.
    pub(super) stream: u64,
    pub(super) frame: u64,
    /// The arguments of the message `check`.
    pub(super) check: Option<Arguments<'a>>,
    /// The name of an unknown message.
    pub(super) unknown: Option<&'a [u8]>,
}

impl<'a> Frame<'a> {
    /// Reads a frame without its length.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Status> {
        let mut reader = Reader::new(bytes);
        let kind = reader.byte()?;
        let flags = u32::from_be_bytes(reader.array()?);
        let (stream, frame) = (reader.integer()?, reader.integer()?);
        // The HELLO does not offer fragmentation.
        if kind == FRAGMENT || flags & FIN == 0 {
            return Err(Status::Fragmented);
        }
        match kind {
            HAPROXY_HELLO => Hello::parse(reader).map(Self::Hello),
            HAPROXY_DISCONNECT => {
                let [code, message] = items(reader, ["status-code", "message"])?;
                let (Some(Data::Unsigned(code)), Some(Data::Text(message))) = (code, message) else {
                    return Err(Status::Invalid);
                };
                Ok(Self::Disconnect { code, message })
            }
            NOTIFY => Notify::parse(stream, frame, reader).map(Self::Notify),
            _ => Err(Status::Invalid),
        }
    }
}

impl Hello {
    fn parse(reader: Reader<'_>) -> Result<Self, Status> {
        let names = ["supported-versions", "max-frame-size", "capabilities", "healthcheck"];
        let [versions, max_frame, capabilities, healthcheck] = items(reader, names)?;
        let versions = list(versions).ok_or(Status::NoVersion)?;
        let Some(Data::Unsigned(max_frame)) = max_frame else { return Err(Status::NoFrameSize) };
        let mut capabilities = list(capabilities).ok_or(Status::NoCapabilities)?;
        // A version includes earlier ones with the same major number (section 3.2.4).
        if !versions.into_iter().any(|version| version.split('.').next() == VERSION.split('.').next()) {
            return Err(Status::BadVersion);
        }
        let max_frame = u32::try_from(max_frame).map_or(MAX_FRAME, |size| size.min(MAX_FRAME));
        if max_frame < MIN_FRAME {
            return Err(Status::BadFrameSize);
        }
        let is_healthcheck = healthcheck == Some(Data::Bool(true));
        Ok(Self { max_frame, is_healthcheck, is_pipelining: capabilities.any(|name| name == PIPELINING) })
    }

    /// Writes the AGENT-HELLO.
    pub(super) fn answer(self, to: &mut Vec<u8>) {
        let start = begin(to, AGENT_HELLO, 0, 0);
        write_item(to, "version", Data::Text(VERSION.as_bytes()));
        write_item(to, "max-frame-size", Data::Unsigned(self.max_frame.into()));
        let capabilities = if self.is_pipelining { PIPELINING } else { "" };
        write_item(to, "capabilities", Data::Text(capabilities.as_bytes()));
        end(to, start);
    }
}

impl<'a> Notify<'a> {
    fn parse(stream: u64, frame: u64, mut reader: Reader<'a>) -> Result<Self, Status> {
        let mut notify = Self { stream, frame, check: None, unknown: None };
        while !reader.is_empty() {
            let name = reader.string()?;
            let count = reader.byte()?;
            if name != CHECK {
                for _ in 0..count {
                    reader.string()?;
                    reader.data()?;
                }
                notify.unknown = Some(name);
                continue;
            }
            let mut arguments = Arguments::with_capacity(count.into());
            for _ in 0..count {
                arguments.push((reader.string()?, reader.data()?));
            }
            // A configuration cannot have two messages of one name.
            if notify.check.replace(arguments).is_some() {
                return Err(Status::Invalid);
            }
        }
        Ok(notify)
    }
}

/// An ACK that is being written. Variables that make it longer than negotiated are left out, so important ones come first.
#[derive(Debug)]
pub(super) struct Ack {
    bytes: Vec<u8>,
    max_frame: usize,
}

impl Ack {
    pub(super) fn new(notify: &Notify<'_>, max_frame: u32) -> Self {
        let mut bytes = Vec::with_capacity(256);
        begin(&mut bytes, ACK, notify.stream, notify.frame);
        Self { bytes, max_frame: max_frame as usize }
    }

    /// Sets a variable. `HAProxy` adds its prefix to the name.
    pub(super) fn set(&mut self, name: &str, value: Data<'_>) {
        let before = self.bytes.len();
        self.bytes.extend_from_slice(&[SET_VARIABLE, SET_VARIABLE_ARGUMENTS, TRANSACTION]);
        write_item(&mut self.bytes, name, value);
        if self.bytes.len() - LENGTH_BYTES > self.max_frame {
            self.bytes.truncate(before);
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        end(&mut self.bytes, 0);
        self.bytes
    }
}

/// Writes an AGENT-DISCONNECT.
pub(super) fn write_disconnect(to: &mut Vec<u8>, status: Status) {
    let start = begin(to, AGENT_DISCONNECT, 0, 0);
    write_item(to, "status-code", Data::Unsigned(status.code()));
    write_item(to, "message", Data::Text(status.message().as_bytes()));
    end(to, start);
}

/// Reads a list of names and values, and returns the last values of these names.
fn items<'a, const N: usize>(mut reader: Reader<'a>, names: [&str; N]) -> Result<[Option<Data<'a>>; N], Status> {
    let mut values = [None; N];
    while !reader.is_empty() {
        let (name, value) = (reader.string()?, reader.data()?);
        if let Some(index) = names.iter().position(|known| known.as_bytes() == name) {
            values[index] = Some(value);
        }
    }
    Ok(values)
}

/// Splits a comma-separated list.
fn list(value: Option<Data<'_>>) -> Option<impl Iterator<Item = &str>> {
    let Some(Data::Text(text)) = value else { return None };
    Some(str::from_utf8(text).ok()?.split(',').map(str::trim))
}

fn write_item(to: &mut Vec<u8>, name: &str, value: Data<'_>) {
    write_string(to, name.as_bytes());
    write_data(to, value);
}

/// Begins a frame, and returns its start.
fn begin(to: &mut Vec<u8>, kind: u8, stream: u64, frame: u64) -> usize {
    let start = to.len();
    to.extend_from_slice(&[0; LENGTH_BYTES]);
    to.push(kind);
    to.extend_from_slice(&FIN.to_be_bytes());
    write_integer(to, stream);
    write_integer(to, frame);
    start
}

/// Writes the length of the frame that starts there.
fn end(to: &mut [u8], start: usize) {
    // At most `MAX_FRAME`, see `Ack::set`.
    let length = u32::try_from(to.len() - start - LENGTH_BYTES).unwrap_or(u32::MAX);
    if let Some(prefix) = to.get_mut(start..start + LENGTH_BYTES) {
        prefix.copy_from_slice(&length.to_be_bytes());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A frame as `HAProxy` sends it, without its length.
    pub(crate) fn frame(kind: u8, flags: u32, stream: u64, frame: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend(flags.to_be_bytes());
        write_integer(&mut bytes, stream);
        write_integer(&mut bytes, frame);
        bytes.extend(payload);
        bytes
    }

    fn item_list(items: &[(&str, Data<'_>)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, value) in items {
            write_item(&mut bytes, name, *value);
        }
        bytes
    }

    fn text(text: &str) -> Data<'_> {
        Data::Text(text.as_bytes())
    }

    /// A HAPROXY-HELLO as `HAProxy` 2.6 sends it, with other values or more of them.
    pub(crate) fn hello(changes: &[(&str, Data<'_>)]) -> Vec<u8> {
        let mut items = vec![
            ("supported-versions", text("2.0")),
            ("max-frame-size", Data::Unsigned(16_380)),
            ("capabilities", text("pipelining,async")),
            ("engine-id", text("9d52b7b4-0a44-44b9-9a5e-9e3a5f2a9d6d")),
        ];
        items.retain(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
        items.extend(changes.iter().filter(|(_, value)| *value != Data::Null));
        frame(HAPROXY_HELLO, FIN, 0, 0, &item_list(&items))
    }

    /// A NOTIFY of one message.
    pub(crate) fn notify(stream: u64, id: u64, message: &str, arguments: &[(&str, Data<'_>)]) -> Vec<u8> {
        frame(NOTIFY, FIN, stream, id, &self::message(message, arguments))
    }

    fn message(name: &str, arguments: &[(&str, Data<'_>)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_string(&mut bytes, name.as_bytes());
        bytes.push(u8::try_from(arguments.len()).unwrap());
        bytes.extend(item_list(arguments));
        bytes
    }

    /// A HAPROXY-DISCONNECT.
    pub(crate) fn disconnect(code: u64) -> Vec<u8> {
        let items = [("status-code", Data::Unsigned(code)), ("message", text("a timeout occurred"))];
        frame(HAPROXY_DISCONNECT, FIN, 0, 0, &item_list(&items))
    }

    #[track_caller]
    fn check_hello(changes: &[(&str, Data<'_>)], expected: Result<(u32, bool, bool), Status>) {
        let frame = hello(changes);
        let found = Frame::parse(&frame).map(|frame| match frame {
            Frame::Hello(hello) => (hello.max_frame, hello.is_healthcheck, hello.is_pipelining),
            other => panic!("{other:?}"),
        });
        assert_eq!(found, expected, "{changes:?}");
    }

    #[test]
    fn a_hello_says_what_both_agree_on() {
        check_hello(&[], Ok((16_380, false, true)));
        check_hello(&[("healthcheck", Data::Bool(true)), ("capabilities", text(""))], Ok((16_380, true, false)));
        check_hello(&[("healthcheck", Data::Bool(false))], Ok((16_380, false, true)));
        check_hello(&[("capabilities", text("async , pipelining"))], Ok((16_380, false, true)));
        check_hello(&[("max-frame-size", Data::Unsigned(1 << 20))], Ok((MAX_FRAME, false, true)));
        check_hello(&[("max-frame-size", Data::Unsigned(1 << 40))], Ok((MAX_FRAME, false, true)));
        check_hello(&[("max-frame-size", Data::Unsigned(256))], Ok((256, false, true)));
        check_hello(&[("supported-versions", text("3.0, 2.1"))], Ok((16_380, false, true)));
    }

    #[test]
    fn a_hello_that_lacks_something_says_what() {
        check_hello(&[("supported-versions", Data::Null)], Err(Status::NoVersion));
        check_hello(&[("supported-versions", Data::Unsigned(2))], Err(Status::NoVersion));
        check_hello(&[("supported-versions", text("1.0"))], Err(Status::BadVersion));
        check_hello(&[("supported-versions", text("20.0"))], Err(Status::BadVersion));
        check_hello(&[("max-frame-size", Data::Null)], Err(Status::NoFrameSize));
        check_hello(&[("max-frame-size", text("16380"))], Err(Status::NoFrameSize));
        check_hello(&[("max-frame-size", Data::Unsigned(255))], Err(Status::BadFrameSize));
        check_hello(&[("capabilities", Data::Null)], Err(Status::NoCapabilities));
    }

    /// The example of a frame byte by byte, so that reading and writing do not err alike.
    #[test]
    fn frames_are_those_of_the_protocol() {
        let asked = b"\x03\0\0\0\x01\x07\xf0\x01\x05check\x02\x06method\x08\x03GET\x03src\x06\xc0\0\x02\x07";
        let arguments = vec![(&b"method"[..], text("GET")), (b"src", Data::Address([192, 0, 2, 7].into()))];
        let notify = Notify { stream: 7, frame: 256, check: Some(arguments), unknown: None };
        let mut ack = Ack::new(&notify, MAX_FRAME);
        assert_eq!(Frame::parse(asked), Ok(Frame::Notify(notify)));
        ack.set("deny", Data::Bool(true));
        assert_eq!(ack.finish(), b"\0\0\0\x11\x67\0\0\0\x01\x07\xf0\x01\x01\x03\x02\x04deny\x11");

        let mut bytes = Vec::new();
        write_disconnect(&mut bytes, Status::Invalid);
        assert_eq!(
            bytes,
            b"\0\0\0\x35\x66\0\0\0\x01\0\0\x0bstatus-code\x03\x04\x07message\x08\x16invalid frame received"
        );
    }

    #[test]
    fn what_is_no_frame_says_why() {
        let good = notify(1, 1, "check", &[("method", text("GET"))]);
        for end in 0..good.len() {
            let is_empty = end == 7;
            let found = Frame::parse(&good[..end]);
            assert!(found == Err(Status::Invalid) || (is_empty && found.is_ok()), "{end}: {found:?}");
        }
        let twice = [message("check", &[]), message("check", &[])].concat();
        for (bytes, expected) in [
            (frame(FRAGMENT, FIN, 1, 1, b""), Status::Fragmented),
            (frame(NOTIFY, 0, 1, 1, b""), Status::Fragmented),
            (frame(4, FIN, 0, 0, b""), Status::Invalid),
            (frame(ACK, FIN, 1, 1, b""), Status::Invalid),
            (frame(NOTIFY, FIN, 1, 1, &twice), Status::Invalid),
            (frame(NOTIFY, FIN, 1, 1, b"\x05check\xff"), Status::Invalid),
            (frame(NOTIFY, FIN, 1, 1, b"\xff\xff\xff\xff\xff\x7f"), Status::Invalid),
            (frame(HAPROXY_DISCONNECT, FIN, 0, 0, b""), Status::Invalid),
        ] {
            assert_eq!(Frame::parse(&bytes), Err(expected), "{bytes:x?}");
        }
    }

    #[test]
    fn messages_of_other_names_are_told_apart() {
        let both = [message("other", &[("", text("x")), ("", Data::Null)]), message("check", &[])].concat();
        let bytes = frame(NOTIFY, FIN | 2, 3, 4, &both);
        let expected = Notify { stream: 3, frame: 4, check: Some(Arguments::new()), unknown: Some(b"other") };
        assert_eq!(Frame::parse(&bytes), Ok(Frame::Notify(expected)));
    }

    #[test]
    fn an_answer_is_no_longer_than_was_agreed() {
        let notify = Notify { stream: u64::MAX, frame: u64::MAX, check: None, unknown: None };
        let mut ack = Ack::new(&notify, MIN_FRAME);
        ack.set("deny", Data::Bool(true));
        let short = ack.bytes.len();
        ack.set("body", text(&"x".repeat(256)));
        assert_eq!(ack.bytes.len(), short);
        ack.set("status", Data::Unsigned(429));
        assert!(ack.bytes.len() > short && ack.finish().len() <= 256 + LENGTH_BYTES);
    }
}
