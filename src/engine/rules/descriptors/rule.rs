//! Settings of a rule in an envoyproxy/ratelimit file beside its descriptor.

use super::Metadata;
use crate::engine::algorithms::algorithm::Aligned;
use crate::engine::algorithms::calendar;
use crate::engine::algorithms::numbers::{Numbers, NumbersError};
use crate::engine::algorithms::windows::Windows;

/// A unit of the rate limit service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RateUnit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    /// 30 days, as in envoyproxy/ratelimit.
    Month,
    /// 365 days, as in envoyproxy/ratelimit.
    Year,
}

impl RateUnit {
    /// All units by their names in files.
    pub const ALL: [(&str, Self); 7] = [
        ("second", Self::Second),
        ("minute", Self::Minute),
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("year", Self::Year),
    ];

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

    /// The unit that equals the period of `numbers`.
    pub fn of(numbers: &Numbers) -> Option<Self> {
        if let Some(Windows::Calendar(calendar)) = numbers.windows() {
            return Some(match calendar.unit {
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
    /// 0 denies all.
    pub requests: u32,
    pub unit: RateUnit,
}

impl PerUnit {
    /// Windows that begin at multiples of the unit since the Unix epoch, as in envoyproxy/ratelimit. Fails only for 0
    /// requests.
    pub fn numbers(self) -> Result<Numbers, NumbersError> {
        let requests = u64::from(self.requests);
        Numbers::fixed_window(requests, requests, self.unit.seconds() * 1_000_000_000, Aligned::Clock)
    }
}

/// The settings of a rule in envoyproxy/ratelimit that `limits.yaml` does not have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DescriptorRule {
    /// `rate_limit.name`: the name that Envoy gets. May be empty.
    pub name: String,
    /// The numbers that Envoy gets; `None` if unlimited.
    pub per_unit: Option<PerUnit>,
    /// `quota_mode`: the request is denied only if all its quotas are exceeded.
    pub is_quota: bool,
    /// The names of limits that do not apply to a request that this one covers.
    pub replaces: Vec<String>,
    /// `metadata`: the data that Envoy gets if the limit allows the request.
    pub metadata: Option<Metadata>,
}
