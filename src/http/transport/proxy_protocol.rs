//! The PROXY protocol, versions 1 and 2, by which load balancers name the client of a connection.
//!
//! The specification is HAProxy's `doc/proxy-protocol.txt`. Anything ambiguous is an error, because the address is
//! trusted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The longest accepted header. Version 1 has at most 107 bytes; version 2 allows 64 KiB of extensions, of which a
/// client's certificate is the longest in use.
pub(super) const MAX_HEADER: usize = 4 * 1024;

/// The longest line of version 1, with its end (section 2.1).
const MAX_LINE: usize = 107;

/// The start of version 1.
const LINE_START: &[u8] = b"PROXY ";

/// The start of version 2 (section 2.2).
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Signature, version and command, family and protocol, length.
const FIXED: usize = 16;

/// Families and protocols of stream connections.
const UNSPECIFIED: u8 = 0x00;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;
const UNIX_STREAM: u8 = 0x31;

/// The type of the checksum extension (section 2.2.3).
const CRC32C: u8 = 0x03;

/// A complete header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// In bytes.
    pub(crate) length: usize,
    pub(crate) source: Source,
}

/// The source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// From the client at this address.
    Address(IpAddr),
    /// From the load balancer itself, for example a health check: `LOCAL` of version 2.
    Local,
    /// From a client whose address the load balancer does not know: `UNKNOWN` of version 1; no family or a unix socket
    /// in version 2.
    Unknown,
}

/// An error in a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("missing PROXY header")]
    Missing,
    #[error("malformed PROXY line: {0}")]
    Line(&'static str),
    #[error("malformed PROXY header: {0}")]
    Binary(&'static str),
}

/// Reads the header at the start of `bytes`; `None` if more bytes are needed.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Header>, HeaderError> {
    if begins(bytes, LINE_START) {
        parse_line(bytes)
    } else if begins(bytes, SIGNATURE) {
        parse_binary(bytes)
    } else {
        Err(HeaderError::Missing)
    }
}

/// Returns whether `bytes` start with `start`, as far as there are any.
fn begins(bytes: &[u8], start: &[u8]) -> bool {
    bytes.iter().zip(start).all(|(byte, wanted)| byte == wanted)
}

/// `PROXY TCP4 192.0.2.1 198.51.100.1 4711 443`, or `PROXY UNKNOWN` and anything after it (section 2.1).
fn parse_line(bytes: &[u8]) -> Result<Option<Header>, HeaderError> {
    let window = &bytes[..bytes.len().min(MAX_LINE)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < MAX_LINE { Ok(None) } else { Err(HeaderError::Line("longer than 107 bytes")) };
    };
    let length = end + 2;
    let line = window.get(LINE_START.len()..end).and_then(|line| str::from_utf8(line).ok());
    let line = line.ok_or(HeaderError::Line("not ASCII text"))?;
    let mut words = line.split(' ');
    let client = match words.next() {
        Some("UNKNOWN") => return Ok(Some(Header { length, source: Source::Unknown })),
        Some("TCP4") => line_addresses::<Ipv4Addr>(words)?,
        Some("TCP6") => line_addresses::<Ipv6Addr>(words)?,
        _ => return Err(HeaderError::Line("expected TCP4, TCP6 or UNKNOWN")),
    };
    Ok(Some(Header { length, source: Source::Address(client) }))
}

/// Returns the source of `source destination port port`.
fn line_addresses<'a, A: FromStr + Into<IpAddr>>(
    mut words: impl Iterator<Item = &'a str>,
) -> Result<IpAddr, HeaderError> {
    let mut address = || words.next()?.parse::<A>().ok();
    let addresses = address().zip(address());
    let (source, _) = addresses.ok_or(HeaderError::Line("expected two addresses of the family"))?;
    let mut port = || words.next().filter(|text| is_port(text));
    port().zip(port()).ok_or(HeaderError::Line("expected two ports"))?;
    match words.next() {
        None => Ok(source.into().to_canonical()),
        Some(_) => Err(HeaderError::Line("unexpected text after the ports")),
    }
}

