//! A map by fingerprint.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys are fingerprints, or halves of them.
pub type ByFingerprint<K, V> = HashMap<K, V, BuildHasherDefault<FingerprintHasher>>;

/// Takes fingerprints as they are: they are hashes with a secret key, so nobody can choose ids that collide.
#[derive(Default)]
pub struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }

    #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = (fingerprint >> 32) as u64;
    }
}
