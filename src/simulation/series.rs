//! Counts over time, in slices whose width grows with the log.

use crate::engine::algorithms::micros::Micros;

/// The most slices. When there would be more, neighbours merge.
pub const MOST_SLICES: usize = 360;

/// The widths of slices in seconds. Each is a multiple of the one before, and slices start at multiples of their width.
const WIDTHS: [u64; 12] = [1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 7_200, 21_600, 86_400];

/// The requests of a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    pub admitted: u64,
    pub denied: u64,
}

/// Several columns of counts over the same slices.
#[derive(Clone, Debug)]
pub struct Series {
    /// In seconds.
    width: u64,
    /// The number of the first slice since the epoch.
    first: Option<u64>,
    columns: Vec<Vec<Slice>>,
}

impl Series {
    pub(super) fn new(columns: usize) -> Self {
        Self { width: WIDTHS[0], first: None, columns: vec![Vec::new(); columns] }
    }

    /// Returns the place of an instant's slice. Instants do not go back.
    pub(super) fn place(&mut self, at: Micros) -> usize {
        let seconds = at.0 / 1_000_000;
        loop {
            let number = seconds / self.width;
            let first = *self.first.get_or_insert(number);
            let place = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX);
            if place < MOST_SLICES {
                return place;
            }
            self.widen();
        }
    }

    pub(super) fn count(&mut self, column: usize, place: usize, is_denied: bool) {
        let Some(slices) = self.columns.get_mut(column) else { return };
        if slices.len() <= place {
            slices.resize(place + 1, Slice::default());
        }
        if let Some(slice) = slices.get_mut(place) {
            slice.denied += u64::from(is_denied);
            slice.admitted += u64::from(!is_denied);
        }
    }

    fn widen(&mut self) {
        let wider = WIDTHS.iter().copied().find(|width| *width > self.width);
        // Beyond days, the width doubles.
        let wider = wider.unwrap_or(self.width * 2);
        let factor = wider / self.width;
        let first = self.first.unwrap_or_default();
        for slices in &mut self.columns {
            let mut merged: Vec<Slice> = Vec::with_capacity(slices.len());
            for (number, slice) in (first..).zip(slices.iter()) {
                let place = usize::try_from(number / factor - first / factor).unwrap_or(usize::MAX);
                if merged.len() <= place {
                    merged.resize(place + 1, Slice::default());
                }
                if let Some(sum) = merged.get_mut(place) {
                    sum.admitted += slice.admitted;
                    sum.denied += slice.denied;
                }
            }
            *slices = merged;
        }
        self.first = Some(first / factor);
        self.width = wider;
    }

    /// The width of a slice.
    pub const fn width(&self) -> Micros {
        Micros(self.width * 1_000_000)
    }

    /// The start of the slice at a place.
    pub fn start(&self, place: usize) -> Micros {
        Micros((self.first.unwrap_or_default() + place as u64) * self.width * 1_000_000)
    }

    /// The slices of a column up to the last in which something was counted.
    pub fn column(&self, column: usize) -> &[Slice] {
        self.columns.get(column).map_or(&[], Vec::as_slice)
    }

    /// The start of a column's slice with the most denials, and these.
    pub fn worst(&self, column: usize) -> Option<(Micros, u64)> {
        let slices = (0..).zip(self.column(column)).filter(|(_, slice)| slice.denied > 0);
        // Of several, the first.
        let worst = slices.max_by_key(|(place, slice)| (slice.denied, std::cmp::Reverse(*place)));
        worst.map(|(place, slice)| (self.start(place), slice.denied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge_when_a_log_gets_long() {
        let mut series = Series::new(1);
        let second = |seconds: u64| Micros(1_000_000_000_000 + seconds * 1_000_000);
        for seconds in 0..100_000 {
            let place = series.place(second(seconds));
            series.count(0, place, seconds == 77_777);
        }
        assert_eq!(series.width(), Micros(300_000_000));
        let slices = series.column(0);
        assert!(slices.len() <= MOST_SLICES);
        assert_eq!(slices.iter().map(|slice| slice.admitted + slice.denied).sum::<u64>(), 100_000);
        let (start, denied) = series.worst(0).unwrap();
        assert_eq!(denied, 1);
        assert!(start <= second(77_777) && second(77_777) < start.after(series.width()));
    }
}
