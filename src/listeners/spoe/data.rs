//! Integers of variable length, strings and typed values (SPOE.txt section 3.1).
//!
//! Values borrow from their frame, so a frame allocates nothing larger than itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::status::Status;

/// A typed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Data<'a> {
    Null,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Address(IpAddr),
    /// Any bytes that a client sent: `HAProxy` does not check them.
    Text(&'a [u8]),
    Binary(&'a [u8]),
}

/// The types, in the lower half of a value's first byte. The upper half has flags; a boolean uses one.
const NULL: u8 = 0;
const BOOL: u8 = 1;
const INT32: u8 = 2;
const UINT32: u8 = 3;
const INT64: u8 = 4;
const UINT64: u8 = 5;
const IPV4: u8 = 6;
const IPV6: u8 = 7;
const TEXT: u8 = 8;
const BINARY: u8 = 9;
const TYPE_MASK: u8 = 0x0f;
const TRUE: u8 = 0x10;

/// From this first byte on, an integer has more bytes.
const LONG: u8 = 0xf0;

/// Set in a further byte of an integer if another one follows.
const MORE: u8 = 0x80;

/// The shift of the last byte of a 64-bit number: the first byte has four bits, each further one seven.
const LAST_SHIFT: u32 = 60;

/// Reads a frame. Missing bytes and unknown types make it invalid.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Status> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(Status::Invalid)?;
        self.rest = rest;
        Ok(*array)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Status> {
        self.array().map(|[byte]| byte)
    }

    /// An integer in the encoding of `HAProxy`'s peers protocol.
    pub(super) fn integer(&mut self) -> Result<u64, Status> {
        let first = self.byte()?;
        let mut value = u64::from(first);
        if first < LONG {
            return Ok(value);
        }
        for shift in (4..=LAST_SHIFT).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte).checked_mul(1 << shift);
            value = part.and_then(|part| value.checked_add(part)).ok_or(Status::Invalid)?;
            if byte < MORE {
                return Ok(value);
            }
        }
        Err(Status::Invalid)
    }

    /// Length-prefixed bytes.
    pub(super) fn string(&mut self) -> Result<&'a [u8], Status> {
        let length = usize::try_from(self.integer()?).map_err(|_| Status::Invalid)?;
        let (string, rest) = self.rest.split_at_checked(length).ok_or(Status::Invalid)?;
        self.rest = rest;
        Ok(string)
    }

    pub(super) fn data(&mut self) -> Result<Data<'a>, Status> {
        let first = self.byte()?;
        Ok(match first & TYPE_MASK {
            NULL => Data::Null,
            BOOL => Data::Bool(first & TRUE != 0),
            // A negative number is sent as the 64 bits of its two's complement.
            INT32 | INT64 => Data::Signed(self.integer()?.cast_signed()),
            UINT32 | UINT64 => Data::Unsigned(self.integer()?),
            IPV4 => Data::Address(Ipv4Addr::from(self.array()?).into()),
            IPV6 => Data::Address(Ipv6Addr::from(self.array()?).into()),
            TEXT => Data::Text(self.string()?),
            BINARY => Data::Binary(self.string()?),
            _ => return Err(Status::Invalid),
        })
    }
}

/// Writes what [`Reader::integer`] reads.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are what a byte is for")]
pub(super) fn write_integer(to: &mut Vec<u8>, value: u64) {
    let Some(mut rest) = value.checked_sub(LONG.into()) else { return to.push(value as u8) };
    to.push(LONG | (rest & 0x0f) as u8);
    rest >>= 4;
    while let Some(next) = rest.checked_sub(MORE.into()) {
        to.push(MORE | rest as u8);
        rest = next >> 7;
    }
    to.push(rest as u8);
}

/// Writes what [`Reader::string`] reads.
pub(super) fn write_string(to: &mut Vec<u8>, string: &[u8]) {
    write_integer(to, string.len() as u64);
    to.extend_from_slice(string);
}

