//! All limits, and the charges that a request makes to them.

use std::collections::HashMap;
use std::sync::Arc;

use super::algorithm_input::UnsupportedOperation;
use super::blocks::Blocks;
use super::claims::TokenIssuer;
use super::deny_with::Visibility;
use super::descriptors::Tree;
use super::fingerprint::Fingerprinter;
use super::identity::{Fallback, IdError, Identity, describe, identify, readable};
use super::index::Index;
use super::limit::{Limit, LimitMode, WHOLE_SHARE};
use super::matching::{Candidates, Mismatch};
use super::overrides::{OverrideLookup, OverrideOrigin, Overrides};
use super::plan::{DenialReason, InvalidInput, LimitDenial, Plan, Reservation};
use super::queue::FollowUp;
use super::request::Request;
use super::request_cost::cost;
use super::resets::Marks;
use super::terms::Intent;
use crate::engine::algorithms::charge::Mode;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::tag::Tag;
use crate::engine::rules::allowance::Allowance;
use crate::message::lossless::shown;

/// The name of the limit that stands for limits carried by requests. It is not a valid name in a file.
const CARRIED: &str = "(request)";

/// The compiled rules. Immutable: a reload makes new ones, which share most of their parts.
#[expect(clippy::struct_excessive_bools, reason = "each says that some limit uses a feature")]
#[derive(Clone, Debug)]
pub struct Rules {
    pub(super) limits: Arc<[Limit]>,
    /// Stands for limits carried by requests. Its index is that after the last of `limits`.
    pub(super) carried: Arc<Limit>,
    pub(super) index: Arc<Index>,
    /// The live overrides by limit; may be empty.
    pub(super) live: Arc<[Overrides]>,
    /// `None` if no limit was reset.
    pub(super) marks: Option<Marks>,
    /// The issuers of tokens. Claims refer to them by index.
    pub(super) issuers: Arc<[TokenIssuer]>,
    /// True if a limit uses a claim.
    pub(super) uses_claims: bool,
    /// True if a limit has `algorithm: queue`.
    pub has_queues: bool,
    /// True if a limit reads the bodies of requests.
    pub(super) reads_bodies: bool,
    /// True if a limit has `headers: none`.
    pub has_hidden: bool,
    pub(super) has_delays: bool,
    pub fingerprinter: Fingerprinter,
    /// The instant at which the numbers took effect.
    pub effective_from: Micros,
    /// The instant at which the files were loaded.
    pub loaded_at: Micros,
    pub(super) files: Arc<[String]>,
}

impl Rules {
    /// Compiles limits. `effective_from` is when their numbers take effect (see
    /// [`crate::engine::algorithms::state::decide_level`]); `files` are the names for
    /// [`super::overrides::OverrideOrigin::file`].
    pub fn new(
        mut limits: Vec<Limit>,
        fingerprinter: Fingerprinter,
        effective_from: Micros,
        files: Vec<String>,
    ) -> Self {
        for limit in &mut limits {
            if limit.tag == Tag::OfId {
                limit.tag = limit.default_tag();
            }
        }
        let mut index = Index::default();
        for (place, limit) in (0..).zip(&limits) {
            let applies_somewhere = limit.allowance != Allowance::Disabled || !limit.overrides.is_empty();
            if limit.mode != LimitMode::Off && applies_somewhere {
                index.insert(place, limit);
            }
        }
        let carried = Limit { by: Vec::new(), drain_over_limit: true, ..Limit::new(CARRIED) };
        let reads_bodies = limits.iter().any(|limit| limit.mode != LimitMode::Off && limit.reads_body());
        let has_queues = limits.iter().any(|limit| limit.queue.is_some());
        let has_hidden = limits.iter().any(|limit| limit.visibility == Visibility::Hidden);
        let has_delays = limits.iter().any(|limit| limit.delay.is_some());
        Self {
            limits: limits.into(),
            carried: Arc::new(carried),
            index: Arc::new(index),
            live: Arc::default(),
            marks: None,
            issuers: Arc::default(),
            uses_claims: false,
            has_queues,
            reads_bodies,
            has_hidden,
            has_delays,
            fingerprinter,
            effective_from,
            loaded_at: effective_from,
            files: files.into(),
        }
    }

