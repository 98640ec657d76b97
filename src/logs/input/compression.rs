//! Compressed files, known by their first bytes.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::Progress;

/// The bytes that are read from a file at once.
const READ: usize = 128 * 1024;

/// The largest window of zstd, which is the memory that a file may ask for: that of `zstd --long`.
const MAX_WINDOW: u64 = 128 * 1024 * 1024;

/// The largest dictionary of xz with what the decoder needs beside, in KiB: the largest of `xz -9` has 64 MiB.
const XZ_MEMORY: u32 = 128 * 1024;

const GZIP: [u8; 2] = [0x1F, 0x8B];
const BZIP2: [u8; 3] = *b"BZh";
const XZ: [u8; 4] = [0xFD, b'7', b'z', b'X'];
const ZSTD: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// The second to fourth byte of a skippable frame, with which parallel compressors begin. The first is 0x50 to 0x5F.
const SKIPPABLE: [u8; 3] = [0x2A, 0x4D, 0x18];

pub(super) type Reader = Box<dyn Read + Send>;

/// Returns the bytes of a file or a pipe, decompressed.
pub(super) fn decompressed(source: impl Read + Send + 'static, progress: Progress) -> io::Result<Reader> {
    let mut source = Counted { source, progress };
    let mut magic = Vec::with_capacity(4);
    source.by_ref().take(4).read_to_end(&mut magic)?;
    let is_gzip = magic.starts_with(&GZIP);
    let is_bzip2 = magic.starts_with(&BZIP2);
    let is_xz = magic == XZ;
    let is_zstd = magic == ZSTD || magic.get(1..) == Some(&SKIPPABLE);
    let source = Cursor::new(magic).chain(source);
    let buffered = |source| BufReader::with_capacity(READ, source);
    Ok(if is_gzip {
        without_zeros(MultiGzDecoder::new(buffered(source)))
    } else if is_bzip2 {
        without_zeros(MultiBzDecoder::new(buffered(source)))
    } else if is_xz {
        without_zeros(XzReader::new_mem_limit(buffered(source), true, XZ_MEMORY))
    } else if is_zstd {
        without_zeros(Zstd::new(buffered(source)))
    } else {
        without_zeros(source)
    })
}

fn without_zeros(source: impl Read + Send + 'static) -> Reader {
    Box::new(WithoutZeros { source, has_begun: false })
}

/// A log without the NULs at its start: it was cut to 0 bytes while its writer went on at the old place.
struct WithoutZeros<R> {
    source: R,
    has_begun: bool,
}

impl<R: Read> Read for WithoutZeros<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.source.read(buffer)?;
            if self.has_begun || read == 0 {
                return Ok(read);
            }
            if let Some(first) = buffer[..read].iter().position(|byte| *byte != 0) {
                self.has_begun = true;
                buffer.copy_within(first..read, 0);
                return Ok(read - first);
            }
        }
    }
}

/// Counts the bytes that are read.
struct Counted<R> {
    source: R,
    progress: Progress,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.progress.add(read);
        Ok(read)
    }
}

/// Decompresses all frames of a file. Of a frame that breaks off, the last bytes up to its window are lost: the decoder
/// keeps them until the frame has ended.
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
    is_within_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        Self { source, decoder, is_within_frame: false }
    }

    /// Begins the next frame. Returns false at the end of the file.
    fn begin_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(broken(&error)),
            }
        }
    }
}

fn broken(error: &FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !buffer.is_empty() && self.decoder.can_collect() == 0 {
            if self.is_within_frame && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(|error| broken(&error))?;
            } else {
                self.is_within_frame = self.begin_frame()?;
                if !self.is_within_frame {
                    return Ok(0);
                }
            }
        }
        self.decoder.read(buffer)
    }
}
