//! Properties of the gRPC listener's parsers, for the proptests below and `integration/fuzz.sh`.

#![expect(clippy::unwrap_used, reason = "a property that does not hold is a panic")]

use bytes::Bytes;
use prost::Message;

use super::authorization;
use super::messages::authorization::CheckRequest;
use super::messages::health::HealthCheckRequest;
use super::messages::rate_limit::RateLimitRequest;
use super::protocol::{read_message, timeout};
use crate::http::properties::Property;
use crate::message::headers::{self, Headers};

/// The properties by name, for fuzzers.
pub const ALL: [(&str, Property); 4] = [
    ("grpc_frames", grpc_frames),
    ("grpc_check", grpc_check),
    ("grpc_rate_limit", grpc_rate_limit),
    ("grpc_timeout", grpc_timeout),
];

/// However a stream is cut, the same message or error comes of it, and a message is the whole stream.
fn grpc_frames(bytes: &[u8]) {
    let whole = read_message(&[bytes]);
    let (first, second) = bytes.split_at(bytes.len() / 2);
    assert_eq!(read_message(&[first, second]), whole);
    assert_eq!(read_message(&bytes.chunks(1).collect::<Vec<_>>()), whole);
    assert!(whole.is_err() || whole.is_ok_and(|message| message.len() + 5 == bytes.len()));
}

/// A message that is read is written as one that means the same.
fn again<M: Message + Default + PartialEq>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(Bytes::copy_from_slice(bytes)).ok()?;
    let written = message.encode_to_vec();
    assert_eq!(written.len(), message.encoded_len());
    assert!(M::decode(Bytes::from(written)).unwrap() == message, "it is read as another");
    Some(message)
}

/// Whatever Envoy says of a request, the rules see headers that are some.
fn grpc_check(bytes: &[u8]) {
    let Some(request) = again::<CheckRequest>(bytes) else { return };
    if let Some(seen) = authorization::checked_headers(request) {
        assert!(seen.iter().all(|(name, value)| headers::is_name(name) && headers::is_value(value)), "{seen:?}");
        assert!(seen.all("host").count() <= 1, "{seen:?}");
    }
}

fn grpc_rate_limit(bytes: &[u8]) {
    again::<RateLimitRequest>(bytes);
    again::<HealthCheckRequest>(bytes);
}

/// A timeout is read exactly, or rejected.
fn grpc_timeout(bytes: &[u8]) {
    let headers = Headers::from_iter([("grpc-timeout", bytes)]);
    if let Ok(Some(given)) = timeout(&headers) {
        let (unit, number) = bytes.split_last().unwrap();
        let number: u128 = str::from_utf8(number).unwrap().parse().unwrap();
        let nanoseconds = match unit {
            b'H' => 3_600_000_000_000,
            b'M' => 60_000_000_000,
            b'S' => 1_000_000_000,
            b'm' => 1_000_000,
            b'u' => 1_000,
            _ => 1,
        };
        assert_eq!(given.as_nanos(), number * nanoseconds);
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::auth::v3 as auth;
    use envoy_types::pb::envoy::service::ratelimit::v3 as rls;
    use proptest::prelude::*;

    use super::*;

    /// A part of a message: a key of any of the wire types, or something that may come after one.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            (1_u8..16, 0_u8..6).prop_map(|(number, wire)| vec![number << 3 | wire]),
            (0_u8..24).prop_map(|length| vec![length]),
            prop::collection::vec(any::<u8>(), 0..6),
            "[a-z:.%/@-]{1,8}".prop_map(|text| { [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat() }),
        ]
    }

    proptest! {
        #[test]
        fn of_messages(parts in prop::collection::vec(part(), 0..16)) {
            let bytes = parts.concat();
            for (_, property) in ALL {
                property(&bytes);
            }
            // What is read from Envoy's own files as a message is one to us; the other way round, text may be none there.
            let bytes = Bytes::from(bytes);
            if auth::CheckRequest::decode(bytes.clone()).is_ok() {
                prop_assert!(CheckRequest::decode(bytes.clone()).is_ok());
            }
            if rls::RateLimitRequest::decode(bytes.clone()).is_ok() {
                prop_assert!(RateLimitRequest::decode(bytes).is_ok());
            }
        }

        #[test]
        fn of_timeouts(text in "[0-9]{0,9}[HMSmunx]?") {
            grpc_timeout(text.as_bytes());
        }

        #[test]
        fn of_frames(lengths in prop::collection::vec((0_u8..3, 0_u8..9, 0_u8..9), 0..6)) {
            let frames = lengths.iter().map(|(flag, length, given)| {
                [&[flag / 2, 0, 0, 0, *length], &[7; 9][..usize::from(*given)]].concat()
            });
            grpc_frames(&frames.collect::<Vec<_>>().concat());
        }
    }
}
