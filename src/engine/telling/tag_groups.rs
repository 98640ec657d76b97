//! Limits that one request may charge under different hash tags. In a cluster, such a request takes two round trips.

use crate::engine::algorithms::tag::{IPV6_BITS, Tag};
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::matching::Match;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode};
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::path_condition::PathCondition;
use crate::message::host_pattern::HostPattern;

/// Returns groups of limits, in the order of the files. Of each limit there is another in its group that the same request
/// may charge under another hash tag. Conditions that are hard to compare count as compatible.
pub fn tag_groups(rules: &Rules) -> Vec<Vec<&Limit>> {
    let limits = rules.limits();
    let mut left: Vec<usize> = (0..limits.len()).filter(|place| has_buckets(&limits[*place])).collect();
    let mut groups = Vec::new();
    while !left.is_empty() {
        let mut group = vec![left.remove(0)];
        let mut known = 0;
        while let Some(limit) = group.get(known).map(|place| &limits[*place]) {
            let (added, others) = left.into_iter().partition(|other| may_split(limit, &limits[*other]));
            group.extend::<Vec<usize>>(added);
            left = others;
            known += 1;
        }
        if group.len() > 1 {
            group.sort_unstable();
            groups.push(group.into_iter().map(|place| &limits[place]).collect());
        }
    }
    groups
}

/// Returns true if requests charge its buckets in the store.
fn has_buckets(limit: &Limit) -> bool {
    let is_stored = |allowance: &Allowance| allowance.windows().is_some();
    let mut overrides = (0..limit.overrides.len()).filter_map(|place| limit.overrides.get(place));
    let applies = is_stored(&limit.allowance) || overrides.any(|given| is_stored(&given.allowance));
    limit.mode != LimitMode::Off && applies
}

/// Returns true if one request may charge both, under different hash tags.
fn may_split(one: &Limit, other: &Limit) -> bool {
    let same_tag = match (one.tag, other.tag, one.by.first(), other.by.first()) {
        (Tag::OfId, Tag::OfId, Some(one), Some(other)) => is_same_id(one, other),
        (one, other, _, _) => one != Tag::OfId && one == other,
    };
    !same_tag && may_meet(one, other)
}

/// Returns true if two first parts of a request always have the same tag.
fn is_same_id(one: &TypedPart, other: &TypedPart) -> bool {
    use Part::{Ip, PathParameter};
    match (&one.part, &other.part) {
        // Shorter networks have the tag of their first address.
        (Ip { ipv6_prefix: one }, Ip { ipv6_prefix: other }) => one.min(&IPV6_BITS) == other.min(&IPV6_BITS),
        (PathParameter { segment: first, .. }, PathParameter { segment: second, .. }) => {
            (first, one.form, one.path_reading) == (second, other.form, other.path_reading)
        }
        (source, second) => (source, one.form, one.duplicates) == (second, other.form, other.duplicates),
    }
}

/// Returns true unless their conditions exclude that one request meets both.
fn may_meet(one: &Limit, other: &Limit) -> bool {
    let (a, b) = (&one.conditions, &other.conditions);
    any_pair(&a.methods, &b.methods, |a, b| a == b)
        && any_pair(&a.hosts, &b.hosts, HostPattern::overlaps)
        && (a.path_reading != b.path_reading || any_pair(&a.paths, &b.paths, PathCondition::overlaps))
        && any_pair(&a.domains, &b.domains, |a, b| a == b)
        && !(needs_domain(a) && is_plain(other) || needs_domain(b) && is_plain(one))
}

/// Returns true if a value may meet one of each list. An empty list covers all values.
fn any_pair<T>(some: &[T], others: &[T], fits: impl Fn(&T, &T) -> bool) -> bool {
    some.is_empty() || others.is_empty() || some.iter().any(|one| others.iter().any(|other| fits(one, other)))
}

fn needs_domain(conditions: &Match) -> bool {
    !conditions.domains.is_empty() || conditions.is_whole
}

