//! `exempt`: requests that limits neither charge nor deny.

use crate::engine::limit::Limit;
use crate::engine::limit::index::Index;
use crate::engine::limit::matching::{Candidates, Match};
use crate::engine::limit::overrides::OverrideOrigin;
use crate::engine::request::Request;

/// The requests of one entry of `exempt`.
#[derive(Debug)]
pub struct Exemption {
    pub conditions: Match,
    /// The indices of the limits; empty for all.
    pub limits: Vec<u32>,
    pub origin: OverrideOrigin,
}

/// All exemptions, in the order of the file.
#[derive(Debug)]
pub struct Exemptions {
    list: Vec<Exemption>,
    index: Index,
}

/// The exemptions that a request meets.
pub(crate) struct Met<'r> {
    list: &'r [Exemption],
    places: Candidates,
}

impl Exemption {
    /// Returns true if its requests are exempt from the limit at this index.
    pub fn is_from(&self, limit: u32) -> bool {
        self.limits.is_empty() || self.limits.contains(&limit)
    }
}

impl Exemptions {
    pub fn new(list: Vec<Exemption>) -> Self {
        let mut index = Index::default();
        for (place, exemption) in (0..).zip(&list) {
            let conditions = exemption.conditions.clone();
            index.insert(place, &Limit { conditions, by: Vec::new(), ..Limit::new("") });
        }
        Self { list, index }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Exemption> {
        self.list.iter()
    }

    /// The exemptions that `request` meets. A token that is not valid proves nothing, so its claims exempt from no limit.
    pub(crate) fn met(&self, request: &Request<'_>) -> Met<'_> {
        let mut places = Candidates::new();
        self.index.candidates(request, &mut places);
        let is_met =
            |conditions: &Match| conditions.check(request).is_ok() && conditions.unreadable_claim(request).is_none();
        places.retain(|place| self.list.get(*place as usize).is_some_and(|one| is_met(&one.conditions)));
        Met { list: &self.list, places }
    }
}

impl<'r> Met<'r> {
    /// The first exemption from the limit at this index, and its place in the file's list.
    pub(crate) fn from(&self, limit: u32) -> Option<(u32, &'r Exemption)> {
        let mut met = self.places.iter().filter_map(|place| Some((*place, self.list.get(*place as usize)?)));
        met.find(|(_, exemption)| exemption.is_from(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::charging::plan::Plan;
    use crate::engine::limit::LimitMode;
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::blocks::{Block, Blocks};
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::identity::Fallback;
    use crate::engine::limit::matching::{PartMatch, ValueTest};
    use crate::engine::limit::rules::Rules;
    use crate::engine::request::claims::{ClaimPath, ClaimRef, TokenClaims};
    use crate::engine::request::part::Part;
    use crate::engine::request::{DescriptorEntry, sample};
    use crate::engine::telling::explanation::Explanation;
    use crate::message::headers::Headers;

    const HASH: Fingerprinter = Fingerprinter::new((1, 2));

    fn rules(exemptions: Vec<Exemption>) -> Rules {
        let numbers = Numbers::new(5, 1, 1_000_000_000).unwrap();
        let limit = |name: &str| Limit { allowance: Allowance::Windows([numbers.clone()].into()), ..Limit::new(name) };
        let of_user = vec![part(Part::Descriptor("user".into()), ValueTest::Present(true))];
        let limits = vec![
            limit("A"),
            Limit { allowance: Allowance::Deny, ..limit("B") },
            Limit { missing: Fallback::Deny, ..limit("C") },
            Limit { conditions: Match { parts: of_user, ..Match::default() }, by: Vec::new(), ..limit("D") },
            Limit { mode: LimitMode::Off, ..limit("Off") },
        ];
        Rules::new(limits, HASH, Micros(0), vec!["limits.yaml".into()]).with_exemptions(exemptions)
    }

    fn part(part: Part, test: ValueTest) -> PartMatch {
        PartMatch { part, test }
    }

    fn exemption(conditions: Match, limits: &[u32]) -> Exemption {
        let origin = OverrideOrigin { file: 0, line: 12, comment: Some("ours".into()) };
        Exemption { conditions, limits: limits.to_vec(), origin }
    }

    fn inside() -> Match {
        Match { networks: vec!["10.0.0.0/8".parse().unwrap()], ..Match::default() }
    }

    /// The limits that charge or deny a request, and those that it is exempt from.
    fn plan(rules: &Rules, request: &Request<'_>) -> (Vec<u32>, Vec<u32>) {
        let plan = Plan::of_request(rules, request, None).unwrap();
        let charged = plan.charges.iter().map(|charge| charge.origin.limit);
        (charged.chain(plan.denials.iter().map(|denial| denial.limit)).collect(), plan.exempt)
    }

    #[test]
    fn what_is_exempt_is_neither_charged_nor_denied() {
        let headers = Headers::new();
        let from = |client: Option<[u8; 4]>| Request { client: client.map(Into::into), ..sample(&headers) };
        let (ours, others) = (from(Some([10, 1, 2, 3])), from(Some([192, 0, 2, 1])));
        for (exempted, expected) in [
            (vec![exemption(inside(), &[])], (vec![], vec![0, 1, 2])),
            (vec![exemption(inside(), &[1])], (vec![0, 2], vec![1])),
            (vec![exemption(inside(), &[1, 4]), exemption(inside(), &[0])], (vec![2], vec![0, 1])),
            (Vec::new(), (vec![0, 2, 1], vec![])),
        ] {
            let rules = rules(exempted);
            assert_eq!(plan(&rules, &ours), expected);
            assert_eq!(plan(&rules, &others), (vec![0, 2, 1], vec![]));
            // Without an address it is in no network, and `C` denies it.
            assert!(plan(&rules, &from(None)).1.is_empty());
        }
    }

    #[test]
    fn a_block_does_not_deny_what_is_exempt() {
        let headers = Headers::new();
        let request = Request { client: Some([10, 1, 2, 3].into()), now: Micros(1), ..sample(&headers) };
        let key = "A:10.1.2.3".to_owned();
        let block =
            Block { key, until: Micros(50), bucket: String::new(), reason: None, by: String::new(), is_ban: false };
        let blocks = Blocks::new(vec![block], &HASH);
        let denials = |exempted| {
            let plan = Plan::of_request(&rules(exempted), &request, Some(&blocks)).unwrap();
            plan.denials.iter().map(|denial| denial.limit).collect::<Vec<_>>()
        };
        assert_eq!(denials(Vec::new()), [0, 1]);
        assert_eq!(denials(vec![exemption(inside(), &[0])]), [1]);
    }

    #[test]
    fn descriptors_are_exempt_by_conditions_on_descriptors_alone() {
        let headers = Headers::new();
        let entries = [DescriptorEntry { key: "user", value: "bob" }];
        let request = Request { domain: Some("api"), descriptor: &entries, ..Request::empty(&headers) };
        let bob = || part(Part::Descriptor("user".into()), ValueTest::Value("bob".into()));
        let absent = part(Part::Header("x-a".parse().unwrap()), ValueTest::Present(false));
        for (conditions, exempt) in [
            (Match { domains: vec!["api".into()], ..Match::default() }, true),
            (Match { parts: vec![bob()], ..Match::default() }, true),
            (Match { domains: vec!["other".into()], parts: vec![bob()], ..Match::default() }, false),
            // It says nothing about descriptors.
            (Match { parts: vec![absent], ..Match::default() }, false),
        ] {
            let expected = if exempt { (vec![], vec![3]) } else { (vec![3], vec![]) };
            assert_eq!(plan(&rules(vec![exemption(conditions, &[])]), &request), expected);
        }
    }

    #[test]
    fn a_token_that_is_not_valid_exempts_nobody() {
        let path = ClaimPath::Name("plan".into());
        let claim = part(Part::Claim(ClaimRef::new(None, path)), ValueTest::Value("partner".into()));
        let rules = rules(vec![exemption(Match { parts: vec![claim], ..Match::default() }, &[])]);
        let headers = Headers::new();
        let valid = |plan: &str| TokenClaims {
            issuer: 0,
            values: Some(std::sync::Arc::new(serde_json::json!({ "plan": plan }))),
        };
        for (claims, expected) in [
            (vec![valid("partner")], &[0, 1, 2][..]),
            (vec![valid("free")], &[]),
            (vec![TokenClaims { issuer: 0, values: None }], &[]),
            (Vec::new(), &[]),
        ] {
            let request = Request { claims: &claims, client: Some([10, 0, 0, 1].into()), ..sample(&headers) };
            assert!(rules.needs_claims(&request));
            assert_eq!(plan(&rules, &request).1, expected, "{claims:?}");
        }
    }

    #[test]
    fn explanations_name_the_exemption() {
        let rules = rules(vec![exemption(inside(), &[4]), exemption(inside(), &[0, 3, 4])]);
        let headers = Headers::new();
        let request = Request { client: Some([10, 1, 2, 3].into()), ..sample(&headers) };
        let explained = Explanation::of_limits(&rules, &request, None);
        let reasons = rules.limits().iter().zip(&explained).map(|(limit, one)| one.reason(limit, &request));
        let reasons: Vec<_> = reasons.collect();
        let expected = "the request is exempt, by exempt[1] at limits.yaml:12 (ours)";
        assert_eq!([&reasons[0], &reasons[1], &reasons[2]], [&Some(expected.to_owned()), &None, &None]);
        assert!(matches!(explained[3..], [Explanation::Unmatched(_), Explanation::Off]));
    }
}
