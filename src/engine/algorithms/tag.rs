//! The hash tags of buckets. Redis Cluster keeps keys with the same tag on the same node, where one call can charge them all.

use std::net::{IpAddr, Ipv6Addr};

use super::charge::Bucket;
use crate::engine::stable_hash::stable;
use crate::message::address;
use crate::message::percent::decode;

/// The number of hash tags in a cluster. With another number, buckets would get other keys.
pub const TAGS: u8 = 64;

/// The bits of an IPv6 address that decide its tag. Whole clients often have a /48, and limits cut addresses to longer networks.
pub(crate) const IPV6_BITS: u8 = 48;

/// How a bucket gets its hash tag. Only stores that are a cluster use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tag {
    /// From the first part of its id, so that limits that begin with the same id share a tag.
    #[default]
    OfId,
    /// All buckets of the limit have this one. Below [`TAGS`].
    Fixed(u8),
}

impl Tag {
    /// The tag of a name: that of a limit, or the value of `tag:`.
    pub fn named(name: &str) -> Self {
        Self::Fixed(hashed(name.as_bytes()))
    }
}

/// The number of a bucket's hash tag, below [`TAGS`].
pub fn tag_of(bucket: &Bucket) -> u8 {
    match bucket.tag {
        Tag::Fixed(tag) => tag,
        Tag::OfId => of_part(first_part(&bucket.key)),
    }
}

/// The hash tag of an id that begins with this part, percent-encoded as in keys. An IPv6 address or network counts by its
/// first [`IPV6_BITS`].
pub(crate) fn of_part(encoded: &str) -> u8 {
    match ipv6(encoded) {
        Some(address) => hashed(&address.octets()[..usize::from(IPV6_BITS / 8)]),
        None => hashed(encoded.as_bytes()),
    }
}

/// The first part of the id in a key, `short:part:...#window`. The name if there is no id.
fn first_part(key: &str) -> &str {
    let id = key.split('#').next().unwrap_or(key);
    let mut parts = id.split(':');
    let name = parts.next().unwrap_or(id);
    parts.next().unwrap_or(name)
}

/// The address of an encoded IPv6 address or network.
fn ipv6(encoded: &str) -> Option<Ipv6Addr> {
    if !encoded.contains("%3A") {
        return None;
    }
    let text = decode(encoded);
    match address::parse(text.split('/').next()?) {
        Ok(IpAddr::V6(address)) => Some(address),
        _ => None,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the remainder fits")]
fn hashed(bytes: &[u8]) -> u8 {
    (stable(bytes) % u64::from(TAGS)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(keys: &[&str], tag: u8) {
        let tags: Vec<u8> = keys.iter().map(|key| tag_of(&Bucket::new(*key, 1))).collect();
        assert_eq!(tags, vec![tag; keys.len()], "{keys:?}");
    }

    /// Other tags would lose all that the buckets of a cluster hold.
    #[test]
    fn the_tag_of_an_id_never_changes() {
        check(&["PerAddress:192.0.2.1", "A:192.0.2.1:/v1/orders", "A:192.0.2.1#1", "A:192.0.2.1:x#log#2"], 24);
        check(&["PerAddress:192.0.2.2"], 15);
        check(&["A:12345678", "B:12345678:example.com"], 18);
        check(&["A:a%3Ab"], 41);
        check(&["A:"], 13);
        check(&["All", "All#1"], 18);
        assert_eq!(Tag::named("Everything"), Tag::Fixed(14));
        let fixed = Bucket { tag: Tag::Fixed(63), ..Bucket::new("A:192.0.2.1", 1) };
        assert_eq!(tag_of(&fixed), 63);
    }

    #[test]
    fn an_ipv6_address_counts_by_its_first_48_bits() {
        let within = [
            "A:2001%3Adb8%3A1%3A2%3A%3A/64",
            "A:2001%3Adb8%3A1%3A%3A/48",
            "B:2001%3Adb8%3A1%3Affff%3A%3A7:x",
            "B:2001%3Adb8%3A1%3A%3A/56",
        ];
        check(&within, 45);
        check(&["A:2001%3Adb8%3A2%3A%3A/64"], 59);
    }

    #[test]
    fn ids_spread_over_all_tags() {
        let mut counts = [0_u32; TAGS as usize];
        for number in 0..6_400 {
            counts[usize::from(tag_of(&Bucket::new(format!("A:10.0.{}.{}", number / 256, number % 256), 1)))] += 1;
        }
        assert!(counts.iter().all(|count| (60..150).contains(count)), "{counts:?}");
    }
}
