//! The documentation's site is built without warnings, and its pages load nothing from elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use super::page::{Page, pages, program};
use crate::support::checkout::Checkout;
use crate::support::process::{Finished, finish};
use crate::support::programs::client;

fn mkdocs(root: &Path, site: &Path) -> Finished {
    let mut build = program("mkdocs");
    build.args(["build", "--strict", "--site-dir"]).arg(site).current_dir(root);
    finish(build.env("NO_MKDOCS_2_WARNING", "1"))
}

/// Builds the site of the repository or of a copy.
fn build(root: &Path, site: &Path) {
    let built = mkdocs(root, site);
    assert_eq!(built.code, Some(0), "{}", built.text());
    loads_nothing(site);
}

/// No page loads anything from elsewhere, at once or by a script.
fn loads_nothing(site: &Path) {
    let loaded =
        Regex::new(r#"<(?:script|img|iframe|source|link rel="(?:stylesheet|preload|icon)")[^>]*"(?:https?:)?//[^"]*""#);
    let loaded = loaded.unwrap();
    let mut wrong = Vec::new();
    for page in written(site) {
        let text = fs::read_to_string(site.join(&page)).unwrap();
        // The theme's script looks for this and asks GitHub about the repository.
        assert!(!text.contains("data-md-component=\"source\""), "{}", page.display());
        wrong.extend(loaded.find_iter(&text).map(|found| format!("{}: {}", page.display(), found.as_str())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_site_of_a_checkout_names_no_repository() {
    let directory = tempfile::tempdir().unwrap();
    let checkout = Checkout::of("");
    build(&checkout.path(""), directory.path());
    let read = |page: &str| fs::read_to_string(directory.path().join(page)).unwrap();
    let nginx = read("gateways/nginx/index.html");
    assert!(nginx.contains("of\n<code>integration/examples/nginx</code> to"), "{nginx}");
    assert!(!read("get-started/index.html").contains("docker run"), "what is published is not on the page");
    let home = read("index.html");
    assert!(home.contains("rel=\"icon\" href=\"images/icon.svg\""), "{home}");
    let (above, _) = home.split_once("<picture>").unwrap();
    assert!(above.contains("<a href=\"get-started/\">Get started in ten minutes</a>"), "{above}");
    let checks = client("../documentation/site_page.py", &[directory.path().to_str().unwrap()]);
    assert_eq!(checks["passed"].as_array().map(Vec::len), Some(3), "{checks}");
}

#[test]
fn the_site_of_a_release_has_its_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let checkout = Checkout::of("repository = \"https://github.com/Example/weir\"\n");
    let built = mkdocs(&checkout.path(""), directory.path());
    assert!(built.code == Some(1) && built.text().contains("weir.schema.json has the `$id` None"), "{}", built.text());
    // As a binary prints them that was built with this repository.
    fs::create_dir_all(checkout.path("target/schemas")).unwrap();
    let schemas = ["limits.schema.json", "weir.schema.json"];
    for name in schemas {
        let schema = format!("{{\"$id\": \"https://example.github.io/weir/{name}\"}}");
        checkout.write(&format!("target/schemas/{name}"), &schema);
    }
    build(&checkout.path(""), directory.path());
    let read = |page: &str| fs::read_to_string(directory.path().join(page)).unwrap();
    for name in schemas {
        assert_eq!(read(name), checkout.read(&format!("target/schemas/{name}")));
        assert!(
            read("rules/index.html").contains(&format!("href=\"https://example.github.io/weir/{name}\"")),
            "{name}"
        );
    }
    let nginx = read("gateways/nginx/index.html");
    let files = "https://github.com/Example/weir/tree/HEAD/integration/examples/nginx";
    for link in [
        "rel=\"canonical\" href=\"https://example.github.io/weir/gateways/nginx/\"",
        "href=\"https://github.com/Example/weir\"",
        &format!("href=\"{files}\"><code>integration/examples/nginx</code>"),
    ] {
        assert!(nginx.contains(link), "{link} is not in {nginx}");
    }
    assert!(
        read("metrics/index.html").contains("https://github.com/Example/weir/blob/HEAD/helm/weir/alerts/weir.yaml")
    );
    let start = read("get-started/index.html");
    for name in
        ["ghcr.io/example/weir serve", "oci://ghcr.io/example/charts/weir", "https://github.com/Example/weir/releases"]
    {
        assert!(start.contains(name), "{name} is not in {start}");
    }
    assert!(read("kubernetes/index.html").contains("oci://ghcr.io/example/charts/weir"));
}

/// The site's pages, one for each in `docs`.
fn written(site: &Path) -> Vec<PathBuf> {
    let written = |page: &Page| {
        let path = page.path.strip_prefix("docs/")?.strip_suffix(".md")?;
        Some(match path.strip_suffix("index") {
            Some(directory) => PathBuf::from(directory).join("index.html"),
            None => PathBuf::from(path).join("index.html"),
        })
    };
    let written: Vec<_> = pages().iter().filter_map(written).collect();
    assert!(written.iter().all(|page| site.join(page).exists()) && written.len() > 20, "{written:?}");
    written
}
