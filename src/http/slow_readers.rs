//! Responses that wait for slow clients, counted over all workers.
//!
//! Each holds what was read from the upstream and not sent yet. An HTTP/2 stream costs a client nothing but costs this
//! process up to [`BYTES`], so their total is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most bytes that a waiting response holds: 64 KiB to be sent, and as much on the upstream's connection. Measured:
/// 80 KiB.
const BYTES: u64 = 128 * 1024;

/// The rate in bytes per second at which clients must read while more than half of the memory is used.
const PRESSED_RATE: u64 = 16 * 1024;

/// The default of `--response-memory`: enough for [`super::MAX_CONNECTIONS`] HTTP/1.1 connections that all read slowly.
pub const RESPONSE_MEMORY: u64 = 2 * 1024 * 1024 * 1024;

/// The responses that wait. Clones share one count.
#[derive(Clone, Debug)]
pub struct SlowReaders {
    waiting: Arc<AtomicU64>,
    most: u64,
}

impl SlowReaders {
    /// Allows responses to hold this many bytes in total.
    pub fn new(bytes: u64) -> Self {
        Self { waiting: Arc::default(), most: (bytes / BYTES).max(1) }
    }

    /// A response starts to wait. Returns whether there is memory for it.
    pub(super) fn begin(&self) -> bool {
        let has_room = self.waiting.fetch_add(1, Ordering::Relaxed) < self.most;
        if !has_room {
            self.end();
        }
        has_room
    }

    /// A response continues or has ended.
    pub(super) fn end(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the rate at which clients must read. It is `usual` while there is plenty of memory.
    pub(super) fn rate(&self, usual: u64) -> u64 {
        let is_pressed = self.waiting.load(Ordering::Relaxed) > self.most / 2;
        if is_pressed { usual.max(PRESSED_RATE) } else { usual }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_memory_for_so_many_and_less_patience_with_half_of_them() {
        let readers = SlowReaders::new(4 * BYTES);
        let seen: Vec<_> = (0..5).map(|_| (readers.begin(), readers.rate(240))).collect();
        let rates = [240, 240, PRESSED_RATE, PRESSED_RATE, PRESSED_RATE];
        assert_eq!(seen, [true, true, true, true, false].into_iter().zip(rates).collect::<Vec<_>>());
        readers.end();
        assert!(readers.begin() && !readers.begin());
        assert_eq!(readers.rate(PRESSED_RATE + 1), PRESSED_RATE + 1);
    }
}
