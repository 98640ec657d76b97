//! `credentials-header`: credentials as ids, in the spelling of the client.

use http::header::AUTHORIZATION;

use super::super::problem::Place;
use super::Subject;
use crate::engine::request::part::{Part, TypedPart};

pub(super) fn find(subject: &Subject<'_>) -> Option<(Place, String)> {
    let is_authorization = |part: &TypedPart| matches!(&part.part, Part::Header(name) if *name == AUTHORIZATION);
    subject.limit.by.iter().find(|part| is_authorization(part))?;
    Some((subject.places.of("by"), "each spelling of the same credentials is an id of its own".to_owned()))
}
