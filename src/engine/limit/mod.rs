//! Compiled limits: the validated settings of a name in `limits.yaml`, which requests it covers, whose buckets it charges, and what
//! overrides, blocks and resets make of that.

pub mod allowance;
pub mod ban;
pub mod blocks;
pub mod candidate;
pub mod deny_with;
pub mod descriptors;
pub mod exemptions;
pub mod fingerprint;
pub mod identity;
pub mod ids;
mod index;
pub mod key;
pub mod live;
pub mod matching;
pub mod named_id;
mod networks;
pub mod overrides;
pub mod parts;
pub mod queue;
pub mod request_numbers;
pub mod resets;
pub mod response_cost;
pub mod rules;
pub mod warning;

use std::sync::Arc;

use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::algorithms::lease::LeaseTerms;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::script::Script;
use crate::engine::algorithms::tag::Tag;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::ban::Ban;
use crate::engine::limit::candidate::Candidate;
use crate::engine::limit::deny_with::{DenyWith, Visibility};
use crate::engine::limit::descriptors::DescriptorRule;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::matching::Match;
use crate::engine::limit::overrides::Overrides;
use crate::engine::limit::queue::Queue;
use crate::engine::limit::request_numbers::RequestNumbers;
use crate::engine::limit::response_cost::ResponseCost;
use crate::engine::limit::warning::WarnAt;
use crate::engine::request::part::{IPV6_CLIENT_PREFIX, Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::engine::stable_hash::stable;

/// A named rule: which requests it covers, which bucket it charges, and how much.
#[derive(Debug)]
pub struct Limit {
    /// `[A-Za-z][A-Za-z0-9_.-]{0,63}`, after the prefix of a team, so that it needs no escapes in a header, a label or a key. Names from
    /// envoyproxy/ratelimit files also have `/`, `=` and `%`, which need none either.
    pub name: String,
    /// The team whose file has it. The name begins with it and a slash.
    pub owner: Option<Box<str>>,
    /// The name in store keys: `short:`, which defaults to the name.
    pub short: String,
    /// The hash tag of its buckets: `tag:`, or, from [`crate::engine::limit::rules::Rules::new`] on, the one of [`Limit::default_tag`].
    pub tag: Tag,
    pub conditions: Match,
    /// The parts of its ids. Empty means one bucket for all (`global`).
    pub by: Vec<TypedPart>,
    /// The numbers of ids without an override.
    pub allowance: Allowance,
    /// Those that requests bring in their place. Only with one window.
    pub request_numbers: Option<Box<RequestNumbers>>,
    pub cost: Cost,
    pub cost_fallback: CostFallback,
    /// The correction of the cost by the response. `cost` is then taken or checked before.
    pub response_cost: Option<Arc<ResponseCost>>,
    pub mode: LimitMode,
    /// True if all limits are in shadow, whatever their mode (see [`crate::engine::limit::rules::Rules::in_shadow`]).
    pub is_shadowed: bool,
    /// The share of ids that it can deny, in parts per [`WHOLE_SHARE`]; the others are in shadow.
    pub enforce_for: u32,
    /// Other numbers that are decided beside its own.
    pub candidates: Vec<Candidate>,
    pub missing: Fallback,
    pub malformed: Fallback,
    pub on_store_error: StoreErrorPolicy,
    /// The maximum number of its buckets in memory; `None` for its share of the table.
    pub max_keys: Option<u64>,
    /// The new ids per second and worker that it may add to Redis; `None` for the default.
    pub max_new_keys: Option<u64>,
    /// True if a call by name may give its own numbers.
    pub per_call: bool,
    /// A report of more than is left takes what is left, and a cost of 0 is denied once nothing is left.
    pub drain_over_limit: bool,
    /// Also of calls that give their own numbers.
    pub algorithm: Algorithm,
    /// The end of the day by which somebody is to look at it again.
    pub review_by: Option<Micros>,
    /// The response to those it denies, if it is not the usual one.
    pub deny_with: Option<Box<DenyWith>>,
    pub visibility: Visibility,
    pub ban: Option<Box<Ban>>,
    pub warn_at: Option<WarnAt>,
    /// Only with [`Algorithm::Gcra`] and [`Algorithm::FixedWindow`].
    pub lease: Option<LeaseTerms>,
    /// The longest time that a request is held until its charge fits. Only with [`Algorithm::Gcra`] and [`Algorithm::FixedWindow`].
    pub delay: Option<Micros>,
    /// Only with [`Algorithm::Queue`].
    pub queue: Option<Box<Queue>>,
    /// Only with [`Algorithm::Script`].
    pub script: Option<Box<Script>>,
    pub overrides: Overrides,
    /// The additional settings of a rule from an envoyproxy/ratelimit file.
    pub rule: Option<Box<DescriptorRule>>,
}

/// `enforce_for: 100%`.
pub const WHOLE_SHARE: u32 = 1_000_000;

/// `cost:`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    Fixed(u64),
    /// The value of a header, a query parameter, a claim or in the body.
    Part(Part),
    /// The bytes of the body, as `Content-Length` announces them; `reserve` if it does not.
    Bytes {
        reserve: u64,
    },
}

