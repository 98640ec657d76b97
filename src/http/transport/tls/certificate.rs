//! What a certificate says: the hosts that it is for, until when it holds, and whose it is.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::der::{BOOLEAN, OBJECT_IDENTIFIER, OCTET_STRING, Reader, SEQUENCE, SET, Value, explicit, implicit};

/// `subjectAltName`, 2.5.29.17 (RFC 5280 section 4.2.1.6).
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// `GeneralName`'s choices that hosts have.
const DNS_NAME: u8 = implicit(2);
const IP_ADDRESS: u8 = implicit(7);

/// The attributes that have a name: those of RFC 4514 section 3, and more that OpenSSL names, so that a subject reads
/// as nginx' `$ssl_client_s_dn` does.
const ATTRIBUTES: [(&[u8], &str); 14] = [
    (&[0x55, 0x04, 0x03], "CN"),
    (&[0x55, 0x04, 0x04], "SN"),
    (&[0x55, 0x04, 0x05], "serialNumber"),
    (&[0x55, 0x04, 0x06], "C"),
    (&[0x55, 0x04, 0x07], "L"),
    (&[0x55, 0x04, 0x08], "ST"),
    (&[0x55, 0x04, 0x09], "street"),
    (&[0x55, 0x04, 0x0a], "O"),
    (&[0x55, 0x04, 0x0b], "OU"),
    (&[0x55, 0x04, 0x0c], "title"),
    (&[0x55, 0x04, 0x2a], "GN"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x19], "DC"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x01], "UID"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x01], "emailAddress"),
];

/// The parts of a certificate that are wanted here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    /// Names of hosts, in lower case.
    pub(super) exact: Vec<String>,
    /// What follows the star of wildcards, with its dot: `.example.com`.
    pub(super) wildcards: Vec<String>,
    /// Addresses of hosts.
    pub(super) addresses: Vec<IpAddr>,
    /// From when it holds, in seconds since the Unix epoch.
    pub(super) not_before: i64,
    /// Until when it holds, in seconds since the Unix epoch.
    pub(super) not_after: i64,
    /// Whose it is, as text of RFC 4514; empty if the subject is.
    pub(super) subject: String,
}

impl Certificate {
    /// Reads a certificate (RFC 5280 section 4.1); `None` if it is none.
    pub(super) fn parse(der: &[u8]) -> Option<Self> {
        let mut to_be_signed = Reader::new(der).enter(SEQUENCE)?.enter(SEQUENCE)?;
        let _version = to_be_signed.take(explicit(0));
        let [_serial, _algorithm, _issuer] = [to_be_signed.value()?, to_be_signed.value()?, to_be_signed.value()?];
        let mut validity = to_be_signed.enter(SEQUENCE)?;
        let (not_before, not_after) = (time(validity.value()?)?, time(validity.value()?)?);
        let subject = distinguished_name(to_be_signed.enter(SEQUENCE)?)?;
        let _public_key = to_be_signed.take(SEQUENCE)?;
        let mut certificate =
            Self { exact: Vec::new(), wildcards: Vec::new(), addresses: Vec::new(), not_before, not_after, subject };
        // Before the extensions there may be unique identifiers, which RFC 5280 says not to use.
        while !to_be_signed.is_at_end() {
            let value = to_be_signed.value()?;
            if value.tag == explicit(3) {
                certificate.read_extensions(Reader::new(value.contents).enter(SEQUENCE)?)?;
            }
        }
        Some(certificate)
    }

    fn read_extensions(&mut self, mut extensions: Reader<'_>) -> Option<()> {
        while !extensions.is_at_end() {
            let mut extension = extensions.enter(SEQUENCE)?;
            let identifier = extension.take(OBJECT_IDENTIFIER)?;
            let _critical = extension.take(BOOLEAN);
            let value = extension.take(OCTET_STRING)?;
            if identifier == SUBJECT_ALTERNATIVE_NAME {
                let mut names = Reader::new(value).enter(SEQUENCE)?;
                while !names.is_at_end() {
                    self.add_name(names.value()?);
                }
            }
        }
        Some(())
    }

