//! `free-id`: ids that clients choose, on a limit without a bound on their number and without another limit that clients
//! cannot choose an id of.

use super::super::problem::{Place, quoted};
use super::Subject;
use super::coverage::covers;
use crate::engine::limit::allowance::Allowance;
use crate::engine::request::component::{Component, ComponentSource};
use crate::engine::request::value_type::ValueType;

pub(super) fn find<'s>(
    subject: &Subject<'_>,
    mut others: impl Iterator<Item = &'s Subject<'s>>,
) -> Option<(Place, String)> {
    let limit = subject.limit;
    let has_numbers = limit.allowance.windows().is_some();
    if !has_numbers || !limit.is_enforced() || limit.max_keys.is_some() || limit.max_new_keys.is_some() {
        return None;
    }
    let what = limit.by.iter().find_map(chosen)?;
    let bounds = |other: &Subject<'_>| {
        other.is_enforced_for_all()
            && matches!(other.limit.allowance, Allowance::Windows(_) | Allowance::Elevated(_) | Allowance::Deny)
            && other.limit.by.iter().all(|component| chosen(component).is_none())
            && covers(&other.limit.conditions, &limit.conditions)
    };
    if others.any(bounds) {
        return None;
    }
    Some((subject.places.of("by"), format!("clients can choose {what}, and get a full bucket with each new value")))
}

/// Names the part of a request that gives a component, if clients can choose it at will.
fn chosen(component: &Component) -> Option<String> {
    match &component.source {
        ComponentSource::Header(name) => Some(format!("the header {}", quoted(name.as_str()))),
        ComponentSource::Credentials => Some("the credentials".to_owned()),
        ComponentSource::Query(name) => Some(format!("the query parameter {}", quoted(name))),
        ComponentSource::Cookie(name) => Some(format!("the cookie {}", quoted(name))),
        ComponentSource::Body(pointer) => Some(format!("the body's {}", quoted(pointer.as_str()))),
        ComponentSource::PathParameter { name, .. } if component.form == ValueType::Text => {
            Some(format!("the path parameter {}", quoted(name)))
        }
        _ => None,
    }
}
