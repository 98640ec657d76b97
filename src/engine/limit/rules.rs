//! All limits.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::tag::Tag;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::candidate::Candidate;
use crate::engine::limit::deny_with::Visibility;
use crate::engine::limit::descriptors::Tree;
use crate::engine::limit::exemptions::{Exemption, Exemptions, Met};
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::identity::{Fallback, IdError, Identity, describe, identify, readable};
use crate::engine::limit::index::Index;
use crate::engine::limit::matching::{Candidates, Match, Mismatch};
use crate::engine::limit::overrides::{OverrideOrigin, Overrides};
use crate::engine::limit::parts::PartUse;
use crate::engine::limit::resets::Marks;
use crate::engine::limit::warning::WarnAt;
use crate::engine::limit::{Limit, LimitMode, WHOLE_SHARE};
use crate::engine::request::claims::{ClaimRef, TokenIssuer};
use crate::engine::request::part::Part;
use crate::engine::request::{DescriptorEntry, Request};
use crate::engine::text::quote::quoted;
use crate::engine::text::suggest::nearest;
use crate::message::lossless::shown;

/// The name of the limit that stands for limits carried by requests. It is not a valid name in a file.
const CARRIED: &str = "(request)";

/// The compiled rules. Immutable: a reload makes new ones, which share most of their parts.
#[expect(clippy::struct_excessive_bools, reason = "each says that some limit uses a feature")]
#[derive(Clone, Debug)]
pub struct Rules {
    pub(crate) limits: Arc<[Limit]>,
    /// Stands for limits carried by requests. Its index is that after the last of `limits`.
    pub(crate) carried: Arc<Limit>,
    pub(crate) index: Arc<Index>,
    /// The live overrides by limit; may be empty.
    pub(crate) live: Arc<[Overrides]>,
    /// `None` if no limit was reset.
    pub(crate) marks: Option<Marks>,
    /// The issuers of tokens. Claims refer to them by index.
    pub(crate) issuers: Arc<[TokenIssuer]>,
    /// `None` if there are no exemptions.
    pub(crate) exemptions: Option<Arc<Exemptions>>,
    /// True if a limit or an exemption uses a claim.
    pub(crate) uses_claims: bool,
    /// True if a limit has `algorithm: queue`.
    pub has_queues: bool,
    /// True if a limit reads the bodies of requests.
    pub(crate) reads_bodies: bool,
    /// True if a limit has `headers: none`.
    pub has_hidden: bool,
    pub(crate) has_delays: bool,
    /// True if a limit has a ban with `scope: all`.
    pub(crate) has_bans_from_all: bool,
    /// Whether a limit has `warn_at`.
    pub(crate) has_warnings: bool,
    /// The share from which requests of descriptors' limits count as near the limit.
    pub(crate) near_limit: Option<WarnAt>,
    pub fingerprinter: Fingerprinter,
    /// The instant at which the numbers took effect.
    pub effective_from: Micros,
    /// The instant at which the files were loaded.
    pub loaded_at: Micros,
    pub(crate) files: Arc<[String]>,
}