    /// Takes up a name if it is one of a host.
    fn add_name(&mut self, name: Value<'_>) {
        match (name.tag, name.contents) {
            (DNS_NAME, text) => {
                let Ok(text) = str::from_utf8(text) else { return };
                let text = text.to_ascii_lowercase();
                match text.strip_prefix('*') {
                    Some(suffix) if suffix.starts_with('.') => self.wildcards.push(suffix.to_owned()),
                    _ => self.exact.push(text),
                }
            }
            (IP_ADDRESS, octets) => {
                let v4 = <[u8; 4]>::try_from(octets).map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
                let v6 = <[u8; 16]>::try_from(octets).map(|octets| IpAddr::V6(Ipv6Addr::from(octets)));
                self.addresses.extend(v4.or(v6));
            }
            _ => {}
        }
    }

    /// Whether it is for this host: a name in lower case without the root's dot, or an address without brackets. A
    /// wildcard stands for one label (RFC 9525 section 6.3).
    pub(super) fn covers(&self, host: &str) -> bool {
        if let Ok(address) = host.parse::<IpAddr>() {
            return self.addresses.contains(&address);
        }
        self.exact.iter().any(|name| name == host)
            || wildcard_of(host).is_some_and(|suffix| self.wildcards.iter().any(|wildcard| wildcard == suffix))
    }

    /// Its names, for a message.
    pub(super) fn names(&self) -> String {
        let wildcards = self.wildcards.iter().map(|suffix| format!("*{suffix}"));
        let addresses = self.addresses.iter().map(ToString::to_string);
        self.exact.iter().cloned().chain(wildcards).chain(addresses).collect::<Vec<_>>().join(", ")
    }
}

/// Whose a certificate in PEM is, as text of RFC 4514; `None` if it is none or its subject is empty.
pub(crate) fn subject_of_pem(pem: &str) -> Option<String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    Certificate::parse(&der).map(|certificate| certificate.subject).filter(|subject| !subject.is_empty())
}

/// What follows the first label of a host, with its dot, for which a wildcard could stand.
pub(super) fn wildcard_of(host: &str) -> Option<&str> {
    host.find('.').filter(|dot| *dot > 0).map(|dot| &host[dot..])
}

/// `UTCTime` or `GeneralizedTime`, in seconds since the Unix epoch. RFC 5280 section 4.1.2.5 wants both with seconds and
/// a `Z`, and years of two digits to mean 1950 to 2049.
fn time(value: Value<'_>) -> Option<i64> {
    let digits = value.contents.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let number = |digits: &[u8]| digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
    let (year, rest) = match (value.tag, digits.len()) {
        (0x17, 12) => {
            let (year, rest) = digits.split_at(2);
            (number(year) + if number(year) < 50 { 2000 } else { 1900 }, rest)
        }
        (0x18, 14) => {
            let (year, rest) = digits.split_at(4);
            (number(year), rest)
        }
        _ => return None,
    };
    let mut pairs = rest.chunks(2).map(number);
    let (month, day) = (pairs.next()?, pairs.next()?);
    let (hours, minutes, seconds) = (pairs.next()?, pairs.next()?, pairs.next()?);
    let fits = (1..=12).contains(&month) && (1..=31).contains(&day) && hours < 24 && minutes < 60 && seconds < 60;
    fits.then(|| ((days(year, month, day) * 24 + hours) * 60 + minutes) * 60 + seconds)
}

/// Days since 1970-01-01 in the Gregorian calendar. A year is counted from March on, so that the leap day is its last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    // 306 days are the months from March to December, and 719_468 the days from 0000-03-01 to 1970-01-01.
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// A name as text (RFC 4514): the last part first.
fn distinguished_name(mut name: Reader<'_>) -> Option<String> {
    let mut parts = Vec::new();
    while !name.is_at_end() {
        let mut set = name.enter(SET)?;
        let mut part = String::new();
        while !set.is_at_end() {
            let mut attribute = set.enter(SEQUENCE)?;
            if !part.is_empty() {
                part.push('+');
            }
            write_attribute(attribute.take(OBJECT_IDENTIFIER)?, attribute.value()?, &mut part);
        }
        parts.push(part);
    }
    parts.reverse();
    Some(parts.join(","))
}