    /// Sets the limits that match whole descriptors, by domain.
    #[must_use]
    pub fn with_trees(mut self, trees: HashMap<String, Tree>) -> Self {
        Arc::make_mut(&mut self.index).set_trees(trees);
        self
    }

    /// Sets the issuers of tokens.
    #[must_use]
    pub fn with_issuers(mut self, issuers: Vec<TokenIssuer>) -> Self {
        self.issuers = issuers.into();
        let mut in_force = self.limits.iter().filter(|limit| limit.mode != LimitMode::Off);
        self.uses_claims = in_force.any(|limit| limit.claims().next().is_some());
        self
    }

    /// The issuers of tokens. Claims refer to them by index.
    pub const fn issuers(&self) -> &Arc<[TokenIssuer]> {
        &self.issuers
    }

    /// Puts all limits in shadow. Must be called before [`Self::with_live`], which shares them.
    #[must_use]
    pub fn in_shadow(mut self) -> Self {
        let limits = Arc::get_mut(&mut self.limits).into_iter().flatten();
        for limit in limits.chain(Arc::get_mut(&mut self.carried)) {
            limit.is_shadowed = true;
        }
        self
    }

    /// Returns true if a limit has `delay:`.
    #[inline]
    pub const fn has_delays(&self) -> bool {
        self.has_delays
    }

    /// The limits in the order of the file. Plans refer to them by index.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The limit at an index of a plan.
    pub fn limit(&self, index: u32) -> Option<&Limit> {
        let index = index as usize;
        self.limits.get(index).or_else(|| (index == self.limits.len()).then_some(&self.carried))
    }

    /// The name of the limit at an index of a plan.
    pub fn name(&self, index: u32) -> &str {
        self.limit(index).map_or("", |limit| &limit.name)
    }

    /// The limit that stands for limits carried by requests, and its index.
    pub fn carried(&self) -> (u32, &Limit) {
        (u32::try_from(self.limits.len()).unwrap_or(u32::MAX), &self.carried)
    }

    /// Returns true if the limit at this index stands for limits carried by requests.
    pub fn is_carried(&self, index: u32) -> bool {
        index as usize == self.limits.len()
    }

