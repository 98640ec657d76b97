//! `credentials-header`: credentials as ids, in the spelling of the client.

use http::header::AUTHORIZATION;

use super::super::problem::Place;
use super::Subject;
use crate::engine::request::component::{Component, ComponentSource};

pub(super) fn find(subject: &Subject<'_>) -> Option<(Place, String)> {
    let is_authorization =
        |component: &Component| matches!(&component.source, ComponentSource::Header(name) if *name == AUTHORIZATION);
    subject.limit.by.iter().find(|component| is_authorization(component))?;
    Some((subject.places.of("by"), "each spelling of the same credentials is an id of its own".to_owned()))
}
