//! `window-edge`: fixed windows that admit twice their count around their end.

use super::super::problem::Place;
use super::Subject;
use crate::engine::algorithms::algorithm::Algorithm;

/// Longer windows are budgets, of which twice the count in a short time is no burst. In nanoseconds.
const SHORTEST_BUDGET: u64 = 24 * 3_600 * 1_000_000_000;

pub(super) fn find(subject: &Subject<'_>) -> Option<(Place, String)> {
    let limit = subject.limit;
    let windows = limit.allowance.windows().filter(|_| limit.is_enforced())?;
    // A shorter window bounds the edges of a longer one.
    let shortest = windows.iter().filter(|numbers| !numbers.is_calendar()).min_by_key(|numbers| numbers.period())?;
    let is_fixed = matches!(shortest.algorithm(), Algorithm::FixedWindow(_)) && shortest.count() > 0;
    if !is_fixed || shortest.period() >= SHORTEST_BUDGET {
        return None;
    }
    let most = shortest.burst().saturating_add(shortest.count());
    let message = format!("up to {most} requests can pass within a short time around the end of a window");
    Some((subject.places.of("algorithm"), message))
}
