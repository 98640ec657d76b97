//! The thread that writes the access log, and its queue.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use prometheus::IntCounter;

use super::Destination;

/// The maximum of bytes that wait to be written: 40,000 lines of 200 bytes, so at 50,000 requests per second a disk may stall
/// for most of a second. Unused memory is never touched. The thread has a second buffer of this size.
const MAX_PENDING: usize = 8 * 1024 * 1024;

/// Gathers lines for this long for one `write`; short enough for `tail -f`.
const GATHER: Duration = Duration::from_millis(50);

/// The maximum wait of [`Queue::finish`] for a disk or a pipe's reader that does not respond.
const FINISH: Duration = Duration::from_secs(2);

/// Errors are logged this often, not for each write.
const ERROR_INTERVAL: Duration = Duration::from_secs(10);

/// Lines on their way from the workers to the thread.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    dropped: IntCounter,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent signals between the workers and the thread")]
struct QueueState {
    lines: Vec<u8>,
    /// The thread waits for lines or a signal.
    is_idle: bool,
    reopen: bool,
    finish: bool,
    has_ended: bool,
}

impl Queue {
    /// Opens the destination and starts the thread, which ends with [`Self::finish`].
    pub(super) fn start(destination: Destination, dropped: IntCounter) -> io::Result<Arc<Self>> {
        let file = open(&destination)?;
        let state = QueueState {
            lines: Vec::with_capacity(MAX_PENDING),
            is_idle: false,
            reopen: false,
            finish: false,
            has_ended: false,
        };
        let queue = Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), dropped });
        let thread = Thread { queue: queue.clone(), destination, file, is_torn: false, last_error: None };
        thread::Builder::new().name("access-log".into()).spawn(move || thread.run())?;
        Ok(queue)
    }

    /// Queues a line, or drops it if the queue is full. Holds the lock while it copies some hundred bytes.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.state.lock();
        if state.finish || state.lines.len() + line.len() > MAX_PENDING {
            drop(state);
            return self.dropped.inc();
        }
        state.lines.extend_from_slice(line);
        let is_half_full = state.lines.len() > MAX_PENDING / 2 && state.lines.len() - line.len() <= MAX_PENDING / 2;
        if mem::take(&mut state.is_idle) || is_half_full {
            self.changed.notify_all();
        }
    }

    pub(super) fn reopen(&self) {
        self.state.lock().reopen = true;
        self.changed.notify_all();
    }

    pub(super) fn finish(&self) {
        let mut state = self.state.lock();
        state.finish = true;
        self.changed.notify_all();
        self.changed.wait_while_for(&mut state, |state| !state.has_ended, FINISH);
        if !state.has_ended {
            tracing::warn!("cannot write the access log in time; its last lines are lost");
        }
    }

    /// Waits for lines or a signal, gathers more for [`GATHER`], and swaps all lines with the empty `lines`.
    /// Returns whether to reopen the file, and whether to finish.
    fn take(&self, lines: &mut Vec<u8>) -> (bool, bool) {
        let mut state = self.state.lock();
        let is_signalled = |state: &QueueState| state.reopen || state.finish;
        state.is_idle = true;
        self.changed.wait_while(&mut state, |state| state.lines.is_empty() && !is_signalled(state));
        state.is_idle = false;
        let may_wait = |state: &mut QueueState| state.lines.len() <= MAX_PENDING / 2 && !is_signalled(state);
        self.changed.wait_while_for(&mut state, may_wait, GATHER);
        mem::swap(&mut state.lines, lines);
        (mem::take(&mut state.reopen), state.finish)
    }
}

struct Thread {
    queue: Arc<Queue>,
    destination: Destination,
    file: File,
    /// The last write ended in the middle of a line.
    is_torn: bool,
    last_error: Option<Instant>,
}

