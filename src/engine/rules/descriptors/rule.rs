//! What a file of envoyproxy/ratelimit says of a limit beside which descriptors it covers.

use super::Metadata;
use crate::engine::algorithms::calendar;
use crate::engine::algorithms::numbers::{Aligned, Numbers, NumbersError};
use crate::engine::algorithms::refill::Windows;

/// A unit of the rate limit service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RateUnit {
    /// One second.
    Second,
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
    /// 7 days.
    Week,
    /// 30 days, as envoyproxy/ratelimit counts them.
    Month,
    /// 365 days, as envoyproxy/ratelimit counts them.
    Year,
}

impl RateUnit {
    /// All, by their names in files.
    pub const ALL: [(&str, Self); 7] = [
        ("second", Self::Second),
        ("minute", Self::Minute),
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("year", Self::Year),
    ];

    /// Its length.
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }

    /// Its name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The unit that is the period of some numbers; `None` if their period is none of them.
    pub fn of(numbers: &Numbers) -> Option<Self> {
        if let Some(Windows::Calendar(calendar)) = numbers.refill().windows() {
            return Some(match calendar.unit() {
                calendar::Unit::Month(_) => Self::Month,
                calendar::Unit::Year => Self::Year,
            });
        }
        let is_its = |unit: &Self| unit.seconds() * 1_000_000_000 == numbers.period();
        Self::ALL.into_iter().map(|(_, unit)| unit).find(is_its)
    }
}

/// `requests_per_unit` and `unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerUnit {
    /// How many requests; 0 refuses all.
    pub requests: u32,
    /// In each of these.
    pub unit: RateUnit,
}

impl PerUnit {
    /// The numbers to count by: windows that begin with the multiples of the unit since the Unix epoch, as those of
    /// envoyproxy/ratelimit do. The only error there is is that of 0 requests.
    pub fn numbers(self) -> Result<Numbers, NumbersError> {
        let requests = u64::from(self.requests);
        Numbers::windows(requests, requests, self.unit.seconds() * 1_000_000_000, Aligned::Clock)
    }
}

/// What a rule of envoyproxy/ratelimit has that a limit of ours does not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DescriptorRule {
    /// `rate_limit.name`: what Envoy is told that the limit is called. May be empty.
    pub name: String,
    /// What Envoy is told that the limit is; `None` if it is unlimited.
    pub per_unit: Option<PerUnit>,
    /// `quota_mode`: the request is refused only if every quota that it touches is over.
    pub is_quota: bool,
    /// Names of limits that do not count for a request that this one covers.
    pub replaces: Vec<String>,
    /// `metadata`: what Envoy is told if the limit lets the request pass.
    pub metadata: Option<Metadata>,
}
