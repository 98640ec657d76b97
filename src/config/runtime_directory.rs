//! The directory of envoyproxy/ratelimit's files, in the place of that service.

use std::path::{Path, PathBuf};

use super::directory::{entries, is_yaml, sorted};
use super::problem::{Problem, quoted};

/// The most files that a problem names.
const MOST_NAMED: usize = 5;

/// The directory of `RUNTIME_ROOT`. It cannot be read while that service reads more there than Weir does: those limits would be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDirectory {
    pub path: PathBuf,
    /// `RUNTIME_WATCH_ROOT`: that service also reads what lies beside the directory and is named as it, with a dot and more.
    pub has_more_beside: bool,
}

impl RuntimeDirectory {
    /// Lists the files, which may be none, as there.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>, Problem> {
        let wrong = |message: String, help: &str| Problem::of_file(&self.path.display().to_string(), message, help);
        let missing = |error| {
            let help = "it is RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY, the last of which is `config` unless set";
            wrong(format!("RUNTIME_ROOT: this directory cannot be read: {error}"), help)
        };
        let (mut files, mut unread): (Vec<_>, Vec<_>) =
            entries(&self.path).map_err(missing)?.into_iter().partition(|path| is_yaml(path) && !path.is_dir());
        // As in other directories, not a link whose file has just gone.
        files.retain(|path| path.is_file());
        unread.extend(self.beside());
        unread.retain(|path| !path.is_dir() || entries(path).is_ok_and(|entries| !entries.is_empty()));
        if unread.is_empty() {
            return sorted(&self.path, files);
        }
        unread.sort_unstable();
        let shown: Vec<_> = unread.iter().take(MOST_NAMED).map(|path| quoted(&path.to_string_lossy())).collect();
        let more = if unread.len() > MOST_NAMED { " and more" } else { "" };
        let help =
            "envoyproxy/ratelimit reads it; move it into this directory, under a name that ends in `.yaml` or `.yml`";
        Err(wrong(format!("RUNTIME_ROOT: {}{more} would not be read", shown.join(", ")), help))
    }

    fn beside(&self) -> Vec<PathBuf> {
        let (Some(parent), Some(name), true) = (self.path.parent(), self.path.file_name(), self.has_more_beside) else {
            return Vec::new();
        };
        let start = format!("{}.", name.to_string_lossy());
        let is_named_so = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start));
        entries(parent).unwrap_or_default().into_iter().filter(|path| is_named_so(path)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[track_caller]
    fn check(root: &Path, has_more_beside: bool, expected: &[&str]) {
        let path = root.join("config");
        let read = RuntimeDirectory { path: path.clone(), has_more_beside }.files().map_err(|problem| problem.message);
        let unread: Vec<_> = expected.iter().map(|name| quoted(&root.join(name).to_string_lossy())).collect();
        match read {
            Ok(files) => assert_eq!((files, expected.len()), (vec![path.join("a.yaml"), path.join("b.yml")], 0)),
            Err(message) => {
                assert_eq!(message, format!("RUNTIME_ROOT: {} would not be read", unread.join(", ")));
            }
        }
    }

    #[test]
    fn files_that_only_envoyproxy_ratelimit_reads_are_a_problem() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for folder in ["config/empty", "config/team", "config/..2026", "config.empty", "config.d"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for name in
            ["config/a.yaml", "config/b.yml", "config/.hidden", "config/..2026/c", "configuration.yaml", "other"]
        {
            fs::write(root.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("gone", root.join("config/gone.yaml")).unwrap();
        check(root, true, &[]);
        for name in ["config.yaml", "config.d/e.yaml"] {
            fs::write(root.join(name), "").unwrap();
        }
        check(root, false, &[]);
        check(root, true, &["config.d", "config.yaml"]);
        for name in ["config/web", "config/team/c.yaml"] {
            fs::write(root.join(name), "").unwrap();
        }
        check(root, false, &["config/team", "config/web"]);
    }

    #[test]
    fn an_empty_directory_has_no_limits_and_a_missing_one_names_the_setting() {
        let root = tempfile::tempdir().unwrap();
        let runtime = |path| RuntimeDirectory { path, has_more_beside: true };
        assert_eq!(runtime(root.path().to_owned()).files(), Ok(Vec::new()));
        let problem = runtime(root.path().join("config")).files().unwrap_err();
        assert!(problem.message.starts_with("RUNTIME_ROOT: this directory cannot be read: No such"), "{problem:?}");
    }
}