/// Returns true if it has nothing about descriptors, and so covers no request with a domain.
fn is_plain(limit: &Limit) -> bool {
    !needs_domain(&limit.conditions) && limit.conditions.entries().next().is_none() && !limit.is_by_entry()
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::matching::{PartMatch, ValueTest};
    use crate::engine::request::Duplicates;
    use crate::engine::request::path_pattern::{PathPattern, PathReading};
    use crate::engine::request::value_type::ValueType;

    const IP: Part = Part::Ip { ipv6_prefix: 128 };

    fn header(name: &str) -> Part {
        Part::Header(name.parse().unwrap())
    }

    fn by(sources: &[Part]) -> Limit {
        let by = sources.iter().map(|source| TypedPart::new(source.clone(), ValueType::Text)).collect();
        let allowance = Allowance::Windows([Numbers::fixed(1).unwrap()].into());
        Limit { by, allowance, ..Limit::new("") }
    }

    /// Checks the groups of limits, which are called A, B, C and so on.
    #[track_caller]
    fn check(limits: impl IntoIterator<Item = Limit>, expected: &[&str]) {
        let named = |(name, limit): (char, Limit)| Limit { name: name.into(), short: name.into(), ..limit };
        let limits = ('A'..).zip(limits).map(named).collect();
        let rules = Rules::new(limits, Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let groups: Vec<String> =
            tag_groups(&rules).iter().map(|group| group.iter().map(|limit| limit.name.as_str()).collect()).collect();
        assert_eq!(groups, expected);
    }

    #[test]
    fn limits_that_begin_with_the_same_id_share_a_tag() {
        let networks = [128, 64, 48].map(|ipv6_prefix| by(&[Part::Ip { ipv6_prefix }]));
        check(networks, &[]);
        check([by(&[IP]), by(&[IP, header("x")]), by(&[IP, Part::Path])], &[]);
        check([by(&[IP]), by(&[header("x"), IP])], &["AB"]);
        check([by(&[IP]), by(&[Part::Ip { ipv6_prefix: 32 }])], &["AB"]);
        check([by(&[header("x")]), by(&[header("x")]), by(&[header("y")])], &["ABC"]);
        let parameter = |name: &str, segment| by(&[Part::PathParameter { name: name.into(), segment }]);
        check([parameter("a", 1), parameter("b", 1)], &[]);
        check([parameter("a", 1), parameter("a", 2)], &["AB"]);
        let mut first = by(&[header("x")]);
        first.by[0].duplicates = Duplicates::First;
        check([first, by(&[header("x")])], &["AB"]);
    }

    #[test]
    fn a_tag_puts_limits_together() {
        let tagged = |name: &str, limit| Limit { tag: Tag::named(name), ..limit };
        check([by(&[]), by(&[IP])], &["AB"]);
        check([by(&[]), by(&[])], &["AB"]);
        check([tagged("T", by(&[])), tagged("T", by(&[IP]))], &[]);
        check([tagged("T", by(&[])), tagged("U", by(&[IP]))], &["AB"]);
        check([tagged("T", by(&[IP])), by(&[IP])], &["AB"]);
        // That of a limit without ids is the tag of its name.
        check([by(&[]), tagged("A", by(&[IP]))], &[]);
    }

    #[test]
    fn conditions_that_exclude_each_other_keep_limits_apart() {
        let limit = |source: Part, conditions: Match| Limit { conditions, ..by(&[source]) };
        let pair = |one: Match, other: Match, expected: &[&str]| {
            check([limit(IP, one), limit(header("x"), other)], expected);
        };
        let methods =
            |names: &[&str]| Match { methods: names.iter().map(|name| (*name).into()).collect(), ..Match::default() };
        pair(methods(&["GET"]), methods(&["POST", "PUT"]), &[]);
        pair(methods(&["GET", "PUT"]), methods(&["POST", "PUT"]), &["AB"]);
        pair(methods(&["GET"]), Match::default(), &["AB"]);
        let host = |text: &str| Match { hosts: vec![HostPattern::parse(text).unwrap()], ..Match::default() };
        pair(host("a.example"), host("b.example"), &[]);
        pair(host("a.example"), host("*.a.example"), &[]);
        pair(host("x.a.example"), host("*.a.example"), &["AB"]);
        pair(host("*.x.a.example"), host("*.a.example"), &["AB"]);
        let condition = |paths| Match { paths: vec![paths], ..Match::default() };
        let path = |text: &str| condition(PathCondition::Pattern(PathPattern::parse(text).unwrap()));
        let prefix = |text: &str| condition(PathCondition::prefix(text, PathReading::default()).unwrap());
        pair(path("/a"), path("/b"), &[]);
        pair(path("/a/**"), path("/a/{b}/c"), &["AB"]);
        pair(path("/a/{b}"), prefix("/a/c"), &["AB"]);
        pair(path("/a/b"), prefix("/a/c"), &[]);
        pair(prefix("/a/c"), prefix("/a/b"), &[]);
        pair(prefix("/a/c"), prefix("/a"), &["AB"]);
        pair(prefix("/a/c"), condition(PathCondition::Regex(Regex::new("^/b").unwrap())), &["AB"]);
        let path_reading = PathReading { ignores_case: true, strips_parameters: false };
        pair(path("/a"), Match { path_reading, ..path("/b") }, &["AB"]);
        let domain = |name: &str| Match { domains: vec![name.into()], ..Match::default() };
        pair(domain("a"), domain("b"), &[]);
        pair(domain("a"), domain("a"), &["AB"]);
        pair(domain("a"), Match::default(), &[]);
        let entry = PartMatch { part: Part::Descriptor("k".into()), test: ValueTest::Present(true) };
        pair(domain("a"), Match { parts: vec![entry], ..Match::default() }, &["AB"]);
        let methods = [("GET", IP), ("PUT", IP), ("GET", header("x")), ("PUT", header("x"))];
        check(
            methods.map(|(method, source)| limit(source, Match { methods: vec![method.into()], ..Match::default() })),
            &["AC", "BD"],
        );
    }

    #[test]
    fn limits_without_buckets_do_not_count() {
        check([by(&[IP]), Limit { mode: LimitMode::Off, ..by(&[]) }], &[]);
        check([by(&[IP]), Limit { allowance: Allowance::Deny, ..by(&[]) }], &[]);
        check([by(&[IP]), Limit { mode: LimitMode::Shadow, ..by(&[]) }], &["AB"]);
    }
}
