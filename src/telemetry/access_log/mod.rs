//! The access log: one line per request, at its end.
//!
//! A worker formats the line ([`mod@line`]) and passes it to the one thread that writes ([`writer`]). It never waits for that
//! thread: if the disk is slower than the requests, lines are dropped and counted.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use prometheus::IntCounter;

use self::line::LineFormatter;
use self::writer::Queue;

mod line;
pub(crate) mod parts;
mod record;
mod writer;

pub(crate) use self::record::{Record, UpstreamUse};

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A JSON object with the whole record.
    Json,
    /// The combined format of Apache and nginx.
    Combined,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Appended to a file, which can be rotated; see [`AccessLog::reopen`].
    File(PathBuf),
    Stdout,
    Stderr,
}

/// The process's access log. Clones share it.
#[derive(Clone, Debug)]
pub struct AccessLog {
    queue: Arc<Queue>,
    format: Format,
    has_parts: bool,
}

impl AccessLog {
    /// Opens the destination and starts the thread that writes to it. `dropped` counts lost lines.
    pub fn start(destination: Destination, format: Format, dropped: IntCounter) -> io::Result<Self> {
        Ok(Self { queue: Queue::start(destination, dropped)?, format, has_parts: false })
    }

    /// Adds the headers that rules read to the lines.
    #[must_use]
    pub fn with_parts(self) -> Self {
        Self { has_parts: true, ..self }
    }

    /// Opens the file again after it was moved away.
    pub fn reopen(&self) {
        self.queue.reopen();
    }

    /// Writes the remaining lines and ends the thread. Waits at most 2 s if nothing can be written.
    pub fn finish(&self) {
        self.queue.finish();
    }

    pub(crate) fn for_worker(&self) -> Rc<WorkerLog> {
        let line = RefCell::new(LineFormatter::new(self.format));
        Rc::new(WorkerLog { queue: self.queue.clone(), line, has_parts: self.has_parts })
    }
}

/// A worker's side of the log.
#[derive(Debug)]
pub(crate) struct WorkerLog {
    queue: Arc<Queue>,
    line: RefCell<LineFormatter>,
    has_parts: bool,
}

impl WorkerLog {
    /// Starts the line of a request that was received just now.
    pub(crate) fn begin(self: &Rc<Self>, record: Record) -> AccessLogEntry {
        AccessLogEntry { log: self.clone(), began: Instant::now(), sent: Cell::new(0), record }
    }
}

/// Logs a request when it is dropped, so requests whose connection broke are logged, too.
#[derive(Debug)]
pub(crate) struct AccessLogEntry {
    log: Rc<WorkerLog>,
    began: Instant,
    sent: Cell<u64>,
    pub(crate) record: Record,
}

impl AccessLogEntry {
    pub(crate) const fn received(&self) -> Instant {
        self.began
    }

    /// Returns true if the line has the headers that rules read.
    pub(crate) fn has_parts(&self) -> bool {
        self.log.has_parts
    }

    /// Counts bytes of the response's body that went to the client.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.set(self.sent.get() + bytes as u64);
    }
}

impl Drop for AccessLogEntry {
    fn drop(&mut self) {
        self.record.duration = self.began.elapsed();
        self.record.sent = self.sent.get();
        // Always free: nothing that formats a line drops an entry.
        if let Ok(mut line) = self.log.line.try_borrow_mut() {
            self.log.queue.push(line.format(&self.record));
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
