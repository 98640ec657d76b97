//! The spread of the load over ids: requests per id and period.

/// Values below this are counted one by one.
const EXACT: u32 = 128;

/// Above, each power of two has this many steps, so that a quantile is at most 1/64 too high.
const STEPS: u32 = 64;

/// Counts of requests per id and period. Bounded by the range of `u32`.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    most: u32,
}

impl Histogram {
    pub fn add(&mut self, value: u32) {
        let place = place(value);
        if self.counts.len() <= place {
            self.counts.resize(place + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        self.total += 1;
        self.most = self.most.max(value);
    }

    pub const fn most(&self) -> u32 {
        self.most
    }

    pub const fn total(&self) -> u64 {
        self.total
    }

    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the value that `thousandths` of all values do not exceed.
    pub fn quantile(&self, thousandths: u64) -> u32 {
        let wanted = (self.total * thousandths).div_ceil(1_000).max(1);
        let mut seen = 0;
        for (place, count) in (0..).zip(&self.counts) {
            seen += count;
            if seen >= wanted {
                return highest(place).min(self.most);
            }
        }
        self.most
    }
}

fn place(value: u32) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let power = value.ilog2() - EXACT.ilog2();
    let step = (value >> (power + EXACT.ilog2() - STEPS.ilog2())) - STEPS;
    (EXACT + power * STEPS + step) as usize
}

/// The highest value at a place.
fn highest(place: u32) -> u32 {
    if place < EXACT {
        return place;
    }
    let (power, step) = ((place - EXACT) / STEPS, (place - EXACT) % STEPS);
    let shift = power + EXACT.ilog2() - STEPS.ilog2();
    let next = (u64::from(STEPS) + u64::from(step) + 1) << shift;
    u32::try_from(next - 1).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_below_128_and_a_little_high_above() {
        let mut counts = Histogram::default();
        (1..=1_000).for_each(|value| counts.add(value));
        assert_eq!((counts.quantile(100), counts.quantile(1_000), counts.most()), (100, 1_000, 1_000));
        let median = counts.quantile(500);
        assert!((500..=508).contains(&median), "{median}");
        for value in [0, 127, 128, 255, 256, 1 << 20, u32::MAX] {
            assert!(highest(u32::try_from(place(value)).unwrap()) >= value, "{value}");
        }
    }
}
