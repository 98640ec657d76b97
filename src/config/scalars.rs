//! Reads single values: text, numbers, truth values, durations, and words from a list.

use http::header::HeaderName;

use super::node::{Node, Value};
use super::problem::{ReadResult, quoted};
use super::suggest::did_you_mean;
use crate::engine::algorithms::micros::EXACT;
use crate::engine::limit::WHOLE_SHARE;
use crate::engine::text::duration;

impl Node {
    /// Reads text, plain or quoted: YAML's types are ignored.
    pub(crate) fn text(&self) -> ReadResult<&str> {
        match &self.value {
            Value::Scalar { .. } if self.is_null() => {
                Err(self.error("missing value", "add one; quote the texts `null` and `~`"))
            }
            Value::Scalar { text, .. } => Ok(text),
            _ => Err(self.error(format!("expected text, found {}", self.kind()), "write a single value")),
        }
    }

    /// Reads `true` or `false`.
    pub(crate) fn truth(&self) -> ReadResult<bool> {
        let help = match &self.value {
            Value::Scalar { text, plain } => match (text.as_str(), plain) {
                // The spellings of the YAML 1.2 core schema.
                ("true" | "True" | "TRUE", true) => return Ok(true),
                ("false" | "False" | "FALSE", true) => return Ok(false),
                ("true" | "false", false) => "remove the quotes",
                _ => match text.to_ascii_lowercase().as_str() {
                    "yes" | "y" | "on" | "1" => "write `true`",
                    "no" | "n" | "off" | "0" => "write `false`",
                    _ => "write `true` or `false`",
                },
            },
            _ => "write `true` or `false`",
        };
        Err(self.error("expected `true` or `false`", help))
    }

    /// Reads a whole number from 0 to [`EXACT`] - 1.
    pub(crate) fn whole(&self) -> ReadResult<u64> {
        let Value::Scalar { text, plain } = &self.value else {
            let message = format!("expected a whole number, found {}", self.kind());
            return Err(self.error(message, "write digits, such as 20"));
        };
        number(text, *plain).map_err(|(why, help)| self.error(format!("{} {why}", quoted(text)), help))
    }

    /// Reads a whole number of at least 1; `zero` and `help` are the error for 0.
    pub(crate) fn positive(&self, zero: impl AsRef<str>, help: impl AsRef<str>) -> ReadResult<u64> {
        match self.whole()? {
            0 => Err(self.error(zero, help)),
            number => Ok(number),
        }
    }

    /// Reads a duration in nanoseconds.
    pub(crate) fn duration(&self) -> ReadResult<u64> {
        duration::parse(self.text()?).map_err(|(message, help)| self.error(message, help))
    }

    /// Reads a header's name.
    pub(super) fn header_name(&self) -> ReadResult<HeaderName> {
        let name = self.text()?;
        HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| self.error(format!("invalid header name {}", quoted(name)), "use a name such as x-api-key"))
    }
}

/// Returns a reader for one of a few words.
pub(super) fn one_of<T: Clone>(choices: &'static [(&'static str, T)]) -> impl Fn(&Node) -> ReadResult<T> {
    |node| {
        let given = node.text()?;
        choices.iter().find(|(word, _)| *word == given).map(|(_, value)| value.clone()).ok_or_else(|| {
            let help = did_you_mean(given, choices.iter().map(|(word, _)| *word));
            node.error(format!("unknown value {}", quoted(given)), help)
        })
    }
}

/// Returns whether a text has 1 to `longest` letters, digits, `_`, `.` and `-`, which need no escapes in headers and keys.
pub(super) fn is_name(text: &str, longest: usize) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=longest).contains(&text.len()) && text.bytes().all(plain)
}

/// Parses a number below 10,000 with up to `places` decimals, 5 at most, in units of the last.
pub(super) fn decimal(text: &str, places: usize) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str, most| (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_decimal = digits(whole, 4) && digits(fraction, places);
    is_decimal.then(|| format!("{whole}{fraction:0<places$}").parse().ok())?
}

/// Reads a percentage with up to four decimals, in parts of [`WHOLE_SHARE`].
pub(super) fn share(node: &Node) -> ReadResult<u32> {
    let given = node.text()?;
    let parsed = given.strip_suffix('%').and_then(|number| decimal(number, 4)).filter(|parts| *parts <= WHOLE_SHARE);
    parsed.ok_or_else(|| {
        let help = match given.parse::<f64>() {
            Ok(number) if (0.0..=100.0).contains(&number) => format!("write {given}%"),
            _ => "use 0% to 100% with up to four decimals, such as 0.5%".to_owned(),
        };
        node.error(format!("invalid percentage {}", quoted(given)), help)
    })
}