/// Writes what [`Reader::data`] reads. Numbers and addresses get their widest types.
pub(super) fn write_data(to: &mut Vec<u8>, data: Data<'_>) {
    match data {
        Data::Null => to.push(NULL),
        Data::Bool(value) => to.push(BOOL | if value { TRUE } else { 0 }),
        Data::Signed(value) => {
            to.push(INT64);
            write_integer(to, value.cast_unsigned());
        }
        Data::Unsigned(value) => {
            // HAProxy accepts the 32-bit sizes of its handshake only in this type.
            to.push(if u32::try_from(value).is_ok() { UINT32 } else { UINT64 });
            write_integer(to, value);
        }
        Data::Address(IpAddr::V4(address)) => {
            to.push(IPV4);
            to.extend_from_slice(&address.octets());
        }
        Data::Address(IpAddr::V6(address)) => {
            to.push(IPV6);
            to.extend_from_slice(&address.octets());
        }
        Data::Text(text) => {
            to.push(TEXT);
            write_string(to, text);
        }
        Data::Binary(bytes) => {
            to.push(BINARY);
            write_string(to, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<Data<'_>, Status>) {
        let mut reader = Reader::new(bytes);
        assert_eq!(reader.data(), expected, "{bytes:x?}");
        assert!(expected.is_err() || reader.is_empty(), "{bytes:x?}");
    }

    /// The table of SPOE.txt section 3.1, at its edges.
    #[test]
    fn integers_are_as_long_as_the_protocol_says() {
        for (value, length) in [
            (0, 1),
            (239, 1),
            (240, 2),
            (2_287, 2),
            (2_288, 3),
            (264_431, 3),
            (264_432, 4),
            (33_818_863, 4),
            (33_818_864, 5),
            (4_328_786_159, 5),
            (4_328_786_160, 6),
            (u64::MAX, 10),
        ] {
            let mut bytes = Vec::new();
            write_integer(&mut bytes, value);
            assert_eq!((bytes.len(), Reader::new(&bytes).integer()), (length, Ok(value)));
        }
    }

    #[test]
    fn integers_that_are_too_long_are_none() {
        let overlong = [&[LONG][..], &[MORE; 20], &[0]].concat();
        let too_much = [&[0xff][..], &[0xff; 8], &[0x0f]].concat();
        for bytes in [&overlong[..], &too_much, &[], &[LONG], &[LONG, MORE], &[LONG; 5]] {
            assert_eq!(Reader::new(bytes).integer(), Err(Status::Invalid), "{bytes:x?}");
        }
    }

    #[test]
    fn values_have_types() {
        check(&[0x00], Ok(Data::Null));
        check(&[0xf0], Ok(Data::Null));
        check(&[0x01], Ok(Data::Bool(false)));
        check(&[0x11], Ok(Data::Bool(true)));
        check(&[0x02, 7], Ok(Data::Signed(7)));
        check(&[0x03, 7], Ok(Data::Unsigned(7)));
        check(&[0x05, 0xf0, 0], Ok(Data::Unsigned(240)));
        check(&[0x06, 192, 0, 2, 7], Ok(Data::Address([192, 0, 2, 7].into())));
        check(&[&[0x07][..], &Ipv6Addr::LOCALHOST.octets()].concat(), Ok(Data::Address(Ipv6Addr::LOCALHOST.into())));
        check(b"\x08\x02ab", Ok(Data::Text(b"ab")));
        check(b"\x09\x00", Ok(Data::Binary(b"")));
        for bytes in [&[][..], &[0x0a], &[0x0f], &[0x02], &[0x06, 1, 2, 3], &[0x07; 16], b"\x08\x03ab", b"\x09"] {
            check(bytes, Err(Status::Invalid));
        }
        // HAProxy sends every integer so.
        check(&[0x04, 0xff, 0xf0, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0x0e], Ok(Data::Signed(-1)));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number in any::<u64>(), shift in 0_u32..64, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for data in [
                Data::Unsigned(number >> shift),
                Data::Signed((number >> shift).cast_signed()),
                Data::Signed(-(number >> shift >> 1).cast_signed()),
                Data::Text(&bytes),
                Data::Binary(&bytes),
                Data::Bool(shift % 2 == 0),
            ] {
                let mut written = Vec::new();
                write_data(&mut written, data);
                check(&written, Ok(data));
                for end in 0..written.len() {
                    check(&written[..end], Err(Status::Invalid));
                }
            }
        }
    }
}
