//! Files whose requests would count twice.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{ReadError, is_stdin};

/// Logs that begin with the same bytes up to here are the same log, if their names say so, too.
const COMPARED: usize = 4 * 1024;

const COMPRESSED: [&str; 4] = ["gz", "zst", "bz2", "xz"];

/// The files so far.
#[derive(Default)]
pub(super) struct Twins {
    /// By device and inode, which hard links and symbolic links share.
    inodes: HashMap<(u64, u64), PathBuf>,
    /// By name without the ending of compressed files, and by a hash of the start.
    starts: HashMap<(PathBuf, u64), PathBuf>,
}

impl Twins {
    /// Adds a file by its place on the disk. One that does not exist fails later, with its reason.
    pub(super) fn add(&mut self, path: &Path) -> Result<(), ReadError> {
        let Ok(file) = path.metadata() else { return Ok(()) };
        if !file.is_file() || is_stdin(path) {
            return Ok(());
        }
        match self.inodes.insert((file.dev(), file.ino()), path.to_owned()) {
            Some(other) => Err(twice(path, "is the same file as", &other)),
            None => Ok(()),
        }
    }

    /// Adds the same file by its first bytes.
    pub(super) fn add_start(&mut self, path: &Path, start: &[u8]) -> Result<(), ReadError> {
        if start.is_empty() || is_stdin(path) {
            return Ok(());
        }
        let is_compressed = path.extension().is_some_and(|ending| COMPRESSED.iter().any(|known| ending == *known));
        let name = if is_compressed { path.with_extension("") } else { path.to_owned() };
        let mut hasher = DefaultHasher::new();
        start[..start.len().min(COMPARED)].hash(&mut hasher);
        match self.starts.insert((name, hasher.finish()), path.to_owned()) {
            Some(other) => Err(twice(path, "begins with the same lines as", &other)),
            None => Ok(()),
        }
    }
}

fn twice(path: &Path, is: &str, other: &Path) -> ReadError {
    let reason = format!("it {is} {}, so its requests would count twice", other.display());
    ReadError::new(&path.display().to_string(), reason)
}
