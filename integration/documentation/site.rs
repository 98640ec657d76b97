//! The documentation's site is built without warnings, and its pages load nothing from elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use super::page::{Page, pages, program, root};
use crate::support::process::finish;

#[test]
fn the_site_is_built_without_warnings_and_loads_nothing_from_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let site = directory.path().join("site");
    let mut build = program("mkdocs");
    build.args(["build", "--strict", "--site-dir"]).arg(&site).current_dir(root());
    let built = finish(build.env("NO_MKDOCS_2_WARNING", "1"));
    assert_eq!(built.code, Some(0), "{}", built.text());

    let loaded =
        Regex::new(r#"<(?:script|img|iframe|source|link rel="(?:stylesheet|preload|icon)")[^>]*"(?:https?:)?//[^"]*""#);
    let loaded = loaded.unwrap();
    let mut wrong = Vec::new();
    for page in written(&site) {
        let text = fs::read_to_string(site.join(&page)).unwrap();
        wrong.extend(loaded.find_iter(&text).map(|found| format!("{}: {}", page.display(), found.as_str())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
