//! A copy of the repository that a test may change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::process::succeed;
use super::programs::repository;

/// The files of the repository that are not ignored, by their paths in it.
pub(crate) fn files() -> Vec<String> {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let listed = succeed(Command::new("git").args(list).current_dir(repository()));
    // Git also lists a file that has been removed and not yet committed.
    listed.lines().filter(|path| repository().join(path).is_file()).map(str::to_owned).collect()
}

pub(crate) struct Checkout(TempDir);

impl Checkout {
    /// A copy without Git's own files.
    fn copy() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for path in files() {
            let copy = directory.path().join(&path);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(repository().join(path), copy).unwrap();
        }
        Self(directory)
    }

    /// A copy whose Cargo.toml names no repository but the one in these lines.
    pub(crate) fn of(lines: &str) -> Self {
        let checkout = Self::copy();
        checkout.name(lines);
        checkout
    }

    /// Puts these lines into `[package]` of Cargo.toml, in place of those that name a repository and a site.
    pub(crate) fn name(&self, lines: &str) {
        let is_name = |line: &str| line.starts_with("repository = ") || line.starts_with("homepage = ");
        let manifest = self.read("Cargo.toml");
        let kept: String = manifest.split_inclusive('\n').filter(|line| !is_name(line)).collect();
        self.write("Cargo.toml", &kept.replacen("\nlicense = ", &format!("\n{lines}license = "), 1));
    }

    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(path)
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap();
    }

    /// A script of the copy, in its root.
    pub(crate) fn script(&self, path: &str) -> Command {
        let mut command = Command::new(self.path(path));
        command.current_dir(self.0.path()).env_remove("GITHUB_REPOSITORY");
        command
    }
}
