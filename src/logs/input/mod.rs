//! Logs as blocks of whole lines: from files, compressed or not, and from standard input.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::algorithms::micros::Micros;

use super::format::Format;
use super::told::Told;

/// A file of a log, or standard input.
#[derive(Clone, Debug)]
pub struct LogFile {
    /// `standard input` for that.
    pub name: String,
    pub format: Arc<Format>,
    /// The instant of the first line that tells one.
    pub first: Option<Micros>,
    /// In bytes, as stored. `None` for a pipe.
    pub size: Option<u64>,
}

/// Some whole lines of a file.
#[derive(Debug)]
pub struct Block {
    /// The place of the file in [`Blocks::files`].
    pub file: usize,
    /// The number of the first line in its file, from 1.
    pub first_line: u64,
    bytes: Vec<u8>,
}

impl Block {
    /// The lines without their ends, with their numbers. Blank lines are left out.
    pub fn lines(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let lines = self.bytes.strip_suffix(b"\n").unwrap_or(&self.bytes).split(|byte| *byte == b'\n');
        (self.first_line..).zip(lines).filter(|(_, line)| !line.is_empty())
    }
}

/// The reason why a log can't be read, or no further.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct ReadError {
    pub file: String,
    pub reason: String,
    #[source]
    pub source: Option<io::Error>,
}

/// The bytes of files that were read so far. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The blocks of several files, one file after the other. After an error the next block is that of the next file.
#[derive(Debug)]
pub struct Blocks {
    files: Vec<LogFile>,
    is_reordered: bool,
    progress: Progress,
}

impl Blocks {
    /// Opens files, `-` being standard input, and detects the format of each unless it is given. If all files begin with an
    /// instant, the oldest is read first.
    pub fn open(_files: &[PathBuf], _format: Option<Format>) -> Result<Self, ReadError> {
        Ok(Self { files: Vec::new(), is_reordered: false, progress: Progress::default() })
    }

    /// In the order in which they are read.
    pub fn files(&self) -> &[LogFile] {
        &self.files
    }

    /// The order is not the one that was given.
    pub fn is_reordered(&self) -> bool {
        self.is_reordered
    }

    /// What all files tell.
    pub fn told(&self) -> Told {
        let all = self.files.iter().map(|file| file.format.told().clone()).reduce(|left, right| left.and(&right));
        all.unwrap_or_default()
    }

    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl Iterator for Blocks {
    type Item = Result<Block, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        None
    }
}