impl Thread {
    fn run(mut self) {
        let mut lines = Vec::with_capacity(MAX_PENDING);
        loop {
            let (reopen, finish) = self.queue.take(&mut lines);
            let mut rest = &lines[..];
            if let Err(error) = self.write(&mut rest) {
                // A line that was written in part is lost as well; its end is in the rest.
                self.queue.dropped.inc_by(memchr::memchr_iter(b'\n', rest).count() as u64);
                self.report("cannot write the access log", &error);
            }
            lines.clear();
            // Lines from before the signal belong into the file that was moved away.
            if reopen {
                match open(&self.destination) {
                    Ok(file) => (self.file, self.is_torn) = (file, false),
                    Err(error) => self.report("cannot reopen the access log; still writing to the old file", &error),
                }
            }
            if finish {
                break;
            }
        }
        self.queue.state.lock().has_ended = true;
        self.queue.changed.notify_all();
    }

    /// Writes all lines and leaves those that were not written in `rest`. Ends the torn line of an earlier failure first.
    fn write(&mut self, rest: &mut &[u8]) -> io::Result<()> {
        if rest.is_empty() {
            return Ok(());
        }
        if self.is_torn {
            self.file.write_all(b"\n")?;
            self.is_torn = false;
        }
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    let (written, left) = rest.split_at(count);
                    self.is_torn = written.last() != Some(&b'\n');
                    *rest = left;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn report(&mut self, what: &str, error: &io::Error) {
        if self.last_error.is_none_or(|last| last.elapsed() > ERROR_INTERVAL) {
            self.last_error = Some(Instant::now());
            tracing::error!("{what}: {error}");
        }
    }
}

/// Duplicates standard output, to share neither its lock nor its buffer with what the command prints.
fn open(destination: &Destination) -> io::Result<File> {
    match destination {
        Destination::File(path) => OpenOptions::new().append(true).create(true).open(path),
        Destination::Stdout => Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
        Destination::Stderr => Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter() -> IntCounter {
        IntCounter::new("dropped", "lines").unwrap()
    }

    #[test]
    fn a_file_that_was_moved_away_is_opened_again_and_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (file, moved) = (folder.path().join("log"), folder.path().join("log.1"));
        std::fs::write(&file, "before\n").unwrap();
        let queue = Queue::start(Destination::File(file.clone()), counter()).unwrap();
        queue.push(b"one\n");
        std::fs::rename(&file, &moved).unwrap();
        queue.push(b"two\n");
        queue.reopen();
        // The thread takes the wish and the lines together, so the new file says that it was followed.
        let end = Instant::now() + Duration::from_secs(5);
        while !file.exists() && Instant::now() < end {
            thread::yield_now();
        }
        queue.push(b"three\n");
        queue.finish();
        let read = |path| std::fs::read_to_string(path).unwrap();
        assert_eq!((read(&moved), read(&file)), ("before\none\ntwo\n".to_owned(), "three\n".to_owned()));
    }

    #[test]
    fn a_file_that_takes_nothing_costs_lines_and_no_waiting() {
        // Writing to it fails with "no space left on device".
        let dropped = counter();
        let queue = Queue::start(Destination::File("/dev/full".into()), dropped.clone()).unwrap();
        queue.push(b"one\n");
        queue.push(b"two\n");
        queue.finish();
        assert_eq!(dropped.get(), 2);
    }

    #[test]
    fn what_is_more_than_the_bound_is_dropped_and_counted() {
        let dropped = counter();
        let queue = Queue::start(Destination::File("/dev/null".into()), dropped.clone()).unwrap();
        // A line that could never fit is dropped, whatever the thread has taken meanwhile.
        queue.push(&vec![b'x'; MAX_PENDING + 1]);
        queue.push(b"fits\n");
        queue.finish();
        assert_eq!(dropped.get(), 1);
        // Nobody writes any more.
        queue.push(b"late\n");
        assert_eq!(dropped.get(), 2);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_known_at_once() {
        let error = Queue::start(Destination::File("/nowhere/log".into()), counter()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
