//! Numbered buckets.

/// A numbered bucket's fingerprint: 128 well-mixed bits, like the rules' keyed hash.
pub(crate) fn fingerprint(key: u64) -> u128 {
    (u128::from(mix(key)) << 64) | u128::from(mix(key ^ 0xD1B5_4A32_D192_ED03))
}

/// The next pseudo-random number; splitmix64.
pub(crate) fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}
