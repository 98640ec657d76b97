//! The SHA-256 of a text.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The SHA-256 of a text, in lower-case hex.
pub(crate) fn sha256(text: &str) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
