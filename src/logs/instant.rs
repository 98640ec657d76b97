//! The instants and spans that logs write.

use jiff::civil;
use jiff::tz::{Offset, TimeZone};

use crate::engine::algorithms::micros::Micros;

/// The longest text of an instant that is remembered.
const REMEMBERED: usize = 40;

/// Reads instants, and remembers the last one: many lines in a row have the same.
#[derive(Debug)]
pub(super) struct Instants {
    text: [u8; REMEMBERED],
    length: usize,
    instant: Micros,
}

impl Instants {
    pub(super) const fn new() -> Self {
        Self { text: [0; REMEMBERED], length: 0, instant: Micros(0) }
    }

    /// Reads `21/Nov/2026:04:00:06 +0000` (also between brackets), `2026-11-21T04:00:06.789Z`, and seconds, milliseconds,
    /// microseconds or nanoseconds since the Unix epoch, which their magnitudes tell apart from 1973 to 5138.
    pub(super) fn read(&mut self, text: &[u8]) -> Option<Micros> {
        if self.length == text.len() && self.length > 0 && self.text[..self.length] == *text {
            return Some(self.instant);
        }
        let instant = parse(text)?;
        if let Some(remembered) = self.text.get_mut(..text.len()) {
            remembered.copy_from_slice(text);
            (self.length, self.instant) = (text.len(), instant);
        }
        Some(instant)
    }
}

fn parse(text: &[u8]) -> Option<Micros> {
    let text = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")).unwrap_or(text);
    match (text.get(2), text.get(4)) {
        (Some(b'/'), _) => common(text),
        (_, Some(b'-')) => iso8601(text),
        _ => since_epoch(text),
    }
}

/// Such as `21/Nov/2026:04:00:06 +0000`, and `21/Nov/2026:04:00:06.789`.
fn common(text: &[u8]) -> Option<Micros> {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let (date, zone) = (text.get(..20)?, text.get(20..)?);
    let separators = [2, 6, 11, 14, 17].map(|place| date[place]);
    let month = MONTHS.chunks_exact(3).position(|name| name == &date[3..6])?;
    if separators != *b"//:::" {
        return None;
    }
    let time = [number(&date[12..14])?, number(&date[15..17])?, number(&date[18..20])?];
    let (fraction, zone) = decimals(zone)?;
    let month = i64::try_from(month).ok()? + 1;
    let second = seconds(number(&date[7..11])?, month, number(&date[..2])?, time, zone.trim_ascii())?;
    Some(Micros(second.0 + fraction))
}

/// Such as `2026-11-21T04:00:06.789Z`; also with a space, and with a zone such as `+01:00`.
fn iso8601(text: &[u8]) -> Option<Micros> {
    let (date, rest) = (text.get(..19)?, text.get(19..)?);
    let separators = [4, 7, 13, 16].map(|place| date[place]);
    if separators != *b"--::" || !matches!(date[10], b'T' | b't' | b' ' | b'\t') {
        return None;
    }
    let time = [number(&date[11..13])?, number(&date[14..16])?, number(&date[17..19])?];
    let (fraction, zone) = decimals(rest)?;
    let second = seconds(number(&date[..4])?, number(&date[5..7])?, number(&date[8..10])?, time, zone.trim_ascii())?;
    Some(Micros(second.0 + fraction))
}

/// The decimals of a second in microseconds, and what is behind them.
fn decimals(rest: &[u8]) -> Option<(u64, &[u8])> {
    let [b'.' | b',', digits @ ..] = rest else { return Some((0, rest)) };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    Some((scaled(b"0", &digits[..end], 1_000_000)?, &digits[end..]))
}

/// The instant of a second, in a zone such as `+0100`, `+01:00`, `Z` or nothing, which is UTC.
fn seconds(year: i64, month: i64, day: i64, [hour, minute, second]: [i64; 3], zone: &[u8]) -> Option<Micros> {
    let offset = match zone {
        b"" | b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), h1, h2, rest @ ..] => {
            let minutes = number(rest.strip_prefix(b":").unwrap_or(rest)).or(rest.is_empty().then_some(0))?;
            let offset = number(&[*h1, *h2])? * 3600 + minutes * 60;
            if *sign == b'-' { -offset } else { offset }
        }
        _ => return None,
    };
    let small = |number: i64| i8::try_from(number).ok();
    // A leap second is the last one before it.
    let second = small(second.min(59))?;
    let civil = civil::DateTime::new(
        i16::try_from(year).ok()?,
        small(month)?,
        small(day)?,
        small(hour)?,
        small(minute)?,
        second,
        0,
    );
    let zone = TimeZone::fixed(Offset::from_seconds(i32::try_from(offset).ok()?).ok()?);
    let second = zone.to_timestamp(civil.ok()?).ok()?.as_second();
    Some(Micros(u64::try_from(second).ok()?.checked_mul(1_000_000)?))
}

