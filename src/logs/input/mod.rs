//! Logs as blocks of whole lines: from files, compressed or not, and from standard input.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::compression::Reader;
use self::directory::Found;
use self::open_file::OpenFile;
use self::twins::Twins;
use super::format::{self, Format, GivenFormat, MAX_SAMPLE};
use super::lines::lines;
use super::told::Told;
use super::wrapping::Wrapping;
use crate::engine::algorithms::micros::Micros;

mod compression;
mod directory;
mod open_file;
#[cfg(test)]
mod tests;
mod twins;

/// The bytes of a block, about. A block has at most one line more.
const BLOCK: usize = 256 * 1024;

/// The same of many files, whose blocks wait for each other.
const SMALLEST_BLOCK: usize = 8 * 1024;

/// The bytes at the start of a file from which its format is detected.
const SAMPLE: u64 = 256 * 1024;

/// A file of a log, or standard input.
#[derive(Clone, Debug)]
pub struct LogFile {
    /// `standard input` for that.
    pub name: String,
    pub format: Arc<Format>,
    pub wrapping: Arc<Wrapping>,
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
    /// The instant from which all lines behind this block are, but for the disorder of each file. `None` if it does not matter.
    pub until: Option<Micros>,
    pub format: Arc<Format>,
    bytes: Vec<u8>,
}

impl Block {
    /// The lines without what a collector put around them.
    #[must_use]
    pub fn unwrapped(self, wrapping: &Wrapping) -> Self {
        if wrapping.is_none() { self } else { Self { bytes: wrapping.taken_off(self.bytes), ..self } }
    }

    /// The lines without their ends, with their numbers. Blank lines are left out.
    pub fn lines(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (self.first_line..).zip(lines(&self.bytes)).filter(|(_, line)| !line.trim_ascii().is_empty())
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

impl ReadError {
    fn new(file: &str, reason: impl Into<String>) -> Self {
        Self { file: file.to_owned(), reason: reason.into(), source: None }
    }

    /// The same for a file that was not given by its name.
    fn in_directory(self) -> Self {
        let hint = "if it is not an access log, give the names of the others, or `--log-format combined`, which counts its lines as unreadable";
        Self { reason: format!("{}; {hint}", self.reason), ..self }
    }

    fn io(file: &str, error: io::Error) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::NotFound => "no such file".to_owned(),
            io::ErrorKind::IsADirectory => "expected a file, found a directory".to_owned(),
            _ => format!("cannot be read: {error}"),
        };
        Self { file: file.to_owned(), reason, source: Some(error) }
    }
}

/// The bytes of files that were read so far. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The blocks of several files, merged by time: each is that of the file whose next line is the oldest.
pub struct Blocks {
    files: Vec<LogFile>,
    error_logs: Vec<String>,
    progress: Progress,
    /// By the instant of the next line. A file is opened when its first line is the oldest.
    waiting: BinaryHeap<Reverse<Waiting>>,
    sources: Vec<Option<Source>>,
    size: usize,
    is_one: bool,
}

/// A file, by the instant of its next line and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    next: Micros,
    file: usize,
}

/// A file, or the start of standard input and what follows.
enum Source {
    Path(PathBuf),
    Begun(Vec<u8>, Reader),
    /// It is open, and this is its next block.
    Open(Box<OpenFile>, Option<Block>),
}

impl Blocks {
    /// Opens files and the files of directories, `-` being standard input, and detects the format of each unless it is given.
    pub fn open(paths: &[PathBuf], format: Option<&GivenFormat>) -> Result<Self, ReadError> {
        if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
            return Err(ReadError::new("-", "standard input can be read only once"));
        }
        let has_directory = paths.iter().any(|path| path.is_dir());
        let Found { files: paths, error_logs } = directory::with_their_files(paths)?;
        let progress = Progress::default();
        let mut opened = Vec::with_capacity(paths.len());
        let mut twins = Twins::default();
        for path in &paths {
            twins.add(path)?;
            let opening = inspect(path, format, &progress);
            let (file, source, start) =
                opening.map_err(|error| if has_directory { error.in_directory() } else { error })?;
            twins.add_start(path, &start)?;
            opened.push((file, source));
        }
        Format::infer_units(opened.iter_mut().filter_map(|(file, _)| Arc::get_mut(&mut file.format)));
        let (files, sources): (Vec<LogFile>, Vec<Source>) = opened.into_iter().unzip();
        let sources = sources.into_iter().map(Some).collect();
        // A file without instants is read at once.
        let first = |(file, log): (usize, &LogFile)| Reverse(Waiting { next: log.first.unwrap_or_default(), file });
        let waiting = files.iter().enumerate().map(first).collect();
        let (size, is_one) = ((BLOCK / files.len().max(1)).max(SMALLEST_BLOCK), files.len() == 1);
        Ok(Self { files, error_logs, progress, waiting, sources, size, is_one })
    }

    /// In the order in which they were given.
    pub fn files(&self) -> &[LogFile] {
        &self.files
    }

    /// Files of directories that are not read, because their names are those of error logs.
    pub fn error_logs(&self) -> &[String] {
        &self.error_logs
    }

    /// The fields that are in every file.
    pub fn told(&self) -> Told {
        let all = self.files.iter().map(|file| file.format.told().clone()).reduce(|left, right| left.and(&right));
        all.unwrap_or_default()
    }

    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// The file, and its next block if it was read.
    fn begun(&self, file: usize, source: Source) -> Result<(Box<OpenFile>, Option<Block>), ReadError> {
        let log = &self.files[file];
        let (start, reader) = match source {
            Source::Begun(start, reader) => (start, reader),
            Source::Path(path) => {
                let opened = File::open(path).and_then(|file| compression::decompressed(file, self.progress()));
                (Vec::new(), opened.map_err(|error| ReadError::io(&log.name, error))?)
            }
            Source::Open(open, ahead) => return Ok((open, ahead)),
        };
        Ok((Box::new(OpenFile::new(file, log, self.size, start, reader)), None))
    }

    /// The next block of a file, of which the one after it is read ahead to know where it goes on.
    fn block(&mut self, Waiting { next, file }: Waiting) -> Option<Result<Block, ReadError>> {
        let source = self.sources[file].take()?;
        let (mut open, ahead) = match self.begun(file, source) {
            Ok(begun) => begun,
            Err(error) => return Some(Err(error)),
        };
        let Some(mut block) = ahead.or_else(|| open.block()) else {
            return open.into_error().map(|(error, lines)| Err(interrupted(&self.files[file].name, error, lines)));
        };
        // One file needs no other's time.
        let ahead = if self.is_one { None } else { open.block() };
        let next = ahead.as_ref().and_then(|ahead| open.first_instant(ahead)).unwrap_or(next);
        self.waiting.push(Reverse(Waiting { next, file }));
        block.until = self.waiting.peek().map(|oldest| oldest.0.next).filter(|_| !self.is_one);
        self.sources[file] = Some(Source::Open(open, ahead));
        Some(Ok(block))
    }
}

