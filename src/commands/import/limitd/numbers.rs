//! The numbers of a bucket: `size`, and one of the rates.

use super::super::super::print::joined;
use super::super::amount::{Amount, milliseconds};
use super::super::text::piece;
use super::{BucketReader, Entries, flag, read};
use crate::config::foreign::{Key, Node, ReadResult, Value, find, quoted};

/// The rates without an `interval`, and theirs in milliseconds. limitd takes the last one that is present.
const RATES: [(&str, u64); 4] =
    [("per_second", 1_000), ("per_minute", 60_000), ("per_hour", 3_600_000), ("per_day", 86_400_000)];

/// The keys of a bucket's numbers.
const NUMBERS: [&str; 7] = ["size", "per_interval", "interval", "per_second", "per_minute", "per_hour", "per_day"];

/// The maximum number of digits after the point.
const MOST_DECIMALS: usize = 6;

#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    pub(super) size: Option<u64>,
    /// Tokens and milliseconds, neither of which is 0.
    pub(super) rate: Option<(u64, u64)>,
    pub(super) unlimited: bool,
}

impl BucketReader<'_> {
    /// Reads the numbers of a bucket. A rate of 0 counts as absent, as in limitd.
    pub(super) fn numbers(
        &mut self,
        given: Entries<'_>,
        inherited: Option<u64>,
        notes: &mut Vec<String>,
    ) -> ReadResult<Numbers> {
        let unlimited = flag(given, "unlimited")?;
        let mut size = None;
        if let Some((key, node)) = find(given, "size") {
            let (number, scale) = decimal(node)?;
            if number % scale != 0 {
                notes.push(self.origin(key).note("`size` is not a whole number; it is rounded down."));
            }
            size = Some(number / scale);
        }
        let mut rates: Vec<(&Key, (u64, u64), u64)> = Vec::new();
        if let Some((key, node)) = find(given, "per_interval") {
            let number = decimal(node)?;
            let interval = match (read(given, "interval", Node::whole)?, inherited) {
                (Some(0), _) => {
                    return Err(key.error("`interval` is 0", "use milliseconds, such as 1000"));
                }
                (Some(interval), _) => interval,
                (None, Some(interval)) => {
                    let shown = milliseconds(interval);
                    let note = format!("`interval` is missing; the type's interval, {shown}, is assumed.");
                    notes.push(self.origin(key).note(note));
                    interval
                }
                (None, None) if number.0 == 0 => 1,
                (None, None) => {
                    let help = "add `interval`, in milliseconds";
                    return Err(key.error("`per_interval` without `interval`", help));
                }
            };
            rates.push((key, number, interval));
        } else if let Some((key, node)) = find(given, "interval") {
            node.whole()?;
            notes.push(
                self.origin(key)
                    .note("`interval` is left out: it is the interval of `per_interval`, which is missing."),
            );
        }
        for (name, interval) in RATES {
            if let Some((key, node)) = find(given, name) {
                rates.push((key, decimal(node)?, interval));
            }
        }
        for (key, ..) in rates.extract_if(.., |(_, (number, _), _)| *number == 0) {
            let what = format!("{}: a rate of 0 counts as absent, as in limitd; left out.", piece(&key.text));
            notes.push(self.origin(key).note(what));
        }
        let Some((key, number, interval)) = rates.last() else { return Ok(Numbers { size, rate: None, unlimited }) };
        if rates.len() > 1 {
            notes.push(self.origin(key).note(format!("limitd uses {}, the last of several rates.", piece(&key.text))));
        }
        let too_large = || key.error("the rate is too large", "use a rounder number");
        let rate = Some(reduced(*number, *interval).ok_or_else(too_large)?);
        Ok(Numbers { size, rate, unlimited })
    }

    /// What the numbers allow.
    pub(super) fn amount(
        &mut self,
        (key, given): (&Key, Entries<'_>),
        numbers: &Numbers,
        notes: &mut Vec<String>,
    ) -> ReadResult<Amount> {
        if numbers.unlimited {
            let given = given.iter().map(|(key, _)| key).filter(|key| NUMBERS.contains(&key.text.as_str()));
            let given: Vec<&Key> = given.collect();
            if let Some(first) = given.first() {
                let names = joined(given.iter().map(|key| piece(&key.text)), ", ");
                notes
                    .push(self.origin(first).note(format!("{names}: an unlimited bucket needs no numbers; left out.")));
            }
            return Ok(Amount::Unlimited);
        }
        match (numbers.size, numbers.rate) {
            (None, None) => {
                let message = format!("{} has neither a size nor a rate", quoted(&key.text));
                Err(key.error(message, "add `size` or a rate such as `per_second`"))
            }
            (Some(0), _) => {
                notes.push(self.origin(key).note("a bucket of size 0 denies everything."));
                Ok(Amount::Deny)
            }
            (Some(size), None) => Ok(Amount::Burst(size)),
            (size, Some((count, interval))) => {
                Ok(Amount::Rate { burst: size.filter(|size| *size != count), count, period: milliseconds(interval) })
            }
        }
    }
}

/// Reads a number that may have a point. Returns it as a fraction.
fn decimal(node: &Node) -> ReadResult<(u64, u64)> {
    if let Value::Scalar { text, plain: true } = &node.value
        && let Some((units, decimals)) = text.split_once('.')
    {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let scale = u32::try_from(decimals.len()).ok().map(|places| 10u64.saturating_pow(places));
        let number = format!("{units}{decimals}").parse::<u64>().ok();
        if let (true, Some(scale), Some(number)) =
            (digits(units) && digits(decimals) && decimals.len() <= MOST_DECIMALS, scale, number)
        {
            return Ok((number, scale));
        }
    }
    Ok((node.whole()?, 1))
}

/// `number / scale` in an interval of milliseconds, without the fraction.
fn reduced((number, scale): (u64, u64), interval: u64) -> Option<(u64, u64)> {
    let (mut divisor, mut rest) = (number, scale);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    Some((number / divisor, interval.checked_mul(scale / divisor)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_a_token_become_longer_intervals() {
        assert_eq!(reduced((5, 10), 1_000), Some((1, 2_000)));
        assert_eq!(reduced((25, 10), 1_000), Some((5, 2_000)));
        assert_eq!(reduced((50, 1), 1_000), Some((50, 1_000)));
        assert_eq!(reduced((1, 1_000_000), u64::MAX), None);
    }
}
