//! The files of directories.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{ReadError, is_stdin};

/// The most files of a log: each may be open while lines of the others are as old as its own.
const MOST_FILES: usize = 1_000;

/// The files that are given, and in place of a directory its files, but for hidden ones.
pub(super) fn with_their_files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ReadError> {
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        if is_stdin(path) || !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let name = path.display().to_string();
        let mut inside = inside(path).map_err(|error| ReadError::io(&name, error))?;
        if inside.is_empty() {
            return Err(ReadError::new(&name, "the directory has no files"));
        }
        inside.sort();
        files.extend(inside);
    }
    if files.len() > MOST_FILES {
        let reason = format!("{} files are more than {MOST_FILES}; give fewer", files.len());
        return Err(ReadError::new("the logs", reason));
    }
    Ok(files)
}

fn inside(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !is_hidden && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    Ok(files)
}
