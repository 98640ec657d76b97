//! Instants as text.

use crate::engine::algorithms::micros::Micros;

/// `2026-11-27T03:14:00Z`, since the Unix epoch.
pub fn rfc3339(at: Micros) -> String {
    let micros = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map(|at| at.to_string()).unwrap_or_default()
}
