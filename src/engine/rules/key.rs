//! The keys of buckets: ids as text that users cannot forge.

use std::fmt::Write;
use std::net::Ipv4Addr;

use super::fingerprint::{Fingerprinter, PartialFingerprint};
use crate::engine::algorithms::charge::Bucket;
use crate::engine::digest::sha256;
use crate::message::address;
use crate::message::{lossless, percent};

/// An encoded component longer than this is replaced by a hash: the id of a limit may be a whole URL.
const LONGEST_COMPONENT: usize = 64;

/// Stands for the ids that share a bucket because too many of them are new. No component encodes to it.
const NEWCOMERS: &str = "~new";

/// The bucket of one id, given as opaque text: what a scenario names.
pub fn opaque(short: &str, id: &str, fingerprinter: &Fingerprinter) -> Bucket {
    let mut key = BucketKey::new(short, fingerprinter);
    key.push(id);
    let fingerprint = key.fingerprint();
    key.bucket(fingerprint)
}

/// The bucket that ids share which come when their limit has more new ones than it may, in place of that under `key`:
/// the one of this number. No id can be written so.
pub fn of_newcomers(key: &str, number: usize, fingerprinter: &Fingerprinter) -> Bucket {
    let (id, mark) = key.split_at(key.find('#').unwrap_or(key.len()));
    let short = id.split(':').next().unwrap_or(id);
    let mut key = BucketKey::new(short, fingerprinter);
    key.push_encoded(NEWCOMERS);
    if number > 0 {
        let _ = write!(key.text, ".{number}");
    }
    key.text.push_str(mark);
    let fingerprint = key.fingerprint();
    key.bucket(fingerprint)
}

/// The fingerprint of a bucket, or of all that begin with the same components, by the text of its key.
pub(crate) fn fingerprint_of(text: &str, fingerprinter: &Fingerprinter) -> u128 {
    let mut hash = fingerprinter.start();
    hash.write(text.as_bytes());
    hash.finish()
}

/// A key under construction: its text and the fingerprint so far.
pub(crate) struct BucketKey {
    text: String,
    hash: PartialFingerprint,
    /// How much of the text is in the fingerprint. A key has many small parts, and to add each would take longer than to
    /// add them together.
    hashed: usize,
}

impl BucketKey {
    pub(crate) fn new(short: &str, fingerprinter: &Fingerprinter) -> Self {
        let mut text = String::with_capacity(short.len() + 32);
        text.push_str(short);
        Self { text, hash: fingerprinter.start(), hashed: 0 }
    }

    /// The fingerprint of what it says so far.
    pub(crate) fn fingerprint(&mut self) -> u128 {
        self.hash.write(&self.text.as_bytes()[self.hashed..]);
        self.hashed = self.text.len();
        self.hash.finish()
    }

    /// The bucket under this key.
    pub(crate) fn bucket(self, fingerprint: u128) -> Bucket {
        Bucket { key: self.text, fingerprint }
    }

    /// Adds a component. It is percent-encoded, so that user text can neither end a component nor make a Redis hash
    /// tag (`{...}` decides the slot of a key), and hashed when it is long.
    pub(crate) fn push(&mut self, component: &str) {
        if component.bytes().all(is_plain) && component.len() <= LONGEST_COMPONENT {
            return self.push_encoded(component);
        }
        let mut encoded = String::with_capacity(component.len() + 8);
        percent::encode(&lossless::bytes(component), is_plain, &mut encoded);
        if encoded.len() > LONGEST_COMPONENT {
            encoded = format!("~{}", &sha256(component)[..32]);
        }
        self.push_encoded(&encoded);
    }

    /// Adds an IPv4 address.
    pub(crate) fn push_ipv4(&mut self, address: Ipv4Addr) {
        self.text.push(':');
        address::push_ipv4(address, &mut self.text);
    }

    pub(crate) fn push_encoded(&mut self, encoded: &str) {
        self.text.push(':');
        self.text.push_str(encoded);
    }
}

/// Bytes that stand for themselves in a key. `~` begins a hashed component, `*` is a missing and `!` a
/// malformed one, and `#` begins a window.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._/@,+=".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_components_are_hashed() {
        let key = |length: usize| opaque("L", &"x".repeat(length), &Fingerprinter::new((1, 2))).key;
        assert_eq!(key(65).len(), "L:~".len() + 32);
        assert_eq!(key(64).len(), "L:".len() + 64);
    }

    /// What one gateway has blocked another one knows by the text alone.
    #[test]
    fn the_text_of_a_key_has_its_fingerprint() {
        let hash = Fingerprinter::new((1, 2));
        for id in ["7", "a:b{c}", "", &"x".repeat(100)] {
            let bucket = opaque("L", id, &hash);
            assert_eq!(fingerprint_of(&bucket.key, &hash), bucket.fingerprint, "{id}");
        }
    }
}
