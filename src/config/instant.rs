//! Instants as RFC 3339 writes them (`2026-12-31T23:59:59Z`), and dates.

use super::problem::quoted;
use crate::engine::date::{DAY, Date};
use crate::engine::numbers::Micros;

/// Parses the `until` of an override. A date lasts to the end of its day in UTC, so that `until: 2026-12-31` holds on
/// that day. The error is what is wrong, and what would be right.
pub(super) fn parse_until(text: &str) -> Result<Micros, (String, String)> {
    let wrong = || {
        let help = "write 2026-12-31 (to the end of that day in UTC) or 2026-12-31T18:00:00Z".to_owned();
        (format!("{} is neither a date nor an RFC 3339 timestamp", quoted(text)), help)
    };
    if !text.is_ascii() {
        return Err(wrong());
    }
    let date = text.get(..10).and_then(days).ok_or_else(wrong)?;
    let (seconds, micros) = match text.get(10..).unwrap_or_default() {
        "" => ((date + 1) * DAY, 0),
        rest => {
            let (seconds, micros) = time(rest).ok_or_else(wrong)?;
            (date * DAY + seconds, micros)
        }
    };
    let seconds = u64::try_from(seconds).map_err(|_| (format!("{} is before 1970", quoted(text)), String::new()))?;
    Ok(Micros(seconds * 1_000_000 + micros))
}

/// Days since the Unix epoch of `YYYY-MM-DD`; `None` if there is no such day.
fn days(text: &str) -> Option<i64> {
    let (year, month, day) = (number(text, 0, 4)?, number(text, 5, 2)?, number(text, 8, 2)?);
    let has_dashes = text.as_bytes().get(4) == Some(&b'-') && text.as_bytes().get(7) == Some(&b'-');
    Date::new(year, month, day).filter(|_| has_dashes).map(Date::days)
}

/// Seconds since the day's begin in UTC, and microseconds, of `THH:MM:SS[.fraction](Z|+HH:MM)`.
fn time(text: &str) -> Option<(i64, u64)> {
    let bytes = text.as_bytes();
    if !matches!(bytes.first()?, b'T' | b't' | b' ') || bytes.get(3) != Some(&b':') || bytes.get(6) != Some(&b':') {
        return None;
    }
    let (hour, minute, second) = (number(text, 1, 2)?, number(text, 4, 2)?, number(text, 7, 2)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut rest = &text[9..];
    let mut micros = 0;
    if let Some(after) = rest.strip_prefix('.') {
        let end = after.find(|character: char| !character.is_ascii_digit()).filter(|end| (1..=9).contains(end))?;
        micros = format!("{:0<6}", &after[..end])[..6].parse().ok()?;
        rest = &after[end..];
    }
    let offset = match rest.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let (hours, minutes) = (number(rest, 1, 2)?, number(rest, 4, 2)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let seconds = hours * 3_600 + minutes * 60;
            if *sign == b'+' { seconds } else { -seconds }
        }
        _ => return None,
    };
    Some((hour * 3_600 + minute * 60 + second - offset, micros))
}

fn number(text: &str, start: usize, length: usize) -> Option<i64> {
    let digits = text.get(start..start + length)?;
    if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
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
        ] {
            assert_eq!(parse_until(text), Ok(Micros(expected)), "{text}");
        }
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
            "2026-12-31T12:00:00é",
            "-026-12-31",
        ] {
            assert!(parse_until(text).is_err(), "{text}");
        }
    }
}
