//! Stand-ins for ids, which limits read as they read the ids: equal ids stay equal, and each keeps its type.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::engine::rules::fingerprint::Fingerprinter;
use crate::engine::rules::value_type::{ValueType, lenient};
use crate::message::host;

/// The ids of a recording, under its secret.
#[derive(Debug)]
pub(super) struct Pseudonyms {
    secret: Fingerprinter,
    /// The networks that rules compare addresses with.
    networks: Vec<IpNet>,
}

impl Pseudonyms {
    pub(super) fn new(secret: (u64, u64), networks: Vec<IpNet>) -> Self {
        Self { secret: Fingerprinter::new(secret), networks }
    }

    pub(super) fn hash(&self, kind: &str, bytes: &[u8]) -> u128 {
        let mut hash = self.secret.start();
        hash.write(kind.as_bytes());
        hash.write(&[0]);
        hash.write(bytes);
        hash.finish()
    }

    fn hex(&self, kind: &str, text: &str) -> String {
        format!("{:032x}", self.hash(kind, text.as_bytes()))
    }

    /// An id for which limits get the same buckets as for this one. What is malformed stays so.
    pub(super) fn value(&self, form: ValueType, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let Some(canonical) = lenient(form, text) else { return format!("!{}", self.hex("malformed", text)) };
        match form {
            ValueType::Text => self.hex("text", &canonical),
            // Below 2^63, so that all readers take it for an integer.
            ValueType::Integer => (self.hash("integer", canonical.as_bytes()) >> 65).to_string(),
            ValueType::Address => match canonical.parse() {
                Ok(address) => self.address(address).to_string(),
                Err(_) => self.hex("text", &canonical),
            },
            ValueType::Hostname | ValueType::RegisteredDomain => self.name(text.trim()),
            ValueType::HostnameSet => {
                let mut names: Vec<String> = text.split(',').map(|name| self.name(name.trim())).collect();
                names.sort();
                names.join(",")
            }
        }
    }

    /// A name below the same stand-in for its registered domain.
    fn name(&self, name: &str) -> String {
        let name = host::without_port(name).to_ascii_lowercase();
        if let Ok(address) = name.trim_matches(['[', ']']).parse::<IpAddr>() {
            return self.address(address).to_string();
        }
        let name = name.strip_prefix("*.").unwrap_or(&name);
        let domain = host::registered(name).unwrap_or_else(|_| name.to_owned());
        let below = &self.hex("domain", &domain)[..20];
        if domain == name { format!("{below}.com") } else { format!("{}.{below}.com", &self.hex("name", name)[..20]) }
    }

    /// An address that shares as many leading bits with the stand-in of another address as the two addresses share, and that is in
    /// the same networks that rules name. A bit is flipped or not as the bits before it say (Crypto-PAn: Xu, Fan, Ammar and Moon,
    /// 2002); the bits that lead to a network of the rules are kept.
    pub(super) fn address(&self, address: IpAddr) -> IpAddr {
        match address.to_canonical() {
            IpAddr::V4(v4) => {
                let bits = u128::from(v4.to_bits()) << 96;
                let hidden = self.bits(bits, 32, |network| match network {
                    IpNet::V4(net) => Some((u128::from(net.network().to_bits()) << 96, net.prefix_len())),
                    IpNet::V6(_) => None,
                });
                IpAddr::V4(Ipv4Addr::from_bits((hidden >> 96) as u32))
            }
            IpAddr::V6(v6) => {
                let hidden = self.bits(v6.to_bits(), 128, |network| match network {
                    IpNet::V6(net) => Some((net.network().to_bits(), net.prefix_len())),
                    IpNet::V4(_) => None,
                });
                IpAddr::V6(Ipv6Addr::from_bits(hidden))
            }
        }
    }

