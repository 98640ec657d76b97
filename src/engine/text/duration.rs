//! Durations in Go's syntax, plus days and weeks: `180m`, `1h30m`, `250us`, `1.5h`, `7d`.
//!
//! They are exact: a duration is a whole number of nanoseconds or an error. No floating point is involved.

use crate::engine::text::quote::quoted;

/// Units in nanoseconds. The micro sign has two code points in use.
const UNITS: [(&str, u64); 10] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
    ("d", 86_400 * 1_000_000_000),
    ("w", 604_800 * 1_000_000_000),
];

const LOOKS_LIKE: &str = "durations look like 90s, 180m, 1h30m, 1.5h or 7d; units are ns, us, ms, s, m, h, d and w";

/// Parses a duration into nanoseconds. The error is a message and a help text.
pub fn parse(text: &str) -> Result<u64, (String, String)> {
    let wrong = |why: &str| Err((format!("invalid duration {}: {why}", quoted(text)), LOOKS_LIKE.to_owned()));
    if text.is_empty() {
        return wrong("it is empty");
    }
    if text.starts_with(['-', '+']) {
        return wrong("it must not have a sign");
    }
    // Zero is the same in every unit.
    if text == "0" {
        return Ok(0);
    }
    let mut total: u128 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return wrong(if rest.starts_with(' ') { "it must not contain spaces" } else { "a number is missing" });
        }
        let end = after.find(|character: char| character.is_ascii_digit() || character == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if unit.is_empty() {
            let help = format!("write {text}s for seconds, {text}ms, {text}m or {text}h");
            let plain = whole.len() == text.len();
            return Err((format!("{} has no unit", quoted(text)), if plain { help } else { LOOKS_LIKE.to_owned() }));
        }
        let Some(nanoseconds) = nanoseconds(unit) else {
            return wrong(&format!("unknown unit {}", quoted(unit)));
        };
        let Some(part) = part(whole, fraction, nanoseconds) else {
            return wrong("it is not a whole number of nanoseconds, or too long");
        };
        total += part;
        rest = after;
    }
    u64::try_from(total).or_else(|_| wrong("it is longer than 584 years"))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len()))
}

fn nanoseconds(unit: &str) -> Option<u64> {
    UNITS.iter().find(|(name, _)| *name == unit).map(|(_, nanoseconds)| *nanoseconds)
}

/// `whole.fraction` times a unit; `None` if that is not a whole number or does not fit into 64 bits.
fn part(whole: &str, fraction: &str, unit: u64) -> Option<u128> {
    let unit = u128::from(unit);
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = fraction.trim_end_matches('0');
    let mut total = u128::from(whole) * unit;
    if !fraction.is_empty() {
        // No unit is divisible by more than 10^18, and their product fits into 128 bits.
        let scale = 10u128.pow(u32::try_from(fraction.len()).ok().filter(|length| *length <= 18)?);
        let scaled = u128::from(fraction.parse::<u64>().ok()?) * unit;
        if scaled % scale != 0 {
            return None;
        }
        total += scaled / scale;
    }
    (total <= u128::from(u64::MAX)).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_exact() {
        const S: u64 = 1_000_000_000;
        for (text, expected) in [
            ("1s", S),
            ("100ms", S / 10),
            ("250us", 250_000),
            ("250\u{b5}s", 250_000),
            ("250\u{3bc}s", 250_000),
            ("7ns", 7),
            ("180m", 10_800 * S),
            ("2160h", 7_776_000 * S),
            ("1h0m0s", 3_600 * S),
            ("1h30m", 5_400 * S),
            ("1.5h", 5_400 * S),
            (".5s", S / 2),
            ("1.s", S),
            ("1.000000001s", S + 1),
            ("1.50000000000000000000000s", S * 3 / 2),
            ("7d", 604_800 * S),
            ("1w1d", 691_200 * S),
            ("0", 0),
            ("0s", 0),
            ("2m1h", 3_720 * S),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_says_what_would_be_right() {
        for (text, part) in [
            ("60", "write 60s"),
            ("", "empty"),
            ("-1s", "sign"),
            ("+1s", "sign"),
            ("1h 30m", "unknown unit `h `"),
            ("1 minute", "unknown unit"),
            ("1M", "unknown unit `M`"),
            ("1mo", "unknown unit"),
            ("1y", "unknown unit"),
            ("s", "number is missing"),
            (".s", "number is missing"),
            ("1.5", "no unit"),
            ("1e3s", "unknown unit `e`"),
            ("0.5ns", "whole number of nanoseconds"),
            ("1.0000000001s", "whole number of nanoseconds"),
            ("PT1H", "number is missing"),
            ("500000w", "too long"),
            ("30000w30000w", "584 years"),
            ("99999999999999999999s", "too long"),
            ("1s1", "no unit"),
        ] {
            let (message, help) = parse(text).unwrap_err();
            assert!(format!("{message} {help}").contains(part), "{text}: {message} {help}");
        }
    }
}
