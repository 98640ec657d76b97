//! The keys of buckets: ids as text that clients cannot forge.

use std::borrow::Cow;
use std::fmt::Write;
use std::net::Ipv4Addr;

use crate::engine::algorithms::charge::Bucket;
use crate::engine::algorithms::tag::Tag;
use crate::engine::digest::sha256;
use crate::engine::limit::fingerprint::{Fingerprinter, PartialFingerprint};
use crate::message::address;
use crate::message::{lossless, percent};

/// A longer encoded part is replaced by its hash: an id may be a whole URL.
const LONGEST_PART: usize = 64;

/// Stands for ids that share a bucket because too many are new. No part encodes to it.
const NEWCOMERS: &str = "~new";

/// The bucket of an id given as opaque text, as scenarios do.
pub fn opaque(short: &str, id: &str, fingerprinter: &Fingerprinter) -> Bucket {
    let mut key = BucketKey::new(short, fingerprinter);
    key.push(id);
    key.into_bucket(Tag::OfId)
}

/// The shared bucket of this number that replaces the one under `key` when its limit has more new ids than it may. No id
/// encodes to its key.
pub fn of_newcomers(key: &str, tag: Tag, number: usize, fingerprinter: &Fingerprinter) -> Bucket {
    let (id, mark) = key.split_at(key.find('#').unwrap_or(key.len()));
    let short = id.split(':').next().unwrap_or(id);
    let mut key = BucketKey::new(short, fingerprinter);
    key.push_encoded(NEWCOMERS);
    if number > 0 {
        let _ = write!(key.text, ".{number}");
    }
    key.text.push_str(mark);
    key.into_bucket(tag)
}

/// The fingerprint of a bucket's key, or of a prefix of it that ends with a part.
pub(crate) fn fingerprint_of(text: &str, fingerprinter: &Fingerprinter) -> u128 {
    let mut hash = fingerprinter.start();
    hash.write(text.as_bytes());
    hash.finish()
}

/// The key of a bucket without the marks of its algorithm, window and candidate, and the fingerprint of that, which all buckets of the id
/// share.
pub fn plain<'k>(key: &'k str, fingerprint: u128, fingerprinter: &Fingerprinter) -> (&'k str, u128) {
    match memchr::memchr(b'#', key.as_bytes()) {
        None => (key, fingerprint),
        Some(mark) => (&key[..mark], fingerprint_of(&key[..mark], fingerprinter)),
    }
}

/// A part as keys have it: percent-encoded, so that user text can neither end a part nor form a Redis hash tag
/// (`{...}` decides the hash slot of a key), and hashed if it is long.
pub(crate) fn encoded(part: &str) -> Cow<'_, str> {
    if part.bytes().all(is_plain) && part.len() <= LONGEST_PART {
        return part.into();
    }
    let mut encoded = String::with_capacity(part.len() + 8);
    percent::encode(&lossless::bytes(part), is_plain, &mut encoded);
    if encoded.len() > LONGEST_PART {
        encoded = format!("~{}", &sha256(part)[..32]);
    }
    encoded.into()
}

/// A key under construction.
pub(crate) struct BucketKey {
    text: String,
    hash: PartialFingerprint,
    /// The length of the text in `fingerprint`. Hashing small parts one by one would take longer than hashing them together.
    hashed: usize,
    fingerprint: u128,
}

impl BucketKey {
    pub(crate) fn new(short: &str, fingerprinter: &Fingerprinter) -> Self {
        let mut text = String::with_capacity(short.len() + 32);
        text.push_str(short);
        Self { text, hash: fingerprinter.start(), hashed: 0, fingerprint: 0 }
    }

    /// The fingerprint of the text so far.
    pub(crate) fn fingerprint(&mut self) -> u128 {
        if self.hashed < self.text.len() {
            self.hash.write(&self.text.as_bytes()[self.hashed..]);
            (self.hashed, self.fingerprint) = (self.text.len(), self.hash.finish());
        }
        self.fingerprint
    }

    pub(crate) fn into_bucket(mut self, tag: Tag) -> Bucket {
        let fingerprint = self.fingerprint();
        Bucket { key: self.text, fingerprint, tag }
    }

    /// Appends a part as [`encoded`].
    pub(crate) fn push(&mut self, part: &str) {
        self.push_encoded(&encoded(part));
    }

    pub(crate) fn push_ipv4(&mut self, address: Ipv4Addr) {
        self.text.push(':');
        address::push_ipv4(address, &mut self.text);
    }

    pub(crate) fn push_encoded(&mut self, encoded: &str) {
        self.text.push(':');
        self.text.push_str(encoded);
    }
}

/// Bytes that are not escaped in a key. `~` starts a hashed part, `*` is a missing and `!` a malformed one, and `#`
/// starts a window.
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

    /// Gateways exchange blocks by the text of the key alone.
    #[test]
    fn the_text_of_a_key_has_its_fingerprint() {
        let hash = Fingerprinter::new((1, 2));
        for id in ["7", "a:b{c}", "", &"x".repeat(100)] {
            let bucket = opaque("L", id, &hash);
            assert_eq!(fingerprint_of(&bucket.key, &hash), bucket.fingerprint, "{id}");
        }
    }
}
