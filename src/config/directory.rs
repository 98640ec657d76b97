//! Lists the files of directories that are given in place of files.

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
    let wrong = |message: String, help: &str| Problem::of_file(&directory.display().to_string(), message, help);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)
        .and_then(Iterator::collect::<io::Result<Vec<_>>>)
        .map_err(|error| wrong(format!("cannot be read: {error}"), ""))?
    {
        let path = entry.path();
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if !is_hidden && is_yaml && !path.is_dir() {
            files.push(path);
        }
    }
    match files.len() {
        0 => Err(wrong("no `*.yaml` files in this directory".into(), "add some, or name a file instead")),
        count if count > MOST_FILES => Err(wrong(
            format!("{count} files in this directory, at most {MOST_FILES} are supported"),
            "merge some of them",
        )),
        _ => {
            files.sort_unstable();
            Ok(files)
        }
    }
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
