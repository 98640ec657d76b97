//! The amount that a limit or an override allows.

use super::super::print::joined;
use super::text::map;

/// Keys of a limit or an override, with their values in flow style.
pub(super) type Fields = Vec<(&'static str, String)>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Amount {
    /// The limit applies only to ids with an override.
    #[default]
    Unsaid,
    /// `unlimited: true`
    Unlimited,
    /// `deny: true`
    Deny,
    /// Never refills.
    Burst(u64),
    /// `burst` defaults to `count`.
    Rate { burst: Option<u64>, count: u64, period: String },
    /// Several of these at once: count and period.
    Rates(Vec<(u64, String)>),
}

/// The numbers that apply for some time after the bucket was empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elevated {
    pub(super) amount: Amount,
    /// `for`
    pub(super) lasts: String,
    pub(super) activations_per_month: u64,
}

impl Amount {
    /// The keys and values, in the order in which people write them.
    pub(super) fn fields(&self) -> Fields {
        let rate = |count: u64, period: &str| vec![("count", count.to_string()), ("period", period.to_owned())];
        let burst = |burst: &u64| ("burst", burst.to_string());
        match self {
            Self::Unsaid => Vec::new(),
            Self::Unlimited => vec![("unlimited", "true".to_owned())],
            Self::Deny => vec![("deny", "true".to_owned())],
            Self::Burst(tokens) => vec![burst(tokens)],
            Self::Rate { burst: tokens, count, period } => {
                tokens.iter().map(burst).chain(rate(*count, period)).collect()
            }
            Self::Rates(windows) => {
                let windows = windows.iter().map(|(count, period)| map(&rate(*count, period)));
                vec![("rates", format!("[{}]", joined(windows, ", ")))]
            }
        }
    }
}

impl Elevated {
    /// The value of `elevated`.
    pub(super) fn value(&self) -> String {
        let mut fields = self.amount.fields();
        fields.push(("for", self.lasts.clone()));
        fields.push(("activations_per_month", self.activations_per_month.to_string()));
        map(&fields)
    }
}

/// A span of milliseconds in the largest unit that holds it exactly: `90s` rather than `90000ms`.
pub(super) fn milliseconds(span: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let unit = UNITS.into_iter().find(|(unit, _)| span > 0 && span.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{span}ms"), |(unit, name)| format!("{}{name}", span / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_the_largest_unit_that_fits() {
        for (span, expected) in [(1_000, "1s"), (90_000, "90s"), (86_400_000, "1d"), (200, "200ms"), (0, "0ms")] {
            assert_eq!(milliseconds(span), expected);
        }
    }
}
