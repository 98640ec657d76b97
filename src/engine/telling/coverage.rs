//! Compares what limits cover. In doubt, one does not cover the other. `weir diff` and the lints of `weir check` both ask here.

use std::borrow::Borrow;

use ipnet::IpNet;

use crate::engine::limit::matching::{Match, PartMatch, ValueTest};
use crate::engine::request::part::TypedPart;
use crate::engine::request::path_pattern::{PathPattern, Segment};
use crate::message::host_pattern::HostPattern;

/// Returns whether `wide` covers every request that `narrow` covers.
pub(crate) fn covers(wide: &Match, narrow: &Match) -> bool {
    within(&narrow.methods, &wide.methods, |one, other| one == other)
        && within(&narrow.hosts, &wide.hosts, host_is_within)
        && (wide.other_hosts.is_empty() || wide.other_hosts == narrow.other_hosts)
        && (wide.paths.is_empty() || wide.path_reading == narrow.path_reading)
        && within(&narrow.paths, &wide.paths, path_is_within)
        && !(wide.is_whole || narrow.is_whole)
        && parts_are_within(&narrow.parts, &wide.parts)
        && networks_are_within(&narrow.networks, &wide.networks)
        && (wide.other_networks.is_empty() || wide.other_networks == narrow.other_networks)
        && within(&narrow.domains, &wide.domains, |one, other| one == other)
}

/// Returns whether a list of alternatives is within another. An empty list allows everything.
pub(crate) fn within<T>(narrow: &[T], wide: &[T], is_within: impl Fn(&T, &T) -> bool) -> bool {
    wide.is_empty() || !narrow.is_empty() && narrow.iter().all(|one| wide.iter().any(|other| is_within(one, other)))
}

/// Returns whether a list of networks is within another one, whichever networks the addresses of both are written as.
pub(crate) fn networks_are_within(narrow: &[IpNet], wide: &[IpNet]) -> bool {
    let wide = IpNet::aggregate(&wide.to_vec());
    within(narrow, &wide, |one, other| other.contains(one))
}

pub(crate) fn host_is_within(one: &HostPattern, other: &HostPattern) -> bool {
    match (one, other) {
        (HostPattern::Exact(host), pattern) => pattern.matches(host),
        (HostPattern::Below(one), HostPattern::Below(other)) => one.ends_with(other.as_str()),
        (HostPattern::Below(_), HostPattern::Exact(_)) => false,
    }
}

pub(crate) fn path_is_within(one: &PathPattern, other: &PathPattern) -> bool {
    let is_long_enough = if other.is_open {
        one.segments.len() >= other.segments.len()
    } else {
        !one.is_open && one.segments.len() == other.segments.len()
    };
    is_long_enough
        && one.segments.iter().zip(&other.segments).all(|pair| match pair {
            (Segment::Literal(one), Segment::Literal(other)) => one == other,
            (_, Segment::Parameter(_)) => true,
            (Segment::Parameter(_), Segment::Literal(_)) => false,
        })
}

/// Returns whether what meets all conditions of one list meets all of the other.
pub(crate) fn parts_are_within<P: Borrow<PartMatch>>(narrow: &[P], wide: &[P]) -> bool {
    let is_within = |one: &PartMatch, other: &PartMatch| {
        one.part == other.part && within(one.test.alternatives(), other.test.alternatives(), test_is_within)
    };
    wide.iter().all(|wide| narrow.iter().any(|narrow| is_within(narrow.borrow(), wide.borrow())))
}

fn test_is_within(one: &ValueTest, other: &ValueTest) -> bool {
    match (one, other) {
        (ValueTest::Present(one), ValueTest::Present(other)) => one == other,
        (ValueTest::Value(value), other) => other.meets(value),
        (ValueTest::Prefix(one), ValueTest::Prefix(other)) => one == other,
        (ValueTest::Regex(one), ValueTest::Regex(other)) => one.as_str() == other.as_str(),
        (ValueTest::Glob(one), ValueTest::Glob(other)) => one == other,
        (ValueTest::Not(one), ValueTest::Not(other)) => {
            let mut pairs = one.tests.iter().zip(&other.tests);
            one.is_needed == other.is_needed
                && one.tests.len() == other.tests.len()
                && pairs.all(|(one, other)| test_is_within(one, other) && test_is_within(other, one))
        }
        _ => false,
    }
}

/// Returns whether all requests in one bucket by `fine` are in one bucket by `coarse`.
pub(crate) fn is_coarser(coarse: &[TypedPart], fine: &[TypedPart]) -> bool {
    coarse.iter().all(|part| fine.iter().any(|other| part == other || part.is_wider_address(other)))
}
