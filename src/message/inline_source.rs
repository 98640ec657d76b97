//! Source expressions of a Content-Security-Policy for inline elements.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// Returns the source expression that allows an inline element with this text (CSP level 3, section 8.2).
pub fn inline_source(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn a_source_is_the_hash_of_the_text() {
        let expected = "'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='";
        assert_eq!(inline_source("alert('Hello, world.');"), expected);
    }
}