fn number(text: &str, plain: bool) -> Result<u64, (&'static str, String)> {
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let significant = |text: &str| {
        let text = text.trim_start_matches('0');
        if text.is_empty() { "0".to_owned() } else { text.to_owned() }
    };
    if !plain {
        let help = if all_digits(text) { format!("write it without quotes, {text}") } else { String::new() };
        return Err(("is text, not a number", help));
    }
    if all_digits(text) {
        if text.len() > 1 && text.starts_with('0') {
            let help = format!("write {}; some programs read a leading zero as octal", significant(text));
            return Err(("has a leading zero", help));
        }
        return text
            .parse()
            .ok()
            .filter(|number| *number < EXACT)
            .ok_or_else(|| ("is too large", format!("the largest number is {}", EXACT - 1)));
    }
    if let Some(digits) = text.strip_prefix('-').filter(|digits| all_digits(digits)) {
        return Err(("is negative", format!("use a number of at least 0; did you mean {}?", significant(digits))));
    }
    if let Some(digits) = text.strip_prefix('+').filter(|digits| all_digits(digits)) {
        return Err(("has a sign", format!("write {}", significant(digits))));
    }
    let ungrouped = text.replace(['_', ','], "");
    if ungrouped != text && all_digits(&ungrouped) {
        return Err(("is not a whole number", format!("write {}", significant(&ungrouped))));
    }
    if let Some((digits, rest)) = text.split_once('.').filter(|(digits, rest)| all_digits(digits) && all_digits(rest)) {
        let help = match fraction(digits, rest) {
            Some((number, 1)) => format!("write {number}"),
            Some((number, factor)) => {
                format!(
                    "use a whole number; for a rate per `period`, {number} in {factor} times the period is the same"
                )
            }
            None => "write digits only, such as 1000".into(),
        };
        return Err(("is not a whole number", help));
    }
    Err(("is not a whole number", "write digits only, such as 1000".into()))
}

/// Returns the smallest whole number that a decimal number's multiple is, and the factor.
fn fraction(digits: &str, decimals: &str) -> Option<(u64, u64)> {
    let decimals = decimals.trim_end_matches('0');
    let mut factor = 10u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let mut number: u64 = format!("{digits}{decimals}").parse().ok()?;
    for prime in [2, 5] {
        while number.is_multiple_of(prime) && factor.is_multiple_of(prime) {
            (number, factor) = (number / prime, factor / prime);
        }
    }
    Some((number, factor))
}

#[cfg(test)]
mod tests {
    use super::super::problem::{Findings, Report};
    use super::super::yaml::tree;
    use super::*;

    #[track_caller]
    fn check<T: PartialEq + std::fmt::Debug>(
        read: impl Fn(&Node) -> ReadResult<T>,
        text: &str,
        expected: Result<T, &str>,
    ) {
        let findings = Findings::new("f");
        let outcome = tree(text, &findings).and_then(|node| read(&node));
        let mut report = Report::default();
        report.add(&findings, text);
        match expected {
            Ok(value) => assert_eq!(outcome, Ok(value), "{text}: {report}"),
            Err(part) => assert!(outcome.is_err() && report.to_string().contains(part), "{text}: {report}"),
        }
    }

    #[test]
    fn numbers_are_plain_digits() {
        for (text, expected) in [
            ("20", Ok(20)),
            ("0", Ok(0)),
            ("9007199254740991", Ok(EXACT - 1)),
            ("9007199254740992", Err("largest number")),
            ("9223372036854775808", Err("largest number")),
            ("010", Err("write 10")),
            ("00", Err("write 0")),
            ("-1", Err("negative")),
            ("+5", Err("write 5")),
            ("20.0", Err("help: write 20\n")),
            ("2.5", Err("5 in 2 times the period is the same")),
            ("0.10", Err("1 in 10 times the period is the same")),
            ("0.0", Err("help: write 0\n")),
            ("1.00000000000000000000000001", Err("digits only")),
            ("1_000", Err("write 1000")),
            ("1e3", Err("digits only")),
            ("0x10", Err("digits only")),
            ("0o10", Err("digits only")),
            ("\"20\"", Err("without quotes, 20")),
            ("ten", Err("not a whole number")),
            ("[1]", Err("found a list")),
        ] {
            check(Node::whole, text, expected);
        }
    }

    #[test]
    fn truth_is_true_or_false() {
        for (text, expected) in [
            ("true", Ok(true)),
            ("False", Ok(false)),
            ("yes", Err("write `true`")),
            ("off", Err("write `false`")),
            ("\"true\"", Err("remove the quotes")),
            ("maybe", Err("`true` or `false`")),
            ("{}", Err("`true` or `false`")),
        ] {
            check(Node::truth, text, expected);
        }
    }
}
