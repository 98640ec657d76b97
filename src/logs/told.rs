//! The parts of a request that a log tells.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::algorithms::micros::Micros;

/// The parts of a request that each line of a log can tell. A part that a log tells may still be absent from a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the parts are independent")]
pub struct Told {
    /// Instants are those of arrival. Otherwise they are those at which responses ended.
    pub is_arrival: bool,
    /// Instants are whole multiples of this.
    pub precision: Micros,
    pub took: bool,
    pub status: bool,
    /// Of responses' bodies.
    pub bytes: bool,
    pub method: bool,
    pub host: bool,
    pub path: bool,
    pub query: bool,
    pub client: bool,
    /// The client is that behind trusted proxies, as Weir has found it.
    pub client_is_resolved: bool,
    pub tls_subject: bool,
    pub headers: ToldHeaders,
    /// The keys of descriptor entries; `None` if lines tell no descriptors.
    pub descriptors: Option<BTreeSet<String>>,
    /// In a recording, most values are hashed.
    pub stand_ins: StandIns,
    /// Hashes stand for credentials and cookies.
    pub has_hashed_secrets: bool,
    /// Later lines may tell parts for which the first ones have no place; see [`LogEntry::late`](super::LogEntry::late).
    pub may_tell_more: bool,
}

/// Names whose values are hashed, each with the values that are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StandIns {
    pub headers: BTreeMap<String, BTreeSet<String>>,
    pub descriptors: BTreeMap<String, BTreeSet<String>>,
}

/// The headers that a log tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToldHeaders {
    /// With names in lower case.
    Named(BTreeSet<String>),
    /// All but these, with names in lower case.
    AllBut(BTreeSet<String>),
}

impl Default for ToldHeaders {
    fn default() -> Self {
        Self::Named(BTreeSet::new())
    }
}

impl Told {
    /// Returns true if lines tell this header, given in lower case.
    pub fn header(&self, name: &str) -> bool {
        match &self.headers {
            ToldHeaders::Named(names) => names.contains(name),
            ToldHeaders::AllBut(names) => !names.contains(name),
        }
    }

    /// Returns the facts that two logs both tell.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            is_arrival: self.is_arrival && other.is_arrival,
            precision: self.precision.max(other.precision),
            took: self.took && other.took,
            status: self.status && other.status,
            bytes: self.bytes && other.bytes,
            method: self.method && other.method,
            host: self.host && other.host,
            path: self.path && other.path,
            query: self.query && other.query,
            client: self.client && other.client,
            client_is_resolved: self.client_is_resolved && other.client_is_resolved,
            tls_subject: self.tls_subject && other.tls_subject,
            headers: self.headers.and(&other.headers),
            descriptors: self.descriptors.as_ref().zip(other.descriptors.as_ref()).map(|(left, right)| left & right),
            stand_ins: StandIns {
                headers: both(&self.stand_ins.headers, &other.stand_ins.headers),
                descriptors: both(&self.stand_ins.descriptors, &other.stand_ins.descriptors),
            },
            has_hashed_secrets: self.has_hashed_secrets || other.has_hashed_secrets,
            may_tell_more: self.may_tell_more || other.may_tell_more,
        }
    }
}

/// The names of both, with the values that neither hashes.
fn both(
    left: &BTreeMap<String, BTreeSet<String>>,
    right: &BTreeMap<String, BTreeSet<String>>,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut both = left.clone();
    for (name, values) in right {
        both.entry(name.clone()).and_modify(|known| *known = &*known & values).or_insert_with(|| values.clone());
    }
    both
}

impl ToldHeaders {
    fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Named(left), Self::Named(right)) => Self::Named(left & right),
            (Self::AllBut(left), Self::AllBut(right)) => Self::AllBut(left | right),
            (Self::Named(told), Self::AllBut(not)) | (Self::AllBut(not), Self::Named(told)) => Self::Named(told - not),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_logs_tell_what_each_of_them_tells() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let named = |list| Told { client: true, headers: ToldHeaders::Named(names(list)), ..Told::default() };
        let all_but = |list| Told { client: true, headers: ToldHeaders::AllBut(names(list)), ..Told::default() };
        for (left, right, told, not) in [
            (named(&["a", "b"]), named(&["b", "c"]), "b", "a"),
            (named(&["a", "b"]), all_but(&["a"]), "b", "a"),
            (all_but(&["a"]), all_but(&["c"]), "b", "c"),
        ] {
            for both in [left.and(&right), right.and(&left)] {
                assert!(both.client && both.header(told) && !both.header(not), "{both:?}");
            }
        }
    }
}