impl Rules {
    /// Compiles limits. `effective_from` is when their numbers take effect (see
    /// [`crate::engine::algorithms::state::decide_level`]); `files` are the names for
    /// [`crate::engine::limit::overrides::OverrideOrigin::file`].
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
        let has_bans_from_all = limits.iter().any(Limit::bans_from_all);
        let has_warnings = limits.iter().any(|limit| limit.warn_at.is_some());
        Self {
            limits: limits.into(),
            carried: Arc::new(carried),
            index: Arc::new(index),
            live: Arc::default(),
            marks: None,
            issuers: Arc::default(),
            exemptions: None,
            uses_claims: false,
            has_queues,
            reads_bodies,
            has_hidden,
            has_delays,
            has_bans_from_all,
            has_warnings,
            near_limit: None,
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

    /// Sets the exemptions. Must be called after [`Self::with_issuers`].
    #[must_use]
    pub fn with_exemptions(mut self, exemptions: Vec<Exemption>) -> Self {
        self.uses_claims |= exemptions.iter().any(|exemption| exemption.conditions.claims().next().is_some());
        self.exemptions = (!exemptions.is_empty()).then(|| Arc::new(Exemptions::new(exemptions)));
        self
    }

    /// The exemptions, in the order of the file.
    pub fn exemptions(&self) -> impl Iterator<Item = &Exemption> {
        self.exemptions.iter().flat_map(|exemptions| exemptions.iter())
    }

    /// The claims that limits and exemptions use.
    pub fn claims(&self) -> impl Iterator<Item = &ClaimRef> {
        self.limits.iter().flat_map(Limit::claims).chain(self.exemptions().flat_map(|one| one.conditions.claims()))
    }

    /// The exemptions that `request` meets; `None` if the rules have none.
    #[inline]
    pub(crate) fn exemptions_met(&self, request: &Request<'_>) -> Option<Met<'_>> {
        self.exemptions.as_ref().map(|exemptions| exemptions.met(request))
    }

    /// Returns true if `request` is exempt from the limit at this index.
    pub(crate) fn is_exempt(&self, limit: u32, request: &Request<'_>) -> bool {
        self.exemptions_met(request).is_some_and(|met| met.from(limit).is_some())
    }

    /// The issuers of tokens. Claims refer to them by index.
    pub const fn issuers(&self) -> &Arc<[TokenIssuer]> {
        &self.issuers
    }

    /// Counts the requests of descriptors' limits from this percentage on as near the limit, where no `warn_at` says another.
    #[must_use]
    pub fn counting_near(mut self, percent: u8) -> Self {
        self.near_limit = Some(WarnAt::new(vec![percent]));
        self.has_warnings = true;
        self
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

    /// Gives limits other numbers; ids with overrides keep theirs. Must be called before [`Self::with_live`], which shares the limits.
    #[must_use]
    pub fn with_numbers(mut self, numbers: impl Iterator<Item = (u32, Numbers)>) -> Self {
        for (limit, numbers) in numbers {
            let limits = Arc::get_mut(&mut self.limits);
            if let Some(limit) = limits.and_then(|limits| limits.get_mut(limit as usize)) {
                limit.allowance = Allowance::Windows([numbers].into());
            }
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

    /// Returns the candidate at this index of a limit.
    pub fn candidate(&self, limit: u32, candidate: u8) -> Option<&Candidate> {
        self.limit(limit)?.candidates.get(usize::from(candidate))
    }

    /// Finds a limit and its index. The error suggests a similar name.
    pub fn find(&self, name: &str) -> Result<(u32, &Limit), String> {
        let found = (0..).zip(self.limits()).find(|(_, limit)| limit.name == name);
        found.ok_or_else(|| self.unknown(name))
    }

    pub(crate) fn unknown(&self, name: &str) -> String {
        let help = match nearest(name, self.limits().iter().map(|limit| limit.name.as_str())) {
            Some(known) => format!("; did you mean `{known}`?"),
            None => String::new(),
        };
        format!("there is no limit {}{help}", quoted(name))
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

    /// Returns true if the limit at this index has `quota_mode`.
    pub fn is_quota(&self, index: u32) -> bool {
        self.limit(index).and_then(|limit| limit.rule.as_deref()).is_some_and(|rule| rule.is_quota)
    }

    /// Returns true if a limit has this domain of the rate limit service.
    pub fn knows_domain(&self, domain: &str) -> bool {
        self.index.knows_domain(domain)
    }

    /// Returns the order of entries in which a limit covers them, if it depends on their order.
    pub fn order<'e>(&self, domain: &str, entries: &[DescriptorEntry<'e>]) -> Option<Vec<DescriptorEntry<'e>>> {
        self.index.order(domain, entries)
    }

    /// A limit that uses the client's address in its `by`, its `match` or an override.
    pub fn needs_client(&self) -> Option<&Limit> {
        let is_address = |(used, part): (PartUse, &Part)| used != PartUse::Field && matches!(part, Part::Ip { .. });
        let goes_by_it = |limit: &Limit| limit.parts().any(is_address);
        self.limits.iter().find(|limit| limit.mode != LimitMode::Off && goes_by_it(limit))
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

    /// Returns true if a limit that may cover `request` reads its body. Its tokens are not verified yet, so claims may have any
    /// value.
    pub fn needs_body(&self, request: &Request<'_>) -> bool {
        let needs = |limit: &Limit| limit.reads_body() && may_cover(&limit.conditions, request);
        self.reads_bodies && self.candidates(request).iter().any(|place| self.limit(*place).is_some_and(needs))
    }

    /// Returns true if a limit or an exemption that may cover `request` uses the claims of tokens, which are not verified yet, or if a
    /// limit whose bans hold for all requests does.
    pub fn needs_claims(&self, request: &Request<'_>) -> bool {
        let uses = |limit: &Limit| limit.claims().next().is_some();
        let needs = |limit: &Limit| uses(limit) && may_cover(&limit.conditions, request);
        let may_ban = |limit: &Limit| limit.bans_from_all() && limit.mode != LimitMode::Off && uses(limit);
        let may_exempt =
            |one: &Exemption| one.conditions.claims().next().is_some() && may_cover(&one.conditions, request);
        self.uses_claims
            && (self.candidates(request).iter().any(|place| self.limit(*place).is_some_and(needs))
                || self.exemptions().any(may_exempt)
                || self.has_bans_from_all && self.limits.iter().any(may_ban))
    }

    /// The limits that may cover `request`; their conditions are still to be checked.
    pub(crate) fn candidates(&self, request: &Request<'_>) -> Candidates {
        let mut candidates = Candidates::new();
        self.index.candidates(request, &mut candidates);
        candidates
    }

    pub(crate) fn identify(
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

/// Returns true if the conditions cover a request whose tokens are not verified yet, for some value of the claims.
fn may_cover(conditions: &Match, request: &Request<'_>) -> bool {
    match conditions.check(request) {
        Ok(()) => true,
        // All other conditions hold.
        Err(Mismatch::Part(place)) => {
            conditions.parts.get(place).is_some_and(|wanted| matches!(wanted.part, Part::Claim(_)))
        }
        Err(_) => false,
    }
}

/// Returns true if a limit is enforced for a request without an id. The share of `enforce_for` is then one of client addresses. A
/// request without an address belongs only to a share of 100%.
pub(crate) fn is_enforced_without_id(limit: &Limit, request: &Request<'_>) -> bool {
    match request.client {
        Some(client) => limit.is_enforced_for(&format!("{}:{client}", limit.short)),
        None => limit.is_enforced() && limit.enforce_for >= WHOLE_SHARE,
    }
}
