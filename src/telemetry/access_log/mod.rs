//! The access log: one line for each request, at its end.
//!
//! A worker makes the line ([`mod@line`]) and hands it to the one thread that writes ([`writer`]). It never waits for that
//! thread: when the disk is slower than the requests, lines are dropped and counted.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use prometheus::IntCounter;

use self::line::Writer as LineWriter;
use self::writer::Queue;

mod line;
mod writer;

pub(crate) use self::line::{Record, UpstreamUse};
#[cfg(feature = "otel")]
pub(crate) use self::line::{VerdictResult, ruling};

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object with all that is known.
    Json,
    /// The combined format of Apache and nginx, for programs that read it.
    Combined,
}

/// Where the lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To the end of a file, which is opened again when asked to, so that it can be moved away.
    File(PathBuf),
    /// To standard output.
    Stdout,
    /// To standard error, among the lines of the process' own log.
    Stderr,
}

/// The access log of the process. Its copies are one log.
#[derive(Clone, Debug)]
pub struct AccessLog {
    queue: Arc<Queue>,
    format: Format,
}

impl AccessLog {
    /// Opens the log and starts the thread that writes it. `dropped` counts lines that could not be kept or written.
    /// The error says that the file cannot be opened, or that there is no thread to be had.
    pub fn start(destination: Destination, format: Format, dropped: IntCounter) -> io::Result<Self> {
        Ok(Self { queue: Queue::start(destination, dropped)?, format })
    }

    /// Opens the file again: it was moved away.
    pub fn reopen(&self) {
        self.queue.reopen();
    }

    /// Writes what is left and ends the thread; waits for it, but no longer than a moment if nothing can be written.
    pub fn finish(&self) {
        self.queue.finish();
    }

    /// The log for one worker.
    pub(crate) fn for_worker(&self) -> Rc<WorkerLog> {
        Rc::new(WorkerLog { queue: self.queue.clone(), line: RefCell::new(LineWriter::new(self.format)) })
    }
}

/// A worker's access to the log.
#[derive(Debug)]
pub(crate) struct WorkerLog {
    queue: Arc<Queue>,
    line: RefCell<LineWriter>,
}

impl WorkerLog {
    /// Begins the line of a request that was received just now, on the wall clock at `record.received`.
    pub(crate) fn begin(self: &Rc<Self>, record: Record) -> Entry {
        Entry { log: self.clone(), began: Instant::now(), sent: Cell::new(0), record }
    }
}

/// A request that will be logged when this is dropped, so one whose connection broke is logged as well.
#[derive(Debug)]
pub(crate) struct Entry {
    log: Rc<WorkerLog>,
    began: Instant,
    sent: Cell<u64>,
    /// What is known so far.
    pub(crate) record: Record,
}

impl Entry {
    /// When the request was received.
    pub(crate) const fn received(&self) -> Instant {
        self.began
    }

    /// So many more bytes of the answer's body were handed over.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.set(self.sent.get() + bytes as u64);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.record.duration = self.began.elapsed();
        self.record.sent = self.sent.get();
        // Held for no longer than this line takes, and nothing in between comes back here.
        if let Ok(mut line) = self.log.line.try_borrow_mut() {
            self.log.queue.push(line.write(&self.record));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_logged_once_at_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("access.log");
        let dropped = IntCounter::new("dropped", "lines").unwrap();
        let log = AccessLog::start(Destination::File(file.clone()), Format::Combined, dropped.clone()).unwrap();
        let worker = log.for_worker();
        let mut first = worker.begin(line::tests::record());
        let second = worker.begin(line::tests::record());
        first.record.status = 418;
        first.sent(5);
        drop(second);
        drop(first);
        log.finish();
        let text = std::fs::read_to_string(file).unwrap();
        let statuses: Vec<_> = text.lines().map(|line| line.split("\" ").nth(1).unwrap()).collect();
        assert_eq!((statuses, dropped.get()), (vec!["200 0 \"-", "418 5 \"-"], 0));
    }
}
