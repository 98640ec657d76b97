//! How much a limit or an override allows, as our file says it.

use super::text::Value;

/// What a limit or an override allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    /// The limit holds only where an override says something.
    Unsaid,
    /// `unlimited: true`
    Unlimited,
    /// `deny: true`
    Deny,
    /// Never refills.
    Burst(u64),
    /// `count` tokens come back with each `period`, up to `burst` or else to `count`.
    Rate { burst: Option<u64>, count: u64, period: String },
    /// Several of these at once: count and period.
    Rates(Vec<(u64, String)>),
}

/// The numbers that hold for a while when the bucket is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elevated {
    /// What the bucket allows then.
    pub(super) amount: Amount,
    /// For how long.
    pub(super) lasts: String,
    /// How often in a month.
    pub(super) activations_per_month: u64,
}

impl Amount {
    /// Its fields, in the order in which people write them.
    pub(super) fn fields(&self) -> Vec<(String, Value)> {
        let rate = |burst: Option<u64>, count: u64, period: &str| {
            let burst = burst.map(|burst| ("burst".to_owned(), Value::word(&burst)));
            let rate = [("count".to_owned(), Value::word(&count)), ("period".to_owned(), Value::word(period))];
            burst.into_iter().chain(rate).collect::<Vec<_>>()
        };
        match self {
            Self::Unsaid => Vec::new(),
            Self::Unlimited => vec![("unlimited".to_owned(), Value::word(&true))],
            Self::Deny => vec![("deny".to_owned(), Value::word(&true))],
            Self::Burst(burst) => vec![("burst".to_owned(), Value::word(burst))],
            Self::Rate { burst, count, period } => rate(*burst, *count, period),
            Self::Rates(windows) => {
                let windows = windows.iter().map(|(count, period)| Value::Map(rate(None, *count, period)));
                vec![("rates".to_owned(), Value::List(windows.collect()))]
            }
        }
    }
}

impl Elevated {
    /// The value of `elevated`.
    pub(super) fn value(&self) -> Value {
        let mut fields = self.amount.fields();
        fields.push(("for".to_owned(), Value::word(&self.lasts)));
        fields.push(("activations_per_month".to_owned(), Value::word(&self.activations_per_month)));
        Value::Map(fields)
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
