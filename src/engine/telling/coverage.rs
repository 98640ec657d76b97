//! Compares what limits cover. In doubt, one does not cover the other. `weir diff` and the lints of `weir check` both ask here.

use std::borrow::Borrow;

use ipnet::IpNet;

use crate::engine::limit::matching::{Match, PartMatch, ValueTest};
use crate::engine::request::part::TypedPart;
use crate::engine::request::path_condition::PathCondition;
use crate::engine::request::path_pattern::{PathPattern, Segment};
use crate::message::host_pattern::HostPattern;

/// Returns whether `wide` covers every request that `narrow` covers.
pub(crate) fn covers(wide: &Match, narrow: &Match) -> bool {
    within(&narrow.methods, &wide.methods, |one, other| one == other)
        && within(&narrow.hosts, &wide.hosts, host_is_within)
        && (wide.other_hosts.is_empty() || wide.other_hosts == narrow.other_hosts)
        && (wide.paths.is_empty() && wide.other_paths.is_empty() || wide.path_reading == narrow.path_reading)
        && within(&narrow.paths, &wide.paths, path_is_within)
        && all_within(&wide.other_paths, &narrow.other_paths, path_is_within)
        && !(wide.is_whole || narrow.is_whole)
        && parts_are_within(&narrow.parts, &wide.parts)
        && networks_are_within(&narrow.networks, &wide.networks)
        && (wide.other_networks.is_empty() || wide.other_networks == narrow.other_networks)
        && within(&narrow.domains, &wide.domains, |one, other| one == other)
}

/// Returns whether a list of alternatives is within another. An empty list allows everything.
pub(crate) fn within<T>(narrow: &[T], wide: &[T], is_within: impl Fn(&T, &T) -> bool) -> bool {
    wide.is_empty() || !narrow.is_empty() && all_within(narrow, wide, is_within)
}

/// Returns whether each item of a list is within one of another. An empty list has none.
pub(crate) fn all_within<T>(few: &[T], all: &[T], is_within: impl Fn(&T, &T) -> bool) -> bool {
    few.iter().all(|one| all.iter().any(|other| is_within(one, other)))
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

pub(crate) fn path_is_within(one: &PathCondition, other: &PathCondition) -> bool {
    match (one, other) {
        (PathCondition::Pattern(one), PathCondition::Pattern(other)) => pattern_is_within(one, other),
        (one, PathCondition::Prefix(prefix)) => one.beginning().starts_with(prefix.as_str()),
        (one, PathCondition::Pattern(other)) => {
            let below = format!("{}/", other.beginning().trim_end_matches('/'));
            other.is_open && other.parameters().next().is_none() && one.beginning().starts_with(&below)
        }
        (PathCondition::Regex(one), PathCondition::Regex(other)) => one.as_str() == other.as_str(),
        (_, PathCondition::Regex(_)) => false,
    }
}

fn pattern_is_within(one: &PathPattern, other: &PathPattern) -> bool {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;
    use crate::engine::request::path_condition::samples::{conditions, paths};
    use crate::engine::request::path_pattern::PathReading;
    use crate::engine::request::{Request, sample};
    use crate::message::headers::Headers;

    fn condition(text: &str) -> PathCondition {
        match text.split_at(2) {
            ("p:", text) => PathCondition::prefix(text, PathReading::default()).unwrap(),
            ("r:", text) => PathCondition::Regex(Regex::new(text).unwrap()),
            _ => PathCondition::Pattern(PathPattern::parse(text).unwrap()),
        }
    }

    #[test]
    fn one_condition_is_within_another_where_that_is_sure() {
        for (one, other, expected) in [
            ("/api/x", "p:/ap", true),
            ("/api/**", "p:/api", true),
            ("/api/{id}", "p:/api/x", false),
            ("/**", "p:/api", false),
            ("p:/api/x", "p:/api", true),
            ("p:/api", "p:/api/x", false),
            ("p:/api/x", "/api/**", true),
            ("p:/api", "/api/**", false),
            ("p:/api", "/**", true),
            ("p:/api", "/api", false),
            ("r:x$", "/**", true),
            ("r:x$", "/api/**", false),
            ("r:x$", "p:/x", false),
            ("r:x$", "r:x$", true),
            ("r:x$", "r:x", false),
            ("/x", "r:x", false),
        ] {
            assert_eq!(path_is_within(&condition(one), &condition(other)), expected, "{one} {other}");
        }
    }

    #[test]
    fn an_exclusion_covers_less() {
        let limit = |paths: &[&str], other_paths: &[&str]| Match {
            paths: paths.iter().map(|text| condition(text)).collect(),
            other_paths: other_paths.iter().map(|text| condition(text)).collect(),
            ..Match::default()
        };
        for (wide, narrow, expected) in [
            (limit(&[], &[]), limit(&[], &["/a"]), true),
            (limit(&[], &["/a"]), limit(&[], &[]), false),
            (limit(&[], &["/a"]), limit(&[], &["/a", "/b"]), true),
            (limit(&[], &["p:/a/b"]), limit(&[], &["/a/**"]), true),
            (limit(&[], &["/a/**"]), limit(&[], &["p:/a/b"]), false),
            (limit(&["/**"], &["/a"]), limit(&["p:/b"], &["/a"]), true),
        ] {
            assert_eq!(covers(&wide, &narrow), expected, "{wide:?} {narrow:?}");
        }
        let folded =
            Match { path_reading: PathReading { ignores_case: true, ..PathReading::default() }, ..limit(&[], &["/a"]) };
        assert!(!covers(&limit(&[], &["/a"]), &folded));
    }

    proptest! {
        #[test]
        fn what_is_told_of_conditions_on_paths_holds(
            wide in (conditions(), conditions()),
            narrow in (conditions(), conditions()),
            given in prop::collection::vec(paths(), 10),
        ) {
            let [wide, narrow] =
                [wide, narrow].map(|(paths, other_paths)| Match { paths, other_paths, ..Match::default() });
            let headers = Headers::new();
            for path in &given {
                let meets = |conditions: &Match| conditions.check(&Request { path, ..sample(&headers) }).is_ok();
                prop_assert!(!covers(&wide, &narrow) || !meets(&narrow) || meets(&wide), "{path}");
                for (one, other) in wide.paths.iter().flat_map(|one| narrow.paths.iter().map(move |other| (one, other))) {
                    let (first, second) = (one.matches(path), other.matches(path));
                    prop_assert!(!path_is_within(one, other) || !first || second, "{one} {other} {path}");
                    prop_assert!(one.overlaps(other) || !first || !second, "{one} {other} {path}");
                    prop_assert!(!first || path.starts_with(&one.beginning()), "{one} {path}");
                }
            }
        }
    }
}
