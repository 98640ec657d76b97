//! What numbers are for people to read, in refusals, logs and explanations.

use std::fmt;

use super::Numbers;
use crate::engine::algorithms::calendar::Unit;
use crate::engine::algorithms::refill::{Kind, Windows};

impl Numbers {
    /// Adds what they are for people to read: `burst 20, 20 per 1s`. A refusal shows them, and under attack refusals are
    /// what is sent: no detour through format strings.
    pub fn describe(&self, text: &mut String) {
        let mut digits = itoa::Buffer::new();
        let amount = match self.refill.kind() {
            Kind::Level => None,
            Kind::Log(_) | Kind::SlidingWindow(_) => Some(" in any "),
            Kind::Slots(_) => Some(" at once"),
            Kind::Queue(stale) => {
                text.push_str(digits.format(self.burst));
                text.push_str(" waiting");
                if stale > 0 {
                    text.push_str(", each for at most ");
                    Span(stale * 1_000).describe(text);
                }
                return;
            }
            Kind::Script => return text.push_str("what its script says"),
        };
        if let Some(words) = amount {
            text.push_str(digits.format(self.burst));
            text.push_str(words);
            if self.period > 0 {
                self.describe_period(text);
            }
            return;
        }
        text.push_str("burst ");
        text.push_str(digits.format(self.burst));
        if self.count == 0 {
            return text.push_str(", never refills");
        }
        text.push_str(", ");
        text.push_str(digits.format(self.count));
        text.push_str(" per ");
        let windows = self.refill.windows();
        if let Some(Windows::Calendar(calendar)) = windows {
            text.push_str("calendar ");
            match calendar.unit() {
                Unit::Month(1) => text.push_str("month"),
                Unit::Month(day) => {
                    text.push_str("month from day ");
                    text.push_str(digits.format(day));
                }
                Unit::Year => text.push_str("year"),
            }
            text.push_str(", ");
            return text.push_str(calendar.zone());
        }
        text.push_str(match windows {
            None => "",
            Some(Windows::Clock(_)) => "clock window of ",
            Some(_) => "window of ",
        });
        self.describe_period(text);
    }

    fn describe_period(&self, text: &mut String) {
        Span(self.period).describe(text);
    }
}

/// A span of nanoseconds for people to read, in the largest unit that holds it exactly: 3h rather than 10800s, 90s rather
/// than 1.5m.
pub(crate) struct Span(pub(crate) u64);

impl Span {
    fn describe(&self, text: &mut String) {
        let (unit, name) = UNITS.into_iter().find(|(unit, _)| self.0.is_multiple_of(*unit)).unwrap_or((1, "ns"));
        text.push_str(itoa::Buffer::new().format(self.0 / unit));
        text.push_str(name);
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.describe(&mut text);
        f.write_str(&text)
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.describe(&mut text);
        f.write_str(&text)
    }
}

/// Units of a period and their nanoseconds.
const UNITS: [(u64, &str); 6] = [
    (3_600_000_000_000, "h"),
    (60_000_000_000, "m"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn numbers_are_shown_as_people_write_them() {
        let shown = |period| Numbers::new(7, 7, period).unwrap().to_string();
        assert_eq!(shown(10_800 * SECOND), "burst 7, 7 per 3h");
        assert_eq!(shown(90 * SECOND), "burst 7, 7 per 90s");
        assert_eq!(shown(1_500), "burst 7, 7 per 1500ns");
        assert_eq!(Numbers::fixed(7).unwrap().to_string(), "burst 7, never refills");
    }
}
