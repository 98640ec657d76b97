//! A line on the terminal that says how far a simulation has come.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::logs::input::Progress;

const EVERY: Duration = Duration::from_millis(200);

/// The width of the bar in characters.
const WIDTH: u64 = 30;

/// Runs `work`. The first Ctrl-C sets `stop`; the second ends the process.
pub(super) fn stoppable<T>(stop: &AtomicBool, work: impl FnOnce() -> T) -> io::Result<T> {
    let is_done = Notify::new();
    thread::scope(|scope| {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut interrupts = {
            let _entered = runtime.enter();
            signal(SignalKind::interrupt())?
        };
        let (is_done, watcher) = (&is_done, async move {
            interrupts.recv().await;
            stop.store(true, Ordering::Relaxed);
            let _ =
                writeln!(io::stderr(), "\rstopping: the report is about the lines so far; Ctrl-C again ends at once");
            interrupts.recv().await;
            // The process has no handler for this signal, so that it ends even if it waits for a pipe.
            let _ = kill_process(getpid(), Signal::TERM);
        });
        scope.spawn(move || {
            runtime.block_on(async {
                tokio::select! { () = is_done.notified() => {} () = watcher => {} }
            });
        });
        let result = work();
        is_done.notify_one();
        Ok(result)
    })
}

/// Runs `work`. If standard error is a terminal, shows the bytes read of `size`, the lines per second and
/// the time that is left.
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
    let left = left(read, size, elapsed).map_or_else(String::new, |left| format!(", {left} left"));
    format!("[{bar}] {}% {rate} lines/s{left}", read.min(size) * 100 / size)
}

/// The time for the bytes that are not read yet, if they take as long as those before; `None` for too few to tell.
fn left(read: u64, size: u64, elapsed: Duration) -> Option<String> {
    let read = read.min(size);
    if read < size / 100 || elapsed < Duration::from_secs(1) {
        return None;
    }
    let seconds = u128::from(elapsed.as_secs()) * u128::from(size - read) / u128::from(read.max(1));
    let seconds = u64::try_from(seconds).ok()?;
    Some(if seconds < 120 { format!("{seconds}s") } else { format!("{}m", seconds / 60) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_the_bytes_read() {
        let line = |read, seconds| line(read, Some(1_000), 50, Duration::from_secs(seconds));
        assert!(line(250, 10).ends_with("] 25% 5 lines/s, 30s left"), "{}", line(250, 10));
        assert!(line(10, 10).ends_with("lines/s, 16m left"), "{}", line(10, 10));
        assert!(line(9, 10).ends_with("lines/s") && line(250, 0).ends_with("lines/s"), "{}", line(9, 10));
        assert!(line(1_000, 10).ends_with("100% 5 lines/s, 0s left"), "{}", line(1_000, 10));
    }
}