    /// The names of all limits that a plan can refer to, by index.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().chain([&*self.carried]).map(|limit| limit.name.as_str())
    }

    /// Returns true if a limit has this domain of the rate limit service.
    pub fn knows_domain(&self, domain: &str) -> bool {
        self.index.knows_domain(domain)
    }

    /// A limit that uses the client's address in its `by`, its `match` or an override.
    pub fn needs_client(&self) -> Option<&Limit> {
        let goes_by_it = |limit: &&Limit| {
            limit.mode != LimitMode::Off
                && (limit.is_by_client()
                    || !limit.conditions.networks.is_empty()
                    || !limit.conditions.other_networks.is_empty()
                    || limit.overrides.has_networks())
        };
        self.limits.iter().find(goes_by_it)
    }

    /// A limit that a request without a client address would evade: it uses the address in its `match` or overrides, or in
    /// its `by` with `missing: skip`.
    pub fn evaded_without_client(&self) -> Option<&Limit> {
        let is_evaded = |limit: &&Limit| {
            limit.mode == LimitMode::Enforce
                && (limit.missing == Fallback::Skip && limit.is_by_client()
                    || !limit.conditions.networks.is_empty()
                    || limit.overrides.has_networks())
        };
        self.limits.iter().find(is_evaded)
    }

    /// Checks that the algorithms of all limits of a plan support the mode and the cost.
    pub fn check_plan(&self, plan: &Plan, intent: &Intent) -> Result<(), UnsupportedOperation> {
        let mut limits = plan.charges.iter().filter_map(|charge| self.limit(charge.origin.limit));
        limits.try_for_each(|limit| limit.check_mode(intent.mode, intent.cost))
    }

    /// The rules file and the files of overrides.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// The place of an override, for people: `limits.yaml:12`, or `live`.
    pub fn place_of(&self, origin: &OverrideOrigin) -> String {
        if origin.is_live() {
            return "live".to_owned();
        }
        format!("{}:{}", self.file(origin.file), origin.line)
    }

    /// The file name of an override's origin.
    pub fn file(&self, index: u16) -> &str {
        self.files.get(usize::from(index)).map_or("", String::as_str)
    }

    /// Returns the plan for a request that spends what the limits cost. Blocked ids are denied, whatever the limits allow.
    pub fn charges(&self, request: &Request<'_>, blocks: Option<&Blocks>) -> Result<Plan, InvalidInput> {
        let mut plan = Plan::default();
        self.add_charges(request, &Intent::SPEND, blocks, &mut plan)?;
        Ok(plan)
    }

    /// Adds the charges of `request` to a plan.
    pub fn add_charges(
        &self,
        request: &Request<'_>,
        intent: &Intent,
        blocks: Option<&Blocks>,
        plan: &mut Plan,
    ) -> Result<(), InvalidInput> {
        // A refund of what was taken before a block is not denied by it.
        let blocks = blocks.filter(|_| intent.mode.can_deny());
        for place in self.candidates(request) {
            let Some(limit) = self.limit(place) else { continue };
            if limit.conditions.check(request).is_ok() {
                self.charge(place, limit, (request, intent), blocks, plan)?;
            }
        }
        Ok(())
    }

    /// Returns true if a limit that may cover `request` reads its body. Its tokens are not verified yet, so claims may have any
    /// value.
    pub fn needs_body(&self, request: &Request<'_>) -> bool {
        let needs = |limit: &Limit| limit.reads_body() && may_cover(limit, request);
        self.reads_bodies && self.candidates(request).iter().any(|place| self.limit(*place).is_some_and(needs))
    }

    /// Returns true if a limit that may cover `request` uses the claims of tokens, which are not verified yet.
    pub fn needs_claims(&self, request: &Request<'_>) -> bool {
        let needs = |limit: &Limit| limit.claims().next().is_some() && may_cover(limit, request);
        self.uses_claims && self.candidates(request).iter().any(|place| self.limit(*place).is_some_and(needs))
    }

    /// The limits that may cover `request`; their conditions are still to be checked.
    pub(super) fn candidates(&self, request: &Request<'_>) -> Candidates {
        let mut candidates = Candidates::new();
        self.index.candidates(request, &mut candidates);
        candidates
    }

    fn charge(
        &self,
        place: u32,
        limit: &Limit,
        (request, intent): (&Request<'_>, &Intent),
        blocks: Option<&Blocks>,
        plan: &mut Plan,
    ) -> Result<(), InvalidInput> {
        let mode = intent.mode;
        let with_prefixes = blocks.is_some() || self.has_overrides(place, limit);
        let identified = match self.identify(limit, request, with_prefixes) {
            Ok(identified) => identified,
            Err(lacking) => {
                if lacking.is_denied && mode.can_deny() {
                    plan.deny(place, is_enforced_without_id(limit, request), lacking.reason.into());
                }
                return Ok(());
            }
        };
        let text = || readable(&describe(&limit.by, request));
        let id =
            OverrideLookup { prefixes: &identified.prefixes, client: request.client, text: &text, now: request.now };
        let terms = self.terms(place, limit, identified.bucket, &id, blocks);
        if !plan.admit(&terms, mode) || terms.allowance.windows().is_none() {
            return Ok(());
        }
        let enforced = terms.enforced;
        let cost = match intent.cost.map_or_else(|| cost(limit, request), Ok) {
            Ok(cost) => cost,
            Err(error) => {
                if mode.can_deny() {
                    plan.deny(place, enforced, error.into());
                }
                return Ok(());
            }
        };
        let first = plan.charges.len();
        let charged = terms.mode(mode);
        match limit.response_cost.as_deref() {
            // A caller that does not spend reports what has happened, so nothing is left to settle.
            Some(response_cost) if mode == Mode::Spend => {
                let only_checks = response_cost.only_checks();
                plan.reservations.push(Reservation { limit: place, reserve: cost, only_checks });
                terms.charge(plan, cost, response_cost.before(charged));
                plan.reserve(first);
            }
            _ => terms.charge(plan, cost, charged),
        }
        plan.add_input(first, limit, |queue| queue.entry(&limit.name, request), None)?;
        if *intent != Intent::SPEND {
            plan.ask(first, limit);
        }
        Ok(())
    }

    pub(super) fn identify(
        &self,
        limit: &Limit,
        request: &Request<'_>,
        with_prefixes: bool,
    ) -> Result<Identity, IdError> {
        identify(limit, request, with_prefixes, &self.fingerprinter)
    }

    /// The readable id of `request` for a limit, and its fingerprint; `None` if it has no id.
    pub fn id_of(&self, limit: u32, request: &Request<'_>) -> Option<(String, u128)> {
        let limit = self.limit(limit)?;
        let identified = self.identify(limit, request, false).ok()?;
        let text = readable(&describe(&limit.by, request));
        Some((shown(&text).into_owned(), identified.bucket.fingerprint))
    }
}

