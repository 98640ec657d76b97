//! Lists the files of directories that are given in place of files.

use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

use super::problem::Problem;

/// The most files of a directory. Each is checked for changes every two seconds.
const MOST_FILES: usize = 1_000;

/// Replaces each directory with its `*.yaml` and `*.yml` files, sorted by name. Names that start with a dot are skipped: a
/// Kubernetes volume keeps its versions in such directories.
pub(crate) fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Problem> {
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        if path.is_dir() {
            files.extend(in_directory(path)?.into_iter().filter(|path| path.is_file()));
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

/// Lists such files, and what is no file in their place.
pub(super) fn in_directory(directory: &Path) -> Result<Vec<PathBuf>, Problem> {
    let listed = entries(directory).map_err(|error| wrong(directory, format!("cannot be read: {error}"), ""))?;
    let files: Vec<_> = listed.into_iter().filter(|path| is_yaml(path) && !path.is_dir()).collect();
    if files.is_empty() {
        let help = "add some, or name a file instead";
        return Err(wrong(directory, "no `*.yaml` files in this directory".into(), help));
    }
    sorted(directory, files)
}

/// Sorts the files of a directory, unless they are too many.
pub(super) fn sorted(directory: &Path, mut files: Vec<PathBuf>) -> Result<Vec<PathBuf>, Problem> {
    if files.len() > MOST_FILES {
        let message = format!("{} files in this directory, at most {MOST_FILES} are supported", files.len());
        return Err(wrong(directory, message, "merge some of them"));
    }
    files.sort_unstable();
    Ok(files)
}

/// Lists what is in a directory, but for names that start with a dot.
pub(super) fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    let is_hidden = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
    Ok(entries.iter().filter(|entry| !is_hidden(entry)).map(DirEntry::path).collect())
}

pub(super) fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

fn wrong(directory: &Path, message: String, help: &str) -> Problem {
    Problem::of_file(&directory.display().to_string(), message, help)
}

/// Returns a file's name without its ending.
pub(super) fn named_after(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_stands_for_its_files_in_the_order_of_their_names() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let named = |name: &str| root.join(name);
        assert!(expand(&[root.to_owned()]).unwrap_err().message.contains("no `*.yaml` files"));
        for name in ["b.yaml", "a.yml", "notes.txt", ".hidden.yaml"] {
            std::fs::write(named(name), "").unwrap();
        }
        std::fs::create_dir(named("..data.yaml")).unwrap();
        std::fs::create_dir(named("sub.yaml")).unwrap();
        let expanded = expand(&[named("x.yaml"), root.to_owned()]).unwrap();
        assert_eq!(expanded, [named("x.yaml"), named("a.yml"), named("b.yaml")]);
    }
}
