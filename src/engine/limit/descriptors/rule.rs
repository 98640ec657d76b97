//! Rules in envoyproxy/ratelimit files: their names, units and settings.

use crate::engine::algorithms::algorithm::Aligned;
use crate::engine::algorithms::calendar;
use crate::engine::algorithms::numbers::{Numbers, NumbersError};
use crate::engine::algorithms::windows::Windows;
use crate::engine::digest::sha256;
use crate::engine::limit::matching::ValueTest;
use crate::message::percent;

/// A unit of the rate limit service, with its length in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RateUnit {
    Second = 1,
    Minute = 60,
    Hour = 3_600,
    Day = 86_400,
    Week = 7 * 86_400,
    /// 30 days, as in envoyproxy/ratelimit.
    Month = 30 * 86_400,
    /// 365 days, as in envoyproxy/ratelimit.
    Year = 365 * 86_400,
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
        self as u64
    }

    /// Returns the name in files.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, unit)| *unit == self).map_or("", |(name, _)| name)
    }

    /// Returns the unit that equals the period of `numbers`.
    pub fn of(numbers: &Numbers) -> Option<Self> {
        if let Some(Windows::Calendar(calendar)) = numbers.windows() {
            return Some(match calendar.unit {
                calendar::Unit::Month(_) => Self::Month,
                calendar::Unit::Year => Self::Year,
            });
        }
        Self::ALL.map(|(_, unit)| unit).into_iter().find(|unit| unit.seconds() * 1_000_000_000 == numbers.period())
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

/// `metadata` of a rule, for Envoy: a value of `google.protobuf.Struct`.
#[derive(Clone, Debug, PartialEq)]
pub enum Metadata {
    Null,
    Bool(bool),
    /// JSON and Struct have only doubles.
    Number(f64),
    Text(String),
    List(Vec<Metadata>),
    /// In the order of the file, with unique keys.
    Map(Vec<(String, Metadata)>),
}

impl Metadata {
    /// Merges the maps of `other` into this; existing values stay.
    pub fn merge(&mut self, other: &Self) {
        let (Self::Map(mine), Self::Map(theirs)) = (self, other) else { return };
        for (key, value) in theirs {
            match mine.iter_mut().find(|(known, _)| known == key) {
                Some((_, known)) => known.merge(value),
                None => mine.push((key.clone(), value.clone())),
            }
        }
    }
}

/// Longer names are cut and get a hash, because names are in every response.
const LONGEST: usize = 128;

/// The length of a cut name before its hash.
const CUT: usize = LONGEST - 17;

/// The name of a limit: `domain/key=value/key`. Further limits of the same path add their unit: `domain/key=value,day`.
///
/// Everything but letters, digits and `-._@+*` is percent-encoded. So names are unique, differ from all names in
/// `limits.yaml`, and need no escapes in headers, labels, JSON and store keys.
pub fn limit_name(domain: &str, path: &[(String, ValueTest)], unit: Option<RateUnit>) -> String {
    let mut name = String::new();
    push(&mut name, domain);
    for (key, test) in path {
        name.push('/');
        push(&mut name, key);
        match test {
            ValueTest::Value(value) => {
                name.push('=');
                push(&mut name, value);
            }
            ValueTest::Glob(glob) => {
                name.push('=');
                push(&mut name, &glob.to_string());
            }
            _ => {}
        }
    }
    if let Some(unit) = unit {
        name.push(',');
        name.push_str(unit.name());
    }
    if name.len() > LONGEST {
        let hash = sha256(&name);
        // The name is ASCII.
        name.truncate(CUT);
        name.push('~');
        name.push_str(&hash[..16]);
    }
    name
}

fn push(name: &mut String, text: &str) {
    percent::encode(text.as_bytes(), |byte| byte.is_ascii_alphanumeric() || b"-._@+*".contains(&byte), name);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::glob::Glob;

    fn map(entries: &[(&str, Metadata)]) -> Metadata {
        Metadata::Map(entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect())
    }

    #[test]
    fn maps_merge_and_the_first_value_stays() {
        let number = Metadata::Number;
        let mut merged = map(&[("a", number(1.0)), ("m", map(&[("x", number(1.0))]))]);
        merged.merge(&map(&[
            ("a", number(2.0)),
            ("m", map(&[("x", number(2.0)), ("y", number(3.0))])),
            ("b", Metadata::Null),
        ]));
        let expected =
            map(&[("a", number(1.0)), ("m", map(&[("x", number(1.0)), ("y", number(3.0))])), ("b", Metadata::Null)]);
        assert_eq!(merged, expected);
    }

    fn entry(key: &str, test: ValueTest) -> (String, ValueTest) {
        (key.to_owned(), test)
    }

    #[test]
    fn a_name_is_the_path_and_no_two_paths_have_one() {
        let value = |value: &str| ValueTest::Value(value.to_owned());
        let any = ValueTest::Present(true);
        let glob = ValueTest::Glob(Glob::parse("files/*").unwrap());
        for (path, unit, expected) in [
            (vec![entry("key1", value("value1")), entry("sub", any.clone())], None, "d/key1=value1/sub"),
            (vec![entry("a/b", value("c=d:e"))], None, "d/a%2Fb=c%3Dd%3Ae"),
            (vec![entry("file", glob)], Some(RateUnit::Day), "d/file=files%2F*,day"),
        ] {
            assert_eq!(limit_name("d", &path, unit), expected);
        }
        let long = |last: &str| limit_name("d", &[entry(&"k".repeat(200), value(last))], None);
        assert_eq!(long("a").len(), LONGEST);
        assert_ne!(long("a"), long("b"));
    }
}
