//! The image's files, built by the Dockerfile's own step, and the static binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::dockerfile::Dockerfile;
use crate::support::eventually;
use crate::support::process::{finish, succeed};
use crate::support::programs::repository;
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;

/// The image's root on this machine.
pub(super) struct Image(TempDir);

impl Image {
    #[track_caller]
    pub(super) fn build() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut step = Command::new(repository().join("integration/image/build.sh"));
        succeed(step.arg("dev").arg(directory.path()));
        Self(directory)
    }

    /// All files, by their paths in the image.
    fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        let mut directories = vec![self.0.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    directories.push(entry);
                } else {
                    files.push(entry.strip_prefix(self.0.path()).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        files.sort();
        files
    }

    /// A path of the image on this machine.
    fn here(&self, path: &str) -> PathBuf {
        self.0.path().join(path.strip_prefix('/').unwrap())
    }

    /// An instruction's command with these arguments, in the image's working directory and environment.
    fn command(&self, instruction: &str, arguments: &[&str]) -> Command {
        let dockerfile = Dockerfile::read();
        let (program, own) = dockerfile.command(instruction).split_first().unwrap();
        let mut command = Command::new(self.here(program));
        command.args(own).args(arguments).current_dir(self.here(&dockerfile.last("WORKDIR").words[0])).env_clear();
        command.envs(dockerfile.pairs("ENV").into_iter().map(|(name, path)| (name, self.here(path))));
        command
    }
}

/// The repository's files that the compiler read for the last build.
pub(super) fn files_read() -> Vec<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let list = repository().join(target).join("image/debug/weir.d");
    let list = fs::read_to_string(&list).unwrap_or_else(|error| panic!("{}: {error}", list.display()));
    let (_, files) = list.split_once(": ").unwrap();
    let inside = |file: &str| Path::new(file).strip_prefix(repository()).map(Path::to_owned);
    files.split_whitespace().map(|file| inside(file).unwrap()).collect()
}

#[test]
fn it_holds_one_program_and_its_settings() {
    let files = [
        "bin/ratelimit",
        "etc/weir/limits.yaml",
        "usr/bin/weir",
        "usr/share/doc/weir/LICENSE",
        "usr/share/doc/weir/THIRD-PARTY-LICENSES.txt",
        "usr/share/weir/weir.yaml",
    ];
    assert_eq!(Image::build().files(), files);
}

/// A package without a text of its license is acceptable only if the text is that of Weir's own.
#[test]
fn it_has_the_licenses_of_everything_that_is_linked() {
    let licenses = fs::read_to_string(Image::build().here("/usr/share/doc/weir/THIRD-PARTY-LICENSES.txt")).unwrap();
    let (list, rest) = licenses.split_once("\n\nThese packages contain no text of their license").unwrap();
    let libraries: Vec<_> = list.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(": ")).collect();
    let names: Vec<_> = libraries.iter().map(|(name, _)| name.split(' ').next().unwrap()).collect();
    for linked in ["hyper", "libmimalloc-sys", "aws-lc-sys", "opentelemetry"] {
        assert!(names.contains(&linked), "{linked} is missing in {names:?}");
    }
    for other in ["weir", "criterion", "proptest", "cc"] {
        assert!(!names.contains(&other), "{other} is not linked");
    }
    let (without, texts) = rest.split_once("\n====").unwrap();
    for line in without.lines().filter(|line| line.starts_with("  ")) {
        assert!(line.contains(": Apache-2.0, by "), "no license text: {line}");
    }
    for part in ["GNU LESSER GENERAL PUBLIC LICENSE", "Apache License", "Microsoft Corporation", "Andrew Gallant"] {
        assert!(texts.contains(part), "{part} is missing");
    }
}

/// The static binary resolves names.
#[test]
fn its_command_serves_the_sample_rules_and_its_health_check_finds_it() {
    let (image, application) = (Image::build(), Upstream::saying("hello"));
    let upstream = format!("http://localhost:{}", application.address.port());
    let weir = Weir::launch("", |directory| {
        let mut command = image.command("ENTRYPOINT", &Weir::arguments(&["--upstream", &upstream]));
        // `launch` runs it in a directory with other rules.
        fs::copy(image.here("/etc/weir/limits.yaml"), directory.join("limits.yaml")).unwrap();
        command.env("WEIR_LOG", "info");
        command
    });
    let answer = weir.get("/", &[]);
    assert_eq!((answer.status(), answer.text()), (200, "hello"));
    assert!(answer.header("ratelimit").is_some_and(|left| left.starts_with("\"RequestsPerIPAddress\"")), "{answer:?}");
    let check = |admin: &str| finish(image.command("HEALTHCHECK", &[]).env("WEIR_ADMIN", admin));
    let admin = format!("0.0.0.0:{}", weir.admin.port());
    eventually("it is ready", || Some(check(&admin)).filter(|health| health.out == "ready\n").ok_or(()));
    drop(weir);
    assert_eq!(check(&admin).code, Some(1));
}

#[test]
fn it_has_the_program_of_envoyproxy_ratelimit() {
    let image = Image::build();
    assert_eq!(fs::read_link(image.here("/bin/ratelimit")).unwrap(), Path::new("../usr/bin/weir"));
    let told =
        finish(Command::new(image.here("/bin/ratelimit")).arg("--dry-run").env_clear().env("BACKEND_TYPE", "memcache"));
    assert!(told.code == Some(2) && told.err.starts_with("error: BACKEND_TYPE: "), "{told:?}");
}

/// Loopback would not be reachable from outside the container.
#[test]
fn it_listens_on_all_addresses_by_default() {
    let image = Image::build();
    let missing = finish(&mut image.command("ENTRYPOINT", &["serve"]));
    assert!(missing.code == Some(2) && missing.err.contains("--upstream is missing"), "{missing:?}");
    let settings = fs::read_to_string(image.here(Dockerfile::read().pairs("ENV")["WEIR_CONFIG"])).unwrap();
    let settings: Vec<_> = settings.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(settings, ["proxy: 0.0.0.0:8080", "admin: 0.0.0.0:9090"]);
}
