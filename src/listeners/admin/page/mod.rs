//! The live page at `/`: one document without anything loaded from elsewhere.
//!
//! Its policy allows the one style and the one script that it contains, by their hashes, and requests to this listener. What
//! clients have chosen, such as ids, reaches the document as text only; Trusted Types make anything else an error.

use std::sync::LazyLock;

use http::StatusCode;

use crate::engine::text::site;
use crate::message::headers::Headers;
use crate::message::inline_source::inline_source;
use crate::message::reply::Reply;

const STYLE: &str = include_str!("page.css");

const SCRIPT: &str =
    concat!(include_str!("charts.js"), include_str!("live.js"), include_str!("health.js"), include_str!("actions.js"));

const DOCUMENT: &str = include_str!("page.html");

/// The pages that the document names, and their titles.
const PAGES: [(&str, &str); 5] = [
    ("admin", "This page"),
    ("rules", "Rules"),
    ("change-a-limit", "Changing a limit"),
    ("operations", "Buckets and blocks"),
    ("runbook", "Runbook"),
];

/// Links to the pages, or their paths in the repository if there is no site.
fn pages(site: Option<&str>) -> String {
    let name = |(name, title): &(&str, &str)| {
        let place = site::page(site, name);
        if site.is_some() {
            format!("<a href=\"{place}\" rel=\"noreferrer\">{title}</a>")
        } else {
            format!("<code>{place}</code>")
        }
    };
    PAGES.iter().map(name).collect::<Vec<_>>().join(" ")
}

/// The document with its style and script, and the policy for it.
static PAGE: LazyLock<(String, String)> = LazyLock::new(|| {
    let document = DOCUMENT.replace("/*style*/", STYLE).replace("/*script*/", SCRIPT);
    let document = document.replace("<!--pages-->", &pages(site::address().as_deref()));
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
    use crate::listeners::admin::history::RESULTS;
    use crate::telemetry::metrics::DecisionResult;

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

    #[test]
    fn every_result_is_shown_as_passed_or_denied() {
        // Another limit denied it.
        let besides = DecisionResult::Uncharged.label();
        for result in RESULTS {
            assert!(SCRIPT.contains(&format!("\"{result}\"")) != (result == besides), "{result}");
        }
    }

    #[test]
    fn the_page_names_pages_that_exist() {
        for (name, _) in PAGES {
            assert!(std::path::Path::new(&site::page(None, name)).exists(), "{name}");
        }
        assert!(pages(None).starts_with("<code>docs/admin.md</code> <code>docs/rules.md</code>"));
        let link = "<a href=\"https://docs.example.com/admin/\" rel=\"noreferrer\">This page</a> ";
        assert!(pages(Some("https://docs.example.com/")).starts_with(link));
    }
}
