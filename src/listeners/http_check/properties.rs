//! Properties of the check listener's parsers, for the proptests below and `integration/fuzz.sh`.

#![expect(clippy::unwrap_used, reason = "a property that does not hold is a panic")]

use std::net::IpAddr;

use super::call::{self, Call, Subject};
use super::original::{GatewayReader, Original};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::charging::plan::Plan;
use crate::engine::limit::Limit;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::http::properties::Property;
use crate::listeners::json::Mistake;
use crate::message::client_address::TrustedProxies;
use crate::message::headers::{self, Headers};
use crate::message::host::host_of;
use crate::message::path::EscapedSlashes;
use crate::message::underscores::Underscores;

/// The properties by name, for fuzzers.
pub const ALL: [(&str, Property); 2] = [("original_request", original_request), ("check_call", check_call)];

/// The headers that conventions go by, so that a fuzzer need not find their names.
const NAMES: [&str; 12] = [
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-original-host",
    "x-real-ip",
    "method",
    "path",
    "host",
    "x-forwarded-method",
    "x-forwarded-uri",
    "x-forwarded-host",
    "x-forwarded-for",
];

/// Whatever the headers are, all servers read a valid request alike, and none of its headers came twice. Each line of the input is a header: a letter for its name, and its value.
fn original_request(bytes: &[u8]) {
    let mut given = Headers::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some((name, value)) = line.split_first() else { continue };
        if headers::is_value(value) {
            given.append(NAMES[usize::from(*name) % NAMES.len()], value.trim_ascii());
        }
    }
    let trusted = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
    // Whatever bytes come before it, what the gateway adds says who the client is.
    let client = IpAddr::from([192, 0, 2, 7]);
    given.append("x-forwarded-for", client.to_string());
    let reader = GatewayReader { headers: &given, trusted: &trusted };
    let forwarded = reader.forward();
    assert!(
        forwarded.as_ref().is_ok_and(|original| original.client == Some(client.into())) || forwarded.is_err(),
        "{given:?}"
    );
    for original in [reader.nginx(), forwarded] {
        let Ok(original) = original else { continue };
        let mut headers = given.clone();
        let incoming = original.incoming(&mut headers, Underscores::Drop, EscapedSlashes::Keep);
        let Ok(received) = incoming.read() else { continue };
        assert!(headers::is_name(received.method.as_bytes()) && received.path.starts_with('/'), "{received:?}");
        assert_eq!(received.headers.text("host").and_then(host_of), Some(received.host), "{original:?}");
        // Each part is what the one header of it says, so nothing was made up and nothing chosen.
        let says = |part: &str| given.iter().filter(|(_, value)| value.ends_with(part.as_bytes())).count();
        assert!(says(&original.method) >= 1, "{original:?}");
        // A URL without a path is `/`, and with OPTIONS `*` (RFC 9112 section 3.2.4).
        let is_bare_url = original.target.starts_with("/?") || matches!(original.target.as_str(), "/" | "*");
        assert!(says(&original.target) >= 1 || is_bare_url, "{original:?}");
    }
}

/// A call is valid, or has mistakes with their places. A valid one can be charged, or is rejected with a reason.
fn check_call(bytes: &[u8]) {
    let call = match call::parse(bytes) {
        Ok(call) => call,
        Err(mistakes) => {
            assert!(!mistakes.is_empty(), "nothing was said");
            for mistake in mistakes {
                assert!(!mistake.detail.is_empty(), "{mistake:?}");
                assert!(mistake.pointer.is_empty() || mistake.pointer.starts_with('/'), "{mistake:?}");
                assert!(!mistake.detail.contains(char::is_control) && mistake.detail.len() < 2_000, "{mistake:?}");
            }
            return;
        }
    };
    let Call { mode, subject, .. } = call;
    match subject {
        Subject::Named { charges, in_list } => match Plan::of_named(&rules(), &charges, mode, Micros(0), None) {
            Ok(plan) => {
                assert!(plan.charges.len() <= charges.len() * 2);
                let mut keys: Vec<_> = plan.charges.iter().map(|charge| &charge.bucket.key).collect();
                keys.sort_unstable();
                keys.dedup();
                assert_eq!(keys.len(), plan.charges.len(), "one bucket is charged twice");
                assert!(keys.iter().all(|key| key.len() < 600 && !key.contains(['{', '}', ' '])), "{keys:?}");
            }
            Err(error) => assert!(Mistake::of_charge(&error, in_list).pointer.starts_with('/')),
        },
        Subject::Request { request, .. } => {
            let Ok((original, mut headers)) = Original::described(request) else { return };
            let incoming = original.incoming(&mut headers, Underscores::Drop, EscapedSlashes::Keep);
            if let Ok(received) = incoming.read() {
                assert!(received.path.starts_with('/'), "{}", received.path);
            }
        }
    }
}

/// A limit of every kind of id.
fn rules() -> Rules {
    let header = |form| TypedPart::new(Part::Header("x-a".parse().unwrap()), form);
    let ip = || TypedPart::new(Part::Ip { ipv6_prefix: 64 }, ValueType::Text);
    let windows = [Numbers::fixed(10).unwrap(), Numbers::new(5, 5, 1_000_000_000).unwrap()];
    let limit = |(name, by): (&str, Vec<TypedPart>)| Limit {
        by,
        per_call: true,
        allowance: Allowance::Windows(windows.clone().into()),
        ..Limit::new(name)
    };
    let limits = [
        ("G", Vec::new()),
        ("A", vec![header(ValueType::Text)]),
        ("I", vec![ip()]),
        ("D", vec![header(ValueType::RegisteredDomain), ip()]),
        ("S", vec![header(ValueType::Integer), header(ValueType::HostnameSet), header(ValueType::Address)]),
    ];
    Rules::new(limits.into_iter().map(limit).collect(), Fingerprinter::new((1, 2)), Micros(0), Vec::new())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn of_original_requests(lines in prop::collection::vec(
            (0u8..12, prop_oneof![
                "(GET|POST|get|OPTIONS|https?://[a-z]{0,3}(:[0-9]{1,3})?(/[ -~]{0,8})?|/[ -~]{0,12}|\\*|a\\.example|[0-9.:, ]{1,20}|\\PC{0,8})".prop_map(String::into_bytes),
                prop::collection::vec(any::<u8>(), 0..8),
            ]),
            0..8,
        )) {
            let lines: Vec<Vec<u8>> = lines.into_iter().map(|(name, value)| [&[name + b'\x30'], &value[..]].concat()).collect();
            original_request(&lines.join(&b'\n'));
        }

        #[test]
        fn of_calls(
            members in prop::collection::vec((
                "(limit|id|cost|burst|count|period|op|request|limits|x|\\PC)",
                "(-?[0-9]{1,18}(\\.5)?|\"(G|A|I|D|S|spend|check|1s|9d|a:b|2001:db8::1|7:example.com:\\PC{0,4})\"|\\[(\"[a-z0-9.:]{0,9}\"(,\"[a-z0-9.:]{0,9}\")?)?\\]|\\{\"(url|limit)\": \"\\PC{0,4}\"\\}|null)"), 0..6),
        ) {
            let members: Vec<String> = members.into_iter().map(|(key, value)| format!("{key:?}: {value}")).collect();
            let object = format!("{{{}}}", members.join(", "));
            check_call(object.as_bytes());
            check_call(format!("{{\"limits\": [{object}, {object}]}}").as_bytes());
            check_call(format!("{{\"request\": {object}}}").as_bytes());
        }
    }
}
