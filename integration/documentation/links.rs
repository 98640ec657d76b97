//! Links between pages and to headings have targets.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use super::page::{Page, pages, root};

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let pages = pages();
    let anchors: HashMap<PathBuf, HashSet<String>> =
        pages.iter().map(|page| (PathBuf::from(&page.path), anchors(page))).collect();
    let mut wrong = Vec::new();
    for page in &pages {
        for (line, link) in links(page) {
            let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
            let Some(target) = target(&page.path, path) else { continue };
            if !root().join(&target).exists() {
                wrong.push(format!("{}:{line}: there is no {}", page.path, target.display()));
            } else if let Some(anchor) = anchor
                && !anchors.get(&target).is_some_and(|anchors| anchors.contains(anchor))
            {
                wrong.push(format!("{}:{line}: {} has no heading #{anchor}", page.path, target.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The files of this repository to which the links above a line lead.
pub(super) fn targets_above(page: &Page, line: usize) -> impl Iterator<Item = PathBuf> {
    let links = links(page).into_iter().take_while(move |(number, _)| *number < line);
    links.filter_map(|(_, link)| target(&page.path, link.split('#').next().unwrap()))
}

/// The targets of a page's links and pictures, with their lines.
fn links(page: &Page) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (number, line) in (1..).zip(page.prose()) {
        for (start, _) in line.match_indices("](") {
            links.push((number, line[start + 2..].split([')', ' ']).next().unwrap()));
        }
        for attribute in ["src=\"", "srcset=\"", "href=\""] {
            links.extend(
                line.match_indices(attribute)
                    .map(|(start, _)| (number, line[start + attribute.len()..].split('"').next().unwrap())),
            );
        }
    }
    links
}

/// The file of this repository to which a link leads.
fn target(page: &str, link: &str) -> Option<PathBuf> {
    // Such as `{repository}/releases`, which is only on the site.
    let is_derived = link.starts_with('{');
    if is_derived || link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    if link.is_empty() {
        return Some(PathBuf::from(page));
    }
    let mut target = Path::new(page).parent().unwrap().to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => assert!(target.pop(), "{page}: {link} leads out of the repository"),
            Component::Normal(name) => target.push(name),
            _ => {}
        }
    }
    Some(target)
}

/// The anchors of a page's headings as GitHub makes them: lower case, hyphens for spaces, no punctuation, and a number
/// after a repeated name.
fn anchors(page: &Page) -> HashSet<String> {
    let mut anchors = HashSet::new();
    for line in page.prose() {
        let Some(heading) = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')) else {
            continue;
        };
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase();
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|anchor| !anchors.contains(anchor));
        anchors.insert(free.unwrap());
    }
    anchors
}