impl Iterator for Blocks {
    type Item = Result<Block, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Reverse(oldest) = self.waiting.pop()?;
            if let Some(block) = self.block(oldest) {
                return Some(block);
            }
        }
    }
}

/// The error of a file that breaks off after whole lines.
fn interrupted(file: &str, error: io::Error, lines: u64) -> ReadError {
    let reason = match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            "its compressed data is broken or cut off"
        }
        _ => "it cannot be read any further",
    };
    let reason = format!("{reason} after {lines} whole lines, which count ({error})");
    ReadError { file: file.to_owned(), reason, source: Some(error) }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads the start of a file: its format and its first instant.
fn inspect(
    path: &Path,
    format: Option<&GivenFormat>,
    progress: &Progress,
) -> Result<(LogFile, Source, Vec<u8>), ReadError> {
    let name = if is_stdin(path) { "standard input".to_owned() } else { path.display().to_string() };
    let failed = |error| ReadError::io(&name, error);
    let (mut reader, size) = if is_stdin(path) {
        (compression::decompressed(io::stdin(), progress.clone()).map_err(failed)?, None)
    } else {
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        // The start is read again later, and counted then.
        (compression::decompressed(file, Progress::default()).map_err(failed)?, Some(size))
    };
    let mut start = Vec::new();
    // An error is reported with its place, when the lines before it were read.
    let read = reader.by_ref().take(SAMPLE).read_to_end(&mut start);
    let whole = match read {
        Ok(read) if (read as u64) < SAMPLE => start.len(),
        _ => memchr::memrchr(b'\n', &start).unwrap_or(start.len()),
    };
    let (wrapping, format, first) = detect(&name, &start[..whole], format)?;
    let file = LogFile { name, format: Arc::new(format), wrapping: Arc::new(wrapping), first, size };
    let source = if is_stdin(path) { Source::Begun(start.clone(), reader) } else { Source::Path(path.to_owned()) };
    Ok((file, source, start))
}

/// Finds the collectors' layers around a log that begins like this, the format and the first instant.
fn detect(
    name: &str,
    start: &[u8],
    given: Option<&GivenFormat>,
) -> Result<(Wrapping, Format, Option<Micros>), ReadError> {
    let read = |(wrapping, bytes): (Wrapping, Vec<u8>)| {
        let format = format_of(&bytes, given)?;
        let mut parser = format.parser();
        let first = filled(&bytes).find_map(|line| parser.parse(line).ok().flatten().map(|entry| entry.logged));
        let fit = format.fit(filled(&bytes));
        Ok::<_, String>(((fit.with_request, fit.with_client), (wrapping, format, first)))
    };
    let plain = read((Wrapping::default(), start.to_vec()));
    let reason = match plain {
        Ok(((whole, _), plain)) if whole == filled(start).take(MAX_SAMPLE).count() => return Ok(plain),
        Ok(_) => None,
        Err(reason) => Some(reason),
    };
    // Of several that fit best, the one with the fewest layers.
    let found =
        Wrapping::of(start).into_iter().rev().filter_map(|wrapped| read(wrapped).ok()).max_by_key(|(fit, _)| *fit);
    found.map(|(_, found)| found).ok_or_else(|| ReadError::new(name, reason.unwrap_or_default()))
}

fn filled(bytes: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    lines(bytes).filter(|line| !line.trim_ascii().is_empty())
}

/// The format of lines. The error says why it is not known.
fn format_of(bytes: &[u8], given: Option<&GivenFormat>) -> Result<Format, String> {
    match given {
        Some(given) => given.of_log(filled(bytes)).map_err(str::to_owned),
        None if filled(bytes).next().is_none() => Ok(Format::empty()),
        None => Format::detect(filled(bytes)).ok_or_else(|| {
            let names = format::names();
            format!(
                "its format is not known; give `--log-format` one of {names}, or the format as in the server's configuration"
            )
        }),
    }
}
