//! The addresses of the pages: on the site of a release, or in the repository.

/// The site's address, once Cargo.toml names a repository.
pub fn address() -> Option<String> {
    of(env!("CARGO_PKG_HOMEPAGE"), env!("CARGO_PKG_REPOSITORY"))
}

/// The same rule as in integration/release/names.py.
fn of(homepage: &str, repository: &str) -> Option<String> {
    let (owner, name) = repository.trim_end_matches('/').strip_prefix("https://github.com/")?.split_once('/')?;
    let site = match homepage {
        "" => format!("https://{}.github.io/{name}", owner.to_ascii_lowercase()),
        _ => homepage.trim_end_matches('/').to_owned(),
    };
    Some(site + "/")
}

/// A page, such as `gateways/nginx`.
pub fn page(site: Option<&str>, name: &str) -> String {
    site.map_or_else(|| format!("docs/{name}.md"), |site| format!("{site}{name}/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_site_follows_from_the_manifest() {
        // The same table as in integration/release/names.rs.
        for (homepage, repository, site) in [
            ("", "", None),
            ("", "https://github.com/Example/weir", Some("https://example.github.io/weir/")),
            ("", "https://github.com/example/Limiter/", Some("https://example.github.io/Limiter/")),
            (
                "https://docs.example.com/weir",
                "https://github.com/example/weir",
                Some("https://docs.example.com/weir/"),
            ),
            ("https://docs.example.com/", "https://github.com/example/weir", Some("https://docs.example.com/")),
        ] {
            assert_eq!(of(homepage, repository).as_deref(), site, "{homepage} {repository}");
        }
    }

    #[test]
    fn a_page_is_on_the_site_or_in_the_repository() {
        assert_eq!(
            page(Some("https://docs.example.com/"), "gateways/nginx"),
            "https://docs.example.com/gateways/nginx/"
        );
        assert_eq!(page(None, "gateways/nginx"), "docs/gateways/nginx.md");
    }
}
