//! Reads certificates: their hosts, validity and subject.

#![expect(clippy::result_large_err, reason = "the code that `asn1` derives returns its errors")]

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use asn1::{
    Asn1Read, BitString, ObjectIdentifier, Parser, Sequence, SequenceOf, Set, Tlv, UtcTime, X509GeneralizedTime, oid,
};
use jiff::civil::DateTime;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// `subjectAltName` (RFC 5280 section 4.2.1.6).
const SUBJECT_ALTERNATIVE_NAME: ObjectIdentifier = oid!(2, 5, 29, 17);

/// The attributes that have a name: those of RFC 4514 section 3 and others that OpenSSL names, so that subjects match
/// nginx' `$ssl_client_s_dn`.
static ATTRIBUTES: [(ObjectIdentifier, &str); 14] = [
    (oid!(2, 5, 4, 3), "CN"),
    (oid!(2, 5, 4, 4), "SN"),
    (oid!(2, 5, 4, 5), "serialNumber"),
    (oid!(2, 5, 4, 6), "C"),
    (oid!(2, 5, 4, 7), "L"),
    (oid!(2, 5, 4, 8), "ST"),
    (oid!(2, 5, 4, 9), "street"),
    (oid!(2, 5, 4, 10), "O"),
    (oid!(2, 5, 4, 11), "OU"),
    (oid!(2, 5, 4, 12), "title"),
    (oid!(2, 5, 4, 42), "GN"),
    (oid!(0, 9, 2342, 19200300, 100, 1, 25), "DC"),
    (oid!(0, 9, 2342, 19200300, 100, 1, 1), "UID"),
    (oid!(1, 2, 840, 113549, 1, 9, 1), "emailAddress"),
];

/// RFC 5280 section 4.1, as far as it is needed.
#[derive(Asn1Read)]
struct Signed<'a> {
    certificate: ToBeSigned<'a>,
    _algorithm: Sequence<'a>,
    _signature: BitString<'a>,
}

#[derive(Asn1Read)]
struct ToBeSigned<'a> {
    #[explicit(0)]
    _version: Option<Tlv<'a>>,
    _serial: Tlv<'a>,
    _algorithm: Sequence<'a>,
    _issuer: Sequence<'a>,
    validity: Validity,
    subject: Name<'a>,
    _public_key: Sequence<'a>,
    #[implicit(1)]
    _issuer_id: Option<BitString<'a>>,
    #[implicit(2)]
    _subject_id: Option<BitString<'a>>,
    #[explicit(3)]
    extensions: Option<SequenceOf<'a, Extension<'a>>>,
}

#[derive(Asn1Read)]
struct Validity {
    not_before: Time,
    not_after: Time,
}

#[derive(Asn1Read)]
enum Time {
    Utc(UtcTime),
    Generalized(X509GeneralizedTime),
}

/// Not `SetOf`, which rejects attributes out of order.
type Name<'a> = SequenceOf<'a, Set<'a>>;

#[derive(Asn1Read)]
struct Attribute<'a> {
    kind: ObjectIdentifier,
    value: Tlv<'a>,
}

#[derive(Asn1Read)]
struct Extension<'a> {
    kind: ObjectIdentifier,
    /// DER omits `false`, but not all encoders do.
    _critical: Option<bool>,
    value: &'a [u8],
}

/// The parts of a certificate that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    /// Host names in lower case; of wildcards, the part after the star with its dot: `.example.com`.
    pub(super) hosts: Vec<String>,
    /// Host addresses.
    pub(super) addresses: Vec<IpAddr>,
    /// Valid from, in seconds since the Unix epoch.
    pub(super) not_before: i64,
    /// Valid until, in seconds since the Unix epoch.
    pub(super) not_after: i64,
    /// The subject as RFC 4514 text; may be empty.
    pub(super) subject: String,
}

impl Certificate {
    /// Reads a certificate; `None` if it is not valid DER.
    pub(super) fn parse(der: &[u8]) -> Option<Self> {
        let ToBeSigned { validity, subject, extensions, .. } = asn1::parse_single::<Signed<'_>>(der).ok()?.certificate;
        let mut certificate = Self {
            hosts: Vec::new(),
            addresses: Vec::new(),
            not_before: validity.not_before.seconds()?,
            not_after: validity.not_after.seconds()?,
            subject: distinguished_name(subject)?,
        };
        for extension in extensions.into_iter().flatten() {
            if extension.kind == SUBJECT_ALTERNATIVE_NAME {
                let names = asn1::parse_single::<SequenceOf<'_, Tlv<'_>>>(extension.value).ok()?;
                names.for_each(|name| certificate.add_name(&name));
            }
        }
        Some(certificate)
    }

