//! A limit, compiled: everything that `limits.yaml` says about one name, checked.

use std::sync::Arc;

use http::header::HeaderName;

use super::component::{Component, ComponentSource};
use super::descriptors::DescriptorRule;
use super::identity::{Fallback, Fallbacks};
use super::matching::Match;
use super::overrides::Overrides;
use super::queue::Queue;
use super::response_cost::ResponseCost;
use super::value_type::ValueType;
use crate::engine::algorithms::numbers::{Aligned, Allowance, DEFAULT_LEASE, Numbers, NumbersError};
use crate::engine::algorithms::script::Script;

/// A named rule: which requests it covers, whose bucket it charges, how much.
#[derive(Debug)]
pub struct Limit {
    /// `[A-Za-z][A-Za-z0-9_.-]{0,63}`, so that it needs no escaping in a header, a label or a key. Those of a file of
    /// envoyproxy/ratelimit have `/`, `=`, `%` and the like too, which none of these escapes either.
    pub name: String,
    /// The name in store keys: `short:`, or the name.
    pub short: String,
    /// Which requests it covers.
    pub conditions: Match,
    /// The components of its ids. Empty: one bucket for all (`global`).
    pub by: Vec<Component>,
    /// What it allows where no override says otherwise.
    pub allowance: Allowance,
    /// What a request costs.
    pub cost: Cost,
    /// What of the response corrects that; `None` if nothing does. `cost` is what is taken or checked before.
    pub response_cost: Option<Arc<ResponseCost>>,
    /// Whether it refuses.
    pub mode: LimitMode,
    /// Whether it refuses nothing whatever its mode, because no limit does (see [`super::rule_set::Rules::in_shadow`]).
    pub is_shadowed: bool,
    /// The share of ids for which it refuses, in parts per [`WHOLE_SHARE`]; the others are counted as in shadow.
    pub enforce_for: u32,
    /// What happens to a request that lacks a component of the id.
    pub missing: Fallback,
    /// What happens to a request whose id has a malformed component.
    pub malformed: Fallback,
    /// What happens when the store does not answer.
    pub on_store_error: StoreErrorPolicy,
    /// The buckets that it may have in memory at most; `None` if only its share of the table bounds them.
    pub max_keys: Option<u64>,
    /// The new ids that it may bring to Redis in a second, for each worker; `None` for what all limits may.
    pub max_new_keys: Option<u64>,
    /// Whether a caller that names the limit may give the numbers of its call.
    pub per_call: bool,
    /// Takes what is left for a report of more than that, and denies an ask of 0 once nothing is left.
    pub drain_over_limit: bool,
    /// How its tokens come back, those of calls with numbers of their own included.
    pub algorithm: Algorithm,
    /// What goes into its queue, and what becomes of a request then; only with [`Algorithm::Queue`].
    pub queue: Option<Box<Queue>>,
    /// What runs; only with [`Algorithm::Script`].
    pub script: Option<Box<Script>>,
    /// Other numbers for some ids.
    pub overrides: Overrides,
    /// What a rule of envoyproxy/ratelimit has beside the above; `None` for a limit of `limits.yaml`.
    pub rule: Option<Box<DescriptorRule>>,
}

/// `enforce_for: 100%`.
pub const WHOLE_SHARE: u32 = 1_000_000;

/// What a request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// This many tokens.
    Fixed(u64),
    /// What a header says; 1 if the request has none.
    Header(HeaderName),
    /// What a query parameter says; 1 if the request has none.
    Query(String),
}

/// `algorithm:`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Tokens come back evenly.
    #[default]
    Gcra,
    /// They come back with windows that begin there.
    FixedWindow(Aligned),
    /// Each comes back a period after it was taken.
    SlidingLog,
    /// They fade with the window after the one in which they were taken.
    SlidingWindow {
        /// Whether what is refused counts as well.
        count_denied: bool,
    },
    /// Each request in flight has one, and gives it back when it ends.
    Concurrency,
    /// Each is a place in a queue, and comes back when a worker takes the entry there.
    Queue,
    /// A script knows.
    Script,
}

impl Algorithm {
    /// The same amounts under this algorithm, of numbers that refill evenly: those that a caller gives.
    pub fn restyle(self, numbers: &Numbers) -> Result<Numbers, NumbersError> {
        match self {
            Self::Queue | Self::Script => Err(NumbersError::NotPerCall),
            _ if numbers.count() == 0 => Ok(*numbers),
            Self::Gcra => Ok(*numbers),
            Self::FixedWindow(aligned) => Numbers::windows(numbers.burst(), numbers.count(), numbers.period(), aligned),
            Self::SlidingLog => Numbers::sliding_log(numbers.count(), numbers.period()),
            Self::SlidingWindow { count_denied } => {
                Numbers::sliding_window(numbers.count(), numbers.period(), count_denied)
            }
            Self::Concurrency => Numbers::slots(numbers.burst(), DEFAULT_LEASE),
        }
    }
}

/// `mode:`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitMode {
    /// Counts and refuses.
    #[default]
    Enforce,
    /// Counts and reports, never refuses.
    Shadow,
    /// Does nothing.
    Off,
}

/// `on_store_error:`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreErrorPolicy {
    /// The request passes.
    #[default]
    Allow,
    /// The request is refused with 503.
    Deny,
    /// The limit is enforced from this process' memory until the store answers again.
    Local,
}

impl Limit {
    /// A limit by client address that covers everything, allows nothing in particular and is enforced.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            short: name.to_owned(),
            conditions: Match::default(),
            by: vec![Component::new(ComponentSource::Ip { ipv6_prefix: 128 }, ValueType::Text)],
            allowance: Allowance::Disabled,
            cost: Cost::Fixed(1),
            response_cost: None,
            mode: LimitMode::Enforce,
            is_shadowed: false,
            enforce_for: WHOLE_SHARE,
            missing: Fallback::Skip,
            malformed: Fallback::Shared,
            on_store_error: StoreErrorPolicy::Allow,
            max_keys: None,
            max_new_keys: None,
            per_call: false,
            drain_over_limit: false,
            algorithm: Algorithm::Gcra,
            queue: None,
            script: None,
            overrides: Overrides::default(),
            rule: None,
        }
    }

    /// The fate of requests that have no id of their own.
    pub const fn fallbacks(&self) -> Fallbacks {
        Fallbacks { missing: self.missing, malformed: self.malformed }
    }

    /// Whether it counts requests in flight, which only a listener can that sees them end.
    pub fn counts_in_flight(&self) -> bool {
        self.algorithm == Algorithm::Concurrency && self.mode != LimitMode::Off
    }

    /// Whether it may refuse at all; `enforce_for` may still leave an id out.
    pub fn is_enforced(&self) -> bool {
        self.mode == LimitMode::Enforce && !self.is_shadowed
    }
}
