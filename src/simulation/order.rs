//! Puts requests into the order of their arrival. A log is written in the order in which responses end.

use super::requests::Arrival;
use crate::engine::algorithms::micros::Micros;

/// The most requests that are held back for earlier ones.
pub const MOST_HELD: usize = 65_536;

/// The time for which a request is held back for earlier ones, by the log's clock, if the log tells when requests arrive. A request whose
/// response took longer than this is decided late.
pub const WINDOW: Micros = Micros(30_000_000);

/// The same for logs that tell only when responses end. Their lines are out of order by no more than a server's buffer.
pub const BRIEF_WINDOW: Micros = Micros(2_000_000);

/// Held requests are sorted in batches of this many.
const BATCH: usize = 8_192;

/// Requests that wait for earlier ones.
pub(super) struct Order {
    window: Micros,
    /// The arrival, the order of the log, and the place in `held`.
    waiting: Vec<(Micros, u64, u32)>,
    held: Vec<Option<Arrival>>,
    free: Vec<u32>,
    read: u64,
    latest: Micros,
    /// Other files go on from here.
    until: Option<Micros>,
    added: usize,
}

impl Order {
    pub(super) fn new(window: Micros) -> Self {
        Self {
            window,
            waiting: Vec::new(),
            held: Vec::new(),
            free: Vec::new(),
            read: 0,
            latest: Micros(0),
            until: None,
            added: 0,
        }
    }

    /// Adds a request in the order of the log, and releases those that need not wait any longer.
    pub(super) fn add(&mut self, arrival: Arrival, release: &mut impl FnMut(Arrival)) {
        let at = arrival.at;
        // The clock of the log has come as far as the end of the response.
        self.latest = self.latest.max(arrival.ends.unwrap_or(at));
        let place = self.free.pop().unwrap_or_else(|| {
            self.held.push(None);
            u32::try_from(self.held.len() - 1).unwrap_or(u32::MAX)
        });
        if let Some(slot) = self.held.get_mut(place as usize) {
            *slot = Some(arrival);
        }
        self.waiting.push((at, self.read, place));
        self.read += 1;
        self.added += 1;
        if self.added >= BATCH {
            let latest = self.until.map_or(self.latest, |until| until.min(self.latest));
            let horizon = latest.before(self.window);
            self.release(|at, left| at <= horizon || left > MOST_HELD - BATCH, release);
        }
    }

    /// Holds requests back for those of other files, which go on at this instant.
    pub(super) fn wait_for(&mut self, until: Option<Micros>) {
        self.until = until;
    }

    /// Releases all requests.
    pub(super) fn finish(&mut self, release: &mut impl FnMut(Arrival)) {
        self.release(|_, _| true, release);
    }

    /// Releases requests in the order of arrival as long as `is_due(arrival, left)`.
    fn release(&mut self, is_due: impl Fn(Micros, usize) -> bool, release: &mut impl FnMut(Arrival)) {
        self.added = 0;
        self.waiting.sort_unstable();
        let all = self.waiting.len();
        let due = (0..all).find(|index| !is_due(self.waiting[*index].0, all - index)).unwrap_or(all);
        for (_, _, place) in self.waiting.drain(..due) {
            if let Some(arrival) = self.held.get_mut(place as usize).and_then(Option::take) {
                self.free.push(place);
                release(arrival);
            }
        }
    }
}
