//! A file as blocks of whole lines.

use std::io::{self, Read as _};
use std::sync::Arc;

use super::compression::Reader;
use super::{Block, LogFile};
use crate::engine::algorithms::micros::Micros;
use crate::logs::format::{Format, MAX_LINE};
use crate::logs::lines::lines;
use crate::logs::wrapping::Wrapping;

/// The lines of a block that are searched for an instant.
const MOST_WITHOUT_INSTANT: usize = 16;

/// A file that is being read.
pub(super) struct OpenFile {
    file: usize,
    reader: Reader,
    format: Arc<Format>,
    wrapping: Arc<Wrapping>,
    /// The start of a line whose end was not read yet.
    partial: Vec<u8>,
    /// Whole lines that were read and have another format.
    other: Vec<u8>,
    size: usize,
    next_line: u64,
    /// The rest of a line that was too long is left out.
    is_skipping: bool,
    error: Option<io::Error>,
    has_ended: bool,
}

impl OpenFile {
    /// Begins with bytes that were read already.
    pub(super) fn new(file: usize, log: &LogFile, size: usize, start: Vec<u8>, reader: Reader) -> Self {
        Self {
            file,
            reader,
            format: log.format.clone(),
            wrapping: log.wrapping.clone(),
            partial: start,
            other: Vec::new(),
            size,
            next_line: 1,
            is_skipping: false,
            error: None,
            has_ended: false,
        }
    }

    /// The reason why the file ends before its end, and the number of lines before that.
    pub(super) fn into_error(self) -> Option<(io::Error, u64)> {
        self.error.map(|error| (error, self.next_line - 1))
    }

    /// The next lines; `None` at the end of the file, and at an error.
    pub(super) fn block(&mut self) -> Option<Block> {
        let mut bytes = std::mem::take(&mut self.other);
        if bytes.is_empty() {
            bytes = self.whole_lines()?;
        }
        self.end_with_format(&mut bytes);
        if bytes.is_empty() {
            return None;
        }
        let first_line = self.next_line;
        let ends = memchr::memchr_iter(b'\n', &bytes).count() + usize::from(bytes.last() != Some(&b'\n'));
        self.next_line += ends as u64;
        Some(Block { file: self.file, first_line, until: None, format: self.format.clone(), bytes })
    }

    /// Reads the next lines, of which there is at least one.
    fn whole_lines(&mut self) -> Option<Vec<u8>> {
        while !self.has_ended {
            let mut bytes = std::mem::take(&mut self.partial);
            bytes.reserve(self.size);
            match self.reader.by_ref().take(self.size as u64).read_to_end(&mut bytes) {
                Ok(0) => self.has_ended = true,
                Ok(_) => {}
                Err(error) => (self.error, self.has_ended) = (Some(error), true),
            }
            if self.is_skipping {
                let rest = memchr::memchr(b'\n', &bytes).map_or(bytes.len(), |end| end + 1);
                self.is_skipping = rest == bytes.len() && bytes.last() != Some(&b'\n');
                bytes.drain(..rest);
            }
            match memchr::memrchr(b'\n', &bytes) {
                // The line at which a broken file breaks off is not whole.
                _ if self.has_ended && self.error.is_none() => {}
                Some(end) => self.partial = bytes.split_off(whole(&bytes[..=end], &self.wrapping)),
                None if bytes.len() > MAX_LINE => {
                    // Its parser says that it is too long.
                    bytes.truncate(MAX_LINE + 1);
                    self.is_skipping = true;
                }
                None => {
                    self.partial = bytes;
                    continue;
                }
            }
            if !bytes.is_empty() {
                return Some(bytes);
            }
        }
        None
    }

    /// Keeps the lines for later behind one that says that they have another format.
    fn end_with_format(&mut self, bytes: &mut Vec<u8>) {
        let Some(mark) = self.format.mark() else { return };
        let mut from = 0;
        while let Some(place) = memchr::memmem::find(&bytes[from..], mark).map(|place| from + place) {
            let start = memchr::memrchr(b'\n', &bytes[..place]).map_or(0, |end| end + 1);
            from = memchr::memchr(b'\n', &bytes[place..]).map_or(bytes.len(), |end| place + end + 1);
            let line = lines(&self.wrapping.taken_off(bytes[start..from].to_vec())).next().map(<[u8]>::to_vec);
            match line.and_then(|line| self.format.behind(line.trim_ascii_end())) {
                None => {}
                Some(Ok(format)) if start == 0 => self.format = Arc::new(format),
                Some(Ok(_)) => {
                    self.other = bytes.split_off(start);
                    return;
                }
                Some(Err(reason)) => {
                    bytes.truncate(start);
                    let error = io::Error::new(io::ErrorKind::Unsupported, reason);
                    (self.error, self.has_ended) = (Some(error), true);
                    return;
                }
            }
        }
    }

    /// The instant at which the first readable line of a block was written.
    pub(super) fn first_instant(&self, block: &Block) -> Option<Micros> {
        let mut parser = block.format.parser();
        let start = lines(&block.bytes).take(MOST_WITHOUT_INSTANT).map(<[u8]>::to_vec);
        let start: Vec<u8> = start.collect::<Vec<_>>().join(&b'\n');
        let unwrapped = if self.wrapping.is_none() { start } else { self.wrapping.taken_off(start) };
        let entry = lines(&unwrapped).find_map(|line| parser.parse(line).ok().flatten());
        entry.map(|entry| entry.logged)
    }
}

/// The length of these lines without a line at their end whose rest comes later, unless it is too long or all of them.
fn whole(lines: &[u8], wrapping: &Wrapping) -> usize {
    let mut length = lines.len();
    while !wrapping.is_none() && lines.len() - length < MAX_LINE {
        let start = memchr::memrchr(b'\n', &lines[..length.saturating_sub(1)]).map_or(0, |end| end + 1);
        if start == 0 || !wrapping.goes_on(lines[start..length].trim_ascii_end()) {
            return length;
        }
        length = start;
    }
    lines.len()
}