    /// Adds a name if it names a host.
    fn add_name(&mut self, name: &Tlv<'_>) {
        match (name.tag_bytes(), name.data()) {
            // dNSName
            ([0x82], text) => {
                let Ok(text) = str::from_utf8(text) else { return };
                let text = text.to_ascii_lowercase();
                match text.strip_prefix('*').filter(|suffix| suffix.starts_with('.')) {
                    Some(suffix) => self.hosts.push(suffix.to_owned()),
                    None if text.starts_with('.') => {}
                    None => self.hosts.push(text),
                }
            }
            // iPAddress
            ([0x87], octets) => {
                let v4 = <[u8; 4]>::try_from(octets).map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
                let v6 = <[u8; 16]>::try_from(octets).map(|octets| IpAddr::V6(Ipv6Addr::from(octets)));
                self.addresses.extend(v4.or(v6));
            }
            _ => {}
        }
    }

    /// Returns whether it is valid for a host: a name in lower case without the root's dot, or an address without
    /// brackets. A wildcard matches one label (RFC 9525 section 6.3).
    pub(super) fn covers(&self, host: &str) -> bool {
        if let Ok(address) = host.parse::<IpAddr>() {
            return self.addresses.contains(&address);
        }
        let wildcard = wildcard_of(host);
        self.hosts.iter().any(|name| if name.starts_with('.') { wildcard == Some(name) } else { name == host })
    }

    /// Returns its names for a message.
    pub(super) fn names(&self) -> String {
        let hosts = self.hosts.iter().map(|host| if host.starts_with('.') { format!("*{host}") } else { host.clone() });
        hosts.chain(self.addresses.iter().map(ToString::to_string)).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the subject of a certificate in PEM as RFC 4514 text; `None` if it is invalid or the subject is empty.
pub(crate) fn subject_of_pem(pem: &str) -> Option<String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    Certificate::parse(&der).map(|certificate| certificate.subject).filter(|subject| !subject.is_empty())
}

/// Returns the part of a host after its first label, with its dot.
pub(super) fn wildcard_of(host: &str) -> Option<&str> {
    host.find('.').filter(|dot| *dot > 0).map(|dot| &host[dot..])
}

impl Time {
    /// In seconds since the Unix epoch.
    fn seconds(&self) -> Option<i64> {
        let time = match self {
            Self::Utc(time) => time.as_datetime(),
            Self::Generalized(time) => time.as_datetime(),
        };
        let [month, day, hour, minute, second] =
            [time.month(), time.day(), time.hour(), time.minute(), time.second()].map(u8::cast_signed);
        let time = DateTime::new(i16::try_from(time.year()).ok()?, month, day, hour, minute, second, 0).ok()?;
        Some(time.duration_since(DateTime::constant(1970, 1, 1, 0, 0, 0, 0)).as_secs())
    }
}

/// Returns a name as text (RFC 4514): the last part first.
fn distinguished_name(name: Name<'_>) -> Option<String> {
    let parts = name.map(|set| set.parse(relative_name).ok()).collect::<Option<Vec<_>>>()?;
    Some(parts.into_iter().rev().collect::<Vec<_>>().join(","))
}

fn relative_name(set: &mut Parser<'_>) -> asn1::ParseResult<String> {
    let mut text = String::new();
    while !set.is_empty() {
        if !text.is_empty() {
            text.push('+');
        }
        write_attribute(&set.read_element()?, &mut text);
    }
    Ok(text)
}

fn write_attribute(Attribute { kind, value }: &Attribute<'_>, to: &mut String) {
    let name = ATTRIBUTES.iter().find(|(known, _)| known == kind).map(|(_, name)| *name);
    if let (Some(name), Some(text)) = (name, string(value)) {
        let _ = write!(to, "{name}=");
        return write_escaped(&text, to);
    }
    let _ = match name {
        Some(name) => write!(to, "{name}=#"),
        None => write!(to, "{kind}=#"),
    };
    for octet in value.full_data() {
        let _ = write!(to, "{octet:02X}");
    }
}

/// Returns the text of a value if it is of a textual kind (RFC 5280 section 4.1.2.4, and older ones of RFC 4519).
fn string(value: &Tlv<'_>) -> Option<String> {
    match value.tag_bytes() {
        // UTF8String, NumericString, PrintableString, IA5String.
        [0x0c | 0x12 | 0x13 | 0x16] => String::from_utf8(value.data().to_vec()).ok(),
        // TeletexString, which in practice contains Latin-1.
        [0x14] => Some(value.data().iter().copied().map(char::from).collect()),
        // BMPString.
        [0x1e] => {
            let (units, []) = value.data().as_chunks() else { return None };
            char::decode_utf16(units.iter().copied().map(u16::from_be_bytes)).collect::<Result<_, _>>().ok()
        }
        // UniversalString.
        [0x1c] => {
            let (units, []) = value.data().as_chunks() else { return None };
            units.iter().copied().map(|unit| char::from_u32(u32::from_be_bytes(unit))).collect()
        }
        _ => None,
    }
}

/// Escapes separators and invisible characters (RFC 4514 section 2.4).
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
        let der = [vec![0x30, 22, 0x31, 20], attribute(0x03, b'a'), attribute(0x0b, b'b')].concat();
        assert_eq!(distinguished_name(asn1::parse_single(&der).unwrap()).unwrap(), "CN=a+OU=b");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Certificate::parse(&bytes);
            let _ = asn1::parse_single(&bytes).map(distinguished_name);
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
