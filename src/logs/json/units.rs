//! The unit of durations whose names do not say it.

use super::scan::Scanner;
use crate::engine::algorithms::micros::Micros;
use crate::logs::field::Field;
use crate::logs::instant::{self, Instants};

/// The names that some programs use for seconds and others for a smaller unit.
const WITHOUT_UNIT: [&[u8]; 4] = [b"duration", b"response_time", b"request_duration", b"took"];

const UNITS: [(Field, &str); 4] = [
    (Field::Took(1_000_000), "seconds"),
    (Field::Took(1_000), "milliseconds"),
    (Field::Took(1), "microseconds"),
    (Field::TookNanoseconds, "nanoseconds"),
];

/// Whole numbers may be seconds up to this if the log is shorter, and decimals up to the second one.
const PLAUSIBLE: [u64; 2] = [10_000_000, 600_000_000];

/// Gives durations without a unit the largest one in which none is longer than the log, as its first lines show. Returns what it gave
/// which member.
pub(super) fn infer<'a>(
    members: &mut [(Box<[u8]>, Field)],
    lines: impl Iterator<Item = &'a [u8]>,
) -> Option<(String, &'static str)> {
    let place = members.iter().position(|(name, _)| WITHOUT_UNIT.contains(&&**name))?;
    let name = members[place].0.clone();
    let (mut first, mut last, mut longest, mut has_decimals) = (Micros(u64::MAX), Micros(0), 0, false);
    let mut instants = Instants::new();
    for line in lines {
        let Ok(mut scanner) = Scanner::object(line) else { continue };
        while let Ok(Some((member, value))) = scanner.member() {
            let is_instant = |(known, field): &(Box<[u8]>, Field)| {
                **known == *member && matches!(field, Field::End | Field::Arrival)
            };
            if *member == *name {
                has_decimals |= value.bytes().contains(&b'.');
                longest = longest.max(instant::span(value.bytes(), 1_000_000).map_or(0, |span| span.0));
            } else if members.iter().any(is_instant)
                && let Some(at) = instants.read(value.bytes())
            {
                (first, last) = (first.min(at), last.max(at));
            }
        }
    }
    let bound = last.0.saturating_sub(first.0).max(PLAUSIBLE[usize::from(has_decimals)]);
    let unit = (0..UNITS.len()).find(|unit| longest / 1_000_u64.pow(u32::try_from(*unit).unwrap_or(0)) <= bound);
    let (field, unit) = &UNITS[unit.unwrap_or(UNITS.len() - 1)];
    members[place].1 = field.clone();
    Some((String::from_utf8_lossy(&name).into_owned(), unit))
}