/// The treatment of requests without a usable cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostFallback {
    /// Their cost, if they are not denied.
    pub default: u64,
    /// True if those that lack it are denied.
    pub denies_missing: bool,
    /// True if those are denied whose cost is not a whole number, or cannot be read.
    pub denies_malformed: bool,
}

static CONTENT_LENGTH: Part = Part::Header(http::header::CONTENT_LENGTH);

impl Cost {
    /// The part of a request that has the cost.
    pub fn part(&self) -> Option<&Part> {
        match self {
            Self::Fixed(_) => None,
            Self::Part(part) => Some(part),
            Self::Bytes { .. } => Some(&CONTENT_LENGTH),
        }
    }
}

impl Default for CostFallback {
    fn default() -> Self {
        Self { default: 1, denies_missing: false, denies_malformed: true }
    }
}

/// `mode:`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitMode {
    /// Counts and denies.
    #[default]
    Enforce,
    /// Counts and reports, but never denies.
    Shadow,
    Off,
}

/// `on_store_error:`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreErrorPolicy {
    /// The request passes.
    #[default]
    Allow,
    /// The request is answered with 503.
    Deny,
    /// The limit is enforced in process memory until the store answers again.
    Local,
}

impl Limit {
    /// An enforced limit by client address that covers all requests and has no numbers.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            owner: None,
            short: name.to_owned(),
            tag: Tag::OfId,
            conditions: Match::default(),
            by: vec![TypedPart::new(Part::Ip { ipv6_prefix: IPV6_CLIENT_PREFIX }, ValueType::Text)],
            allowance: Allowance::Disabled,
            request_numbers: None,
            cost: Cost::Fixed(1),
            cost_fallback: CostFallback::default(),
            response_cost: None,
            mode: LimitMode::Enforce,
            is_shadowed: false,
            enforce_for: WHOLE_SHARE,
            candidates: Vec::new(),
            missing: Fallback::Skip,
            malformed: Fallback::Shared,
            on_store_error: StoreErrorPolicy::Allow,
            max_keys: None,
            max_new_keys: None,
            per_call: false,
            drain_over_limit: false,
            algorithm: Algorithm::Gcra,
            review_by: None,
            deny_with: None,
            visibility: Visibility::Shown,
            ban: None,
            warn_at: None,
            lease: None,
            delay: None,
            queue: None,
            script: None,
            overrides: Overrides::default(),
            rule: None,
        }
    }

    /// Returns the name as its file has it.
    pub fn own_name(&self) -> &str {
        self.without_owner(&self.name)
    }

    /// Returns `short` as its file has it.
    pub fn own_short(&self) -> &str {
        self.without_owner(&self.short)
    }

    fn without_owner<'t>(&self, text: &'t str) -> &'t str {
        let of_team = self.owner.as_deref().and_then(|owner| text.strip_prefix(owner)?.strip_prefix('/'));
        of_team.unwrap_or(text)
    }

    /// The hash tag of its buckets without `tag:`. Ids that begin with a method or a path are few, or of nobody in particular, so
    /// other limits hardly share them, and the tag is that of the name in keys.
    pub(crate) fn default_tag(&self) -> Tag {
        match self.by.first().map(|part| &part.part) {
            None | Some(Part::Method | Part::Path) => Tag::named(&self.short),
            Some(_) => Tag::OfId,
        }
    }

    /// Returns true if it counts requests in flight, which needs a listener that sees them end.
    pub fn counts_in_flight(&self) -> bool {
        self.algorithm == Algorithm::Concurrency && self.mode != LimitMode::Off
    }

    /// Returns true if it can deny. `enforce_for` may still exempt an id.
    pub fn is_enforced(&self) -> bool {
        self.mode == LimitMode::Enforce && !self.is_shadowed
    }

    /// Returns true if it can deny the id with this key.
    pub fn is_enforced_for(&self, key: &str) -> bool {
        self.is_enforced() && is_in_share(key, self.enforce_for)
    }

    /// Returns true if its ids have descriptor entries.
    pub fn is_by_entry(&self) -> bool {
        self.by.iter().any(|part| matches!(part.part, Part::Descriptor(_)))
    }

    /// Returns true if its ids have the client's address.
    pub fn is_by_client(&self) -> bool {
        self.by.iter().any(|part| matches!(part.part, Part::Ip { .. }))
    }
}

/// Returns true if the id with this key is in a share of `enforce_for`. All gateways agree on it, and a larger share includes the ids
/// of a smaller one.
pub(crate) fn is_in_share(key: &str, share: u32) -> bool {
    let is_in = || stable(key.as_bytes()) % u64::from(WHOLE_SHARE) < u64::from(share);
    share >= WHOLE_SHARE || (share > 0 && is_in())
}
