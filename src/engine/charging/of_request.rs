//! The charges that a request makes.

use crate::engine::algorithms::charge::Mode;
use crate::engine::charging::algorithm_input::UnsupportedOperation;
use crate::engine::charging::plan::{DenialReason, LimitDenial, Plan};
use crate::engine::charging::request_cost::cost;
use crate::engine::charging::terms::{Intent, Terms};
use crate::engine::limit::Limit;
use crate::engine::limit::blocks::Blocks;
use crate::engine::limit::identity::IdError;
use crate::engine::limit::queue::{FollowUp, InvalidInput};
use crate::engine::limit::rules::{Rules, is_enforced_without_id};
use crate::engine::request::Request;

impl Plan {
    /// Returns the plan for a request that spends what the limits cost. Blocked ids are denied, whatever the limits allow.
    pub fn of_request(rules: &Rules, request: &Request<'_>, blocks: Option<&Blocks>) -> Result<Self, InvalidInput> {
        let mut plan = Self::default();
        plan.charge_request(rules, request, &Intent::SPEND, blocks)?;
        Ok(plan)
    }

    /// Adds the charges of `request`.
    pub fn charge_request(
        &mut self,
        rules: &Rules,
        request: &Request<'_>,
        intent: &Intent,
        blocks: Option<&Blocks>,
    ) -> Result<(), InvalidInput> {
        // A refund of what was taken before a block is not denied by it.
        let blocks = blocks.filter(|_| intent.mode.can_deny());
        let candidates = rules.candidates(request);
        let exempt = rules.exemptions_met(request);
        if candidates.len() > 1 {
            self.charges.reserve(candidates.len());
        }
        for place in &candidates {
            let Some(limit) = rules.limit(*place) else { continue };
            if limit.conditions.check(request).is_ok() {
                if exempt.as_ref().is_some_and(|met| met.from(*place).is_some()) {
                    self.exempt.push(*place);
                    continue;
                }
                let terms = Terms::of_request(rules, *place, limit, request, blocks);
                self.charge_limit((*place, limit), terms, request, intent)?;
            }
        }
        if let Some(blocks) = blocks.filter(|_| rules.has_bans_from_all) {
            self.deny_banned(rules, request, blocks);
        }
        Ok(())
    }

    /// Denies what a ban or a block of a limit with `scope: all` covers and the limit itself does not.
    fn deny_banned(&mut self, rules: &Rules, request: &Request<'_>, blocks: &Blocks) {
        for terms in rules.terms_elsewhere(request, Some(blocks)) {
            if let Some(left) = terms.blocked {
                self.deny(terms.place, terms.enforced, DenialReason::Blocked(left));
            }
        }
    }

    fn charge_limit(
        &mut self,
        (place, limit): (u32, &Limit),
        terms: Result<Terms<'_>, IdError>,
        request: &Request<'_>,
        intent: &Intent,
    ) -> Result<(), InvalidInput> {
        let mode = intent.mode;
        let terms = match terms {
            Ok(terms) => terms,
            Err(lacking) => {
                if lacking.is_denied && mode.can_deny() {
                    self.deny(place, is_enforced_without_id(limit, request), lacking.reason.into());
                }
                return Ok(());
            }
        };
        if !self.admit(&terms, mode) || terms.allowance.windows().is_none() {
            return Ok(());
        }
        let enforced = terms.enforced;
        let cost = match intent.cost.map_or_else(|| cost(limit, request), Ok) {
            Ok(cost) => cost,
            Err(error) => {
                if mode.can_deny() {
                    self.deny(place, enforced, error.into());
                }
                return Ok(());
            }
        };
        let first = self.charges.len();
        let charged = terms.mode(mode);
        let mut terms = terms;
        if let Some((numbers, result)) = terms.request_numbers(request) {
            self.request_numbers.push((place, result));
            terms = terms.with_numbers(numbers);
        }
        match limit.response_cost.as_deref() {
            // A caller that does not spend reports what has happened, so nothing is left to settle.
            Some(response_cost) if mode == Mode::Spend => {
                self.unsettled.push(place);
                terms.charge(self, cost, response_cost.before(charged));
                self.reserve(first);
            }
            _ => terms.charge(self, cost, charged),
        }
        self.add_input(first, limit, |queue| queue.entry(&limit.name, request), None)?;
        if *intent != Intent::SPEND {
            self.ask(first, limit);
        }
        Ok(())
    }

