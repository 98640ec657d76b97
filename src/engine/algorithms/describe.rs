//! The text of numbers in denials, logs and explanations.

use std::fmt;

use super::algorithm::Algorithm;
use super::calendar::{Calendar, Unit};
use super::numbers::Numbers;
use super::windows::Windows;

impl Numbers {
    /// Appends the numbers, such as `burst 20, 20 per 1s`. Every denial shows them, so this is hot under attack and avoids format
    /// strings.
    pub fn describe(&self, text: &mut String) {
        match self.algorithm() {
            Algorithm::Gcra | Algorithm::FixedWindow(_) => self.describe_refill(text),
            Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => {
                push_number(text, self.burst());
                text.push_str(" in any ");
                Span(self.period()).describe(text);
            }
            Algorithm::Concurrency => {
                push_number(text, self.burst());
                text.push_str(" at once");
            }
            Algorithm::Queue => {
                push_number(text, self.burst());
                text.push_str(" waiting");
                if self.span() > 0 {
                    text.push_str(", each for at most ");
                    Span(self.span() * 1_000).describe(text);
                }
            }
            Algorithm::Script => text.push_str("what its script says"),
        }
    }

    fn describe_refill(&self, text: &mut String) {
        text.push_str("burst ");
        push_number(text, self.burst());
        if self.count() == 0 {
            return text.push_str(", never refills");
        }
        text.push_str(", ");
        push_number(text, self.count());
        text.push_str(" per ");
        match self.windows() {
            None => {}
            Some(Windows::First(_)) => text.push_str("window of "),
            Some(Windows::Clock(_)) => text.push_str("clock window of "),
            Some(Windows::Calendar(calendar)) => return describe_calendar(calendar, text),
        }
        Span(self.period()).describe(text);
    }
}

fn describe_calendar(calendar: &Calendar, text: &mut String) {
    text.push_str("calendar ");
    match calendar.unit {
        Unit::Month(1) => text.push_str("month"),
        Unit::Month(day) => {
            text.push_str("month from day ");
            push_number(text, day);
        }
        Unit::Year => text.push_str("year"),
    }
    text.push_str(", ");
    text.push_str(calendar.zone);
}

fn push_number(text: &mut String, number: impl itoa::Integer) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// A span of nanoseconds. It is shown in the largest unit that gives a whole number: 3h, 90s.
pub(crate) struct Span(pub(crate) u64);

impl Span {
    fn describe(&self, text: &mut String) {
        let (unit, name) = UNITS.into_iter().find(|(unit, _)| self.0.is_multiple_of(*unit)).unwrap_or((1, "ns"));
        push_number(text, self.0 / unit);
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
    use super::super::algorithm::Aligned;
    use super::super::charge::Elevated;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn periods_are_shown_in_the_largest_exact_unit() {
        let shown = |period| Numbers::new(7, 7, period).unwrap().to_string();
        assert_eq!(shown(10_800 * SECOND), "burst 7, 7 per 3h");
        assert_eq!(shown(90 * SECOND), "burst 7, 7 per 90s");
        assert_eq!(shown(1_500), "burst 7, 7 per 1500ns");
        assert_eq!(Numbers::fixed(7).unwrap().to_string(), "burst 7, never refills");
    }

    #[test]
    fn each_algorithm_has_its_words() {
        let zone = |unit| Numbers::calendar_window(10, 5, Calendar::find(unit, "Europe/Berlin").unwrap());
        for (numbers, text) in [
            (Numbers::fixed_window(10, 5, SECOND, Aligned::First), "burst 10, 5 per window of 1s"),
            (Numbers::fixed_window(10, 5, SECOND, Aligned::Clock), "burst 10, 5 per clock window of 1s"),
            (zone(Unit::Month(1)), "burst 10, 5 per calendar month, Europe/Berlin"),
            (zone(Unit::Month(15)), "burst 10, 5 per calendar month from day 15, Europe/Berlin"),
            (zone(Unit::Year), "burst 10, 5 per calendar year, Europe/Berlin"),
            (Numbers::sliding_log(5, 90 * SECOND), "5 in any 90s"),
            (Numbers::sliding_window(5, SECOND / 4, false), "5 in any 250ms"),
            (Numbers::concurrency(5, 60 * SECOND), "5 at once"),
            (Numbers::queue(5, None), "5 waiting"),
            (Numbers::queue(5, Some(60 * SECOND)), "5 waiting, each for at most 1m"),
            (Ok(Numbers::script(0)), "what its script says"),
        ] {
            assert_eq!(numbers.unwrap().to_string(), text);
        }
        let numbers = Numbers::new(7, 7, SECOND).unwrap();
        let elevated = Elevated { numbers, span: 90_000_000, activations_per_month: 3, quota: None };
        assert_eq!(elevated.to_string(), "burst 7, 7 per 1s, for 90s, 3 times a month");
    }
}
