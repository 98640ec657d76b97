//! The files of directories.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{ReadError, is_stdin};

/// The most files of a log: each may be open while lines of the others are as old as its own.
const MOST_FILES: usize = 1_000;

/// The files to read.
#[derive(Default)]
pub(super) struct Found {
    pub(super) files: Vec<PathBuf>,
    /// Those of directories whose names are those of error logs.
    pub(super) error_logs: Vec<String>,
}

/// The files that are given, and in place of a directory its files, but for hidden ones and error logs.
pub(super) fn with_their_files(paths: &[PathBuf]) -> Result<Found, ReadError> {
    let Found { mut files, mut error_logs } = Found::default();
    for path in paths {
        if is_stdin(path) || !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let name = path.display().to_string();
        let mut inside = inside(path).map_err(|error| ReadError::io(&name, error))?;
        inside.sort();
        let (not_read, mut inside): (Vec<PathBuf>, Vec<PathBuf>) =
            inside.into_iter().partition(|file| is_error_log(file));
        if inside.is_empty() {
            return Err(ReadError::new(&name, "the directory has no access logs"));
        }
        files.append(&mut inside);
        error_logs.extend(not_read.iter().map(|file| file.display().to_string()));
    }
    if files.len() > MOST_FILES {
        let reason = format!("{} files are more than {MOST_FILES}; give fewer", files.len());
        return Err(ReadError::new("the logs", reason));
    }
    Ok(Found { files, error_logs })
}

/// Such as `error.log.1.gz`, which servers write beside access logs.
fn is_error_log(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    name.contains("error.log") || name.contains("error_log")
}

/// The files of a directory that are not hidden.
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
