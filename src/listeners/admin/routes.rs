//! The routes of the admin listener: one table, from which requests are dispatched and unknown paths and methods are
//! answered. `openapi.json` describes the same routes; a test compares the two.

use std::borrow::Cow;

use crate::message::percent::decode;
use crate::telemetry::metrics::AdminWrite;

/// A method and a path, what they do, and who may use them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// GET includes HEAD.
    pub(super) method: &'static str,
    /// `{name}` stands for one percent-encoded segment.
    pub(super) path: &'static str,
    pub(super) operation: Operation,
    pub(super) access: Access,
}

/// The paths at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminPaths {
    All,
    Metrics,
}

/// The operation behind a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Page,
    Live,
    History,
    Top,
    Impact,
    Health,
    Ready,
    Metrics,
    OpenApi,
    Version,
    Limits,
    Limit,
    ResetLimit,
    Overrides,
    Override,
    ChangeOverride(AdminWrite),
    Explain,
    Bucket,
    ChangeBucket(AdminWrite),
    Blocks,
    Log,
    SetLog,
    ResetLog,
    Record,
    Reload,
}

/// The callers that may use a route, and the names in `Host` that it answers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everyone, under any name: probes use the pod's.
    Probe,
    /// Everyone, under any name unless the listener is on loopback: scrapers use pods' and Services' names.
    Scrape,
    /// Everyone, under a name that is the listener's own.
    Open,
    /// The same on a loopback address; elsewhere with a token. The answer has ids of clients.
    Ids,
    /// With a token.
    Change,
}

pub(super) static ROUTES: &[Route] = &[
    get("/", Operation::Page, Access::Open),
    get("/live", Operation::Live, Access::Open),
    get("/history", Operation::History, Access::Open),
    get("/top", Operation::Top, Access::Ids),
    get("/impact.csv", Operation::Impact, Access::Ids),
    get("/healthz", Operation::Health, Access::Probe),
    get("/readyz", Operation::Ready, Access::Probe),
    get("/metrics", Operation::Metrics, Access::Scrape),
    get("/openapi.json", Operation::OpenApi, Access::Open),
    get("/version", Operation::Version, Access::Open),
    get("/limits", Operation::Limits, Access::Open),
    get("/limits/{name}", Operation::Limit, Access::Open),
    change("POST", "/limits/{name}/reset", Operation::ResetLimit),
    get("/overrides", Operation::Overrides, Access::Ids),
    get("/overrides/{override}", Operation::Override, Access::Ids),
    change("PUT", "/overrides/{override}", Operation::ChangeOverride(AdminWrite::SetOverride)),
    change("DELETE", "/overrides/{override}", Operation::ChangeOverride(AdminWrite::DeleteOverride)),
    Route { method: "POST", path: "/explain", operation: Operation::Explain, access: Access::Ids },
    get("/buckets/{bucket}", Operation::Bucket, Access::Ids),
    change("PUT", "/buckets/{bucket}", Operation::ChangeBucket(AdminWrite::Set)),
    change("POST", "/buckets/{bucket}/reset", Operation::ChangeBucket(AdminWrite::Reset)),
    change("POST", "/buckets/{bucket}/refund", Operation::ChangeBucket(AdminWrite::Refund)),
    change("PUT", "/buckets/{bucket}/block", Operation::ChangeBucket(AdminWrite::Block)),
    change("DELETE", "/buckets/{bucket}/block", Operation::ChangeBucket(AdminWrite::Unblock)),
    get("/blocks", Operation::Blocks, Access::Ids),
    get("/log", Operation::Log, Access::Open),
    change("PUT", "/log", Operation::SetLog),
    change("DELETE", "/log", Operation::ResetLog),
    change("POST", "/record", Operation::Record),
    change("POST", "/reload", Operation::Reload),
];

const fn get(path: &'static str, operation: Operation, access: Access) -> Route {
    Route { method: "GET", path, operation, access }
}

const fn change(method: &'static str, path: &'static str, operation: Operation) -> Route {
    Route { method, path, operation, access: Access::Change }
}

/// The routes of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'p> {
    /// The route, and the decoded segment that its path leaves open; empty without one.
    Route(&'static Route, Cow<'p, str>),
    /// The path takes other methods, as in `Allow`.
    Methods(String),
    Nothing,
}

pub(super) fn find<'p>(method: &str, path: &'p str) -> Found<'p> {
    let wanted = if method == "HEAD" { "GET" } else { method };
    let mut methods = Vec::new();
    for route in ROUTES {
        let Some(segment) = fit(route.path, path) else { continue };
        if route.method == wanted {
            return Found::Route(route, decode(segment));
        }
        methods.push(route.method);
        if route.method == "GET" {
            methods.push("HEAD");
        }
    }
    if methods.is_empty() { Found::Nothing } else { Found::Methods(methods.join(", ")) }
}

/// Returns the segment that a route's path leaves open, if the path fits.
fn fit<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
    let mut open = "";
    let mut segments = path.split('/');
    for wanted in pattern.split('/') {
        let segment = segments.next()?;
        if wanted.starts_with('{') {
            open = segment;
        } else if wanted != segment {
            return None;
        }
    }
    segments.next().is_none().then_some(open)
}

/// The text for an unknown path.
pub(super) fn help(path: &str) -> String {
    let mut paths: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
    paths.dedup();
    let note = if path.starts_with("/buckets/") { "; a `/` in a bucket's name is written %2F" } else { "" };
    format!("there are {}{note}", paths.join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn a_bucket_is_one_segment_of_the_path() {
        for (method, path, expected) in [
            ("GET", "/blocks", Some((Operation::Blocks, ""))),
            ("HEAD", "/limits/L", Some((Operation::Limit, "L"))),
            ("GET", "/buckets/L:2001%3Adb8::%2F64", Some((Operation::Bucket, "L:2001:db8::/64"))),
            ("PUT", "/buckets/L:a%253Ab/block", Some((Operation::ChangeBucket(AdminWrite::Block), "L:a%3Ab"))),
            ("GET", "/buckets/", Some((Operation::Bucket, ""))),
            ("GET", "/buckets", None),
            ("PUT", "/buckets/L:a/b/block", None),
            ("GET", "/blocks/", None),
        ] {
            let found = match find(method, path) {
                Found::Route(route, segment) => Some((route.operation, segment.into_owned())),
                Found::Methods(_) | Found::Nothing => None,
            };
            assert_eq!(found, expected.map(|(operation, segment)| (operation, segment.to_owned())), "{path}");
        }
        assert_eq!(find("DELETE", "/buckets/L"), Found::Methods("GET, HEAD, PUT".into()));
        assert_eq!(find("GET", "/buckets/L/block"), Found::Methods("PUT, DELETE".into()));
        assert!(
            help("/x").starts_with("there are /, /live, /history, /top, /impact.csv, ")
                && help("/buckets/a/b").contains("%2F")
        );
    }

    #[test]
    fn the_document_has_these_routes_and_no_others() {
        let document: Value = serde_json::from_str(super::super::OPENAPI).unwrap();
        let mut described = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters") {
                let needs_token = operation.get("security").is_some();
                described.insert((method.to_ascii_uppercase(), path.clone(), needs_token));
            }
        }
        let needs_token = |route: &Route| matches!(route.access, Access::Change | Access::Ids);
        let served = ROUTES.iter().map(|route| (route.method.to_owned(), route.path.to_owned(), needs_token(route)));
        assert_eq!(described, served.collect());
    }
}
