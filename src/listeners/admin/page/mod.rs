//! The live page at `/`: one document without anything loaded from elsewhere.
//!
//! Its policy allows the one style and the one script that it contains, by their hashes, and requests to this listener. What
//! clients have chosen, such as ids, reaches the document as text only; Trusted Types make anything else an error.

use std::sync::LazyLock;

use http::StatusCode;
use sha2::{Digest, Sha256};

use crate::message::reply::Reply;

const STYLE: &str = include_str!("page.css");

const SCRIPT: &str = concat!(include_str!("charts.js"), include_str!("live.js"), include_str!("actions.js"));

const DOCUMENT: &str = include_str!("page.html");

/// The document with its style and script, and the policy for it.
static PAGE: LazyLock<(String, String)> = LazyLock::new(|| {
    let document = DOCUMENT.replace("/*style*/", STYLE).replace("/*script*/", SCRIPT);
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        source(SCRIPT),
        source(STYLE),
    );
    (document, policy)
});

/// Replies with the page.
pub(super) fn reply() -> Reply {
    let (document, policy) = &*PAGE;
    let mut reply = super::page(StatusCode::OK, "text/html; charset=utf-8", document.clone());
    for (name, value) in [
        ("content-security-policy", policy.as_str()),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        reply.headers.append(name, value);
    }
    reply
}

/// Returns the source expression of a policy that allows an inline element with this text.
fn source(text: &str) -> String {
    format!("'sha256-{}'", base64(&Sha256::digest(text.as_bytes())))
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, place| bits << 8 | usize::from(group.get(place).copied().unwrap_or(0)));
        for place in 0..4 {
            let is_padding = place > group.len();
            let symbol = ALPHABET.get(bits >> (18 - 6 * place) & 63).copied().unwrap_or(b'=');
            text.push(if is_padding { '=' } else { char::from(symbol) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page's maximum, in bytes.
    const MOST: usize = 100 << 10;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (text, expected) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy"), ("~~~", "fn5+")]
        {
            assert_eq!(base64(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn the_page_is_small_and_loads_nothing() {
        let page = reply();
        assert!(page.body.len() < MOST, "{} bytes", page.body.len());
        assert!(page.body.contains(STYLE) && page.body.contains(SCRIPT));
        for forbidden in
            ["src=", "@import", "url(h", "innerHTML", "localStorage", "document.cookie", " style=", " onclick="]
        {
            assert!(!page.body.contains(forbidden), "{forbidden}");
        }
    }
}