fn write_attribute(identifier: &[u8], value: Value<'_>, to: &mut String) {
    let name = ATTRIBUTES.iter().find(|(known, _)| *known == identifier).map(|(_, name)| *name);
    match (name, string(value)) {
        (Some(name), Some(text)) => {
            let _ = write!(to, "{name}=");
            write_escaped(&text, to);
        }
        (name, _) => {
            match name {
                Some(name) => to.push_str(name),
                None => write_dotted(identifier, to),
            }
            to.push_str("=#");
            for octet in value.whole {
                let _ = write!(to, "{octet:02X}");
            }
        }
    }
}

/// The text of a value, if it is one of the kinds that are text (RFC 5280 section 4.1.2.4, and old ones of RFC 4519).
fn string(value: Value<'_>) -> Option<String> {
    match value.tag {
        // UTF8String, NumericString, PrintableString, IA5String.
        0x0c | 0x12 | 0x13 | 0x16 => String::from_utf8(value.contents.to_vec()).ok(),
        // TeletexString, which everybody fills with Latin-1.
        0x14 => Some(value.contents.iter().copied().map(char::from).collect()),
        // BMPString.
        0x1e => {
            let (units, []) = value.contents.as_chunks() else { return None };
            char::decode_utf16(units.iter().copied().map(u16::from_be_bytes)).collect::<Result<_, _>>().ok()
        }
        // UniversalString.
        0x1c => {
            let (units, []) = value.contents.as_chunks() else { return None };
            units.iter().copied().map(|unit| char::from_u32(u32::from_be_bytes(unit))).collect()
        }
        _ => None,
    }
}

/// Escapes what separates, and what nobody could see (RFC 4514 section 2.4).
fn write_escaped(text: &str, to: &mut String) {
    let last = text.chars().count().saturating_sub(1);
    for (place, character) in text.chars().enumerate() {
        match character {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => to.extend(['\\', character]),
            ' ' if place == 0 || place == last => to.push_str("\\ "),
            '#' if place == 0 => to.push_str("\\#"),
            '\0'..='\x1f' | '\x7f' => {
                let _ = write!(to, "\\{:02X}", u32::from(character));
            }
            _ => to.push(character),
        }
    }
}