/// Reads a decimal number without leading zeros; `parse` alone would accept `+80` and `080`.
fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port.to_string() == text)
}

/// Version 2 (section 2.2).
fn parse_binary(bytes: &[u8]) -> Result<Option<Header>, HeaderError> {
    let Some((fixed, rest)) = bytes.split_at_checked(FIXED) else { return Ok(None) };
    let [version_and_command, family, high, low] = [fixed[12], fixed[13], fixed[14], fixed[15]];
    let is_local = match version_and_command {
        0x20 => true,
        0x21 => false,
        _ if version_and_command >> 4 != 2 => return Err(HeaderError::Binary("the version must be 2")),
        _ => return Err(HeaderError::Binary("the command must be LOCAL or PROXY")),
    };
    let payload = usize::from(u16::from_be_bytes([high, low]));
    let length = FIXED + payload;
    if length > MAX_HEADER {
        return Err(HeaderError::Binary("longer than 4 KiB"));
    }
    let Some(payload) = rest.get(..payload) else { return Ok(None) };
    // The content of a LOCAL header must be skipped.
    if is_local {
        return Ok(Some(Header { length, source: Source::Local }));
    }
    let addresses = match family {
        UNSPECIFIED => 0,
        TCP_OVER_IPV4 => 12,
        TCP_OVER_IPV6 => 36,
        UNIX_STREAM => 216,
        0x12 | 0x22 | 0x32 => return Err(HeaderError::Binary("datagrams are not supported on connections")),
        _ => return Err(HeaderError::Binary("unknown family")),
    };
    let (addresses, extensions) =
        payload.split_at_checked(addresses).ok_or(HeaderError::Binary("incomplete addresses"))?;
    // Without a family, the content need not consist of extensions.
    if family != UNSPECIFIED {
        check_extensions(&bytes[..length], extensions)?;
    }
    let client = match family {
        TCP_OVER_IPV4 => addresses.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into()),
        TCP_OVER_IPV6 => addresses.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).to_canonical()),
        // A unix socket's path on the load balancer's machine is not a client's address.
        _ => None,
    };
    Ok(Some(Header { length, source: client.map_or(Source::Unknown, Source::Address) }))
}

/// Skips extensions, but checks their lengths and a checksum (section 2.2.3).
fn check_extensions(header: &[u8], mut extensions: &[u8]) -> Result<(), HeaderError> {
    let cut_off = HeaderError::Binary("incomplete extension");
    while let Some((kind, rest)) = extensions.split_first() {
        let (length, rest) = rest.split_first_chunk::<2>().ok_or(cut_off)?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length))).ok_or(cut_off)?;
        if *kind == CRC32C {
            let value: [u8; 4] = value.try_into().map_err(|_| HeaderError::Binary("a checksum must have 4 bytes"))?;
            // The checksum covers the header with zeros in the checksum's place.
            let place = header.len() - rest.len() - value.len();
            let own = place..place + value.len();
            let bytes = header.iter().enumerate().map(|(place, byte)| if own.contains(&place) { 0 } else { *byte });
            if crc32c(bytes) != u32::from_be_bytes(value) {
                return Err(HeaderError::Binary("wrong checksum"));
            }
        }
        extensions = rest;
    }
    Ok(())
}

