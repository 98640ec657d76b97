//! Instants and days as text.

use crate::engine::algorithms::micros::Micros;

/// `2026-11-27T03:14:00Z`, since the Unix epoch.
pub fn rfc3339(at: Micros) -> String {
    let micros = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map(|at| at.to_string()).unwrap_or_default()
}

/// `2026-11-27`, the day in UTC that ends at this instant.
pub fn day_until(end: Micros) -> String {
    rfc3339(Micros(end.0.saturating_sub(1))).chars().take_while(|character| *character != 'T').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_shown_until_its_end() {
        for (end, day) in
            [(86_400_000_000, "1970-01-01"), (86_400_000_001, "1970-01-02"), (1_798_761_600_000_000, "2026-12-31")]
        {
            assert_eq!(day_until(Micros(end)), day);
        }
        assert_eq!(rfc3339(Micros(1_798_761_600_500_000)), "2027-01-01T00:00:00.5Z");
    }
}