impl Plan {
    pub(super) fn deny(&mut self, limit: u32, enforced: bool, reason: DenialReason) {
        self.denials.push(LimitDenial { limit, enforced, reason });
    }

    /// The queue limit that answers the request itself once its entry is in the queue, if there is one.
    pub fn accepting<'r>(&self, rules: &'r Rules) -> Option<&'r Limit> {
        let mut limits = self.charges.iter().filter_map(|charge| rules.limit(charge.origin.limit));
        limits.find(|limit| limit.queue.as_ref().is_some_and(|queue| queue.then == FollowUp::Accept))
    }
}

/// Returns true if a limit covers a request whose tokens are not verified yet, for some value of the claims.
fn may_cover(limit: &Limit, request: &Request<'_>) -> bool {
    matches!(limit.conditions.check(request), Ok(()) | Err(Mismatch::Claim(_)))
}

/// Returns true if a limit is enforced for a request without an id. The share of `enforce_for` is then one of client addresses. A
/// request without an address belongs only to a share of 100%.
pub(super) fn is_enforced_without_id(limit: &Limit, request: &Request<'_>) -> bool {
    match request.client {
        Some(client) => limit.is_enforced_for(&format!("{}:{client}", limit.short)),
        None => limit.is_enforced() && limit.enforce_for >= WHOLE_SHARE,
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;
    use crate::engine::algorithms::charge::Bucket;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::rules::blocks::Block;
    use crate::engine::rules::claims::{ClaimPath, ClaimRef, TokenClaims};
    use crate::engine::rules::component::{Component, ComponentSource};
    use crate::engine::rules::explanation::Explanation;
    use crate::engine::rules::identity::Fallback;
    use crate::engine::rules::ids::Id;
    use crate::engine::rules::key::of_newcomers;
    use crate::engine::rules::limit::{Cost, CostFallback};
    use crate::engine::rules::matching::{ClaimMatch, Match, ValueTest};
    use crate::engine::rules::overrides::{Override, OverrideOrigin};
    use crate::engine::rules::path_pattern::PathPattern;
    use crate::engine::rules::request::sample;
    use crate::engine::rules::value_type::ValueType;
    use crate::message::headers::Headers;

    const HASH: Fingerprinter = Fingerprinter::new((3, 4));

    fn windows(bursts: &[u64]) -> Allowance {
        Allowance::Windows(bursts.iter().map(|burst| Numbers::new(*burst, 1, 1_000_000_000).unwrap()).collect())
    }

    fn header(name: &'static str, form: ValueType) -> Component {
        Component::new(ComponentSource::Header(HeaderName::from_static(name)), form)
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
        limit.overrides.add_id(id.components.len(), id.fingerprint(&limit.short, &HASH), over).unwrap();
        limit
    }

    fn plan(limits: Vec<Limit>, headers: &[(&'static str, &str)], now: u64) -> Result<Plan, InvalidInput> {
        let headers = headers.iter().copied().collect();
        let request = Request { path: "/v1/b", query: Some("cost=3"), now: Micros(now), ..sample(&headers) };
        let mut limits = limits;
        for limit in &mut limits {
            limit.overrides.finish().unwrap();
        }
        Rules::new(limits, HASH, Micros(0), Vec::new()).charges(&request, None)
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
        let again =
            limit.overrides.add_id(id.components.len(), id.fingerprint("L", &HASH), given(windows(&[21]), None));
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
            let charged = rules.charges(&Request { path: "/v1", ..sample(&headers) }, None).unwrap().charges;
            let inspected = rules.inspect(bucket, Micros(0)).unwrap().plan.charges;
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
        let by = |source| Limit { by: vec![Component::new(source, ValueType::Text)], ..limit("L") };
        let account = || by(ComponentSource::Header("x-account".parse().unwrap()));
        assert_eq!(tags(account(), "L:7"), [Tag::OfId; 4]);
        assert_eq!(tags(Limit { tag: Tag::named("T"), ..account() }, "L:7"), [Tag::named("T"); 4]);
        assert_eq!(tags(Limit { by: Vec::new(), ..limit("L") }, "L"), [Tag::named("L"); 4]);
        assert_eq!(tags(Limit { short: "s".into(), ..by(ComponentSource::Path) }, "L:/v1"), [Tag::named("s"); 4]);
        assert_eq!(tags(Limit { tag: Tag::named("T"), ..by(ComponentSource::Method) }, "L:GET"), [Tag::named("T"); 4]);
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
            let refused = rules.charges(&request, None).unwrap().denials[0];
            let explained = rules.explain(&request, None);
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
        let cost = Cost::Header(HeaderName::from_static("x-cost"));
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
        let query = Limit { cost: Cost::Query("cost".into()), ..limit("L") };
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
        let conditions = Match { claims: vec![ClaimMatch { claim: claim(), test }], ..Match::default() };
        let by_claim = vec![Component::new(ComponentSource::Claim(claim()), ValueType::Text)];
        let headers = FIELDS.into_iter().collect();
        let keys = |by: &[Component], malformed, values: Option<serde_json::Value>| {
            let limit = Limit { by: by.to_vec(), malformed, conditions: conditions.clone(), ..limit("L") };
            let claims = [TokenClaims { issuer: 0, values: values.map(Arc::new) }];
            let request = Request { claims: &claims, ..sample(&headers) };
            let plan = Rules::new(vec![limit], HASH, Micros(0), Vec::new()).charges(&request, None).unwrap();
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
        let cost = Cost::Header(HeaderName::from_static("x-cost"));
        let rules = Rules::new(vec![Limit { cost, cost_fallback, ..limit("L") }], HASH, Micros(0), Vec::new());
        let headers = FIELDS.into_iter().collect();
        for (mode, cost, expected) in [
            (Mode::Spend, None, (None, 1)),
            (Mode::Spend, Some(2), (Some((Mode::Spend, 2)), 0)),
            (Mode::Refund, Some(2), (Some((Mode::Refund, 2)), 0)),
            (Mode::Refund, None, (None, 0)),
        ] {
            let (mut plan, intent) = (Plan::default(), Intent { mode, cost, can_probe: false });
            rules.add_charges(&sample(&headers), &intent, None, &mut plan).unwrap();
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

    /// What a request with [`FIELDS`] comes to at 10 us while these ids are blocked until then: charges, whether a limit
    /// refuses it, and for how long.
    fn blocked(limit: Limit, blocks: &[(&str, u64)]) -> (usize, bool, Option<u64>) {
        let block = |(key, until): &(&str, u64)| Block {
            key: (*key).to_owned(),
            until: Micros(*until),
            bucket: String::new(),
            reason: None,
            by: String::new(),
        };
        let blocks = Blocks::new(blocks.iter().map(block).collect(), &HASH);
        let headers = FIELDS.into_iter().collect();
        let request = Request { now: Micros(10), ..sample(&headers) };
        let plan = Rules::new(vec![limit], HASH, Micros(0), Vec::new()).charges(&request, Some(&blocks)).unwrap();
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
            let paths = vec![PathPattern::parse(path).unwrap()];
            Limit { conditions: Match { paths, ..Match::default() }, ..limit(path) }
        };
        let plan = plan(vec![on("/v1/**"), on("/v2/**"), on("/v1/{x}")], &FIELDS, 0).unwrap();
        assert_eq!(plan.charges.iter().map(|charge| charge.origin.limit).collect::<Vec<_>>(), [0, 2]);
    }
}