/// An object identifier in numbers and dots (X.690 section 8.19); hex if it is none.
fn write_dotted(identifier: &[u8], to: &mut String) {
    let mut arcs = Vec::new();
    let mut arc: u64 = 0;
    for octet in identifier {
        // An arc of nine octets fits; longer ones, such as those made of UUIDs, lose their first bits.
        arc = arc << 7 | u64::from(octet & 0x7f);
        if octet & 0x80 == 0 {
            arcs.push(std::mem::take(&mut arc));
        }
    }
    let first = arcs.first().copied().unwrap_or_default();
    // The first two are one number, 40 times the first plus the second, and the first is 2 at most.
    let root = (first / 40).min(2);
    let _ = write!(to, "{root}.{}", first - root * 40);
    for arc in arcs.iter().skip(1) {
        let _ = write!(to, ".{arc}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::string::{BmpString, TeletexString};
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_are_those_of_hosts() {
        let der = certificate(&["Example.com", "*.example.com", "192.0.2.1", "2001:db8::1"], |_| {});
        let certificate = Certificate::parse(&der).unwrap();
        assert_eq!(certificate.names(), "example.com, *.example.com, 192.0.2.1, 2001:db8::1");
        for (host, is_covered) in [
            ("example.com", true),
            ("a.example.com", true),
            ("a.b.example.com", false),
            (".example.com", false),
            ("notexample.com", false),
            ("com", false),
            ("", false),
            ("192.0.2.1", true),
            ("192.0.2.2", false),
            ("2001:db8::1", true),
        ] {
            assert_eq!(certificate.covers(host), is_covered, "{host}");
        }
    }

    #[test]
    fn dates_are_seconds_of_the_epoch() {
        for (date, expected) in [
            ((1970, 1, 1), 0),
            ((1999, 12, 31), 946_598_400),
            ((2000, 2, 29), 951_782_400),
            ((2026, 11, 21), 1_795_219_200),
            // From 2050 on a date is a GeneralizedTime.
            ((2100, 3, 1), 4_107_542_400),
            ((4096, 1, 1), 67_090_118_400),
        ] {
            let (year, month, day) = date;
            let der = certificate(&[], |params| {
                params.not_before = date_time_ymd(1950, 1, 1);
                params.not_after = date_time_ymd(year, month, day);
            });
            let certificate = Certificate::parse(&der).unwrap();
            assert_eq!((certificate.not_before, certificate.not_after), (-631_152_000, expected), "{date:?}");
        }
    }

    /// Checks the text of a subject of these attributes.
    #[track_caller]
    fn check(attributes: &[(DnType, DnValue)], expected: &str) {
        let der = certificate(&[], |params| {
            for (kind, value) in attributes {
                params.distinguished_name.push(kind.clone(), value.clone());
            }
        });
        assert_eq!(Certificate::parse(&der).unwrap().subject, expected);
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.into())
    }

    #[test]
    fn a_subject_is_text_of_rfc_4514() {
        use DnType::{CommonName, CountryName, CustomDnType, OrganizationName};
        check(&[], "");
        check(
            &[(CountryName, utf8("DE")), (OrganizationName, utf8("Acme, Inc.")), (CommonName, utf8("client 1"))],
            "CN=client 1,O=Acme\\, Inc.,C=DE",
        );
        check(&[(CommonName, utf8(" a b "))], "CN=\\ a b\\ ");
        check(&[(CommonName, utf8(" "))], "CN=\\ ");
        check(&[(CommonName, utf8("#1+2;\"<>\\"))], "CN=\\#1\\+2\\;\\\"\\<\\>\\\\");
        check(&[(CommonName, utf8("a\n\u{7f}\0"))], "CN=a\\0A\\7F\\00");
        check(&[(CommonName, utf8("Jürgen"))], "CN=Jürgen");
        check(&[(CommonName, DnValue::BmpString(BmpString::try_from("Jürgen").unwrap()))], "CN=Jürgen");
        check(&[(CommonName, DnValue::TeletexString(TeletexString::try_from("old").unwrap()))], "CN=old");
        // An attribute that has no name keeps its number, and its value all its bytes.
        check(&[(CustomDnType(vec![1, 3, 6, 1, 4, 1, 311]), utf8("x"))], "1.3.6.1.4.1.311=#0C0178");
        check(&[(CustomDnType(vec![2, 999, 3]), utf8("x"))], "2.999.3=#0C0178");
        check(&[(CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]), utf8("a@b"))], "emailAddress=a@b");
        check(&[(CustomDnType(vec![0, 9, 2342, 19_200_300, 100, 1, 1]), utf8("u"))], "UID=u");
    }

    #[test]
    fn several_attributes_of_one_part_are_joined() {
        let attribute = |kind: u8, text: u8| vec![0x30, 0x08, 0x06, 0x03, 0x55, 0x04, kind, 0x0c, 0x01, text];
        let name = [vec![0x31, 20], attribute(0x03, b'a'), attribute(0x0b, b'b')].concat();
        assert_eq!(distinguished_name(Reader::new(&name)).unwrap(), "CN=a+OU=b");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Certificate::parse(&bytes);
            let _ = distinguished_name(Reader::new(&bytes));
        }

        #[test]
        fn a_certificate_with_a_changed_byte_does_not_panic(place in 0_usize..300, byte: u8) {
            let mut der = certificate(&["example.com", "192.0.2.1"], |_| {});
            let place = place % der.len();
            der[place] = byte;
            let _ = Certificate::parse(&der);
            prop_assert!(Certificate::parse(&der[..place]).is_none());
        }
    }
}
