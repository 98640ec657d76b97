//! Requests that a queue has taken: the reply to those that go no further, and the header of those that are forwarded.

use http::StatusCode;

use super::headers::{Generations, add_headers};
use crate::engine::algorithms::decision::Detail;
use crate::engine::algorithms::queue::EntryId;
use crate::engine::deciding::verdict::Verdict;
use crate::engine::limit::queue::FollowUp;
use crate::engine::limit::rules::Rules;
use crate::message::headers::{Headers, QUEUE_ENTRY};
use crate::message::reply::Reply;

/// Returns the entries of a request that passes, in the order of the rules.
pub fn entries<'a>(rules: &'a Rules, verdict: &'a Verdict) -> impl Iterator<Item = (FollowUp, &'a EntryId)> {
    let details = verdict.details.iter().filter(|_| verdict.is_allowed());
    details.filter_map(|(limit, detail)| match detail {
        Detail::Entry(id) => Some((rules.limit(*limit)?.queue.as_ref()?.then, id)),
        _ => None,
    })
}

/// Returns the entry of a request that goes no further because a queue has taken it.
pub fn accepted_entry<'a>(rules: &'a Rules, verdict: &'a Verdict) -> Option<&'a EntryId> {
    entries(rules, verdict).find_map(|(then, id)| (then == FollowUp::Accept).then_some(id))
}

/// Returns the reply to a request that goes no further because a queue has taken it; `None` if it does go further.
pub fn accepted(rules: &Rules, verdict: &Verdict, generations: Generations) -> Option<Reply> {
    let id = accepted_entry(rules, verdict)?;
    let mut headers = Headers::with_capacity(6, 256);
    headers.append("content-type", "application/json");
    headers.append("cache-control", "no-store");
    add_headers(rules, verdict, generations, &mut headers);
    // An id is digits and a hyphen, and needs no escapes.
    Some(Reply { status: StatusCode::ACCEPTED, headers, body: format!("{{\"id\":\"{id}\"}}\n") })
}

/// Adds the ids of a request's entries to the headers for its upstream.
pub fn add_entries(rules: &Rules, verdict: &Verdict, headers: &mut Headers) {
    for (_, id) in entries(rules, verdict) {
        headers.append(QUEUE_ENTRY, id.as_str());
    }
}
