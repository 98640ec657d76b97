//! Keyed 128-bit hashes of bucket keys.
//!
//! Clients choose ids, so the hash is keyed with a secret of the process: nobody can craft two ids that share a bucket.
//! Two ids collide by chance with a probability of 2^-128, or 2^-64 in the half that the memory store keeps.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

/// The key of the hash. One for each process: the memory store and the overrides must agree across reloads.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprinter {
    keys: (u64, u64),
}

impl Fingerprinter {
    /// The keys should be random.
    pub const fn new(keys: (u64, u64)) -> Self {
        Self { keys }
    }

    pub fn start(&self) -> PartialFingerprint {
        PartialFingerprint(SipHasher13::new_with_keys(self.keys.0, self.keys.1))
    }
}

/// A fingerprint under construction; [`PartialFingerprint::finish`] may be called at any point.
#[derive(Clone)]
pub struct PartialFingerprint(SipHasher13);

impl PartialFingerprint {
    pub fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The fingerprint of the bytes so far.
    pub fn finish(&self) -> u128 {
        self.0.finish128().as_u128()
    }
}
