//! The lints that look at limits as a whole, or at several of them: pure functions on compiled limits and the places of their
//! keys. Findings about a single value are reported where the value is read.

mod addresses;
mod allowances;
mod authentication;
mod bounds;
mod claimable;
mod costs;
mod credentials;
pub(super) mod expressions;
mod free_ids;
mod hidden;
mod leases;
mod matching;
pub(super) mod overrides;
mod registry;
mod windows;

pub use registry::Lint;

use super::problem::Place;
use crate::engine::limit::{Limit, LimitMode, WHOLE_SHARE};
#[cfg(doc)]
use crate::engine::request::part::IPV6_CLIENT_PREFIX;

/// With more limits, none is compared with the others: a pair takes about 20 ns, and this many make half a million.
pub(super) const MOST_COMPARED: usize = 1_000;

/// A limit and the places of its keys.
pub(super) struct Subject<'a> {
    pub(super) limit: &'a Limit,
    pub(super) places: &'a Places,
    /// Some requests are exempt from this limit, but not from all.
    pub(super) has_exemptions: bool,
}

/// The places of a limit's name and keys.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) name: Place,
    /// The values by key.
    pub(super) values: Vec<(String, Place)>,
    /// The items of `rates`.
    pub(super) windows: Vec<Place>,
    /// The word `ip/N` in `by` with N above [`IPV6_CLIENT_PREFIX`].
    pub(super) long_prefix: Option<Place>,
}

/// A finding about the limit with this index.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) limit: usize,
    pub(super) lint: Lint,
    pub(super) place: Place,
    pub(super) message: String,
    pub(super) help: String,
}

impl Places {
    /// Returns the place of a key's value, or that of the name.
    pub(super) fn of(&self, key: &str) -> Place {
        self.values.iter().find(|(known, _)| known == key).map_or(self.name, |(_, place)| *place)
    }
}

impl Subject<'_> {
    /// Returns whether it denies requests of every id.
    fn is_enforced_for_all(&self) -> bool {
        self.limit.is_enforced() && self.limit.enforce_for >= WHOLE_SHARE
    }
}

/// Returns the findings about all limits, in the order of the limits. Limits with `mode: off` have none.
pub(super) fn findings(subjects: &[Subject<'_>]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, subject) in subjects.iter().enumerate().filter(|(_, subject)| subject.limit.mode != LimitMode::Off) {
        let others = || {
            let some = if subjects.len() > MOST_COMPARED { &[] } else { subjects };
            some.iter().enumerate().filter(move |(other, _)| *other != index)
        };
        let mut add = |lint, place, message, help: &str| {
            found.push(Finding { limit: index, lint, place, message, help: help.to_owned() });
        };
        if let Some((place, message)) = matching::contradiction(subject) {
            add(Lint::NeverMatches, place, message, "correct `match` or `by`, or remove the limit");
            continue;
        }
        if let Some((place, message)) = matching::idle_exclusion(subject) {
            add(Lint::NoEffect, place, message, "correct or remove it");
        }
        for (place, message) in hidden::find(subject, index, others()) {
            add(Lint::HiddenLimit, place, message, "remove it, or make it stricter than the other");
        }
        if let Some((place, message)) = free_ids::find(subject, others().map(|(_, other)| other)) {
            let help = "add a limit with `by: ip` for the same requests, or bound the ids with `max_keys` and \
                        `max_new_keys`";
            add(Lint::FreeId, place, message, help);
        }
        if let Some((place, message)) = costs::find(subject, others().map(|(_, other)| other)) {
            let help =
                "take it from the response, or have the gateway set it on every request and write `missing: deny`";
            add(Lint::ChosenCost, place, message, help);
        }
        for (lint, place, message, advice) in claimable::find(subject) {
            add(lint, place, message, advice);
        }
        if let Some((place, message)) = credentials::find(subject) {
            add(Lint::CredentialsHeader, place, message, "write `credentials` instead of `{ header: authorization }`");
        }
        if let Some((place, message)) = addresses::find(subject, others().map(|(_, other)| other)) {
            add(Lint::WholeIpv6Address, place, message, "write `ip`, which counts a /64 as one client");
        }
        if let Some((place, message)) = authentication::find(subject) {
            add(Lint::FailsOpen, place, message, "write `on_store_error: local` or `on_store_error: deny`");
        }
        if let Some((place, message)) = leases::find(subject) {
            add(Lint::IdleLease, place, message, "lengthen `for`, raise `tokens` or `burst`, or remove `lease`");
        }
        if let Some((place, message)) = windows::find(subject) {
            add(Lint::WindowEdge, place, message, "use `algorithm: sliding_window`, or `gcra`");
        }
        for (lint, place, message, help) in allowances::find(subject) {
            add(lint, place, message.to_owned(), help);
        }
    }
    found
}
