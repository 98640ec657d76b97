//! A line on the terminal that says how far a simulation has come.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::logs::input::Progress;

const EVERY: Duration = Duration::from_millis(200);

/// The width of the bar in characters.
const WIDTH: u64 = 30;

/// Runs `work`. If standard error is a terminal, shows the bytes read of `size` and the lines per second.
pub(super) fn watched<T>(progress: &Progress, size: Option<u64>, lines: &AtomicU64, work: impl FnOnce() -> T) -> T {
    if !io::stderr().is_terminal() {
        return work();
    }
    let (is_done, start) = (AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                thread::park_timeout(EVERY);
                let line = line(progress.bytes(), size, lines.load(Ordering::Relaxed), start.elapsed());
                // The simulation goes on without its progress.
                let _ = write!(io::stderr(), "\r{line}\x1b[K");
            }
            let _ = write!(io::stderr(), "\r\x1b[K");
        });
        let result = work();
        is_done.store(true, Ordering::Release);
        watcher.thread().unpark();
        result
    })
}

fn line(read: u64, size: Option<u64>, lines: u64, elapsed: Duration) -> String {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = lines.saturating_mul(1_000) / millis;
    let Some(size) = size.filter(|size| *size > 0) else { return format!("{lines} lines, {rate} lines/s") };
    let done = (read.min(size) * WIDTH / size).min(WIDTH);
    let bar: String = (0..WIDTH).map(|place| if place < done { '#' } else { '.' }).collect();
    format!("[{bar}] {}% {rate} lines/s", read.min(size) * 100 / size)
}
