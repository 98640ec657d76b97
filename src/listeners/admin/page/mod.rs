//! The live page at `/`: one document without anything loaded from elsewhere.
//!
//! Its policy allows the one style and the one script that it contains, by their hashes, and requests to this listener. What
//! clients have chosen, such as ids, reaches the document as text only; Trusted Types make anything else an error.

use std::sync::LazyLock;

use http::StatusCode;

use crate::message::headers::Headers;
use crate::message::inline_source::inline_source;
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
        inline_source(SCRIPT),
        inline_source(STYLE),
    );
    (document, policy)
});

/// Replies with the page.
pub(super) fn reply() -> Reply {
    let (document, policy) = &*PAGE;
    let headers = [
        ("content-type", "text/html; charset=utf-8"),
        ("cache-control", "no-store"),
        ("content-security-policy", policy.as_str()),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ];
    Reply { status: StatusCode::OK, headers: Headers::from_iter(headers), body: document.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page's maximum, in bytes.
    const MOST: usize = 100 << 10;

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
