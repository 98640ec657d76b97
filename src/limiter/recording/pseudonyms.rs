//! Stand-ins for ids, which limits read as they read the ids: equal ids stay equal, and each keeps its type.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::request::value_type::{ValueType, lenient, lenient_members};
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

    /// An id for which limits get the same buckets as for this one, whichever of these types they read it as: ids that are equal as
    /// one type and different as another have such stand-ins. What is malformed stays so.
    pub(super) fn value(&self, forms: &BTreeSet<ValueType>, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        // The types with the fewest values come last, and what they read, the others that can read it read as the same.
        let mut typed = forms.iter().rev().filter(|form| **form != ValueType::Text).peekable();
        let is_typed = typed.peek().is_some();
        match typed.find_map(|form| self.typed(*form, text)) {
            Some(stand_in) => stand_in,
            None if is_typed => format!("!{}", self.text("malformed", text)),
            None => self.text("text", text),
        }
    }

    /// `None` if the text is malformed as this type.
    fn typed(&self, form: ValueType, text: &str) -> Option<String> {
        let lower = text.to_ascii_lowercase();
        // Another spelling of an id is another text.
        let spelling = |canonical: &str| (canonical != lower).then(|| self.hash("spelling", lower.as_bytes()));
        let stand_in = match form {
            ValueType::Text => return None,
            ValueType::Integer => {
                let canonical = lenient(form, text)?;
                // Below 2^63, so that all readers take it for an integer.
                let number = self.hash("integer", canonical.as_bytes()) >> 65;
                let zeros = spelling(&canonical).map_or(0, |spelling| 1 + (spelling % 64) as usize);
                format!("{}{number}", "0".repeat(zeros))
            }
            ValueType::Address => {
                let canonical = lenient(form, text)?;
                with_port(self.name(&canonical), spelling(&canonical))
            }
            ValueType::Hostname | ValueType::RegisteredDomain => {
                let canonical = lenient(ValueType::Hostname, text)?;
                with_port(self.name(&canonical), spelling(&canonical))
            }
            ValueType::HostnameSet => {
                let members = lenient_members(text)?;
                let mut names: Vec<String> = members.iter().map(|member| self.member(member)).collect();
                // A list of one name given twice is no name.
                let repeated = names.first().filter(|_| names.len() == 1 && text.contains(',')).cloned();
                names.extend(repeated);
                if let Some(first) = names.first_mut() {
                    *first = with_port(std::mem::take(first), spelling(&members.join(",")));
                }
                names.join(",")
            }
        };
        Some(self.in_case(stand_in, text))
    }

    /// A member of a set, in which a wildcard is a name of its own.
    fn member(&self, canonical: &str) -> String {
        canonical.strip_prefix("*.").map_or_else(|| self.name(canonical), |below| format!("*.{}", self.name(below)))
    }

    /// A canonical name below the same stand-in for its registered domain, or an address.
    fn name(&self, name: &str) -> String {
        if let Ok(address) = name.parse::<IpAddr>() {
            return self.address(address).to_string();
        }
        let domain = host::registered(name).unwrap_or_else(|_| name.to_owned());
        let below = self.letters("domain", &domain, 20);
        if domain == name { format!("{below}.com") } else { format!("{}.{below}.com", self.letters("name", name, 20)) }
    }

    /// Texts that are equal but for their case have stand-ins that are so.
    pub(super) fn text(&self, kind: &str, text: &str) -> String {
        self.in_case(self.letters(kind, &text.to_ascii_lowercase(), 32), text)
    }

    /// `number` letters from `a` to `p`, of 4 bits each. Digits have no case.
    fn letters(&self, kind: &str, text: &str, number: usize) -> String {
        let hash = self.hash(kind, text.as_bytes());
        (0..number).map(|place| char::from(b'a' + (hash >> (4 * place) & 15) as u8)).collect()
    }

    /// A stand-in whose case tells how the text is written. One in lower case stays so.
    fn in_case(&self, stand_in: String, text: &str) -> String {
        if !text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return stand_in;
        }
        let hash = self.hash("case", text.as_bytes());
        let is_upper = |place: usize| hash >> (place % 128) & 1 == 1;
        let cased = stand_in.chars().enumerate();
        cased.map(|(place, letter)| if is_upper(place) { letter.to_ascii_uppercase() } else { letter }).collect()
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

/// A name or an address with a port, which no type but text reads, if there is a spelling to tell.
fn with_port(name: String, spelling: Option<u128>) -> String {
    match spelling.map(|spelling| 10_000 + spelling % 50_000) {
        None => name,
        Some(port) if name.contains(':') => format!("[{name}]:{port}"),
        Some(port) => format!("{name}:{port}"),
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
        let of = |form, text| pseudonyms().value(&[form].into(), text);
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

    #[test]
    fn ids_are_equal_as_each_type_if_their_stand_ins_are() {
        use ValueType::{Address, Hostname, HostnameSet, Integer, RegisteredDomain, Text};

        let texts = [
            "7",
            "07",
            "+7",
            "8",
            "007",
            "seven",
            "Seven",
            "a.example.com",
            "A.Example.com",
            "a.example.com.",
            "A.example.com.:80",
            "a.example.com:443",
            "*.a.example.com",
            "b.example.com",
            "example.com",
            "*.example.com",
            "a.co.uk",
            "b.co.uk",
            "co.uk",
            "com",
            "a b",
            "A b",
            "192.0.2.1",
            "192.0.2.1:80",
            "192.0.2.2",
            "2001:db8::7",
            "2001:DB8:0::7",
            "[2001:db8::7]:80",
            "2001:db8::8",
            "2001:db9::8",
            "m\u{fc}ller.example",
            "xn--mller-kva.example",
            "a.example.com,b.example.com",
            "b.example.com, A.example.com",
            "b.example.com,a.example.com:80",
            "a.example.com,*.a.example.com",
            "a.example.com,a.example.com.",
            "192.0.2.1,a.co.uk",
            "a.example.com,com",
        ];
        let all = [Text, Integer, Address, Hostname, RegisteredDomain, HostnameSet];
        let id = |form: ValueType, text: &str| if form == Text { Some(text.to_owned()) } else { lenient(form, text) };
        for chosen in 1_u32..1 << all.len() {
            let forms: BTreeSet<ValueType> =
                (0..).zip(all).filter(|(place, _)| chosen >> place & 1 == 1).map(|(_, form)| form).collect();
            let stand_ins = texts.map(|text| pseudonyms().value(&forms, text));
            for form in &forms {
                for (one, first) in texts.iter().zip(&stand_ins) {
                    assert_eq!(
                        id(*form, one).is_some(),
                        id(*form, first).is_some(),
                        "{one}: {first} as {form:?} of {forms:?}"
                    );
                    for (other, second) in texts.iter().zip(&stand_ins) {
                        let (given, hidden) =
                            (id(*form, one) == id(*form, other), id(*form, first) == id(*form, second));
                        assert_eq!(given, hidden, "{one}, {other}: {first}, {second} as {form:?} of {forms:?}");
                    }
                }
            }
        }
    }
}