fn since_epoch(text: &[u8]) -> Option<Micros> {
    let whole = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    // 1e11 seconds are in the year 5138, 1e11 milliseconds in 1973.
    let (per_unit, divisor) = match whole {
        1..=11 => (1_000_000, 1),
        12..=14 => (1_000, 1),
        15..=17 => (1, 1),
        18..=20 => (1, 1_000),
        _ => return None,
    };
    span(text, per_unit).map(|span| Micros(span.0 / divisor))
}

/// A duration in its own unit, such as `0.350s` and `12ms`, or else in units of so many microseconds.
pub(super) fn duration(text: &[u8], per_unit: u64) -> Option<Micros> {
    // HAProxy marks a duration that was logged before its end.
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let units: [(&[u8], u64); 4] = [(b"ms", 1_000), (b"us", 1), ("µs".as_bytes(), 1), (b"s", 1_000_000)];
    let unit = units.iter().find_map(|(unit, micros)| Some((text.strip_suffix(*unit)?, *micros)));
    let (number, per_unit) = unit.unwrap_or((text, per_unit));
    span(number, per_unit)
}

/// A span in units of so many microseconds, such as `0.025`, with decimals and an exponent.
pub(super) fn span(text: &[u8], per_unit: u64) -> Option<Micros> {
    let (whole, fraction) = match memchr::memchr(b'.', text) {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &b""[..]),
    };
    match scaled(whole, fraction, per_unit) {
        Some(micros) => Some(Micros(micros)),
        None => exponential(text, per_unit),
    }
}

/// Such as `4.2e-05`, which programs in Go write. Doubles hold such spans exactly enough.
#[cold]
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
fn exponential(text: &[u8], per_unit: u64) -> Option<Micros> {
    let text = std::str::from_utf8(text).ok()?;
    if !text.contains(['e', 'E']) {
        return None;
    }
    let micros = text.parse::<f64>().ok()? * per_unit as f64;
    (0.0..9e15).contains(&micros).then(|| Micros(micros.round() as u64))
}

/// `whole.fraction` times `per_unit`, rounded down.
fn scaled(whole: &[u8], fraction: &[u8], per_unit: u64) -> Option<u64> {
    let mut scaled = u64::try_from(number(whole)?).ok()?.checked_mul(per_unit)?;
    let mut unit = per_unit;
    for digit in fraction {
        unit /= 10;
        scaled = scaled.checked_add(u64::try_from(number(&[*digit])?).ok()? * unit)?;
    }
    Some(scaled)
}

fn number(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_i64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_read_in_every_form() {
        let mut instants = Instants::new();
        let mut read = |text: &str| instants.read(text.as_bytes()).map(|instant| instant.0);
        let second = 1_795_233_606_000_000;
        for (text, expected) in [
            ("21/Nov/2026:04:00:06 +0000", second),
            ("[21/Nov/2026:05:30:06 +0130]", second),
            ("20/Nov/2026:20:00:06 -0800", second),
            ("2026-11-21T04:00:06Z", second),
            ("2026-11-21T04:00:06+00:00", second),
            ("2026-11-21T05:00:06.789012345+01:00", second + 789_012),
            ("2026-11-21 04:00:06.5", second + 500_000),
            ("1795233606", second),
            ("1795233606.789", second + 789_000),
            ("1795233606.7890123", second + 789_012),
            ("1795233606789", second + 789_000),
            ("1795233606789.5", second + 789_500),
            ("1795233606789012", second + 789_012),
            ("1795233606789012345", second + 789_012),
            ("1.795233606e9", second),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
            assert_eq!(read(text), Some(expected), "{text} again");
        }
        for text in [
            "",
            "-",
            "x",
            "32/Nov/2026:04:00:06 +0000",
            "21/Nev/2026:04:00:06 +0000",
            "21/Nov/2026:04:00:06 0000",
            "2026-11-21",
            "2026-11-21T04:00:06.7X",
            "-1",
            "01/Jan/1960:00:00:00 +0000",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn spans_have_decimals_and_exponents() {
        let read = |text: &str, per_unit| span(text.as_bytes(), per_unit).map(|span| span.0);
        assert_eq!(read("0.025", 1_000_000), Some(25_000));
        assert_eq!(read("1234", 1_000), Some(1_234_000));
        assert_eq!(read("0.007", 1_000), Some(7));
        assert_eq!(read("0.000123456", 1_000_000), Some(123));
        assert_eq!(read("4.2e-05", 1_000_000), Some(42));
        assert_eq!(
            (read("", 1), read("-1", 1), read("nan", 1), read("99999999999999999999", 1)),
            (None, None, None, None)
        );
    }
}