    /// Hides the first `width` bits. `network` gives the bits and the length of a network of the same family.
    fn bits(&self, bits: u128, width: u8, network: impl Fn(&IpNet) -> Option<(u128, u8)>) -> u128 {
        let kept: Vec<(u128, u8)> = self.networks.iter().filter_map(network).collect();
        let mut hidden = 0;
        for place in 0..width {
            let bit = 1_u128 << (127 - place);
            // The bits before this one.
            let before = bits & !(bit | (bit - 1));
            let leads = |(net, length): &(u128, u8)| *length > place && net & !(bit | (bit - 1)) == before;
            let flips = !kept.iter().any(leads)
                && self.hash(if width == 32 { "v4" } else { "v6" }, &[&before.to_be_bytes()[..], &[place]].concat())
                    & 1
                    == 1;
            hidden |= if flips { (bits & bit) ^ bit } else { bits & bit };
        }
        hidden
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pseudonyms() -> Pseudonyms {
        Pseudonyms::new((1, 2), vec!["10.1.0.0/16".parse().unwrap(), "2001:db8::/32".parse().unwrap()])
    }

    #[test]
    fn addresses_keep_their_prefixes_and_the_networks_of_the_rules() {
        let of = |text: &str| pseudonyms().address(text.parse().unwrap());
        let shared = |a: &str, b: &str| match (of(a), of(b)) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            other => panic!("{other:?}"),
        };
        for (a, b, expected) in [
            ("192.0.2.1", "192.0.2.1", 32),
            ("192.0.2.1", "192.0.2.3", 30),
            ("192.0.2.1", "64.0.2.1", 0),
            ("2a00::1", "2a00::ffff:0:0:1", 64),
            ("2a00::1", "2a00:0:0:1::1", 63),
        ] {
            assert_eq!(shared(a, b), expected, "{a} {b}");
        }
        assert_ne!(of("192.0.2.1"), "192.0.2.1".parse::<IpAddr>().unwrap());
        let net: IpNet = "10.1.0.0/16".parse().unwrap();
        let all = (0..=255).flat_map(|a| (0..=255).map(move |b| Ipv4Addr::new(10, a, b, 7)));
        for address in all {
            assert_eq!(net.contains(&of(&address.to_string())), net.contains(&IpAddr::V4(address)), "{address}");
        }
        assert!("2001:db8::/32".parse::<IpNet>().unwrap().contains(&of("2001:db8:1::7")));
    }

    #[test]
    fn values_keep_their_types() {
        let of = |form, text| pseudonyms().value(form, text);
        for (form, same, other, malformed) in [
            (ValueType::Integer, ["7", "+007"], "8", "seven"),
            (ValueType::Address, ["192.0.2.1", "192.0.2.1:80"], "192.0.2.2", "x"),
            (ValueType::Hostname, ["a.example.com", "A.Example.com:80"], "b.example.com", "a b"),
            (ValueType::RegisteredDomain, ["example.com", "EXAMPLE.com"], "example.org", "com"),
            (
                ValueType::HostnameSet,
                ["a.example.com,b.example.com", "b.example.com, a.example.com"],
                "a.example.com",
                "a b",
            ),
        ] {
            let [one, two] = same.map(|text| lenient(form, &of(form, text)));
            assert!(one.is_some() && one == two, "{form:?}: {one:?} {two:?}");
            assert_ne!(one, lenient(form, &of(form, other)), "{form:?}");
            assert!(lenient(form, &of(form, malformed)).is_none(), "{form:?}: {}", of(form, malformed));
            assert_ne!(of(form, same[0]), same[0], "{form:?}");
        }
        let domain = |text| lenient(ValueType::RegisteredDomain, &of(ValueType::RegisteredDomain, text));
        assert_eq!(domain("a.example.co.uk"), domain("b.c.example.co.uk"));
        assert_ne!(of(ValueType::Text, "a"), of(ValueType::Text, "A"));
        assert_eq!(of(ValueType::Text, ""), "");
    }
}
