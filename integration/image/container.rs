//! What the image holds, and containers of it without an engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use super::dockerfile::Dockerfile;
use crate::support::programs::repository;

/// Does as a container's runtime does, in a mount namespace of its own: the root is mounted read-only, and the process
/// becomes the image's user, without another group and without a way to gain what it has not. `$become` is how.
const START: &str = r#"
root=$1 directory=$2 become=$3
shift 3
mount --bind "$root" "$root"
mount -o remount,bind,ro,nosuid,nodev "$root"
exec setpriv --no-new-privs unshare $become --root "$root" --wd "$directory" -- "$@"
"#;

/// The image's files, in a directory of their own.
pub(super) struct Container {
    directory: TempDir,
    dockerfile: Dockerfile,
}

impl Container {
    /// Lays the files out by the step with which the Dockerfile builds them.
    #[track_caller]
    pub(super) fn build() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        let mut step = Command::new(repository().join("integration/image/build.sh"));
        let output = step.arg("dev").arg(&root).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { directory, dockerfile: Dockerfile::read() }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// All files, by their paths in the image.
    pub(super) fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        let mut directories = vec![self.root()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    directories.push(entry);
                } else {
                    files.push(entry.strip_prefix(self.root()).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        files.sort();
        files
    }

    /// Puts a file there, as a mount does.
    pub(super) fn mount(&self, path: &str, content: impl AsRef<[u8]>) {
        let file = self.root().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    /// The entry point with these words in place of the image's own, in the network of this machine.
    pub(super) fn start(&self, words: &[&str]) -> Command {
        self.command(&[], "ENTRYPOINT", words)
    }

    /// The entry point with these words, in a network of its own, which nobody reaches and where every port is free.
    pub(super) fn start_alone(&self, words: &[&str]) -> Command {
        self.command(&["--net"], "ENTRYPOINT", words)
    }

    /// The image's own health check, asking at this address.
    pub(super) fn check_health(&self, admin: &str) -> Output {
        self.command(&[], "HEALTHCHECK", &[]).env("WEIR_ADMIN", admin).output().unwrap()
    }

    /// The image's own health check in a network of its own, where nobody answers.
    pub(super) fn check_health_alone(&self) -> Output {
        self.command(&["--net"], "HEALTHCHECK", &[]).output().unwrap()
    }

    /// What an instruction of the image says, and more words, in the environment that the image gives it and no other.
    fn command(&self, network: &[&str], instruction: &str, words: &[&str]) -> Command {
        let is_root = rustix::process::geteuid().is_root();
        let (user, group) = self.dockerfile.last("USER").words[0].split_once(':').unwrap();
        let (namespaces, become_user): (&[&str], _) = if is_root {
            (&["--mount"], format!("--setgid {group} --setuid {user}"))
        } else {
            // Who is nobody in particular can be root of a namespace, and in that again nobody in particular.
            (&["--mount", "--user", "--map-root-user"], format!("--user --map-user={user} --map-group={group}"))
        };
        let mut command = Command::new("unshare");
        command.args(namespaces).args(network).args(["sh", "-euc", START, "sh"]);
        command.arg(self.root()).arg(&self.dockerfile.last("WORKDIR").words[0]);
        command.arg(become_user).args(self.dockerfile.command(instruction)).args(words);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(self.dockerfile.pairs("ENV"));
        command
    }
}

/// The files of the repository that the compiler has read for the program; to be called after a build.
pub(super) fn files_read() -> Vec<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let list = repository().join(target).join("image/debug/weir.d");
    let list = fs::read_to_string(&list).unwrap_or_else(|error| panic!("{}: {error}", list.display()));
    let (_, files) = list.split_once(": ").unwrap();
    let inside = |file: &str| Path::new(file).strip_prefix(repository()).map(Path::to_owned);
    files.split_whitespace().map(|file| inside(file).unwrap()).collect()
}
