//! A hash that is the same in every process, on every machine and in every version.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

/// All gateways must agree on it: on the ids in the share of `enforce_for`, and on the hash tags of buckets.
pub fn stable(bytes: &[u8]) -> u64 {
    let mut hash = SipHasher13::new_with_keys(0, 0);
    hash.write(bytes);
    hash.finish128().h1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_never_changes() {
        for (text, hash) in
            [("", 0x2134_935d_61d9_b40d), ("192.0.2.1", 0xbafd_5e42_65b9_4698), ("Everything", 0x0daa_8330_13a4_af4e)]
        {
            assert_eq!(stable(text.as_bytes()), hash, "{text}");
        }
    }
}