    /// Checks that the algorithms of all its limits support the mode and the cost.
    pub fn check_modes(&self, rules: &Rules, intent: &Intent) -> Result<(), UnsupportedOperation> {
        let mut limits = self.charges.iter().filter_map(|charge| rules.limit(charge.origin.limit));
        limits.try_for_each(|limit| limit.check_mode(intent.mode, intent.cost))
    }

    pub(crate) fn deny(&mut self, limit: u32, enforced: bool, reason: DenialReason) {
        self.denials.push(LimitDenial { limit, enforced, reason });
    }

    /// The queue limit that answers the request itself once its entry is in the queue, if there is one.
    pub fn accepting<'r>(&self, rules: &'r Rules) -> Option<&'r Limit> {
        let mut limits = self.charges.iter().filter_map(|charge| rules.limit(charge.origin.limit));
        limits.find(|limit| limit.queue.as_ref().is_some_and(|queue| queue.then == FollowUp::Accept))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::header::HeaderName;

    use super::*;
    use crate::engine::algorithms::charge::Bucket;
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::algorithms::tag::Tag;
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::blocks::Block;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::identity::Fallback;
    use crate::engine::limit::ids::Id;
    use crate::engine::limit::key::of_newcomers;
    use crate::engine::limit::matching::{Match, PartMatch, ValueTest};
    use crate::engine::limit::overrides::{Override, OverrideOrigin};
    use crate::engine::limit::{Cost, CostFallback};
    use crate::engine::limit::{LimitMode, WHOLE_SHARE};
    use crate::engine::request::claims::{ClaimPath, ClaimRef, TokenClaims};
    use crate::engine::request::part::{Part, TypedPart};
    use crate::engine::request::path_condition::PathCondition;
    use crate::engine::request::path_pattern::PathPattern;
    use crate::engine::request::sample;
    use crate::engine::request::value_type::ValueType;
    use crate::engine::telling::bucket_info::BucketInfo;
    use crate::engine::telling::explanation::Explanation;
    use crate::message::headers::Headers;

    const HASH: Fingerprinter = Fingerprinter::new((3, 4));

    fn windows(bursts: &[u64]) -> Allowance {
        Allowance::Windows(bursts.iter().map(|burst| Numbers::new(*burst, 1, 1_000_000_000).unwrap()).collect())
    }

    fn header(name: &'static str, form: ValueType) -> TypedPart {
        TypedPart::new(Part::Header(HeaderName::from_static(name)), form)
    }

    /// A limit by two header headers that allows 10.
    fn limit(name: &str) -> Limit {
        let by = vec![header("x-account", ValueType::Integer), header("x-zone", ValueType::Text)];
        Limit { by, allowance: windows(&[10]), ..Limit::new(name) }
    }

    fn given(allowance: Allowance, until: Option<u64>) -> Override {
        Override { allowance, until: until.map(Micros), origin: OverrideOrigin::default() }
    }

    fn with_override(mut limit: Limit, id: &str, over: Override) -> Limit {
        let id = Id::parse(&limit.by, id).unwrap();
        limit.overrides.add_id(id.parts.len(), id.fingerprint(&limit.short, &HASH), over).unwrap();
        limit
    }

    fn plan(limits: Vec<Limit>, headers: &[(&'static str, &str)], now: u64) -> Result<Plan, InvalidInput> {
        let headers = headers.iter().copied().collect();
        let request = Request { path: "/v1/b", query: Some("cost=3"), now: Micros(now), ..sample(&headers) };
        let mut limits = limits;
        for limit in &mut limits {
            limit.overrides.finish().unwrap();
        }
        Plan::of_request(&Rules::new(limits, HASH, Micros(0), Vec::new()), &request, None)
    }

    const FIELDS: [(&str, &str); 2] = [("x-account", "7"), ("x-zone", "eu")];

    /// The bursts of the charges that a request with [`FIELDS`] makes.
    #[track_caller]
    fn check(limits: Vec<Limit>, now: u64, expected: &[u64]) {
        let plan = plan(limits, &FIELDS, now).unwrap();
        assert_eq!(plan.charges.iter().map(|charge| charge.numbers.burst()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_most_specific_override_that_has_not_expired_wins() {
        let base = || with_override(limit("L"), "7", given(windows(&[20]), None));
        check(vec![limit("L")], 0, &[10]);
        check(vec![base()], 0, &[20]);
        check(vec![with_override(base(), "7:eu", given(windows(&[30]), Some(100)))], 99, &[30]);
        check(vec![with_override(base(), "7:eu", given(windows(&[30]), Some(100)))], 100, &[20]);
        check(vec![with_override(base(), "7:us", given(windows(&[30]), None))], 0, &[20]);
    }

    #[test]
    fn networks_and_regular_expressions_come_after_ids() {
        let mut found = limit("L");
        found.overrides.add_regex("^7:", given(windows(&[40]), None));
        found.overrides.add_regex("eu$", given(windows(&[41]), None));
        check(vec![found], 0, &[40]);
        let mut found = limit("L");
        found.overrides.add_regex("eu$", given(windows(&[41]), None));
        found.overrides.add_network("192.0.0.0/8".parse().unwrap(), given(windows(&[50]), None)).unwrap();
        found.overrides.add_network("192.0.2.0/24".parse().unwrap(), given(windows(&[51]), None)).unwrap();
        assert!(found.overrides.add_network("192.0.2.9/24".parse().unwrap(), given(windows(&[52]), None)).is_err());
        check(vec![found], 0, &[51]);
    }

    #[test]
    fn an_id_has_one_override() {
        let mut limit = with_override(limit("L"), "7", given(windows(&[20]), None));
        let id = Id::parse(&limit.by, "7").unwrap();
        let again = limit.overrides.add_id(id.parts.len(), id.fingerprint("L", &HASH), given(windows(&[21]), None));
        assert_eq!(again, Err(0));
    }

    #[test]
    fn a_limit_without_numbers_applies_only_where_an_override_gives_some() {
        let disabled = || Limit { allowance: Allowance::Disabled, ..limit("L") };
        check(vec![disabled()], 0, &[]);
        check(vec![with_override(disabled(), "7", given(windows(&[20]), None))], 0, &[20]);
        check(vec![with_override(limit("L"), "7", given(Allowance::Unlimited, None))], 0, &[]);
    }

    #[test]
    fn several_windows_are_several_buckets() {
        let plan = plan(vec![Limit { allowance: windows(&[5, 6, 7]), ..limit("L") }], &FIELDS, 0).unwrap();
        let keys: Vec<_> = plan.charges.iter().map(|charge| charge.bucket.key.as_str()).collect();
        assert_eq!(keys, ["L:7:eu", "L:7:eu#1", "L:7:eu#2"]);
        assert!(!crate::engine::algorithms::taking::has_duplicate(&plan.charges));
    }

    #[test]
    fn every_bucket_of_a_limit_has_its_tag() {
        let tags = |limit: Limit, bucket: &str| {
            let limit = Limit { allowance: windows(&[5, 6]), ..limit };
            let headers = FIELDS.into_iter().collect();
            let rules = Rules::new(vec![limit], HASH, Micros(0), Vec::new());
            let charged = Plan::of_request(&rules, &Request { path: "/v1", ..sample(&headers) }, None).unwrap().charges;
            let inspected = BucketInfo::find(&rules, bucket, Micros(0)).unwrap().plan.charges;
            charged
                .into_iter()
                .chain(inspected)
                .map(|charge| {
                    let Bucket { key, tag, .. } = &charge.bucket;
                    assert_eq!(of_newcomers(key, *tag, 1, &HASH).tag, *tag);
                    *tag
                })
                .collect::<Vec<_>>()
        };
        let by = |source| Limit { by: vec![TypedPart::new(source, ValueType::Text)], ..limit("L") };
        let account = || by(Part::Header("x-account".parse().unwrap()));
        assert_eq!(tags(account(), "L:7"), [Tag::OfId; 4]);
        assert_eq!(tags(Limit { tag: Tag::named("T"), ..account() }, "L:7"), [Tag::named("T"); 4]);
        assert_eq!(tags(Limit { by: Vec::new(), ..limit("L") }, "L"), [Tag::named("L"); 4]);
        assert_eq!(tags(Limit { short: "s".into(), ..by(Part::Path) }, "L:/v1"), [Tag::named("s"); 4]);
        assert_eq!(tags(Limit { tag: Tag::named("T"), ..by(Part::Method) }, "L:GET"), [Tag::named("T"); 4]);
    }

    #[test]
    fn a_request_that_lacks_a_component_goes_as_the_limit_says() {
        let missing = |missing| vec![Limit { missing, ..limit("L") }];
        assert!(plan(missing(Fallback::Skip), &[("x-account", "7")], 0).unwrap().charges.is_empty());
        assert!(plan(missing(Fallback::Deny), &[("x-account", "7")], 0).unwrap().is_denied());
        let shared = plan(missing(Fallback::Shared), &[("x-account", "7")], 0).unwrap();
        assert_eq!(shared.charges[0].bucket.key, "L:7:*");
        let malformed = |malformed| {
            let limit = Limit { malformed, ..limit("L") };
            plan(vec![limit], &[("x-account", "no number"), ("x-zone", "eu")], 0).unwrap()
        };
        assert!(malformed(Fallback::Skip).charges.is_empty());
        assert_eq!(malformed(Fallback::Deny).denials[0].reason, DenialReason::Malformed);
        assert_eq!(malformed(Fallback::Shared).charges[0].bucket.key, "L:!:eu");
    }

    #[test]
    fn without_an_id_a_limit_is_enforced_for_a_share_of_the_clients() {
        let headers = Headers::new();
        let denied = |enforce_for, mode, client: Option<u32>| {
            let limit = Limit { missing: Fallback::Deny, enforce_for, mode, ..limit("L") };
            let rules = Rules::new(vec![limit], HASH, Micros(0), Vec::new());
            let client = client.map(|address| std::net::Ipv4Addr::from_bits(address).into());
            let request = Request { client, ..sample(&headers) };
            let refused = Plan::of_request(&rules, &request, None).unwrap().denials[0];
            let explained = Explanation::of_limits(&rules, &request, None);
            assert!(matches!(explained[0], Explanation::Applies { enforced, .. } if enforced == refused.enforced));
            refused.enforced
        };
        let count = |share| (0..1_000).filter(|client| denied(share, LimitMode::Enforce, Some(*client))).count();
        assert_eq!([count(0), count(WHOLE_SHARE)], [0, 1_000]);
        assert!((50..150).contains(&count(WHOLE_SHARE / 10)));
        assert!(!denied(WHOLE_SHARE, LimitMode::Shadow, Some(1)));
        assert!(!denied(WHOLE_SHARE - 1, LimitMode::Enforce, None) && denied(WHOLE_SHARE, LimitMode::Enforce, None));
    }

    /// The cost of a request with these lines of `x-cost`, or why it is denied.
    fn priced(fallback: CostFallback, mode: LimitMode, lines: &[&'static str]) -> Result<u64, (DenialReason, bool)> {
        let cost = Cost::Part(Part::Header(HeaderName::from_static("x-cost")));
        let headers: Vec<_> = FIELDS.into_iter().chain(lines.iter().map(|line| ("x-cost", *line))).collect();
        let plan = plan(vec![Limit { cost, cost_fallback: fallback, mode, ..limit("L") }], &headers, 0).unwrap();
        match plan.charges.first() {
            Some(charge) => Ok(charge.cost),
            None => Err((plan.denials[0].reason, plan.denials[0].enforced)),
        }
    }

    #[test]
    fn a_cost_that_is_not_a_whole_number_is_malformed() {
        let fallback = CostFallback { default: 50, ..CostFallback::default() };
        for (lines, cost) in
            [(&["12"][..], 12), (&["0"], 0), (&[" +012\t"], 12), (&["2", "2"], 2), (&[], 50), (&[""], 50)]
        {
            assert_eq!(priced(fallback, LimitMode::Enforce, lines), Ok(cost), "{lines:?}");
        }
        for lines in [&["-1"][..], &["1.5"], &["1e3"], &["x"], &["2", "3"], &["18446744073709551616"]] {
            let denied = |enforced| Err((DenialReason::Malformed, enforced));
            assert_eq!(priced(fallback, LimitMode::Enforce, lines), denied(true), "{lines:?}");
            assert_eq!(priced(fallback, LimitMode::Shadow, lines), denied(false), "{lines:?}");
            let lenient = CostFallback { denies_malformed: false, ..fallback };
            assert_eq!(priced(lenient, LimitMode::Enforce, lines), Ok(50), "{lines:?}");
        }
        let strict = CostFallback { denies_missing: true, ..fallback };
        assert_eq!(priced(strict, LimitMode::Enforce, &[]), Err((DenialReason::Missing, true)));
    }

    #[test]
    fn a_cost_is_in_any_part_of_a_request() {
        let query = Limit { cost: Cost::Part(Part::Query("cost".into())), ..limit("L") };
        assert_eq!(plan(vec![query], &FIELDS, 0).unwrap().charges[0].cost, 3);
        let bytes = |headers: &[(&'static str, &'static str)]| {
            plan(vec![Limit { cost: Cost::Bytes { reserve: 5 }, ..limit("L") }], headers, 0)
                .unwrap()
                .charges
                .first()
                .map(|charge| charge.cost)
        };
        let announced = |length| [FIELDS[0], FIELDS[1], ("content-length", length)];
        assert_eq!([bytes(&announced("12")), bytes(&announced("0")), bytes(&FIELDS)], [Some(12), Some(0), Some(5)]);
        assert_eq!(bytes(&announced("12, 13")), None);
    }

    #[test]
    fn a_claim_of_an_invalid_token_may_have_any_value() {
        let claim = || ClaimRef::new(None, ClaimPath::Name("plan".into()));
        let test = ValueTest::Value("free".into());
        let conditions = Match { parts: vec![PartMatch { part: Part::Claim(claim()), test }], ..Match::default() };
        let by_claim = vec![TypedPart::new(Part::Claim(claim()), ValueType::Text)];
        let headers = FIELDS.into_iter().collect();
        let keys = |by: &[TypedPart], malformed, values: Option<serde_json::Value>| {
            let limit = Limit { by: by.to_vec(), malformed, conditions: conditions.clone(), ..limit("L") };
            let claims = [TokenClaims { issuer: 0, values: values.map(Arc::new) }];
            let request = Request { claims: &claims, ..sample(&headers) };
            let plan = Plan::of_request(&Rules::new(vec![limit], HASH, Micros(0), Vec::new()), &request, None).unwrap();
            let denied = plan.denials.first().map(|denial| denial.reason);
            (plan.charges.first().map(|charge| charge.bucket.key.clone()), denied)
        };
        let free = || Some(serde_json::json!({ "plan": "free" }));
        let paid = || Some(serde_json::json!({ "plan": "paid" }));
        let account = [header("x-account", ValueType::Integer)];
        assert_eq!(keys(&account, Fallback::Shared, free()), (Some("L:7".into()), None));
        assert_eq!(keys(&account, Fallback::Shared, paid()), (None, None));
        assert_eq!(keys(&account, Fallback::Shared, None), (Some("L:7".into()), None));
        assert_eq!(keys(&account, Fallback::Skip, None), (None, None));
        assert_eq!(keys(&account, Fallback::Deny, None), (None, Some(DenialReason::Malformed)));
        assert_eq!(keys(&by_claim, Fallback::Shared, None), (Some("L:!".into()), None));
    }

    #[test]
    fn a_caller_that_says_the_cost_needs_none_of_the_request() {
        let cost_fallback = CostFallback { denies_missing: true, ..CostFallback::default() };
        let cost = Cost::Part(Part::Header(HeaderName::from_static("x-cost")));
        let rules = Rules::new(vec![Limit { cost, cost_fallback, ..limit("L") }], HASH, Micros(0), Vec::new());
        let headers = FIELDS.into_iter().collect();
        for (mode, cost, expected) in [
            (Mode::Spend, None, (None, 1)),
            (Mode::Spend, Some(2), (Some((Mode::Spend, 2)), 0)),
            (Mode::Refund, Some(2), (Some((Mode::Refund, 2)), 0)),
            (Mode::Refund, None, (None, 0)),
        ] {
            let (mut plan, intent) = (Plan::default(), Intent { mode, cost, can_probe: false });
            plan.charge_request(&rules, &sample(&headers), &intent, None).unwrap();
            let charged = plan.charges.first().map(|charge| (charge.mode, charge.cost));
            assert_eq!((charged, plan.denials.len()), expected, "{mode:?} {cost:?}");
        }
    }

    #[test]
    fn shadow_is_charged_without_a_say_and_off_is_not_charged() {
        let mode = |mode| plan(vec![Limit { mode, ..limit("L") }], &FIELDS, 0).unwrap();
        assert_eq!(mode(LimitMode::Enforce).charges[0].mode, Mode::Spend);
        assert!(!mode(LimitMode::Shadow).charges[0].can_deny());
        assert!(mode(LimitMode::Off).charges.is_empty());
    }

    /// The result of a request with [`FIELDS`] at 10 us while these ids are blocked until then: charges, whether a limit
    /// refuses it, and for how long.
    fn blocked(limit: Limit, blocks: &[(&str, u64)]) -> (usize, bool, Option<u64>) {
        let block = |(key, until): &(&str, u64)| Block {
            key: (*key).to_owned(),
            until: Micros(*until),
            bucket: String::new(),
            reason: None,
            by: String::new(),
            is_ban: false,
        };
        let blocks = Blocks::new(blocks.iter().map(block).collect(), &HASH);
        let headers = FIELDS.into_iter().collect();
        let request = Request { now: Micros(10), ..sample(&headers) };
        let plan =
            Plan::of_request(&Rules::new(vec![limit], HASH, Micros(0), Vec::new()), &request, Some(&blocks)).unwrap();
        let left = plan.denials.first().map(|refused| match refused.reason {
            DenialReason::Blocked(left) => left.0,
            other => panic!("{other:?}"),
        });
        (plan.charges.len(), plan.is_denied(), left)
    }

    #[test]
    fn a_blocked_id_is_refused_whatever_it_is_allowed() {
        let unlimited = || with_override(limit("L"), "7", given(Allowance::Unlimited, None));
        let shadow = || Limit { mode: LimitMode::Shadow, ..limit("L") };
        let by_none = || Limit { by: Vec::new(), ..limit("L") };
        assert_eq!(blocked(limit("L"), &[("L:7:eu", 30)]), (0, true, Some(20)));
        assert_eq!(blocked(limit("L"), &[("L:7", 30), ("L:7:eu", 25)]), (0, true, Some(20)));
        assert_eq!(blocked(unlimited(), &[("L:7", 30)]), (0, true, Some(20)));
        assert_eq!(blocked(by_none(), &[("L", 30)]), (0, true, Some(20)));
        assert_eq!(blocked(shadow(), &[("L:7:eu", 30)]), (0, false, Some(20)));
        for others in [&[("L:7:eu", 10)][..], &[("L:7:us", 30), ("L:8", 30), ("M:7:eu", 30), ("L", 30)]] {
            assert_eq!(blocked(limit("L"), others), (1, false, None), "{others:?}");
        }
    }

    #[test]
    fn a_share_of_ids_is_stable_and_grows() {
        let inside = |enforce_for: u32| {
            let limit = Limit { enforce_for, ..Limit::new("L") };
            (0..10_000).filter(|id| limit.is_enforced_for(&format!("L:{id}"))).collect::<Vec<_>>()
        };
        let (tenth, half) = (inside(WHOLE_SHARE / 10), inside(WHOLE_SHARE / 2));
        assert!((800..1_200).contains(&tenth.len()) && (4_700..5_300).contains(&half.len()));
        assert!(tenth.iter().all(|id| half.contains(id)), "an id left when the share grew");
        assert_eq!((inside(0).len(), inside(WHOLE_SHARE).len()), (0, 10_000));
    }

    #[test]
    fn only_limits_that_cover_the_request_charge_it() {
        let on = |path: &str| {
            let paths = vec![PathCondition::Pattern(PathPattern::parse(path).unwrap())];
            Limit { conditions: Match { paths, ..Match::default() }, ..limit(path) }
        };
        let plan = plan(vec![on("/v1/**"), on("/v2/**"), on("/v1/{x}")], &FIELDS, 0).unwrap();
        assert_eq!(plan.charges.iter().map(|charge| charge.origin.limit).collect::<Vec<_>>(), [0, 2]);
    }
}
