//! Parses RFC 3339 timestamps (`2026-12-31T23:59:59Z`) and dates.

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::fmt::temporal::Pieces;

use super::problem::quoted;
use crate::engine::algorithms::micros::{EXACT, Micros};

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Parses the `until` of an override. A date means the end of that day in UTC: `until: 2026-12-31` includes that day. The error
/// is a message and a help text.
pub(super) fn parse_until(text: &str) -> Result<Micros, (String, String)> {
    parse(text, SignedDuration::from_hours(24), "until the end of that day in UTC")
}

/// Parses a `review_by`, which is a date: the end of that day in UTC. The error is a message and a help text.
pub(super) fn parse_review_by(text: &str) -> Result<Micros, (String, String)> {
    let end = parse_until(text).ok().filter(|_| is_rfc_3339(text) == Some(true));
    end.ok_or_else(|| (format!("{} is not a date", quoted(text)), "write the last day, such as 2027-01-31".to_owned()))
}

/// Parses the `epoch` of a test. A date means the start of that day in UTC. The error is a message and a help text.
pub(super) fn parse_epoch(text: &str) -> Result<Micros, (String, String)> {
    let epoch = parse(text, SignedDuration::ZERO, "from the start of that day in UTC")?;
    if epoch.0 < EXACT / 2 {
        return Ok(epoch);
    }
    Err((format!("{} is too late", quoted(text)), "use an instant before the year 2112".to_owned()))
}

/// `of_date` is added to the start of a date.
fn parse(text: &str, of_date: SignedDuration, date: &str) -> Result<Micros, (String, String)> {
    let since_epoch = since_epoch(text, of_date).ok_or_else(|| {
        let help = format!("write 2026-12-31 ({date}) or 2026-12-31T18:00:00Z");
        (format!("{} is neither a date nor an RFC 3339 timestamp", quoted(text)), help)
    })?;
    let micros = u64::try_from(since_epoch.as_micros());
    micros.map(Micros).map_err(|_| (format!("{} is before 1970", quoted(text)), String::new()))
}

/// Civil arithmetic, because a `jiff::Timestamp` ends a day before the year 9999 does.
fn since_epoch(text: &str, of_date: SignedDuration) -> Option<SignedDuration> {
    let is_date = is_rfc_3339(text)?;
    let pieces = Pieces::parse(text).ok()?;
    let local = pieces.date().to_datetime(pieces.time().unwrap_or_default()).duration_since(EPOCH);
    if is_date {
        return local.checked_add(of_date);
    }
    let offset = pieces.to_numeric_offset()?;
    local.checked_sub(SignedDuration::from_secs(offset.seconds().into()))
}

/// Returns whether the text has the form of a date rather than a timestamp; `None` if it has neither. jiff accepts more
/// of ISO 8601 than RFC 3339 does.
fn is_rfc_3339(text: &str) -> Option<bool> {
    let form: String = text.chars().map(|character| if character.is_ascii_digit() { '0' } else { character }).collect();
    let rest = form.strip_prefix("0000-00-00")?;
    if rest.is_empty() {
        return Some(true);
    }
    let rest = rest.strip_prefix(['T', 't', ' '])?.strip_prefix("00:00:00")?;
    let offset = rest.strip_prefix(".0").map_or(rest, |fraction| fraction.trim_start_matches('0'));
    matches!(offset, "Z" | "z" | "+00:00" | "-00:00").then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_exact_and_a_date_lasts_its_whole_day() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-12-31T23:59:59Z", 1_798_761_599_000_000),
            ("2026-12-31", 1_798_761_600_000_000),
            ("2024-02-29T12:00:00.5+02:00", 1_709_200_800_500_000),
            ("2024-02-29 12:00:00.123456789-01:30", 1_709_213_400_123_456),
            ("2000-03-01t00:00:00z", 951_868_800_000_000),
            ("9999-12-31", 253_402_300_800_000_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000_000),
        ] {
            assert_eq!(parse_until(text), Ok(Micros(expected)), "{text}");
        }
    }

    #[test]
    fn a_review_is_due_at_the_end_of_a_day() {
        assert_eq!(parse_review_by("2026-12-31"), Ok(Micros(1_798_761_600_000_000)));
        for text in ["2026-12-31T23:59:59Z", "2026-02-30", "soon", "31.12.2026", "1969-12-30", ""] {
            assert!(parse_review_by(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_test_starts_with_its_day() {
        assert_eq!(parse_epoch("2026-01-01"), Ok(Micros(1_767_225_600_000_000)));
        assert_eq!(parse_epoch("2026-01-01T00:00:00.5Z"), Ok(Micros(1_767_225_600_500_000)));
        assert!(parse_epoch("2200-01-01").is_err() && parse_epoch("today").is_err());
    }

    #[test]
    fn what_is_no_instant_is_refused() {
        for text in [
            "",
            "tomorrow",
            "2026-13-01",
            "2025-02-29",
            "2026-04-31",
            "2026-1-1",
            "31.12.2026",
            "2026-12-31T24:00:00Z",
            "2026-12-31T12:00:00",
            "2026-12-31T12:00Z",
            "2026-12-31T12:00:00.Z",
            "2026-12-31T12:00:00+0200",
            "1969-12-30",
            "20261231T120000Z",
            "2026-12-31T12:00:00Z[UTC]",
            "2026-12-31T12:00:00.1234567890Z",
            "2026-12-31T12:00:00é",
            "-026-12-31",
        ] {
            assert!(parse_until(text).is_err(), "{text}");
        }
    }
}
