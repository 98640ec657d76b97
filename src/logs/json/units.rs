//! The unit of durations whose names do not say it.

use super::JsonFormat;
use super::scan::Scanner;
use crate::engine::algorithms::micros::Micros;
use crate::logs::field::Field;
use crate::logs::instant;

/// The names that some programs use for seconds and others for a smaller unit.
const WITHOUT_UNIT: [&[u8]; 4] = [b"duration", b"response_time", b"request_duration", b"took"];

const UNITS: [(Field, &str); 4] = [
    (Field::Took(1_000_000), "seconds"),
    (Field::Took(1_000), "milliseconds"),
    (Field::Took(1), "microseconds"),
    (Field::TookNanoseconds, "nanoseconds"),
];

/// Half of the requests of a log take no longer than this.
const MOST_MEDIAN: Micros = Micros(2_000_000);

/// No request takes longer than this, if durations are whole numbers, and if they have decimals. Who logs seconds mostly logs decimals.
const MOST: [Micros; 2] = [Micros(10_000_000), Micros(600_000_000)];

/// A member with durations, and its values in the first lines of a log as if they were seconds.
#[derive(Clone, Debug)]
pub(super) struct Unitless {
    place: usize,
    values: Vec<Micros>,
    has_decimals: bool,
    /// In [`UNITS`].
    unit: usize,
}

/// Collects the durations of the first lines that have no unit of their own.
pub(super) fn unitless<'a>(members: &[(Box<[u8]>, Field)], lines: impl Iterator<Item = &'a [u8]>) -> Vec<Unitless> {
    let places = (0..members.len()).filter(|place| WITHOUT_UNIT.contains(&&*members[*place].0));
    let empty = |place| Unitless { place, values: Vec::new(), has_decimals: false, unit: 0 };
    let mut all: Vec<Unitless> = places.map(empty).collect();
    if all.is_empty() {
        return all;
    }
    for line in lines {
        let Ok(mut scanner) = Scanner::object(line) else { continue };
        while let Ok(Some((name, value))) = scanner.member() {
            let Some(found) = all.iter_mut().find(|known| *members[known.place].0 == *name) else { continue };
            if let Some(span) = instant::span(value.bytes(), 1_000_000) {
                found.values.push(span);
                found.has_decimals |= value.bytes().contains(&b'.');
            }
        }
    }
    all.retain(|found| !found.values.is_empty());
    all
}

/// Gives durations without a unit the largest plausible one. Logs of one program have the same, so all of them are looked at together.
pub(in crate::logs) fn infer<'a>(formats: impl Iterator<Item = &'a mut JsonFormat>) {
    let mut formats: Vec<&mut JsonFormat> = formats.collect();
    for name in WITHOUT_UNIT {
        for has_decimals in [false, true] {
            let is_one = |format: &JsonFormat, found: &Unitless| {
                *format.members[found.place].0 == *name && found.has_decimals == has_decimals
            };
            let of_all = formats.iter().flat_map(|format| format.unitless.iter().filter(|found| is_one(format, found)));
            let mut values: Vec<Micros> = of_all.flat_map(|found| found.values.iter().copied()).collect();
            values.sort_unstable();
            let Some(unit) = plausible(&values, MOST[usize::from(has_decimals)]) else { continue };
            for format in &mut formats {
                let Some(place) = format.unitless.iter().position(|found| is_one(format, found)) else { continue };
                let found = &mut format.unitless[place];
                found.unit = unit;
                format.members[found.place].1 = UNITS[unit].0.clone();
            }
        }
    }
}

/// The largest unit in which sorted durations are plausible; `None` without durations.
fn plausible(values: &[Micros], most: Micros) -> Option<usize> {
    let (median, longest) = (values.get(values.len() / 2)?, values.last()?);
    let fits = |unit: &usize| {
        let divisor = 1_000_u64.pow(u32::try_from(*unit).unwrap_or(0));
        median.0 / divisor <= MOST_MEDIAN.0 && longest.0 / divisor <= most.0
    };
    Some((0..UNITS.len()).find(fits).unwrap_or(UNITS.len() - 1))
}

impl JsonFormat {
    /// The durations whose names have no unit, and the units in which they are read.
    pub(in crate::logs) fn units(&self) -> impl Iterator<Item = (String, &'static str)> {
        let name = |found: &Unitless| String::from_utf8_lossy(&self.members[found.place].0).into_owned();
        self.unitless.iter().map(move |found| (name(found), UNITS[found.unit].1))
    }
}
