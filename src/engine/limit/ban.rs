//! `ban`: a limit blocks an id that it denies too often.
//!
//! A denial by the limit is a strike, and the call that denies counts it. The decision on the strike tells whether it was the last
//! one, so of all gateways at a store only one bans.

use std::fmt;

use crate::engine::algorithms::algorithm::Aligned;
use crate::engine::algorithms::charge::{Bucket, Charge, ChargeOrigin, Mode, Role};
use crate::engine::algorithms::decision::Decision;
use crate::engine::algorithms::describe::Span;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::{Numbers, NumbersError};
use crate::engine::limit::Limit;
use crate::engine::limit::blocks::Block;
use crate::engine::limit::rules::Rules;

/// The most bans in force. Operators' blocks have the rest of the room for blocks.
pub const MOST_BANS: usize = 9_000;

/// Follow the id in the keys of its strikes, of its ban, and of the count of its bans. Ids are percent-encoded, and names have no `#`.
const STRIKES: &str = "#strikes";
const BANNED: &str = "#banned";
const BANS: &str = "#bans";

/// The bans of an id that can make the next one longer.
const MOST_COUNTED: u64 = 64;

/// `ban:` of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Full once the denials of its period lead to a ban.
    pub strikes: Numbers,
    /// The length of the first ban.
    pub span: Micros,
    /// Used up for that time by the gateway that bans.
    claim: Numbers,
    pub escalation: Option<Escalation>,
    pub scope: BanScope,
}

/// Longer bans for ids that were banned before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Escalation {
    /// Each ban is this many times as long as the one before.
    pub factor: u64,
    pub at_most: Micros,
    /// Counts the bans of an id.
    bans: Numbers,
}

/// `scope:` of a ban.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BanScope {
    /// The requests that the limit covers.
    #[default]
    Limit,
    /// All requests with the id.
    All,
}

/// An id that has its last strike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBan {
    /// The index of the limit.
    pub limit: u32,
    /// False if the limit or the id is in shadow, so that the ban is only told.
    pub is_enforced: bool,
    /// That of its strikes.
    strikes: Bucket,
}

impl Escalation {
    /// A ban makes the next one longer if that begins within twice `at_most`: so for at least `at_most` after its end.
    pub fn new(factor: u64, at_most: Micros) -> Result<Self, NumbersError> {
        let period = at_most.0.saturating_mul(2_000);
        let bans = Numbers::fixed_window(MOST_COUNTED, MOST_COUNTED, period, Aligned::First)?;
        Ok(Self { factor, at_most, bans })
    }
}

impl Ban {
    pub fn new(
        strikes: Numbers,
        span: Micros,
        escalation: Option<Escalation>,
        scope: BanScope,
    ) -> Result<Self, NumbersError> {
        let claim = Numbers::fixed_window(1, 1, span.0.saturating_mul(1_000), Aligned::First)?;
        Ok(Self { strikes, span, claim, escalation, scope })
    }

    /// The charge that counts a denial. `bucket` is that of the id, and `origin` that of the limit's charges.
    pub(crate) fn strike(&self, bucket: Bucket, origin: ChargeOrigin) -> Charge {
        let origin = ChargeOrigin { role: Role::Strike, ..origin };
        Charge { origin, ..Charge::new(marked(bucket, STRIKES), self.strikes.clone(), 1, Mode::Spend) }
    }

    /// The charges that forget the strikes and the bans of the id with this bucket.
    pub fn forget(&self, bucket: &Bucket) -> Vec<Charge> {
        let reset = |mark: &str, numbers: &Numbers| {
            Charge::new(marked(marked(bucket.clone(), STRIKES), mark), numbers.clone(), 0, Mode::Reset)
        };
        let bans = self.escalation.iter().map(|escalation| reset(BANS, &escalation.bans));
        [reset("", &self.strikes), reset(BANNED, &self.claim)].into_iter().chain(bans).collect()
    }

    /// The length of the ban after so many others.
    fn length(&self, earlier: u64) -> Micros {
        let Some(Escalation { factor, at_most, .. }) = &self.escalation else { return self.span };
        let times = factor.saturating_pow(u32::try_from(earlier).unwrap_or(u32::MAX));
        Micros(self.span.0.saturating_mul(times)).min(*at_most)
    }
}

fn marked(mut bucket: Bucket, mark: &str) -> Bucket {
    if !mark.is_empty() {
        bucket.mark(mark);
    }
    bucket
}

impl NewBan {
    /// Reads the decision on a charge: it was the last strike if it counted and left none.
    pub(crate) fn of(charge: &Charge, decision: &Decision, is_enforced: bool) -> Option<Self> {
        let is_last = charge.origin.role == Role::Strike && decision.is_allowed() && decision.remaining == 0;
        is_last.then(|| Self { limit: charge.origin.limit, is_enforced, strikes: charge.bucket.clone() })
    }