/// CRC-32C (RFC 3720 appendix B.4), bit by bit, because it covers at most one header per connection.
fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parses a header with bytes of HTTP behind it, and each beginning of it, which must want more.
    #[track_caller]
    fn check(header: &[u8], expected: Result<Option<&str>, HeaderError>) {
        let bytes = [header, b"GET / HTTP/1.1\r\n\r\n"].concat();
        let expected = expected.map(|source| {
            let source = match source {
                Some("local") => Source::Local,
                Some(address) => Source::Address(address.parse().unwrap()),
                None => Source::Unknown,
            };
            Some(Header { length: header.len(), source })
        });
        assert_eq!(parse(&bytes), expected, "{}", header.escape_ascii());
        if expected.is_ok() {
            for length in 0..header.len() {
                assert_eq!(parse(&header[..length]), Ok(None), "{length} bytes of {}", header.escape_ascii());
            }
        }
    }

    #[test]
    fn lines_of_version_1() {
        let addresses = HeaderError::Line("expected two addresses of the family");
        let ports = HeaderError::Line("expected two ports");
        let family = HeaderError::Line("expected TCP4, TCP6 or UNKNOWN");
        let long = HeaderError::Line("longer than 107 bytes");
        for (line, expected) in [
            ("TCP4 192.0.2.1 198.51.100.1 4711 443", Ok(Some("192.0.2.1"))),
            ("TCP4 255.255.255.255 255.255.255.255 65535 65535", Ok(Some("255.255.255.255"))),
            ("TCP6 2001:db8::1 ::1 4711 443", Ok(Some("2001:db8::1"))),
            ("TCP6 ::ffff:192.0.2.1 ::1 4711 443", Ok(Some("192.0.2.1"))),
            ("UNKNOWN", Ok(None)),
            ("UNKNOWN ffff::1 whatever it says", Ok(None)),
            ("TCP4 2001:db8::1 ::1 4711 443", Err(addresses)),
            ("TCP6 192.0.2.1 198.51.100.1 4711 443", Err(addresses)),
            ("TCP4 192.0.2.01 198.51.100.1 4711 443", Err(addresses)),
            ("TCP4  192.0.2.1 198.51.100.1 4711 443", Err(addresses)),
            ("TCP4 192.0.2.1", Err(addresses)),
            ("TCP4 192.0.2.1 198.51.100.1 4711", Err(ports)),
            ("TCP4 192.0.2.1 198.51.100.1 04711 443", Err(ports)),
            ("TCP4 192.0.2.1 198.51.100.1 +4711 443", Err(ports)),
            ("TCP4 192.0.2.1 198.51.100.1 4711 65536", Err(ports)),
            ("TCP4 192.0.2.1 198.51.100.1 4711 443 ", Err(HeaderError::Line("unexpected text after the ports"))),
            ("UDP4 192.0.2.1 198.51.100.1 4711 443", Err(family)),
            ("unknown", Err(family)),
            ("", Err(family)),
            ("UNKNOWN\u{0}", Err(family)),
            (&format!("UNKNOWN {}", "x".repeat(91)), Ok(None)),
            (&format!("UNKNOWN {}", "x".repeat(92)), Err(long)),
            ("UNKNOWN \n and a line feed alone", Ok(None)),
        ] {
            check(format!("PROXY {line}\r\n").as_bytes(), expected);
        }
        check(b"PROXY TCP4 192.0.2.\xff 198.51.100.1 1 2\r\n", Err(HeaderError::Line("not ASCII text")));
    }

    #[test]
    fn what_begins_otherwise_is_known_at_the_first_byte_that_differs() {
        for bytes in [&b"G"[..], b"PROXZ", b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01", b"\r\n\r\n\0\r\nQUIT\r", b" PROXY"] {
            assert_eq!(parse(bytes), Err(HeaderError::Missing), "{}", bytes.escape_ascii());
        }
        for bytes in [&b""[..], b"P", b"\r", b"\r\n\r\n\0\r\nQUIT\n"] {
            assert_eq!(parse(bytes), Ok(None), "{}", bytes.escape_ascii());
        }
    }

    /// A header of version 2.
    fn binary(version_and_command: u8, family: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[version_and_command, family], &length, payload].concat()
    }

    const V4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 1, 0x12, 0x67, 0x01, 0xbb];

    #[test]
    fn headers_of_version_2() {
        let wrong = HeaderError::Binary;
        let mut v6 = [0; 36];
        v6[..16].copy_from_slice(&"2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        let mut mapped = [0; 36];
        mapped[..16].copy_from_slice(&"::ffff:192.0.2.1".parse::<Ipv6Addr>().unwrap().octets());
        let with = |extensions: &[u8]| [&V4[..], extensions].concat();
        for (header, expected) in [
            (binary(0x21, 0x11, &V4), Ok(Some("192.0.2.1"))),
            (binary(0x21, 0x21, &v6), Ok(Some("2001:db8::1"))),
            (binary(0x21, 0x21, &mapped), Ok(Some("192.0.2.1"))),
            (binary(0x21, 0x31, &[0; 216]), Ok(None)),
            (binary(0x21, 0x00, &[]), Ok(None)),
            (binary(0x21, 0x00, b"whatever"), Ok(None)),
            (binary(0x20, 0x00, &[]), Ok(Some("local"))),
            (binary(0x20, 0x11, &V4), Ok(Some("local"))),
            (binary(0x20, 0xff, b"whatever"), Ok(Some("local"))),
            (binary(0x21, 0x11, &with(&[0x04, 0, 2, 0, 0, 0xea, 0, 0])), Ok(Some("192.0.2.1"))),
            (binary(0x21, 0x11, &with(&[0x04, 0, 2, 0])), Err(wrong("incomplete extension"))),
            (binary(0x21, 0x11, &with(&[0x04, 0])), Err(wrong("incomplete extension"))),
            (binary(0x21, 0x11, &with(&[0x03, 0, 2, 0, 0])), Err(wrong("a checksum must have 4 bytes"))),
            (binary(0x21, 0x11, &with(&[0x03, 0, 4, 1, 2, 3, 4])), Err(wrong("wrong checksum"))),
            (binary(0x21, 0x11, &V4[..11]), Err(wrong("incomplete addresses"))),
            (binary(0x21, 0x21, &v6[..35]), Err(wrong("incomplete addresses"))),
            (binary(0x21, 0x31, &[0; 215]), Err(wrong("incomplete addresses"))),
            (binary(0x21, 0x12, &V4), Err(wrong("datagrams are not supported on connections"))),
            (binary(0x21, 0x41, &V4), Err(wrong("unknown family"))),
            (binary(0x11, 0x11, &V4), Err(wrong("the version must be 2"))),
            (binary(0x22, 0x11, &V4), Err(wrong("the command must be LOCAL or PROXY"))),
            (binary(0x20, 0x00, &[0; MAX_HEADER - FIXED]), Ok(Some("local"))),
            (binary(0x20, 0x00, &[0; MAX_HEADER - FIXED + 1]), Err(wrong("longer than 4 KiB"))),
        ] {
            check(&header, expected);
        }
    }

    #[test]
    fn a_checksum_is_over_the_whole_header() {
        // RFC 3720 appendix B.4.
        assert_eq!(crc32c([0; 32].into_iter()), 0x8a91_36aa);
        assert_eq!(crc32c(0..32), 0x46dd_794e);
        let mut header = binary(0x21, 0x11, &[&V4[..], &[0x03, 0, 4, 0, 0, 0, 0, 0x04, 0, 1, 9]].concat());
        let checksum = crc32c(header.iter().copied()).to_be_bytes();
        header[FIXED + 15..FIXED + 19].copy_from_slice(&checksum);
        check(&header, Ok(Some("192.0.2.1")));
        header[FIXED] = 193;
        check(&header, Err(HeaderError::Binary("wrong checksum")));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
            let _ = parse(&[LINE_START, &bytes].concat());
            let _ = parse(&[&SIGNATURE[..], &bytes].concat());
            let _ = parse(&binary(0x21, 0x11, &bytes));
        }

        #[test]
        fn a_header_says_the_same_whatever_follows(address: Ipv6Addr, ports: (u16, u16), more: Vec<u8>) {
            let line = format!("PROXY TCP6 {address} ::1 {} {}\r\n", ports.0, ports.1);
            let bytes = [line.as_bytes(), &more].concat();
            let source = Source::Address(IpAddr::from(address).to_canonical());
            prop_assert_eq!(parse(&bytes), Ok(Some(Header { length: line.len(), source })));
        }
    }
}
