//! Keyed 128-bit hashes of bucket keys.
//!
//! Ids are chosen by clients, so the hash is keyed with a secret of the process: nobody can craft two ids that share a
//! bucket. Two ids collide by chance with a probability of 2^-128, and by the half that the memory store keeps of 2^-64.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

/// The key of the hash. One per process: the memory store and the overrides must agree across reloads.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprinter {
    keys: (u64, u64),
}

impl Fingerprinter {
    /// A hash with these keys; they should be random.
    pub const fn new(keys: (u64, u64)) -> Self {
        Self { keys }
    }

    /// Begins a fingerprint.
    pub fn start(&self) -> PartialFingerprint {
        PartialFingerprint(SipHasher13::new_with_keys(self.keys.0, self.keys.1))
    }
}

/// A fingerprint under way; [`PartialFingerprint::finish`] may be taken at any point.
#[derive(Clone)]
pub struct PartialFingerprint(SipHasher13);

impl PartialFingerprint {
    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The fingerprint of what was written so far.
    pub fn finish(&self) -> u128 {
        self.0.finish128().as_u128()
    }
}

/// A hash that is the same in every process: whether an id belongs to the share of `enforce_for` must not depend on
/// which gateway asks.
pub fn stable(bytes: &[u8]) -> u64 {
    let mut hash = SipHasher13::new_with_keys(0, 0);
    hash.write(bytes);
    hash.finish128().h1
}