    /// That of the id's strikes.
    pub const fn fingerprint(&self) -> u128 {
        self.strikes.fingerprint
    }

    /// The charges of a ban: the claim of the gateway that bans, for another may see a last strike, too, before it knows of the ban; the
    /// strikes, which are reset; and the count of earlier bans, which it asks for.
    pub fn claim(&self, rules: &Rules) -> Vec<Charge> {
        let Some(ban) = rules.limit(self.limit).and_then(|limit| limit.ban.as_deref()) else { return Vec::new() };
        let charge = |mark: &str, numbers: &Numbers, cost, mode| {
            Charge::new(marked(self.strikes.clone(), mark), numbers.clone(), cost, mode)
        };
        let claim = charge(BANNED, &ban.claim, 1, Mode::SpendOnly);
        let bans = ban.escalation.iter().map(|escalation| charge(BANS, &escalation.bans, 0, Mode::Check));
        [claim, charge("", &ban.strikes, 0, Mode::Reset)].into_iter().chain(bans).collect()
    }

    /// Reads the decisions on [`Self::claim`], empty if the store has not answered. Returns the block, and what counts it: two charges, one
    /// after the other. `None` if another gateway has banned the id, or the limit is gone.
    pub fn block(&self, rules: &Rules, claimed: &[Decision], now: Micros) -> Option<(Block, Vec<Charge>)> {
        let limit = rules.limit(self.limit)?;
        let ban = limit.ban.as_deref()?;
        if claimed.first().is_some_and(|claim| !claim.is_allowed()) {
            return None;
        }
        let earlier = claimed.get(2).map_or(0, |counted| MOST_COUNTED.saturating_sub(counted.remaining));
        let key = self.strikes.key.split('#').next().unwrap_or_default().to_owned();
        let block = Block {
            until: now.after(ban.length(earlier)),
            bucket: limit.name_of_bucket(&key),
            key,
            reason: Some(ban.reason()),
            by: format!("limit {}", limit.name),
            is_ban: true,
        };
        let count = |escalation: &Escalation| {
            let numbers = escalation.bans.clone();
            let reset = Charge::new(marked(self.strikes.clone(), BANS), numbers, 0, Mode::Reset);
            // The window begins with this ban.
            let spend = Charge { cost: (earlier + 1).min(MOST_COUNTED), mode: Mode::SpendOnly, ..reset.clone() };
            vec![reset, spend]
        };
        Some((block, ban.escalation.as_ref().map(count).unwrap_or_default()))
    }
}

impl Ban {
    /// Why an id is banned, for operators.
    fn reason(&self) -> String {
        format!("{} denials within {}", self.strikes.burst(), Span(self.strikes.period()))
    }
}

/// Completes a sentence that begins with "bans".
impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |micros: Micros| Span(micros.0.saturating_mul(1_000));
        write!(f, "for {} after {}", span(self.span), self.reason())?;
        if let Some(Escalation { factor, at_most, .. }) = &self.escalation {
            write!(f, ", each time {factor} times as long, at most {}", span(*at_most))?;
        }
        if self.scope == BanScope::All { f.write_str(", from everything") } else { Ok(()) }
    }
}

impl Limit {
    /// `Name:id` of the bucket with this key, or the name alone of a limit without ids.
    pub(crate) fn name_of_bucket(&self, key: &str) -> String {
        if self.by.is_empty() { self.name.clone() } else { format!("{}:{}", self.name, self.id_in(key)) }
    }

    /// Returns true if its bans hold for requests that it does not cover.
    pub(crate) fn bans_from_all(&self) -> bool {
        self.ban.as_deref().is_some_and(|ban| ban.scope == BanScope::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ban_is_longer_until_the_longest() {
        let hour = Micros(3_600_000_000);
        let strikes = Numbers::events_within(3, 60_000_000_000).unwrap();
        let escalation = Escalation::new(2, Micros(5 * hour.0)).unwrap();
        let ban = |escalation| Ban::new(strikes.clone(), hour, escalation, BanScope::All).unwrap();
        let (plain, longer) = (ban(None), ban(Some(escalation)));
        assert_eq!([0, 1, 2, 3, 64].map(|earlier| longer.length(earlier).0 / hour.0), [1, 2, 4, 5, 5]);
        assert_eq!([0, 1, 64].map(|earlier| plain.length(earlier)), [hour; 3]);
        assert_eq!(
            longer.to_string(),
            "for 1h after 3 denials within 1m, each time 2 times as long, at most 5h, from everything"
        );
    }
}
