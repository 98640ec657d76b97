//! The ids of a limit: how many there are, how many were denied, and how much each asked.

use super::load::Histogram;
use crate::engine::algorithms::by_fingerprint::ByFingerprint;

/// The counts of an id.
struct IdUse {
    /// The place of the id in the order of their first requests.
    number: u32,
    /// The number of the period of its last request.
    period: u64,
    in_period: u32,
    is_denied: bool,
}

/// The ids of a limit: exact as long as there is room, estimated beyond.
#[derive(Default)]
pub(super) struct IdTable {
    uses: ByFingerprint<u128, IdUse>,
    denied: u64,
    beyond: Option<Box<Sketch>>,
    beyond_denied: Option<Box<Sketch>>,
    load: Histogram,
}

impl IdTable {
    /// Counts a request of an id in a period, which has this number. `room` is the number of ids that may still be added. Returns the
    /// id's number; `None` if there was no room.
    pub(super) fn count(&mut self, id: u128, period: u64, is_denied: bool, room: &mut usize) -> Option<u32> {
        let next = u32::try_from(self.uses.len()).ok()?;
        if let Some(known) = self.uses.get_mut(&id) {
            if known.period == period {
                known.in_period = known.in_period.saturating_add(1);
            } else {
                self.load.add(known.in_period);
                (known.period, known.in_period) = (period, 1);
            }
            self.denied += u64::from(is_denied && !known.is_denied);
            known.is_denied |= is_denied;
            return Some(known.number);
        }
        if *room == 0 {
            self.beyond.get_or_insert_default().add(id);
            if is_denied {
                self.beyond_denied.get_or_insert_default().add(id);
            }
            return None;
        }
        *room -= 1;
        self.uses.insert(id, IdUse { number: next, period, in_period: 1, is_denied });
        self.denied += u64::from(is_denied);
        Some(next)
    }

    pub(super) fn is_estimate(&self) -> bool {
        self.beyond.is_some()
    }

    pub(super) fn len(&self) -> u64 {
        self.uses.len() as u64 + self.beyond.as_ref().map_or(0, |beyond| beyond.estimate())
    }

    pub(super) fn denied(&self) -> u64 {
        self.denied + self.beyond_denied.as_ref().map_or(0, |beyond| beyond.estimate())
    }

    /// Returns the requests per id and period, of the ids that had room.
    pub(super) fn into_load(mut self) -> Histogram {
        for known in self.uses.values() {
            self.load.add(known.in_period);
        }
        self.load
    }
}

const REGISTERS: usize = 4_096;

/// The number of different ids, within 2 % (`HyperLogLog`).
struct Sketch([u8; REGISTERS]);

impl Default for Sketch {
    fn default() -> Self {
        Self([0; REGISTERS])
    }
}

impl Sketch {
    #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
    fn add(&mut self, id: u128) {
        let register = (id >> 64) as usize % REGISTERS;
        // At most 65.
        let rank = (id as u64).leading_zeros() as u8 + 1;
        if let Some(register) = self.0.get_mut(register) {
            *register = rank.max(*register);
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate"
    )]
    fn estimate(&self) -> u64 {
        let registers = REGISTERS as f64;
        let sum: f64 = self.0.iter().map(|rank| 0.5_f64.powi(i32::from(*rank))).sum();
        let empty: usize = self.0.iter().map(|rank| usize::from(*rank == 0)).sum();
        let raw = 0.7213 / (1.0 + 1.079 / registers) * registers * registers / sum;
        let estimate =
            if raw <= 2.5 * registers && empty > 0 { registers * (registers / empty as f64).ln() } else { raw };
        estimate.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::key::opaque;

    #[test]
    fn ids_are_exact_while_there_is_room_and_estimated_beyond() {
        let id = |number: u32| opaque("L", &number.to_string(), &Fingerprinter::new((1, 2))).fingerprint;
        let count = |mut room: usize| {
            let mut ids = IdTable::default();
            for number in 0..20_000 {
                ids.count(id(number), 0, number % 10 == 0, &mut room);
                ids.count(id(number), 0, false, &mut room);
            }
            (ids.is_estimate(), ids.len(), ids.denied())
        };
        assert_eq!(count(20_000), (false, 20_000, 2_000));
        let (is_estimate, ids, denied) = count(100);
        assert!(is_estimate && ids.abs_diff(20_000) < 1_000 && denied.abs_diff(2_000) < 100, "{ids} {denied}");
    }

    #[test]
    fn the_load_is_the_requests_of_an_id_in_a_period() {
        let (mut ids, mut room) = (IdTable::default(), 10);
        for (id, period) in [(1, 0), (1, 0), (1, 0), (2, 0), (1, 1), (2, 5), (2, 5)] {
            ids.count(id, period, false, &mut room);
        }
        let load = ids.into_load();
        assert_eq!((load.most(), load.quantile(500), load.quantile(1_000)), (3, 1, 3));
    }
}
